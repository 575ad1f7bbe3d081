// Normalisers and pre-tokenizers give the words and places of the reference
// (tests/golden/make/make_components).
#include <gtest/gtest.h>

#include <deque>

#include "../src/text/tokenizer/component.h"
#include "../src/text/tokenizer/normalizer.h"
#include "../src/text/tokenizer/pre_tokenizer.h"
#include "golden.h"
#include "octet/base/json.h"

namespace octet::text::components_test {
namespace {

/// Words joined by U+001F, and the bytes of the text that each covers.
struct Words {
  std::string joined;
  std::vector<std::uint32_t> places;
};

Words words_of(const Normalizer* normalizer, const PreTokenizer& splitter, const std::string& text) {
  std::deque<AlignedText> made;
  TextView view{text};
  if (normalizer != nullptr && !normalizer->keeps(text)) {
    made.push_back(normalizer->apply(view));
    view = made.back().view();
  }
  std::vector<TextView> pieces{view};
  for (const auto& step : splitter.steps) step->apply(pieces, made);
  Words out;
  for (const TextView& piece : pieces) {
    if (piece.text.empty()) continue;
    if (!out.places.empty()) out.joined += '\x1f';
    out.joined += splitter.byte_level ? piece_of_bytes(piece.text) : std::string(piece.text);
    const Span span = piece.range(0, piece.text.size());
    out.places.push_back(span.begin);
    out.places.push_back(span.end);
  }
  return out;
}

std::vector<std::string> texts() {
  std::vector<std::string> out;
  each_case(golden_path("components/texts.jsonl"),
            [&](const Json& text, const std::string&) { out.push_back(text.get<std::string>()); });
  return out;
}

TEST(Components, GiveTheWordsOfTheReference) {
  const std::vector<std::string> all = texts();
  ASSERT_GE(all.size(), 50U);
  const int cases =
      each_case(golden_path("components/cases.jsonl"), [&](const Json& c, const std::string& where) {
        const auto normalizer = make_normalizer(c["normalizer"], where);
        const PreTokenizer splitter = make_pre_tokenizer(c["pre_tokenizer"], where);
        ASSERT_EQ(c["pieces"].size(), all.size()) << where;
        for (std::size_t i = 0; i < all.size(); ++i) {
          const Words got = words_of(normalizer.get(), splitter, all[i]);
          const std::string about = where + " " + c["why"].get<std::string>() + ": " + Json(all[i]).dump();
          EXPECT_EQ(got.joined, c["pieces"][i][0].get<std::string>()) << about;
          EXPECT_EQ(Json(got.places), c["pieces"][i][1]) << about;
        }
      });
  EXPECT_GE(cases, 40);
}

// A normaliser that reports no change changes nothing.
TEST(Components, AreSkippedOnlyWithoutAChange) {
  const std::vector<std::string> all = texts();
  each_case(golden_path("components/cases.jsonl"), [&](const Json& c, const std::string& where) {
    const auto normalizer = make_normalizer(c["normalizer"], where);
    if (normalizer == nullptr) return;
    for (const std::string& text : all) {
      if (!normalizer->keeps(text)) continue;
      EXPECT_EQ(normalizer->apply({text}).text, text) << where;
    }
  });
}

}  // namespace
}  // namespace octet::text::components_test
