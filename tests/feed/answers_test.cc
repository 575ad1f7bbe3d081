// Micro-batches of judged answers and of answers with scores.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "octet/data/encoded.h"
#include "octet/feed/feed.h"
#include "octet/feed/loader.h"

namespace octet::feed::answers_test {
namespace {

using Ints = std::vector<std::int32_t>;

/// Four documents of 3, 4, 5 and 6 tokens. Questions have two tokens.
data::Encoded answers() {
  data::Encoded set;
  for (std::int32_t d = 0; d < 4; ++d) {
    Ints ids, labels;
    for (std::int32_t t = 0; t < 3 + d; ++t) {
      ids.push_back(10 * d + t);
      labels.push_back(t < 2 ? -100 : 10 * d + t);
    }
    labels.front() = d % 2 == 0 ? data::kDesirable : data::kUndesirable;
    set.append(ids, labels, d);
  }
  return set;
}

TEST(Answers, WithScoresHaveTheirLastTokenAsTheOnlyLabelRow) {
  const data::Encoded set = answers();
  data::Items items = data::one_each_pair(set);
  items.scored = true;
  const std::vector<std::int64_t> which{0, 1};
  const runtime::HostBatch batch = make_batch(set, items, which);
  EXPECT_EQ(batch.pairs, 2);
  EXPECT_EQ(batch.cu_seqlens, (Ints{0, 3, 7, 12, 18}));
  EXPECT_EQ(batch.label_rows, (Ints{2, 6, 11, 17}));
  EXPECT_EQ(batch.targets.size(), 4u);
  EXPECT_EQ(batch.terms(), 2);
}

TEST(Answers, ThatAreJudgedBringTheirMismatchedAnswers) {
  data::Encoded set = answers();
  data::Items items = data::one_each(set);
  items.judged = true;
  set.references = {-1, -2, -3, -4};
  set.mismatched = std::make_shared<data::Encoded>(data::mismatched(set, {.cutoff_len = 100}));
  set.mismatched->references = {-5, -6, -7, -8};
  const std::vector<std::int64_t> which{1, -1, 3};
  const runtime::HostBatch batch = make_batch(set, items, which);
  EXPECT_EQ(batch.judged, 2);
  EXPECT_EQ(batch.desirable, (Ints{0, 0}));
  EXPECT_EQ(batch.references, (std::vector<double>{-2, -4}));
  EXPECT_EQ(batch.terms(), 2);
  ASSERT_TRUE(batch.mismatched);
  EXPECT_EQ(batch.mismatched->ids, (Ints{10, 11, 2, 30, 31, 22, 23, 24}));
  EXPECT_EQ(batch.mismatched->judged, 2);
  EXPECT_EQ(batch.mismatched->references, (std::vector<double>{-6, -8}));
  EXPECT_EQ(most_tokens(set, items), 6);
  // The first question has the answer of the last document.
  EXPECT_EQ(set.mismatched->length(0), 6);
}

}  // namespace
}  // namespace octet::feed::answers_test
