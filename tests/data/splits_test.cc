// The files of a folder that are trained: the rules of Hugging Face's `datasets`, one row per layout.
#include <gtest/gtest.h>

#include <filesystem>

#include "dataset_files.h"
#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "octet/data/dataset.h"
#include "support/program.h"

namespace octet::data::splits_test {
namespace splits_test {
namespace {

constexpr const char* kRow = "{\"text\":\"t\"}\n";

/// A folder and its expected files, relative to it, or the expected message.
struct Layout {
  std::string files;  ///< separated by blanks
  std::string card;   ///< README.md; "": none
  std::string split;  ///< dataset_train_split or dataset_test_split
  std::string read;   ///< the expected files, or a part of the message
  bool evaluates = false;
};

std::string opened(const Layout& layout, const std::string& entry = "", std::string* said = nullptr) {
  const test::TemporaryFolder folder("splits");
  for (const std::string& file : split(layout.files, ' ')) test::spill(folder / ("set/" + file), kRow);
  if (!layout.card.empty()) test::spill(folder / "set/README.md", layout.card);
  if (!entry.empty()) test::spill(folder / "dataset_info.json", "{\"named\": " + entry + "}");
  DataOptions options{.dataset = {entry.empty() ? folder / "set" : "named"},
                      .split = layout.split,
                      .evaluates = layout.evaluates,
                      .dataset_dir = folder.path()};
  testing::internal::CaptureStderr();
  std::string text;
  try {
    for (const DataSource& source : open_datasets(options)) {
      for (const auto& file : source.files) text += (text.empty() ? "" : " ") + file->path();
    }
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    text = e.what();
  }
  const std::string log = testing::internal::GetCapturedStderr();
  if (said != nullptr) *said = log;
  const std::string root = folder / "set/";
  for (std::size_t at = text.find(root); at != std::string::npos; at = text.find(root))
    text.erase(at, root.size());
  return text;
}

std::string card(const std::string& configs) {
  return "---\nlicense: mit\nconfigs:\n" + configs + "---\n# A data set\n";
}

const std::string kUltrachat =
    "data/train_sft-00000-of-00001.jsonl data/train_gen-00000-of-00001.jsonl "
    "data/test_sft-00000-of-00001.jsonl data/test_gen-00000-of-00001.jsonl";

// Files that no split has are left out, as Hugging Face does, but not silently.
TEST(Splits, FilesThatAreInNoSplitAreNamed) {
  const std::pair<const char*, const char*> layouts[] = {
      {"train.jsonl heldout.jsonl", "not read (1): heldout.jsonl"},
      {"training_data.jsonl contest.jsonl more/notes.jsonl", "not read (2): contest.jsonl, more/notes.jsonl"},
      {"train.jsonl a.jsonl b.jsonl c.jsonl d.jsonl", "not read (4): a.jsonl, b.jsonl, c.jsonl, …"},
      {"train/0.jsonl loose.jsonl", "not read (1): loose.jsonl"},
      {"train.jsonl test.jsonl", ""},
      {"a.jsonl b.jsonl", ""},
      {"train.jsonl state.json", ""},
  };
  for (const auto& [files, says] : layouts) {
    std::string said;
    opened({.files = files, .card = "", .split = "", .read = ""}, "", &said);
    const std::string part = "files that are in no split are ";
    const bool silent = *says == '\0';
    EXPECT_EQ(said.find(part) == std::string::npos, silent) << files << ": " << said;
    EXPECT_NE(said.find(silent ? "" : part + says), std::string::npos) << files << ": " << said;
  }
  std::string said;
  opened({.files = "a.jsonl b.jsonl",
          .card = "---\nconfigs:\n- config_name: default\n  data_files: a.jsonl\n---\n",
          .split = "",
          .read = ""},
         "", &said);
  EXPECT_EQ(said.find("in no split"), std::string::npos) << "the card names its files: " << said;
}

TEST(Splits, AFolderIsReadAsHuggingFaceReadsIt) {
  const std::string named = card(
      "- config_name: default\n  data_files:\n  - split: train\n    path: a/*.jsonl\n  - split: test\n    "
      "path: "
      "[b/x.jsonl, b/y*]\n");
  const std::string two = card(
      "- config_name: en\n  data_files: en.jsonl\n- config_name: de\n  data_files: [de.jsonl, "
      "more/de.jsonl]\n");
  const std::vector<Layout> layouts = {
      // Names of files.
      {"train.jsonl validation.jsonl test.jsonl", "", "", "train.jsonl"},
      {"train.jsonl dev.jsonl eval.jsonl", "", "", "train.jsonl"},
      {"training.csv.jsonl val.jsonl", "", "", "training.csv.jsonl"},
      {"my-train-1.jsonl my_train_2.jsonl my.test.jsonl", "", "", "my-train-1.jsonl my_train_2.jsonl"},
      {"train2.jsonl mytrain.jsonl test.jsonl", "", "", "train2.jsonl"},
      {"trainer.jsonl contest.jsonl", "", "", "contest.jsonl trainer.jsonl"},
      {"train.jsonl other.jsonl", "", "", "train.jsonl"},
      {"a.jsonl sub/b.jsonl .hidden/c.jsonl __pycache__/d.jsonl", "", "", "a.jsonl sub/b.jsonl"},
      {"a.jsonl dataset_infos.json config.json notes.md", "", "", "a.jsonl"},
      {"sub/train.jsonl sub/test.jsonl", "", "", "sub/train.jsonl"},
      // Letters in upper case.
      {"Train.jsonl Validation.jsonl", "", "", "Train.jsonl"},
      {"TRAIN.jsonl TEST.jsonl Dev.jsonl", "", "", "TRAIN.jsonl"},
      {"My_Train.jsonl My-Eval.jsonl", "", "", "My_Train.jsonl"},
      {"Training/a.jsonl Test/a.jsonl", "", "", "Training/a.jsonl"},
      {"Trainer.jsonl Contest.jsonl", "", "", "Contest.jsonl Trainer.jsonl"},
      {"data/Train-00000-of-00001.jsonl data/Test-00000-of-00001.jsonl", "", "",
       "data/Train-00000-of-00001.jsonl"},
      {"Train-00000-of-00001.jsonl Test-00000-of-00001.jsonl", "", "", "Train-00000-of-00001.jsonl"},
      {"Train.jsonl Validation.jsonl", "", "Validation", "Validation.jsonl"},
      {"Train.jsonl Validation.jsonl", "", "", "Validation.jsonl", true},
      {"Train_SFT.jsonl Train_Gen.jsonl", "", "train_sft", "Train_SFT.jsonl"},
      {"Train_SFT.jsonl Train_Gen.jsonl", "", "Train_Gen", "Train_Gen.jsonl"},
      {"train.jsonl dev.jsonl", "", "Valid", "dev.jsonl"},
      // Names of folders, which go before names of files.
      {"train/a.jsonl test/a.jsonl", "", "", "train/a.jsonl"},
      {"train/test.jsonl valid/train.jsonl", "", "", "train/test.jsonl"},
      {"x/train_1/a.jsonl x/dev/a.jsonl", "", "", "x/train_1/a.jsonl"},
      {"train/data-00000-of-00001.jsonl train/cache-1f.arrow train/state.json test/data-00000-of-00001.jsonl",
       "", "", "train/data-00000-of-00001.jsonl"},
      // Names of shards.
      {"data/train-00000-of-00002.jsonl data/train-00001-of-00002-ab.jsonl data/test-00000-of-00001.jsonl",
       "", "", "data/train-00000-of-00002.jsonl data/train-00001-of-00002-ab.jsonl"},
      {kUltrachat, "", "train_sft", "data/train_sft-00000-of-00001.jsonl"},
      {kUltrachat, "", "", "split 'train' of data set"},
      {kUltrachat, "", "", "test_gen (1 file), test_sft (1 file), train_gen (1 file), train_sft (1 file)"},
      {"train_sft-00000-of-00001.jsonl train_gen-00000-of-00001.jsonl", "", "train_gen",
       "train_gen-00000-of-00001.jsonl"},
      {"train_sft-00000-of-00001.jsonl train_gen-00000-of-00001.jsonl", "", "", "by dataset_train_split"},
      {"part-00000-of-00002.jsonl part-00001-of-00002.jsonl", "", "",
       "part-00000-of-00002.jsonl part-00001-of-00002.jsonl"},
      // A split by its name, by a synonym, and a missing split.
      {"train.jsonl validation.jsonl", "", "validation", "validation.jsonl"},
      {"train.jsonl dev.jsonl", "", "validation", "dev.jsonl"},
      {"train.jsonl dev.jsonl", "", "valid", "dev.jsonl"},
      {"train_sft.jsonl train_gen.jsonl", "", "train_sft", "train_sft.jsonl"},
      {"train.jsonl test.jsonl", "", "validation", "train (1 file), test (1 file)"},
      {"train.jsonl test.jsonl", "", "tset", "did you mean 'test'?"},
      {"test.jsonl", "", "", "test (1 file)"},
      // Evaluation.
      {"train.jsonl dev.jsonl test.jsonl", "", "", "dev.jsonl", true},
      {"train.jsonl test.jsonl", "", "", "test.jsonl", true},
      {"train.jsonl", "", "", "train.jsonl", true},
      {"train.jsonl dev.jsonl test.jsonl", "", "test", "test.jsonl", true},
      {kUltrachat, "", "", "by dataset_test_split", true},
      // Cards.
      {"a/1.jsonl a/2.jsonl b/x.jsonl b/y1.jsonl train.jsonl", named, "", "a/1.jsonl a/2.jsonl"},
      {"a/1.jsonl a/2.jsonl b/x.jsonl b/y1.jsonl train.jsonl", named, "test", "b/x.jsonl b/y1.jsonl"},
      {"b/x.jsonl", named, "", "split 'train' of data set"},
      {"b/x.jsonl", named, "", "README.md names for it"},
      {"en.jsonl de.jsonl more/de.jsonl", two, "", "has several configurations"},
      {"en.jsonl de.jsonl more/de.jsonl", two, "", "one of en, de"},
      {"en.jsonl de.jsonl",
       card("- config_name: en\n  data_files: en.jsonl\n- config_name: de\n  default: true\n  "
            "data_files: de.jsonl\n"),
       "", "de.jsonl"},
      {"en/train.jsonl en/test.jsonl de/train.jsonl", card("- config_name: only\n  data_dir: en\n"), "",
       "en/train.jsonl"},
      {"x/1.jsonl x/y/2.jsonl", card("- data_files: \"**/*.jsonl\"\n"), "", "x/1.jsonl x/y/2.jsonl"},
      {"train.jsonl test.jsonl", "---\nlicense: mit\n---\n", "", "train.jsonl"},
      {"train.jsonl test.jsonl", "# configs: none\n", "", "train.jsonl"},
      {"train.jsonl", card("- {\n"), "", "the card of a data set cannot be used"},
      {"train.jsonl", card("  en\n"), "", "a list of configurations"},
      {"train.jsonl", card("- data_files: {train: a}\n"), "", "a text for 'data_files'"},
      {"train.jsonl", card("- data_files:\n  - split: train\n"), "", "an item without one of them"},
      {"train.jsonl", card("- data_files:\n  - {split: a, path: x}\n  - {split: a, path: y}\n"), "",
       "split 'a' twice"},
  };
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.files + "\n" + layout.card + layout.split);
    const std::string found = opened(layout);
    if (layout.read.ends_with(".jsonl")) {
      EXPECT_EQ(found, layout.read);
    } else {
      EXPECT_NE(found.find(layout.read), std::string::npos) << found;
    }
  }
}

TEST(Splits, AnEntryNamesSplitAndSubset) {
  const std::string two = card(
      "- config_name: en\n  data_files:\n  - {split: train, path: en/a*}\n  - {split: test, path: en/b*}\n"
      "- config_name: de\n  data_dir: de\n");
  const std::string files = "en/a.jsonl en/b.jsonl de/train.jsonl de/test.jsonl fr/x.jsonl";
  const auto entry = [](const std::string& more) {
    return "{\"file_name\": \"set\", \"columns\": {\"prompt\": \"text\"}" + more + "}";
  };
  for (const auto& [more, key, read] : std::vector<std::array<std::string, 3>>{
           {", \"subset\": \"en\"", "", "en/a.jsonl"},
           {", \"subset\": \"en\", \"split\": \"test\"", "", "en/b.jsonl"},
           {", \"subset\": \"en\", \"split\": \"test\"", "train", "en/b.jsonl"},
           {", \"subset\": \"de\"", "", "de/train.jsonl"},
           {", \"subset\": \"de\"", "test", "de/test.jsonl"},
           {", \"subset\": \"fr\"", "", "fr/x.jsonl"},
           {", \"folder\": \"de\"", "", "de/train.jsonl"},
           {", \"subset\": \"es\"", "", "has no configuration 'es'"},
           {"", "", "has several configurations"},
           {", \"split\": \"train[:10%]\"", "", "max_samples"}}) {
    SCOPED_TRACE(more + " " + key);
    const std::string found = opened({.files = files, .card = two, .split = key}, entry(more));
    if (read.ends_with(".jsonl")) {
      EXPECT_EQ(found, read);
    } else {
      EXPECT_NE(found.find(read), std::string::npos) << found;
    }
  }
}

TEST(Splits, PatternsMatchAsFsspecMatchesThem) {
  for (const auto& [pattern, path, matches] :
       std::vector<std::tuple<const char*, const char*, bool>>{{"a.jsonl", "a.jsonl", true},
                                                               {"a.jsonl", "b/a.jsonl", false},
                                                               {"*.jsonl", "a.jsonl", true},
                                                               {"*.jsonl", "b/a.jsonl", false},
                                                               {"*", "", true},
                                                               {"**", "b/a.jsonl", true},
                                                               {"**/*.jsonl", "a.jsonl", true},
                                                               {"**/*.jsonl", "b/c/a.jsonl", true},
                                                               {"b/**/a", "b/a", true},
                                                               {"b/**/a", "b/c/d/a", true},
                                                               {"b/**/a", "c/a", false},
                                                               {"b/**", "b/c/d", true},
                                                               {"b/**", "bc/d", false},
                                                               {"data/t?-[0-9].x", "data/ta-7.x", true},
                                                               {"data/t?-[0-9].x", "data/ta-b.x", false},
                                                               {"[!a]b", "cb", true},
                                                               {"[!a]b", "ab", false},
                                                               {"[a", "[a", true},
                                                               {"?", "/", false},
                                                               {"a*b*c", "aXbYc", true},
                                                               {"a*b*c", "aXbY", false},
                                                               {"", "a", false}}) {
    EXPECT_EQ(matches_path(pattern, path), matches) << pattern << " " << path;
  }
}

TEST(Splits, ALinkToAFolderAboveListsNothingTwice) {
  const test::TemporaryFolder folder("links");
  test::spill(folder / "a/x.jsonl", kRow);
  std::filesystem::create_directory_symlink(folder / "a", folder / "a/loop");
  EXPECT_EQ(files_below(folder.path()), std::vector<std::string>{"a/x.jsonl"});
}

}  // namespace
}  // namespace splits_test
}  // namespace octet::data::splits_test
