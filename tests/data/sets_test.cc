// Exact texts for data sets that are opened by name, path or entry of dataset_info.json: files, rows, columns
// and errors. Also counts the handling of each row of a set.
#include <gtest/gtest.h>

#include <cstdlib>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/data/encoder.h"
#include "support/page.h"
#include "support/program.h"

namespace octet::data::sets_test {
namespace {

void replace(std::string& text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

/// Files of every kind of data set, and a hub cache with two sets.
class Sets {
 public:
  Sets() : folder_("sets") {
    const std::string qa = R"({"instruction":"q","output":"a"})"
                           "\n",
                      pair = R"({"question":"q","answer":"a"})"
                             "\n",
                      text = R"({"text":"t"})"
                             "\n";
    const auto write = [this](const std::string& name, const std::string& rows) {
      test::spill(folder_ / name, rows);
    };
    write("qa.jsonl", qa + qa + qa);
    write("pair.jsonl", pair);
    write("chat.jsonl",
          R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],"system":"s"})");
    write("turns.jsonl", R"({"talk":[{"from":"human","value":"q"},{"from":"gpt","value":"a"}]})");
    write("parts/train-0.jsonl", text + text);
    write("parts/validation.jsonl", text);
    write("parts/mytrain.jsonl", text);
    write("parts/train2.jsonl", text);
    write("parts/dataset_info.json", "{}");
    write("parts/notes.md", "no rows");
    write("parts/en/b.jsonl", text);
    write("parts/en/a.jsonl", text + text);
    write("unlike/1.jsonl", "{\n" + qa);
    write("unlike/2.jsonl", text);
    write("histories/1.jsonl", R"({"prompt":"q","completion":"a"})");
    write("histories/2.jsonl", R"({"prompt":"q","completion":"a","history":[["b","c"]]})");
    write("histories/3.jsonl", R"({"prompt":"q","completion":"a","history":""})");
    write("late.jsonl",
          "{\"prompt\":\"q\",\"completion\":\"a\",\"history\":\"\"}\n"
          "{\"prompt\":\"q\",\"completion\":\"a\",\"history\":[[\"b\",\"c\"]]}\n");
    write("gap.jsonl", "{\n" + qa);
    write("broken.jsonl", "{\n");
    write("numbers.jsonl", "1\n2\n");
    write("empty.jsonl", "\n");
    write("hub/datasets--org--set/refs/main", "1");
    write("hub/datasets--org--set/snapshots/1/data/train.jsonl", qa);
    write("hub/datasets--org--parts/refs/main", "1");
    write("hub/datasets--org--parts/snapshots/1/en/train.jsonl", qa + qa);
    write("hub/datasets--org--parts/snapshots/1/data/de/train.jsonl", qa + qa + qa);
    ::setenv("HF_HUB_CACHE", (folder_ / "hub").c_str(), 1);
  }
  ~Sets() { ::unsetenv("HF_HUB_CACHE"); }
  Sets(const Sets&) = delete;
  Sets& operator=(const Sets&) = delete;

  std::string open(const DataOptions& options, const Json& info) const {
    if (info.is_null()) {
      std::filesystem::remove(folder_ / "dataset_info.json");
    } else {
      test::spill(folder_ / "dataset_info.json", info.dump());
    }
    testing::internal::CaptureStderr();
    std::string text;
    try {
      DataOptions here = options;
      here.dataset_dir = folder_.path();
      text = shown(open_datasets(here));
    } catch (const Error& e) {
      text = std::string(e.what()) + "\n";
    }
    text = testing::internal::GetCapturedStderr() + text;
    replace(text, folder_.path() + "/", "");
    replace(text, folder_.path(), "DATA");
    return text;
  }

 private:
  static std::string shown(const std::vector<DataSource>& sources) {
    std::string text;
    for (const DataSource& source : sources) {
      text += source.name + ":";
      for (const auto& file : source.files) text += " " + file->path();
      text += "\n  rows";
      for (std::int64_t i = 0; i < source.rows; ++i) text += " " + std::to_string(source.row_at(i));
      text += "\n";
      for (const auto& [name, value] : RowMix({source}, {}).recipe()) {
        if (name.ends_with(": columns") || name.ends_with(": rows"))
          text += "  " + name.substr(name.find(": ") + 2) + " " + value + "\n";
      }
    }
    return text;
  }
  test::TemporaryFolder folder_;
};

/// A question is names separated by blanks, or names and options as JSON. A line with the contents of
/// dataset_info.json may follow.
TEST(Said, OfDataSets) {
  const Sets sets;
  test::expect_page("data/said/sets.txt", [&](const std::string& question) {
    const std::size_t end = question.find('\n');
    const std::string first = question.substr(0, end), second = question.substr(end + 1);
    const std::size_t brace = first.find(" {");
    DataOptions options;
    for (const std::string& name : split(first.substr(0, brace), ' ')) options.dataset.push_back(name);
    if (brace != std::string::npos) {
      const Json given = parse_json(first.substr(brace), "options");
      if (given.contains("max_samples")) options.max_samples = given["max_samples"].get<std::int64_t>();
      options.key = given.value("key", options.key);
      options.split = given.value("split", "");
      options.evaluates = given.value("evaluates", false);
      options.columns = {.messages = given.value("messages", ""),
                         .prompt = given.value("prompt", ""),
                         .response = given.value("response", "")};
    }
    return sets.open(options, second.empty() ? Json() : parse_json(second, "info"));
  });
}

/// Handles each text as its words say: "cut", "drop", "short" (its answer is cut), "mute" (no label), "part"
/// (a fragment), "two" (two documents). A character is a token, and the first label does not count.
class Scripted : public Encoder {
 public:
  EncodedSample encode(const Sample& sample) const override {
    const auto has = [&](const char* word) { return sample.text.find(word) != std::string::npos; };
    EncodedSample made{
        .dropped = has("drop"), .truncated = has("cut"), .cut_answer = has("short"), .fragment = has("part")};
    EncodedSample::Document document;
    document.ids.assign(sample.text.begin(), sample.text.end());
    document.labels = document.ids;
    if (has("mute")) document.labels.assign(document.ids.size(), -100);
    document.labels.front() = 7;
    document.labels.back() = has("mute") ? -100 : 0;
    for (int i = 0; i < (has("drop") ? 0 : has("two") ? 2 : 1); ++i) made.documents.push_back(document);
    return made;
  }
  std::string decode(std::span<const std::int32_t>) const override { return ""; }
};

std::string counts_text(const EncodingCounts& c) {
  std::string text;
  for (const auto& [name, count] : {std::pair{"rows", c.rows},
                                    {"documents", c.documents},
                                    {"tokens", c.tokens},
                                    {"trained", c.trained},
                                    {"invalid", c.invalid},
                                    {"dropped", c.dropped},
                                    {"unlabelled", c.unlabelled},
                                    {"truncated", c.truncated},
                                    {"cut_answers", c.cut_answers},
                                    {"broken", c.broken}})
    if (count != 0) text += std::string(name) + "=" + std::to_string(count) + " ";
  return text;
}

TEST(Encode, CountsWhatBecomesOfEveryRow) {
  const test::TemporaryFolder folder("counts");
  const auto counts_of = [&](const std::string& rows, bool names_cuts = false) {
    test::spill(folder / "a.jsonl", rows);
    const RowMix mix(open_datasets({.dataset = {folder / "a.jsonl"}}), {});
    return encode_rows(mix, Scripted(), {.last_row = mix.size(), .name_truncated = names_cuts}).counts;
  };
  const auto said = [&](const std::string& text) {
    return counts_text(counts_of(R"({"text":")" + text + "\"}\n"));
  };
  EXPECT_EQ(said("abcd"), "rows=1 documents=1 tokens=4 trained=3 ") << "nothing predicts the first";
  EXPECT_EQ(said("two"), "rows=1 documents=2 tokens=6 trained=4 ");
  EXPECT_EQ(said("drop"), "rows=1 dropped=1 ");
  EXPECT_EQ(said("cut"), "rows=1 documents=1 tokens=3 trained=2 truncated=1 ");
  EXPECT_EQ(said("short"), "rows=1 documents=1 tokens=5 trained=4 cut_answers=1 ");
  EXPECT_EQ(said("mute"), "rows=1 unlabelled=1 ");
  EXPECT_EQ(said("mute part"), "rows=1 documents=1 tokens=9 ") << "part of a block stays";
  const std::string good = "{\"text\":\"ab\"}\n", bad = "{\n", other = "{\"b\":1}\n",
                    cut = "{\"text\":\"cut\"}\n";
  EXPECT_EQ(counts_text(counts_of(good + bad + other + good)),
            "rows=4 documents=2 tokens=4 trained=2 invalid=1 broken=1 ");
  EXPECT_EQ(counts_of(good + cut).reasons, std::vector<std::string>());
  EXPECT_EQ(counts_of(good + cut, true).reasons,
            std::vector<std::string>{folder / "a.jsonl:2: is longer than cutoff_len"});
  EXPECT_EQ(counts_of(good + other + other + other + other + other + other).reasons.size(), 5u);
}

TEST(Encode, RowsThatMayNotBeCutAreNamedAndNoOthers) {
  EncodingCounts counts{.rows = 1200, .truncated = 3};
  counts.reasons = {"a:1: broken", "a:2: is longer than cutoff_len", "a:3: is longer than cutoff_len"};
  const Error error = truncated_rows(counts, 2048);
  EXPECT_EQ(error.code(), ExitCode::usage);
  EXPECT_EQ(error.problem().expected, "at most 2,048 tokens (cutoff_len) a row");
  EXPECT_EQ(error.problem().found, "3 of 1,200 rows with more");
  EXPECT_EQ(error.problem().where, "a:2: is longer than cutoff_len\n  a:3: is longer than cutoff_len");
  counts.broken = 12;
  EXPECT_EQ(too_many_broken(counts, 1000).problem().found, "12 of 1,200 rows");
  EXPECT_EQ(too_many_broken(counts, 1000).problem().expected, "at most 1,000 (max_broken_rows)");
  EXPECT_EQ(too_many_broken(counts, 1000).code(), ExitCode::usage);
}

}  // namespace
}  // namespace octet::data::sets_test
