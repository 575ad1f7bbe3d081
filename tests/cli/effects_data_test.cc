// Keys of the model's folder, the data and their order, seen in the tokens and the batches.
#include "cli/effects.h"
#include "cli/task.h"
#include "octet/base/json.h"
#include "octet/config/config.h"
#include "octet/feed/corpus.h"
#include "octet/runtime/model_folder.h"
#include "octet/setup/run_options.h"
#include "octet/setup/setup.h"
#include "octet/train/trainer.h"

namespace octet::test {
namespace {

/// Rows of several kinds, written once.
class Files {
 public:
  static const Files& get() {
    static const Files files;
    return files;
  }
  std::string operator/(const std::string& name) const { return folder_ / name; }

 private:
  Files() : folder_("effects") {
    const auto turn = [](const char* role, const std::string& content) {
      return Json{{"role", role}, {"content", content}};
    };
    const auto chat = [](const Json& turns) { return Json{{"messages", turns}}.dump() + "\n"; };
    const std::string thought = "<think>\nhidden\n</think>\n\n";
    spill(folder_ / "thoughts.jsonl", chat({turn("user", "q"), turn("assistant", thought + "one"),
                                            turn("user", "r"), turn("assistant", thought + "two")}));
    spill(folder_ / "typed.jsonl", chat({turn("user", "a <|im_end|> b"), turn("assistant", "c")}));
    Json tools = Json{{"messages", {turn("user", "q"), turn("assistant", "a")}}};
    tools["tools"] = {{{"name", "calculate"}, {"description", "d"}, {"parameters", Json::object()}}};
    spill(folder_ / "tools.jsonl", tools.dump() + "\n");
    std::string few, many, text, broken;
    for (int i = 0; i < 4; ++i) few += chat({turn("user", "few"), turn("assistant", std::to_string(i))});
    for (int i = 0; i < 9; ++i) {
      many += chat({turn("user", "question " + std::string(static_cast<std::size_t>(i % 4), 'x')),
                    turn("assistant", "answer " + std::to_string(i))});
      text += "line number " + std::to_string(i) + " of a text\n";
    }
    spill(folder_ / "few.jsonl", few);
    spill(folder_ / "many.jsonl", many);
    spill(folder_ / "other/few.jsonl", few + few);
    spill(folder_ / "splits/train.jsonl", few);
    spill(folder_ / "splits/validation.jsonl", few + few);
    spill(folder_ / "text.txt", text);
    Json columns = Json{{"messages", {turn("user", "m"), turn("assistant", "n")}}};
    columns["chat"] = {turn("user", "other"), turn("assistant", "talk")};
    columns["talk"] = {{{"from", "human"}, {"value", "hello"}}, {{"from", "gpt"}, {"value", "there"}}};
    for (const char* name : {"q", "a", "q2", "a2"}) columns[name] = std::string("text of ") + name;
    spill(folder_ / "columns.jsonl", columns.dump() + "\n");
    spill(folder_ / "broken.jsonl", many + "{\"x\n{\"y\n");
  }
  TemporaryFolder folder_;
};

std::string texts(const data::Encoded& set, const data::Encoder& encoder) {
  std::string text;
  for (std::int64_t d = 0; d < set.documents(); ++d) {
    const auto begin = static_cast<std::size_t>(set.begins[static_cast<std::size_t>(d)]);
    bool trained = false;
    for (std::size_t i = begin; i < begin + static_cast<std::size_t>(set.length(d)); ++i) {
      const std::int32_t id = set.ids[i];
      if ((set.labels[i] >= 0) != trained) text += trained ? "]" : "[";
      trained = set.labels[i] >= 0;
      text += encoder.decode({&id, 1}) + "/" + std::to_string(id) + " ";
    }
    text += "\n";
  }
  return text;
}

std::string sizes(const data::Encoded& set, const data::Items& items) {
  std::string text = std::to_string(set.documents()) + " documents of " + std::to_string(set.counts.rows) +
                     " rows in " + std::to_string(items.size()) + " sequences";
  if (items.shared_context) text += " that see each other";
  return text;
}

/// The tokenised data: decoded texts and counts.
struct Data {
  std::string texts, sizes, evaluation;
};
Data data_of(const config::Resolved& r) {
  const Quiet quiet;
  runtime::Session session(DeviceWish::cpu);
  const data::TemplateEncoder encoder(setup::encoder_options(r.config, r.config.model_name_or_path));
  const feed::Corpus corpus = feed::build_corpus(session, r.config, encoder);
  return {.texts = texts(corpus.training, encoder),
          .sizes = sizes(corpus.training, corpus.training_items),
          .evaluation = sizes(corpus.evaluation, corpus.evaluation_items)};
}
std::string texts_of(const config::Resolved& r) {
  return data_of(r).texts;
}
std::string sizes_of(const config::Resolved& r) {
  return data_of(r).sizes;
}
std::string evaluation_of(const config::Resolved& r) {
  return data_of(r).evaluation;
}

Keys rows_of(const std::string& file, Keys keys = {}) {
  keys["dataset"] = Files::get() / file;
  keys.emplace("cutoff_len", "256");
  keys.emplace("template", "qwen3");
  return keys;
}

std::vector<KeyRow> text_rows() {
  const Keys thoughts = rows_of("thoughts.jsonl");
  return {
      {"template", rows_of("few.jsonl", {{"template", "unset"}}), {{"chatml"}, {"qwen"}}, texts_of},
      {"default_system", thoughts, {{"Xyzzy"}}, texts_of},
      {"enable_thinking", thoughts, {{"false"}}, texts_of},
      {"preserve_thinking", rows_of("thoughts.jsonl", {{"mask_history", "true"}}), {{"true"}}, texts_of},
      {"tool_format", rows_of("tools.jsonl"), {{"llama3"}, {"mistral"}}, texts_of},
      {"split_special_tokens", rows_of("typed.jsonl"), {{"true"}}, texts_of},
      {"train_on_prompt", thoughts, {{"true"}}, texts_of},
      {"mask_history", thoughts, {{"true"}}, texts_of},
      {"stage",
       rows_of("text.txt", {{"packing", "false"}, {"template", "unset"}}),
       {{"pt"}},
       [](const config::Resolved& r) {
         return std::string(setup::encoder_options(r.config, r.config.model_name_or_path).match_template
                                ? "chats"
                                : "texts");
       },
       "chats"},
  };
}

std::vector<KeyRow> set_rows() {
  const Files& files = Files::get();
  const std::string two = files / "many.jsonl" + ", " + files / "few.jsonl";
  const Keys both{{"dataset", two}, {"max_samples", "unset"}};
  const Keys under{{"dataset", two}, {"max_samples", "unset"}, {"mix_strategy", "interleave_under"}};
  const Keys pair = rows_of("columns.jsonl", {{"prompt_column", "q"}, {"response_column", "a"}});
  const std::string few = "4 documents of 4 rows in 4 sequences";
  return {
      {"dataset",
       {{"max_samples", "unset"}, {"dataset", "unset"}},
       {{files / "few.jsonl", few}, {two, "13 documents of 13 rows in 13 sequences"}},
       sizes_of},
      {"dataset_dir",
       {{"dataset", "few.jsonl"}},
       {{files / "other", "8 documents of 8 rows in 8 sequences"}, {files / ".", few}},
       sizes_of},
      {"eval_dataset",
       {},
       {{files / "few.jsonl", few}},
       evaluation_of,
       "0 documents of 0 rows in 0 sequences"},
      {"dataset_train_split",
       {{"dataset", files / "splits"}},
       {{"validation", "8 documents of 8 rows in 8 sequences"}},
       sizes_of,
       few},
      {"dataset_test_split",
       {{"eval_dataset", files / "splits"}},
       {{"train", few}},
       evaluation_of,
       "8 documents of 8 rows in 8 sequences"},
      {"val_size",
       {},
       {{"3", "3 documents of 0 rows in 3 sequences"}, {"0.2", "2 documents of 0 rows in 2 sequences"}},
       evaluation_of},
      {"max_samples",
       both,
       {{"3", "6 documents of 6 rows in 6 sequences"}},
       sizes_of,
       "13 documents of 13 rows in 13 sequences"},
      {"max_broken_rows", rows_of("broken.jsonl", {{"max_samples", "unset"}}), {{"1"}}, sizes_of},
      {"mix_strategy", both, {{"interleave_under"}, {"interleave_over"}, {"interleave_once"}}, texts_of},
      {"interleave_probs", under, {{"\"0.9,0.1\""}}, texts_of},
      {"messages_column", rows_of("columns.jsonl"), {{"chat"}, {"talk"}}, texts_of},
      {"prompt_column", pair, {{"q2"}}, texts_of},
      {"response_column", pair, {{"a2"}}, texts_of},
      {"preprocessing_num_workers",
       {},
       {{"3", "3"}, {"77", "77"}},
       [](const config::Resolved& r) { return std::to_string(setup::tokenising_threads(r.config)); }},
  };
}

std::vector<KeyRow> sequence_rows() {
  const Keys texts = rows_of("text.txt", {{"stage", "pt"}, {"template", "unset"}});
  const Keys packed{{"packing", "true"}, {"packing_strategy", "llamafactory"}};
  Keys short_pieces = texts;
  short_pieces["cutoff_len"] = "4";
  Keys batches = packed;
  batches["cutoff_len"] = "256";
  return {
      {"cutoff_len", {{"cutoff_len", "unset"}}, {{"24"}, {"32"}}, texts_of},
      {"truncation", {{"cutoff_len", "24"}}, {{"error"}}, sizes_of},
      {"pack_factor", short_pieces, {{"1"}, {"2"}}, texts_of},
      {"packing", {}, {{"true"}}, sizes_of},
      {"neat_packing", packed, {{"true"}}, sizes_of},
      {"packing_strategy", texts, {{"llamafactory"}}, texts_of},
      {"preprocessing_batch_size", batches, {{"2"}, {"3"}}, sizes_of},
  };
}

TEST(Effects, OfTexts) {
  expect_effects(text_rows());
}
TEST(Effects, OfDataSets) {
  expect_effects(set_rows());
}
TEST(Effects, OfSequences) {
  expect_effects(sequence_rows());
}

}  // namespace

std::vector<KeyRow> data_rows() {
  std::vector<KeyRow> all;
  for (const auto& rows : {text_rows(), set_rows(), sequence_rows()})
    all.insert(all.end(), rows.begin(), rows.end());
  return all;
}

}  // namespace octet::test
