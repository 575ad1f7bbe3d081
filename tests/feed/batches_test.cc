// Micro-batches as ranks get them, by themselves.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "octet/feed/loader.h"

namespace octet::feed::batches_test {
namespace {

// Items of one, three and two documents, of which the second and third share their context or do not.
TEST(Batches, HoldDocumentsWithTheirRowsPositionsAndTargets) {
  data::Encoded set;
  const auto add = [&set](std::vector<std::int32_t> ids, std::vector<std::int32_t> labels, std::int64_t row) {
    set.append(ids, labels, row);
  };
  add({10, 11}, {-100, 11}, 5);
  add({20, 21, 22}, {20, -100, 22}, 6);
  add({30}, {30}, 7);
  add({40, 41}, {-100, 41}, 8);
  data::Items items;
  for (const std::int64_t d : {1, 2, 0, 3}) items.documents.push_back(d);
  for (const std::int64_t end : {3, 4}) items.begins.push_back(end);
  const runtime::HostBatch apart = make_batch(set, items, std::vector<std::int64_t>{0, -1, 1});
  EXPECT_EQ(apart.ids, (std::vector<std::int32_t>{20, 21, 22, 30, 10, 11, 40, 41}));
  EXPECT_EQ(apart.cu_seqlens, (std::vector<std::int32_t>{0, 3, 4, 6, 8}));
  EXPECT_EQ(apart.positions, (std::vector<std::int32_t>{0, 1, 2, 0, 0, 1, 0, 1}));
  EXPECT_EQ(apart.label_rows, (std::vector<std::int32_t>{1, 4, 6}));
  EXPECT_EQ(apart.targets, (std::vector<std::int32_t>{22, 11, 41}));
  EXPECT_EQ(apart.rows, (std::vector<std::int64_t>{6, 7, 5, 8}));
  EXPECT_EQ(apart.items, 2);
  EXPECT_EQ(apart.max_length, 3);
  items.shared_context = true;
  const runtime::HostBatch shared = make_batch(set, items, std::vector<std::int64_t>{0, 1});
  EXPECT_EQ(shared.ids, apart.ids);
  EXPECT_EQ(shared.cu_seqlens, (std::vector<std::int32_t>{0, 6, 8}));
  EXPECT_EQ(shared.positions, apart.positions);
  EXPECT_EQ(shared.label_rows, (std::vector<std::int32_t>{1, 2, 4, 6}))
      << "the first token of 30, not that of 10";
  EXPECT_EQ(shared.targets, (std::vector<std::int32_t>{22, 30, 11, 41}));
  EXPECT_EQ(shared.max_length, 6);
  EXPECT_EQ(make_batch(set, items, std::vector<std::int64_t>{1}).max_length, 2);
  // A token has one name, wherever its document comes.
  const runtime::HostBatch alone = make_batch(set, items, std::vector<std::int64_t>{1});
  EXPECT_EQ(alone.names, (std::vector<std::uint64_t>(apart.names.end() - 2, apart.names.end())));
  std::set<std::uint64_t> names(apart.names.begin(), apart.names.end());
  EXPECT_EQ(names.size(), 8u);
}

// Two documents of one row have different names. So have documents of two rows with the same number in their
// sets.
TEST(Batches, NamesTellRowAndDocument) {
  data::Encoded one, other;
  const std::vector<std::int32_t> ids{1, 2};
  for (const std::int64_t row : {3, 3, 4}) one.append(ids, ids, row);
  for (const std::int64_t row : {4, 3, 4}) other.append(ids, ids, row);
  std::set<std::uint64_t> names;
  const auto add = [&](const data::Encoded& set, std::int64_t d) {
    names.insert(make_batch(set, data::one_each(set), std::vector<std::int64_t>{d}).names[0]);
  };
  add(one, 0), add(one, 1), add(one, 2), add(other, 0);
  EXPECT_EQ(names.size(), 4u);
  add(other, 1), add(other, 2);
  EXPECT_EQ(names.size(), 4u) << "the same rows at the same places";
}

}  // namespace
}  // namespace octet::feed::batches_test
