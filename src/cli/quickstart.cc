// `trainer quickstart`: everything that a first run needs, made on the spot.
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/text/bpe_trainer.h"
#include "options.h"
#include "sorting_task.h"

namespace octet::cli {
namespace {

std::string as_rows(const std::vector<Question>& questions) {
  std::string rows;
  for (const Question& q : questions) {
    const Json row{{"messages", Json::array({Json{{"role", "user"}, {"content", q.question}},
                                             Json{{"role", "assistant"}, {"content", q.answer}}})}};
    rows += row.dump() + "\n";
  }
  return rows;
}

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
              {"max_position_embeddings", 512},
              {"rms_norm_eps", 1e-5},
              {"rope_theta", 10000.0},
              {"attention_bias", false},
              {"mlp_bias", false},
              {"tie_word_embeddings", true},
              {"initializer_range", 0.02},
              // A tied table that starts small makes such a small model slow to learn.
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
         "save_steps: 1200\n"
         "plot_loss: true\n"
         "report_to: tensorboard\n";
}

/// What lies in a folder may be somebody's, trained for hours or written by hand: nothing of it is replaced.
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

}  // namespace

int quickstart_command(const Arguments& arguments) {
  Options options("quickstart",
                  "Makes a task (sorting words), a tokenizer, a small model to start from, and a "
                  "configuration to train it");
  std::string folder = "runs/quickstart";
  std::int64_t rows = 57600, held_out = 200;
  options.app().add_option("FOLDER", folder, "where everything goes, new or empty")->capture_default_str();
  options.app()
      .add_option("--rows", rows, "training questions")
      ->check(CLI::Range(100, 10000000))
      ->capture_default_str();
  options.app()
      .add_option("--held-out", held_out, "questions that training never sees")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  if (!options.parse(arguments)) return 0;
  require_new(folder);

  const auto questions = sorting_questions(rows, 42, false);
  make_folders(folder + "/data");
  make_folders(folder + "/model");
  write_file_atomically(folder + "/data/train.jsonl", as_rows(questions));
  write_file_atomically(folder + "/data/held_out.jsonl", as_rows(sorting_questions(held_out, 42, true)));
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < std::min<std::size_t>(questions.size(), 4000); ++i) {
    texts.push_back("user\n" + questions[i].question);
    texts.push_back("assistant\n" + questions[i].answer);
  }
  const int vocabulary = text::train_byte_bpe(texts, {.vocab_size = 512}, folder + "/model");
  write_file_atomically(folder + "/model/config.json", model_config(vocabulary).dump(2) + "\n");
  write_file_atomically(folder + "/config.yaml", config_text(folder));
  std::printf("%s/config.yaml\n", folder.c_str());
  return 0;
}

}  // namespace octet::cli
