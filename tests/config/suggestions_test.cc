// Suggested names for an unknown word: the nearest name, if it is as near as docs/config.md says, else none.
#include <array>
#include <random>

#include "config/support.h"
#include "octet/base/strings.h"
#include "support/distance.h"

namespace octet::config::test::suggestions_test {
namespace {

using octet::test::edits;
using octet::test::most_edits;

/// Returns the name that an error suggests; "" if there is none.
std::string offered(const std::string& message) {
  constexpr std::string_view question = "did you mean '";
  const std::size_t at = message.find(question);
  if (at == std::string::npos) return "";
  const std::size_t begin = at + question.size();
  return message.substr(begin, message.find('\'', begin) - begin);
}

std::string mistyped(std::string name, std::size_t mistakes, std::mt19937& draws) {
  const auto below = [&draws](std::size_t n) { return static_cast<std::size_t>(draws() % n); };
  for (std::size_t i = 0; i < mistakes && name.size() > 2; ++i) {
    const std::size_t at = below(name.size() - 1);
    switch (below(3)) {
      case 0:
        name.erase(at, 1);
        break;
      case 1:
        name[at] = static_cast<char>('a' + below(26));
        break;
      default:
        std::swap(name[at], name[at + 1]);
    }
  }
  return name;
}

std::vector<std::string> names_of(const std::vector<ForeignKey>& keys) {
  std::vector<std::string> names;
  for (const ForeignKey& key : keys) names.push_back(key.path);
  return names;
}

TEST(Suggestions, AreAsNearAsIsDocumentedAndTheNearest) {
  std::vector<std::string> names = field_names();
  for (const char* trainer : {"SFT-Play", "verl"}) {
    for (const std::string& name : names_of(dialect_keys(trainer))) names.push_back(name);
  }
  std::mt19937 draws(7);
  int offers = 0, none = 0;
  for (std::size_t i = 0; i < names.size(); i += 5) {
    const std::string& name = names[i];
    for (const std::size_t mistakes : {1u, 3u, 8u}) {
      const std::string word = mistyped(name, mistakes, draws);
      if (std::ranges::find(names, word) != names.end() || word.find('.') == 0 || word.ends_with('.'))
        continue;
      std::string message;
      try {
        load_text(kBase, "test.yaml", {word + "=1"}, quiet());
        continue;  // a key in a map that is read as a whole
      } catch (const Error& e) {
        if (!e.problem().what.starts_with("unknown key")) continue;
        message = e.what();
      }
      SCOPED_TRACE(word);
      const std::string offer = offered(message);
      if (offer.empty()) {
        ++none;
        // A word with one mistake always has a suggestion.
        EXPECT_TRUE(mistakes > 1 || word.size() < 3) << name;
        EXPECT_SAYS(message, "remove it");
        continue;
      }
      ++offers;
      const std::size_t far = edits(word, offer);
      EXPECT_LE(far, most_edits(word)) << offer;
      EXPECT_LE(far, edits(word, name)) << offer << " is farther than " << name;
    }
  }
  EXPECT_GT(offers, 80);
  EXPECT_GT(none, 20) << "words far from all are offered nothing";
}

TEST(Suggestions, OfSectionsCountTheRestAlone) {
  EXPECT_EQ(offered(refusal("deepspeed: {zero_optimization: {xyz: 1}}")), "");
  EXPECT_EQ(offered(refusal("deepspeed: {zero_optimization: {stagee: 1}}")), "zero_optimization.stage");
  EXPECT_EQ(offered(refusal("trainer: {abc: 1}")), "");
  EXPECT_EQ(offered(refusal("trainer: {sede: 1}")), "trainer.seed");
  EXPECT_EQ(offered(refusal("model: {nmae: 1}")), "model.name");
}

// A key in a wrong section is offered from its own section.
TEST(Suggestions, OfKeysInAWrongSectionNameTheirSection) {
  const std::string play = "model: {name: m}\ndata: {train_path: d.jsonl}\n";
  const auto refused = [](const std::string& text) {
    try {
      load_text(text, "test.yaml", {}, quiet());
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  for (const auto& [wrong, right] :
       std::vector<std::pair<std::string, std::string>>{{"train: {max_seq_len: 1024}", "model.max_seq_len"},
                                                        {"tuning: {batch_size: 1}", "train.batch_size"},
                                                        {"tuning: {epochs: 1}", "train.epochs"}})
    EXPECT_EQ(offered(refused(play + wrong)), right) << wrong;
  EXPECT_SAYS(refused(play + "train: {lr: 1e-5}"), "write learning_rate: NUMBER");
  EXPECT_SAYS(refused(play + "train: {xyzzy: 1}"), "remove it");
}

}  // namespace
}  // namespace octet::config::test::suggestions_test
