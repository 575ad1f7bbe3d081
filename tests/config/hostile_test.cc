#include "config/support.h"

namespace octet::config::test::hostile_test {
namespace {

std::string repeated(const std::string& piece, int n) {
  std::string text;
  for (int i = 0; i < n; ++i) text += piece;
  return text;
}

TEST(Hostile, DeepNestingIsRefusedBeforeTheStackEnds) {
  for (const char* piece : {"[", "{a: ", "- ", "? "}) {
    EXPECT_THROW(load_text("dataset: \n  " + repeated(piece, 100000), "t.yaml", {}, quiet()), Error) << piece;
  }
  EXPECT_SAYS(refusal("lr_scheduler_kwargs: " + repeated("{a: ", 100) + "1" + repeated("}", 100)),
              "nested too deeply");
  EXPECT_THROW(read("", {"dataset=" + repeated("[", 100000)}), Error);
}

TEST(Hostile, AliasBombsAreRefused) {
  std::string bomb = "a0: &a0 [b, b, b, b, b, b, b, b, b, b]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + before +
            repeated(", " + before, 9) + "]\n";
  }
  EXPECT_SAYS(refusal(bomb), "too many values");
  EXPECT_SAYS(refusal("a: &a [*a]"), "alias");
}

TEST(Hostile, AliasesAndAnchorsWorkWithinReason) {
  EXPECT_EQ(read("eval_steps: &n 7\nsave_steps: *n").config.save_steps, 7);
}

TEST(Hostile, WhatIsNoConfigurationIsExplained) {
  const auto message = [](const std::string& text) -> std::string {
    try {
      load_text(text, "t.yaml", {}, quiet());
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_SAYS(message("- a\n- b\n"), "map of keys");
  EXPECT_SAYS(message("just words"), "map of keys");
  EXPECT_SAYS(message("a: [1"), "not valid YAML");
  EXPECT_SAYS(message("a: b: c"), "t.yaml:1");
  EXPECT_SAYS(message("\xff\xfe"), "UTF-8");
  EXPECT_SAYS(message(std::string("a: \0b", 5)), "UTF-8");
  EXPECT_SAYS(message("seed: 1\n---\nseed: 2\n"), "several YAML documents");
  EXPECT_SAYS(message("? [a]\n: b\n"), "plain word");
  EXPECT_SAYS(message("base: &b {seed: 1}\n<<: *b\n"), "merge keys");
  EXPECT_SAYS(message("seed: !!python/object/apply:os.system ['ls']"), "tags");
  EXPECT_SAYS(message("seed: *nothing"), "not valid YAML");
  EXPECT_SAYS(message("seed: " + std::string(9u << 20, '1')), "too large");
  EXPECT_SAYS(message(std::string(1000, '\t')), "t.yaml");
}

TEST(Hostile, AMutatedConfigurationIsAcceptedOrRefusedNeverWorse) {
  const std::string seed =
      kBase + "learning_rate: 2e-4\nlr_scheduler_kwargs: {power: 1}\ndataset: [a, 'b']\n# c\nx: &a |\n  t\n";
  std::uint64_t state = 1;
  for (int round = 0; round < 3000; ++round) {
    std::string text = seed;
    for (int change = 0; change < 3; ++change) {
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      const std::size_t at = (state >> 33) % text.size();
      const char byte = " \n:-[]{}&*#|>'\"%@`?!,\t01a"[(state >> 20) % 25];
      if ((state & 3) == 0) {
        text.erase(at, 1);
      } else {
        text[at] = byte;
      }
    }
    try {
      load_text(text, "t.yaml", {}, quiet());
    } catch (const Error&) {
    }
  }
}

TEST(Hostile, ControlCharactersSurviveTheDump) {
  Resolved r = read("");
  r.config.default_system = "a\x01\x7f\\\"\r\n\xc3\xa9";
  const Resolved again = load_text(r.to_yaml(), "dump.yaml", {}, quiet());
  EXPECT_EQ(again.config.default_system, r.config.default_system);
}

}  // namespace
}  // namespace octet::config::test::hostile_test
