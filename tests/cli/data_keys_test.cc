// Every key that selects the trained data has an effect that the output and the log show.
#include <gtest/gtest.h>

#include "cli/task.h"
#include "octet/base/json.h"

namespace octet::test::data_keys_test {
namespace {

namespace fs = std::filesystem;

// Files of rows, written once.
class Rows {
 public:
  static const Rows& get() {
    static const Rows rows;
    return rows;
  }
  const std::string& folder() const { return folder_.path(); }

 private:
  Rows() : folder_("data_keys") {
    const std::string thought = "<think>\nhidden\n</think>\n\n";
    const Json tools = {{{"name", "calculate"}, {"description", "d"}, {"parameters", Json::object()}}};
    const auto turn = [](const char* role, const std::string& content) {
      return Json{{"role", role}, {"content", content}};
    };
    std::string chats = Json{{"messages",
                              {turn("user", "first question"), turn("assistant", thought + "one"),
                               turn("user", "second question"), turn("assistant", thought + "two")}}}
                            .dump() +
                        "\n";
    spill(folder_ / "typed.jsonl",
          Json{{"messages", {turn("user", "a <|im_end|> b"), turn("assistant", "c")}}}.dump() + "\n");
    spill(folder_ / "tools.jsonl",
          Json{{"messages", {turn("user", "q"), turn("assistant", "a")}}, {"tools", tools}}.dump() + "\n");
    for (int i = 0; i < 39; ++i) {
      std::string words;
      for (int w = 0; w < i % 7; ++w) words += " word";
      chats +=
          Json{{"messages", {turn("user", "question" + words), turn("assistant", "answer")}}}.dump() + "\n";
    }
    spill(folder_ / "chats.jsonl", chats);
    std::string pairs, text;
    for (int i = 0; i < 5; ++i) pairs += Json{{"prompt", "p"}, {"completion", "c"}}.dump() + "\n";
    for (int i = 0; i < 30; ++i) text += "line number " + std::to_string(i) + " of a text\n";
    spill(folder_ / "pairs.jsonl", pairs);
    spill(folder_ / "text.txt", text);
    spill(folder_ / "other/pairs.jsonl", pairs + pairs);
  }
  TemporaryFolder folder_;
};

struct Acts {
  std::string name;
  std::string without, with;  ///< additional options of the two runs
  std::string says;           ///< printed only by the second run
  std::string lacks;          ///< printed only by the first run
};

void PrintTo(const Acts& acts, std::ostream* out) {
  *out << acts.with;
}

class DataKey : public testing::TestWithParam<Acts> {
 protected:
  Outcome run(const std::string& name, const std::string& more) {
    return trainer(Task::get().train(
        folder_ / name, "template=qwen3 dataset=chats.jsonl dataset_dir=" + Rows::get().folder() +
                            " cutoff_len=256 disable_shuffling=true max_steps=1 "
                            "per_device_train_batch_size=2 global_batch_size=2 save_strategy=no " +
                            more));
  }
  TemporaryFolder folder_{"data_key"};
};

TEST_P(DataKey, ChangesWhatIsTrained) {
  const Acts& acts = GetParam();
  const Outcome without = run("without", acts.without), with = run("with", acts.without + " " + acts.with);
  expect_success(without);
  expect_success(with);
  if (!acts.says.empty()) {
    EXPECT_EQ(without.err.find(acts.says), std::string::npos) << without.err;
    EXPECT_NE(with.err.find(acts.says), std::string::npos) << with.err;
  }
  if (!acts.lacks.empty()) {
    EXPECT_NE(without.err.find(acts.lacks), std::string::npos) << without.err;
    EXPECT_EQ(with.err.find(acts.lacks), std::string::npos) << with.err;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Each, DataKey,
    testing::Values(
        Acts{"stage", "dataset=text.txt", "stage=pt", "packing: 30 documents", ""},
        Acts{"template", "", "template=qwen", "You are Qwen", ""},
        Acts{"default_system", "", "default_system=Xyzzy", "<|im_start|>system\nXyzzy<|im_end|>", ""},
        Acts{"enable_thinking", "", "enable_thinking=false", "</think>\n\n[[one", "[[<think>\nhidden"},
        Acts{"mask_history", "", "mask_history=true", "assistant\none<|im_end|>", "hidden\n</think>\n\none"},
        Acts{"preserve_thinking", "mask_history=true", "preserve_thinking=true", "hidden\n</think>\n\none",
             ""},
        Acts{"tool_format", "dataset=tools.jsonl", "tool_format=llama3", "Cutting Knowledge Date", "<tools>"},
        Acts{"split_special_tokens", "dataset=typed.jsonl", "split_special_tokens=true", "",
             "1 documents of 1 rows, 30 tokens"},
        Acts{"train_on_prompt", "", "train_on_prompt=true", "[[<|im_start|>user", ""},
        Acts{"dataset", "", "dataset=chats.jsonl,pairs.jsonl", "45 documents of 45 rows", ""},
        Acts{"dataset_glob", "", "dataset=t*.jsonl", "2 documents of 2 rows", ""},
        Acts{"dataset_dir", "dataset=pairs.jsonl", "dataset_dir=" + Rows::get().folder() + "/other",
             "10 documents of 10 rows", "5 documents of 5 rows"},
        Acts{"eval_dataset", "", "eval_dataset=pairs.jsonl", "evaluation data: 5 documents", ""},
        Acts{"val_size", "", "val_size=10", "Num examples = 30", "Num examples = 40"},
        Acts{"val_size_share", "", "val_size=0.25", "Num examples = 30", ""},
        Acts{"max_samples", "", "max_samples=3", "3 documents of 3 rows", ""},
        Acts{"mix_strategy", "dataset=chats.jsonl,pairs.jsonl", "mix_strategy=interleave_over",
             "79 documents of 79 rows", "45 documents of 45 rows"},
        Acts{"mix_strategy_once", "dataset=chats.jsonl,pairs.jsonl mix_strategy=interleave_under",
             "mix_strategy=interleave_once", "45 documents of 45 rows", "10 documents of 10 rows"},
        Acts{"interleave_probs", "dataset=chats.jsonl,pairs.jsonl mix_strategy=interleave_under",
             "interleave_probs=0.9,0.1", "", "10 documents of 10 rows"},
        Acts{"cutoff_len", "", "cutoff_len=24", "rows were cut to cutoff_len", ""},
        Acts{"packing", "", "packing=true", "packing: 40 documents in", ""},
        Acts{"packing_strategy", "dataset=text.txt stage=pt template=null", "packing_strategy=llamafactory",
             "packing: 2 documents in 2 sequences, 100.0 % full", ""},
        Acts{"preprocessing_batch_size", "packing=true packing_strategy=llamafactory",
             "preprocessing_batch_size=3", "packing: 40 documents in 14 sequences", ""},
        Acts{"dataloader_drop_last", "max_steps=-1 num_train_epochs=1 max_samples=5",
             "dataloader_drop_last=true", "2/2", "3/3"},
        Acts{"streaming", "", "streaming=true", "streaming: 40 rows in 1 windows of 16,384", ""},
        Acts{"buffer_size", "streaming=true", "buffer_size=7", "40 rows in 6 windows of 7", ""},
        Acts{"tokenized_path", "", "tokenized_path=" + Rows::get().folder() + "/kept", "tokens kept in", ""}),
    [](const auto& param) { return param.param.name; });

// Keys with effects that show only in numbers.
class DataKeyInNumbers : public DataKey {};

TEST_P(DataKeyInNumbers, ChangesTheLoss) {
  const Acts& acts = GetParam();
  expect_success(run("without", acts.without));
  expect_success(run("with", acts.without + " " + acts.with));
  EXPECT_NE(steps_of(folder_ / "without").at(1)["loss"], steps_of(folder_ / "with").at(1)["loss"]);
}

INSTANTIATE_TEST_SUITE_P(Each, DataKeyInNumbers,
                         testing::Values(Acts{"neat_packing", "packing=true packing_strategy=llamafactory",
                                              "neat_packing=true", "", ""},
                                         Acts{"disable_shuffling", "disable_shuffling=true",
                                              "disable_shuffling=false", "", ""},
                                         Acts{"data_seed", "disable_shuffling=false", "data_seed=7", "", ""}),
                         [](const auto& param) { return param.param.name; });

TEST_F(DataKey, ThreadsOfTokenisingChangeNothing) {
  expect_success(run("one", "preprocessing_num_workers=1"));
  expect_success(run("three", "preprocessing_num_workers=3"));
  expect_same_losses(folder_ / "one", folder_ / "three", 1e-12);
  EXPECT_EQ(run("none", "preprocessing_num_workers=0").code, 64);
}

TEST_F(DataKey, LongRowsEndTheRunWhereTheyMayNotBeCut) {
  const std::string kept = " tokenized_path=" + (folder_ / "kept");
  for (const std::string& more : {std::string(), std::string(" streaming=true"), kept}) {
    SCOPED_TRACE(more);
    fs::remove_all(folder_ / "refused");
    const Outcome refused = run("refused", "cutoff_len=24 truncation=error" + more);
    EXPECT_EQ(refused.code, 64) << refused.both();
    EXPECT_EQ(errors_in(refused), 1) << refused.both();
    EXPECT_NE(refused.err.find("at most 24 tokens (cutoff_len) a row"), std::string::npos) << refused.err;
    EXPECT_NE(refused.err.find("40 of 40 rows with more"), std::string::npos) << refused.err;
    EXPECT_NE(refused.err.find("chats.jsonl:1: is longer than cutoff_len"), std::string::npos) << refused.err;
    // A stream is read only after the run has started.
    EXPECT_EQ(fs::exists(folder_ / "refused/trainer_log.jsonl"), more == " streaming=true");
  }
  expect_success(run("fits", "truncation=error"));
  // Cached tokens of a run that cut rows also report the rows that are too long.
  expect_success(run("cut", "cutoff_len=24" + kept));
  const Outcome again = run("again", "cutoff_len=24 truncation=error" + kept);
  EXPECT_EQ(again.code, 64) << again.both();
  EXPECT_NE(again.err.find("40 of 40 rows with more"), std::string::npos) << again.err;
}

TEST_F(DataKey, BrokenRowsAreAllowedUpToALimit) {
  spill(folder_ / "rows.jsonl", slurp(Rows::get().folder() + "/chats.jsonl") + "{\"x\n{\"y\n");
  const std::string data = "dataset=" + (folder_ / "rows.jsonl");
  const Outcome allowed = run("allowed", data + " max_broken_rows=2");
  expect_success(allowed);
  EXPECT_NE(allowed.err.find("rows.jsonl:41"), std::string::npos) << allowed.err;
  EXPECT_NE(allowed.err.find("2 rows were left out because they cannot be read"), std::string::npos);
  const Outcome refused = run("refused", data + " max_broken_rows=1");
  EXPECT_EQ(refused.code, 64);
  EXPECT_NE(refused.err.find("rows.jsonl:42"), std::string::npos) << refused.err;
}

// Raw text and chats in one run, packed into common sequences. All of a text is trained, but only the answers
// of chats.
TEST_F(DataKey, TextAndChatsTrainTogetherByWeight) {
  const Outcome mixed =
      run("mixed",
          "dataset=text.txt,chats.jsonl mix_strategy=interleave_once interleave_probs=0.5,0.5 packing=true "
          "tokenized_path=" +
              (folder_ / "kept"));
  expect_success(mixed);
  const Outcome text = run("text", "dataset=text.txt"), chats = run("chats", "");
  const auto counts = [](const Outcome& outcome) {
    std::vector<std::int64_t> numbers;
    const std::string key = "training data: ";
    std::string line = outcome.err.substr(outcome.err.find(key + std::string()) + key.size());
    while (!std::isdigit(static_cast<unsigned char>(line[0])))
      line = line.substr(line.find(key) + key.size());
    line = line.substr(0, line.find('\n'));
    std::erase(line, ',');
    for (const auto& word : split(line, ' ')) {
      if (!word.empty() && std::isdigit(static_cast<unsigned char>(word[0])))
        numbers.push_back(std::stoll(word));
    }
    return numbers;  // documents, rows, tokens, trained tokens
  };
  const auto both = counts(mixed), one = counts(text), other = counts(chats);
  ASSERT_EQ(both.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(both[i], one[i] + other[i]) << i;
  EXPECT_EQ(one[3], one[2] - one[0]) << "all of a text but its first token";
  EXPECT_LT(other[3], other[2] / 2 + 300) << "prompts are masked";
  EXPECT_NE(mixed.err.find("packing: 70 documents in"), std::string::npos) << mixed.err;
}

// Data that train nothing, or nothing useful, are reported.
TEST(DataKeys, RowsThatTrainNothingOfUseAreReported) {
  const Task& task = Task::get();
  const TemporaryFolder folder("useless_rows");
  const std::string small = folder / "small";
  std::filesystem::copy(task.model(), small);
  Json tokenizer = parse_json(slurp(small + "/tokenizer.json"), "tokenizer.json");
  tokenizer["model"]["vocab"] = Json{{"a", 0}};
  tokenizer["model"]["merges"] = Json::array();
  spill(small + "/tokenizer.json", tokenizer.dump());
  const auto row = [](const std::string& answer, const Json& more = Json::object()) {
    Json last{{"role", "assistant"}, {"content", answer}};
    last.update(more);
    return Json{{"messages", {{{"role", "user"}, {"content", "Which words are here?"}}, last}}}.dump() + "\n";
  };
  const std::string good = row("salt, tea") + row("tea, salt");
  const std::string far(400, 'x');
  const std::string cut =
      Json{{"messages", {{{"role", "user"}, {"content", far}}, {{"role", "assistant"}, {"content", "yes"}}}}}
          .dump() +
      "\n";
  struct Case {
    const char *name, *keys;
    std::string model, rows, says;
    int code;
  };
  const std::string unknown = "most of a text is unknown to the tokenizer";
  for (const Case& c :
       {Case{"good", "", task.model(), good, "", 0}, Case{"unknown", "", small, good, unknown, 0},
        Case{"empty", "", task.model(), row("") + row(" \n"), "2 of 2 rows have an empty answer", 0},
        Case{"some_empty", "", task.model(), good + row(""), "1 of 3 rows have an empty answer", 0},
        Case{"masked", "", task.model(), good + row("no", {{"weight", 0}}),
             "1 rows were left out because they have no trained token", 0},
        Case{"all_masked", "", task.model(), row("no", {{"weight", 0}}), "has no tokens to train", 64},
        Case{"cut", "cutoff_len=32", task.model(), good + cut, "1 rows were cut to cutoff_len", 0},
        Case{"all_cut", "train_on_prompt=false mask_history=false cutoff_len=2", task.model(), cut,
             "has no tokens to train", 64}}) {
    SCOPED_TRACE(c.name);
    spill(folder / "rows.jsonl", c.rows);
    const Outcome run = trainer(task.train(
        folder / c.name, "model_name_or_path=" + c.model + " dataset=" + (folder / "rows.jsonl") +
                             " global_batch_size=2 per_device_train_batch_size=1 max_steps=1 device=cpu "
                             "save_strategy=no " +
                             c.keys));
    EXPECT_EQ(run.code, c.code) << run.both();
    EXPECT_NE(run.err.find(c.says), std::string::npos) << run.err;
    EXPECT_EQ(run.err.find(unknown) != std::string::npos, c.says == unknown) << run.err;
    if (c.says.empty()) {
      EXPECT_EQ(run.err.find("rows were"), std::string::npos) << run.err;
    }
  }
}

}  // namespace
}  // namespace octet::test::data_keys_test
