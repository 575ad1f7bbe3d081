#include "octet/quickstart/first_run.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/files/folder_lock.h"
#include "octet/text/bpe_trainer.h"
#include "sorting_task.h"

namespace octet::quickstart {
namespace {

std::string as_rows(const std::vector<TaskRow>& questions) {
  std::string rows;
  for (const TaskRow& q : questions) {
    const Json row{{"messages", Json::array({Json{{"role", "user"}, {"content", q.question}},
                                             Json{{"role", "assistant"}, {"content", q.answer}}})}};
    rows += row.dump() + "\n";
  }
  return rows;
}

constexpr std::int64_t kPositions = 512;  ///< longest text of model and tokenizer, in tokens

Json model_config(int vocabulary) {
  return Json{{"architectures", {"LlamaForCausalLM"}},
              {"model_type", "llama"},
              {"vocab_size", vocabulary},
              {"hidden_size", 128},
              {"intermediate_size", 256},
              {"num_hidden_layers", 3},
              {"num_attention_heads", 4},
              {"num_key_value_heads", 2},
              {"head_dim", 32},
              {"hidden_act", "silu"},
              {"max_position_embeddings", kPositions},
              {"rms_norm_eps", 1e-5},
              {"rope_theta", 10000.0},
              {"attention_bias", false},
              {"mlp_bias", false},
              // Large embeddings let such a small model learn faster. The head is not tied to them. With a
              // tied head the first loss would be 26 instead of ln(512) = 6.2, the loss of a uniform guess.
              {"tie_word_embeddings", false},
              {"initializer_range", 0.02},
              {"embedding_initializer_range", 0.4},
              {"bos_token_id", nullptr},
              {"eos_token_id", vocabulary - 1},
              {"pad_token_id", vocabulary - 3},
              {"torch_dtype", "float32"}};
}

std::string config_text(const std::string& folder) {
  return "# A first run: a small Llama-shaped model learns to sort words, from scratch.\n"
         "model_name_or_path: " +
         folder +
         "/model\n"
         "train_from_scratch: true\n"
         "template: chatml\n"
         "dataset: " +
         folder +
         "/data/train.jsonl\n"
         "cutoff_len: 128\n"
         "output_dir: " +
         folder +
         "/output\n"
         "overwrite_output_dir: true\n"
         "\n"
         "per_device_train_batch_size: 6\n"
         "global_batch_size: 24\n"
         "max_steps: 2400\n"
         "learning_rate: 2.0e-3\n"
         "adam_beta2: 0.98\n"
         "lr_scheduler_type: linear\n"
         "warmup_ratio: 0.05\n"
         "bf16: true\n"
         "\n"
         "logging_steps: 50\n"
         "logging_first_step: true\n"
         "save_steps: 1200\n"
         "plot_loss: true\n"
         "report_to: tensorboard\n";
}

/// Throws Error if the folder is not empty: existing files are never replaced.
void require_new(const std::string& folder) {
  std::error_code none;
  if (!std::filesystem::is_directory(folder, none)) return;
  const std::filesystem::directory_iterator first(folder, none);
  if (none || first == std::filesystem::directory_iterator()) return;
  throw Error({.what = "the folder for the first run is not empty",
               .expected = "a folder that is new or empty",
               .found = "'" + first->path().filename().string() + "' in it",
               .where = folder,
               .fix = "name another folder, or remove this one if nothing in it matters",
               .code = ExitCode::usage});
}

std::string distillation_text(const std::string& folder, const std::string& head, const std::string& course) {
  return head + "template: chatml\ncutoff_len: 128\noverwrite_output_dir: true\n\n" +
         "per_device_train_batch_size: 6\nglobal_batch_size: 24\n" + course +
         "adam_beta2: 0.98\nlr_scheduler_type: linear\nwarmup_ratio: 0.05\nbf16: true\n\n"
         "logging_steps: 50\nsave_strategy: \"no\"\noutput_dir: " +
         folder + "/";
}

std::string teacher_text(const std::string& folder) {
  return distillation_text(
             folder,
             "# A teacher: a small Llama-shaped model learns three rules from scratch. Its prompt "
             "names the rule.\n"
             "model_name_or_path: " +
                 folder + "/model\ntrain_from_scratch: true\ndataset: " + folder + "/data/teacher.jsonl\n",
             "max_steps: 3200\nlearning_rate: 2.0e-3\n") +
         "teacher\n";
}

std::string student_text(const std::string& folder) {
  return distillation_text(folder,
                           "# Its student begins with the teacher's weights and learns from the teacher's "
                           "answers to follow one\n"
                           "# rule without being told.\n"
                           "model_name_or_path: " +
                               folder + "/teacher\ndataset: " + folder + "/answers.jsonl\n",
                           "max_steps: 2000\nlearning_rate: 1.0e-3\n") +
         "student\n";
}

void make_model(const std::string& folder, const std::vector<TaskRow>& questions) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < std::min<std::size_t>(questions.size(), 4000); ++i) {
    texts.push_back("user\n" + questions[i].question);
    texts.push_back("assistant\n" + questions[i].answer);
  }
  make_folders(folder + "/model");
  const int vocabulary =
      text::train_byte_bpe(texts, {.vocab_size = 512, .max_length = kPositions}, folder + "/model");
  write_file_atomically(folder + "/model/config.json", model_config(vocabulary).dump(2) + "\n");
}

void make_sorting(const std::string& folder, std::int64_t rows, std::int64_t held_out) {
  const auto questions = sorting_questions(rows, 42, false);
  make_folders(folder + "/data");
  write_file_atomically(folder + "/data/train.jsonl", as_rows(questions));
  write_file_atomically(folder + "/data/held_out.jsonl", as_rows(sorting_questions(held_out, 42, true)));
  make_model(folder, questions);
  write_file_atomically(folder + "/config.yaml", config_text(folder));
}

TaskRow prompted(const TaskRow& row, ListRule rule) {
  const std::string prompt = rule_prompt(rule), place = "{text}";
  std::string question = prompt;
  question.replace(question.find(place), place.size(), row.question);
  return {question, row.answer};
}

// The teacher learns to apply three rules to lists. Its prompt names the rule. The student learns to apply
// one of the rules without a prompt.
void make_distillation(const std::string& folder, std::int64_t rows, std::int64_t held_out,
                       std::uint64_t seed) {
  constexpr ListRule kTaught = ListRule::last_to_first;
  std::vector<TaskRow> teacher;
  std::array<std::vector<TaskRow>, 3> by_rule;
  for (std::size_t r = 0; r < 3; ++r) by_rule[r] = list_questions(rows / 3, seed + r, false, kListRules[r]);
  for (std::size_t i = 0; i < by_rule[0].size(); ++i) {
    for (std::size_t r = 0; r < 3; ++r) teacher.push_back(prompted(by_rule[r][i], kListRules[r]));
  }
  std::string lists;
  for (const TaskRow& row : list_questions(rows / 4, seed + 3, false, kTaught)) {
    lists +=
        Json{{"messages", Json::array({Json{{"role", "user"}, {"content", row.question}}})}}.dump() + "\n";
  }
  const std::vector<TaskRow> without_prompt = list_questions(held_out, seed, true, kTaught);
  std::vector<TaskRow> with_prompt;
  for (const TaskRow& row : without_prompt) with_prompt.push_back(prompted(row, kTaught));
  make_folders(folder + "/data");
  write_file_atomically(folder + "/data/teacher.jsonl", as_rows(teacher));
  write_file_atomically(folder + "/data/lists.jsonl", lists);
  write_file_atomically(folder + "/data/prompt.txt", rule_prompt(kTaught));
  write_file_atomically(folder + "/data/held_out_with_prompt.jsonl", as_rows(with_prompt));
  write_file_atomically(folder + "/data/held_out.jsonl", as_rows(without_prompt));
  make_model(folder, teacher);
  write_file_atomically(folder + "/teacher.yaml", teacher_text(folder));
  write_file_atomically(folder + "/student.yaml", student_text(folder));
}

}  // namespace

std::vector<std::string> make_first_run(const Wish& wish) {
  const auto lock = files::lock_output(wish.folder);
  require_new(wish.folder);
  if (wish.distillation) {
    make_distillation(wish.folder, wish.rows, wish.held_out, wish.seed);
    return {wish.folder + "/teacher.yaml", wish.folder + "/student.yaml"};
  }
  make_sorting(wish.folder, wish.rows, wish.held_out);
  return {wish.folder + "/config.yaml"};
}

}  // namespace octet::quickstart
