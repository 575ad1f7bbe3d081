// Every command that reads a model, data, a checkpoint or a configuration, or writes a folder, handles
// unusable input: it prints one message and exits with the documented code (docs/checkpoints.md).
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <deque>
#include <filesystem>
#include <functional>

#include "cli/task.h"
#include "octet/cli/cli.h"

namespace octet::test::exit_codes_test {
namespace {

namespace fs = std::filesystem;

// Kinds of inputs. Each command is tested with the inputs of its kinds.
enum class Kind { model, data, questions, batch, checkpoint, configuration, output };

// Placeholders: {} is the folder of the test, @ the input, and # a unique name.
struct Use {
  Kind kind;
  std::string_view name, words;
};

// clang-format off
constexpr Use kUses[] = {
    {Kind::model, "train", "{}/weights.yaml output_dir={}/out/# model_name_or_path=@"},
    {Kind::model, "plan", "plan {}/weights.yaml output_dir={}/out/# model_name_or_path=@"},
    {Kind::model, "plan_generate", "plan @ --generate device=cpu"},
    {Kind::model, "lint", "lint {}/weights.yaml output_dir={}/out/# model_name_or_path=@"},
    {Kind::model, "generate", "generate @ why --max-new 1"},
    {Kind::model, "probe", "probe @ --batch {}/batch --out {}/out/# device=cpu"},
    {Kind::model, "encode", "encode @ --input {}/rows.jsonl"},
    {Kind::model, "bench", "bench @ device=cpu steps=1 warmup=0 cutoff_len=16 per_device_train_batch_size=1"},
    {Kind::model, "export", "export {}/run/checkpoint-2 {}/out/# --model @"},
    {Kind::model, "merge", "export {}/adapter {}/out/# --merge --model @"},
    {Kind::data, "train", "{}/weights.yaml output_dir={}/out/# dataset=@"},
    {Kind::data, "stream", "{}/weights.yaml output_dir={}/out/# streaming=true dataset=@"},
    {Kind::data, "evaluate", "{}/weights.yaml output_dir={}/out/# eval_dataset=@ eval_strategy=steps"},
    {Kind::data, "lint", "lint {}/weights.yaml output_dir={}/out/# dataset=@"},
    {Kind::questions, "generate", "generate {}/run --file @ --out {}/out/#.jsonl --max-new 1"},
    {Kind::questions, "score", "generate {}/run --file @ --out {}/out/#.jsonl --score"},
    {Kind::questions, "encode", "encode {}/run --input @"},
    {Kind::batch, "probe", "probe {}/run --batch @ --out {}/out/# device=cpu"},
    {Kind::checkpoint, "train", "{}/fresh.yaml output_dir={}/out/# max_steps=3 resume_from_checkpoint=@"},
    {Kind::checkpoint, "inspect", "inspect @"},
    {Kind::checkpoint, "inspect_verify", "inspect @ --verify"},
    {Kind::checkpoint, "inspect_diff", "inspect {}/run/checkpoint-2 --diff @"},
    {Kind::checkpoint, "inspect_diff_verify", "inspect @ --verify --diff {}/run/checkpoint-2"},
    {Kind::checkpoint, "export", "export @ {}/out/#"},
    {Kind::checkpoint, "generate", "generate @ why --max-new 1"},
    {Kind::configuration, "train", "@ output_dir={}/out/#"},
    {Kind::configuration, "plan", "plan @ output_dir={}/out/#"},
    {Kind::configuration, "lint", "lint @ output_dir={}/out/#"},
    {Kind::configuration, "bench", "bench tiny @ device=cpu steps=1"},
    {Kind::configuration, "probe", "probe {}/run --batch {}/batch --out {}/out/# @"},
    {Kind::configuration, "verify", "verify @"},
    {Kind::configuration, "export", "export @"},
    {Kind::output, "train", "{}/weights.yaml output_dir=@"},
    {Kind::output, "plan", "plan {}/weights.yaml output_dir=@"},
    {Kind::output, "lint", "lint {}/weights.yaml output_dir=@"},
    {Kind::output, "export", "export {}/run/checkpoint-2 @"},
    {Kind::output, "quickstart", "quickstart @"},
    {Kind::output, "generate", "generate {}/run --file {}/made/data/held_out.jsonl --max-new 1 --out @/answers.jsonl"},
    {Kind::output, "probe", "probe {}/run --batch {}/batch --out @/out device=cpu"},
    {Kind::output, "bench", "bench save=1KiB device=cpu output_dir=@"},
    {Kind::output, "verify", "verify --folder @"},
};

// `code`: exit code of all commands of the kind, except the commands in `fine`, which do not read the wrong
// part. `says`: part of the message of every command.
struct Input {
  Kind kind;
  std::string_view path;
  int code;
  std::string_view says;
  std::string_view fine = "";
};

constexpr std::string_view kReadsNoWeights = "plan_generate encode bench export";
constexpr std::string_view kReadsNoTokenizer = "plan plan_generate probe bench export merge";

constexpr Input kInputs[] = {
    {Kind::model, "{}/nowhere", 64, "{}/nowhere"},
    {Kind::model, "acme/not-in-the-cache", 64, "acme/not-in-the-cache"},
    {Kind::model, "{}/empty", 64, "{}/empty"},
    {Kind::model, "{}/a_file", 64, "{}/a_file"},
    {Kind::model, "{}/no_config", 64, "{}/no_config", "encode"},
    {Kind::model, "{}/loop_config", 64, "name a folder that", "encode export merge"},
    {Kind::model, "{}/closed_config", 64, "{}/closed_config/config.json"},
    {Kind::model, "{}/torn_config", 64, "{}/torn_config/config.json"},
    {Kind::model, "{}/list_config", 64, "{}/list_config/config.json", "encode"},
    {Kind::model, "{}/typed_config", 64, "{}/typed_config/config.json", "encode"},
    {Kind::model, "{}/no_weights", 64, "{}/no_weights", "plan plan_generate encode bench export"},
    {Kind::model, "{}/short_weights", 64, "{}/short_weights/model.safetensors", kReadsNoWeights},
    {Kind::model, "{}/short_header", 64, "{}/short_header/model.safetensors", kReadsNoWeights},
    {Kind::model, "{}/empty_weights", 64, "{}/empty_weights/model.safetensors", kReadsNoWeights},
    {Kind::model, "{}/bad_header", 64, "{}/bad_header/model.safetensors", kReadsNoWeights},
    {Kind::model, "{}/torn_header", 64, "{}/torn_header/model.safetensors", kReadsNoWeights},
    {Kind::model, "{}/closed_weights", 64, "{}/closed_weights/model.safetensors", kReadsNoWeights},
    {Kind::model, "{}/torn_index", 64, "{}/torn_index/model.safetensors.index.json", kReadsNoWeights},
    {Kind::model, "{}/no_shard", 64, "{}/no_shard/model-00001-of-00002.safetensors", kReadsNoWeights},
    {Kind::model, "{}/no_tokenizer", 64, "tokenizer", kReadsNoTokenizer},
    {Kind::model, "{}/torn_tokenizer", 64, "{}/torn_tokenizer/tokenizer.json", "plan_generate probe bench export merge"},
    {Kind::data, "{}/nowhere.jsonl", 64, "{}/nowhere.jsonl"},
    {Kind::data, "acme/no-data", 64, "acme/no-data"},
    {Kind::data, "{}/empty", 64, "is empty"},
    {Kind::data, "{}/no_data", 64, "{}/no_data"},
    {Kind::data, "{}/empty.jsonl", 64, "{}/empty.jsonl"},
    {Kind::data, "{}/torn.jsonl", 64, "{}/torn.jsonl:1"},
    {Kind::data, "{}/closed.jsonl", 64, "{}/closed.jsonl"},
    {Kind::data, "{}/torn.parquet", 64, "{}/torn.parquet"},
    {Kind::questions, "{}/nowhere.jsonl", 64, "{}/nowhere.jsonl"},
    {Kind::questions, "{}/folder.jsonl", 64, "{}/folder.jsonl"},
    {Kind::questions, "{}/torn.jsonl", 64, "{}/torn.jsonl"},
    {Kind::questions, "{}/closed.jsonl", 64, "{}/closed.jsonl"},
    {Kind::questions, "{}/torn.parquet", 64, "{}/torn.parquet"},
    {Kind::batch, "{}/nowhere", 64, "{}/nowhere"},
    {Kind::batch, "{}/empty", 64, "{}/empty"},
    {Kind::batch, "{}/torn.jsonl", 64, "{}/torn.jsonl"},
    {Kind::batch, "{}/empty.jsonl", 64, "{}/empty.jsonl"},
    {Kind::checkpoint, "{}/saves/nowhere/checkpoint-2", 77, "{}/saves/nowhere/checkpoint-2", "generate"},
    {Kind::checkpoint, "{}/saves/no_data/checkpoint-2", 77, "{}/saves/no_data/checkpoint-2/checkpoint.h5"},
    {Kind::checkpoint, "{}/saves/no_manifest/checkpoint-2", 77, "{}/saves/no_manifest/checkpoint-2"},
    {Kind::checkpoint, "{}/saves/torn_manifest/checkpoint-2", 77, "{}/saves/torn_manifest/checkpoint-2/manifest.json"},
    {Kind::checkpoint, "{}/saves/short/checkpoint-2", 77, "{}/saves/short/checkpoint-2/checkpoint.h5"},
    {Kind::checkpoint, "{}/saves/zeros/checkpoint-2", 77, "{}/saves/zeros/checkpoint-2/checkpoint.h5"},
    {Kind::checkpoint, "{}/saves/flipped/checkpoint-2", 77, "{}/saves/flipped/checkpoint-2/checkpoint.h5", "inspect_diff"},
    {Kind::checkpoint, "{}/saves/folder/checkpoint-2", 77, "{}/saves/folder/checkpoint-2/checkpoint.h5"},
    {Kind::checkpoint, "{}/saves/closed/checkpoint-2", 77, "{}/saves/closed/checkpoint-2/checkpoint.h5"},
    {Kind::checkpoint, "{}/saves/renamed/checkpoint-7", 77, "checkpoint-2, by the step that it holds"},
    {Kind::configuration, "{}/nowhere.yaml", 64, "{}/nowhere.yaml"},
    {Kind::configuration, "{}/torn.yaml", 64, "{}/torn.yaml:"},
    {Kind::configuration, "{}/unknown.yaml", 64, "did you mean 'learning_rate'?"},
    {Kind::configuration, "{}/typed.yaml", 64, "value of 'seed' cannot be used"},
    {Kind::configuration, "{}/closed.yaml", 64, "{}/closed.yaml"},
    {Kind::configuration, "{}/folder.yaml", 64, "{}/folder.yaml"},
    {Kind::output, "{}/files/#", 64, "{}/files/"},
    {Kind::output, "{}/files/#/below", 64, "{}/files/"},
};
// clang-format on

std::string replaced(std::string text, const std::string& mark, const std::string& value) {
  for (std::size_t at = 0; (at = text.find(mark, at)) != std::string::npos; at += value.size())
    text.replace(at, mark.size(), value);
  return text;
}

class WrongInputCodes : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_ = std::make_unique<TemporaryFolder>("exit_codes");
    make_inputs();
  }
  static void TearDownTestSuite() { shared_.reset(); }
  static const TemporaryFolder& folder() { return *shared_; }
  static std::string filled(std::string_view text) {
    return replaced(std::string(text), "{}", folder().path());
  }

  static void make_inputs() {
    const fs::path root = folder().path();
    fs::create_directory_symlink(fs::path(Task::get().model()).parent_path(), root / "made");
    const std::string data =
        "template: chatml\ndataset: {}/made/data/train.jsonl\ncutoff_len: 128\n"
        "per_device_train_batch_size: 4\ngradient_accumulation_steps: 1\nmax_steps: 2\n"
        "save_steps: 2\nlogging_steps: 1\nsave_async: false\ndevice: cpu\n";
    const std::string fresh = "model_name_or_path: {}/made/model\ntrain_from_scratch: true\n" + data;
    const std::string weights = "model_name_or_path: {}/run\n" + data;
    spill(root / "weights.yaml", filled(weights));
    spill(root / "fresh.yaml", filled(fresh));
    expect_success(trainer(filled("{}/fresh.yaml output_dir={}/run")));
    expect_success(
        trainer(filled("{}/weights.yaml output_dir={}/adapter finetuning_type=lora lora_target=q_proj")));
    for (const char* name : {"out", "empty", "no_data", "folder.jsonl", "folder.yaml"})
      fs::create_directory(root / name);
    spill(root / "a_file", "a text");
    spill(root / "rows.jsonl", "{\"text\": \"a\"}\n");
    spill(root / "batch",
          std::string("\177\0\0\0\0\0\0\0", 8) +
              "{\"input_ids\":{\"dtype\":\"I64\",\"shape\":[1,2],\"data_offsets\":[0,16]},"
              "\"labels\":{\"dtype\":\"I64\",\"shape\":[1,2],\"data_offsets\":[16,32]}}" +
              std::string("\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0", 32));
    make_models(root);
    spill(root / "no_data/picture.png", "no rows");
    spill(root / "empty.jsonl", "");
    spill(root / "torn.jsonl", "{\"messages\": [");
    spill(root / "torn.parquet", "PAR1xxxxPAR1");
    spill(root / "torn.yaml", filled(weights) + "lora_target: [a\n");
    spill(root / "unknown.yaml", filled(weights) + "lerning_rate: 1\n");
    spill(root / "typed.yaml", filled(weights) + "seed: many\n");
    for (const char* name : {"closed.jsonl", "closed.yaml"}) {
      spill(root / name, "{}\n");
      fs::permissions(root / name, fs::perms::none);
    }
    make_checkpoints(root);
  }

  static void make_models(const fs::path& root) {
    const auto model = [&](const char* name, const char* file,
                           const std::function<void(const fs::path&)>& change) {
      fs::create_directory(root / name);
      for (const auto& entry : fs::directory_iterator(root / "run")) {
        const std::string from = entry.path().filename().string();
        if (from.find("token") != from.npos || from.ends_with("config.json") ||
            from.ends_with(".safetensors"))
          fs::copy(entry.path(), root / name / from);
      }
      change(root / name / file);
    };
    const auto writes = [](const std::string& text) {
      return [text](const fs::path& path) { spill(path, text); };
    };
    const auto removes = [](const fs::path& path) { fs::remove(path); };
    const auto closes = [](const fs::path& path) { fs::permissions(path, fs::perms::none); };
    Json typed = parse_json(slurp(root / "run/config.json"), "config.json");
    typed["hidden_size"] = "large";
    const char* config = "config.json";
    model("no_config", config, removes);
    model("closed_config", config, closes);
    model("torn_config", config, writes("{\"hidden_size\": 32,"));
    model("list_config", config, writes("[3]"));
    model("typed_config", config, writes(typed.dump()));
    model("loop_config", config, [](const fs::path& path) {
      fs::remove(path);
      fs::create_symlink("config.json", path);
    });
    const char* weights = "model.safetensors";
    const std::string bytes = slurp(root / "run/model.safetensors");
    model("no_weights", weights, removes);
    model("closed_weights", weights, closes);
    model("short_weights", weights, writes(bytes.substr(0, bytes.size() / 2)));
    model("short_header", weights, writes(bytes.substr(0, 40)));
    model("empty_weights", weights, writes(""));
    model("bad_header", weights, writes(bytes.substr(0, 8) + std::string(20, '\377') + bytes.substr(28)));
    model("torn_header", weights, writes(bytes.substr(0, 8) + "{\"a\": [" + bytes.substr(15)));
    for (const auto& [name, index] : {std::pair{"torn_index", "{\"weight_map\": {"},
                                      {"no_shard",
                                       "{\"weight_map\": {\"model.norm.weight\": "
                                       "\"model-00001-of-00002.safetensors\"}}"}}) {
      model(name, weights, removes);
      spill(root / name / "model.safetensors.index.json", index);
    }
    model("no_tokenizer", "tokenizer.json", removes);
    fs::remove(root / "no_tokenizer/tokenizer_config.json");
    model("torn_tokenizer", "tokenizer.json", writes("{\"model\": {"));
  }

  static void make_checkpoints(const fs::path& root) {
    const auto save = [&](const char* name) {
      const fs::path made = root / "saves" / name / "checkpoint-2";
      fs::create_directories(made.parent_path());
      fs::copy(root / "run/checkpoint-2", made, fs::copy_options::recursive);
      return made;
    };
    fs::remove(save("no_data") / "checkpoint.h5");
    fs::remove(save("no_manifest") / "manifest.json");
    spill(save("torn_manifest") / "manifest.json", "{\"format\": ");
    const std::string data = slurp(root / "run/checkpoint-2/checkpoint.h5");
    spill(save("short") / "checkpoint.h5", data.substr(0, data.size() / 2));
    spill(save("zeros") / "checkpoint.h5", std::string(256, '\0') + data.substr(256));
    std::string flipped = data;
    const std::string weights = slurp(root / "run/model.safetensors");
    // The last 64 bytes of the weights are in the parameters of the checkpoint, too.
    const std::size_t at = data.find(weights.substr(weights.size() - 64));
    ASSERT_NE(at, std::string::npos);
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    spill(save("flipped") / "checkpoint.h5", flipped);
    const fs::path taken = save("folder") / "checkpoint.h5";
    fs::remove(taken);
    fs::create_directory(taken);
    fs::permissions(save("closed") / "checkpoint.h5", fs::perms::none);
    const fs::path renamed = save("renamed");
    fs::rename(renamed, renamed.parent_path() / "checkpoint-7");
  }

  // Drops root's right to read files with closed permissions.
  static void drop_rights() {
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct sets[2]{};
    if (::syscall(SYS_capget, &header, sets) != 0) return;
    for (const int right : {CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH})
      sets[0].effective &= ~(1u << static_cast<unsigned>(right));
    ::syscall(SYS_capset, &header, sets);
  }

  // Runs the program in a child of this process. Starting is fast because nothing is linked again.
  static pid_t start(const std::vector<std::string>& words, const std::string& output) {
    const pid_t child = ::fork();
    if (child != 0) return child;
    ::setenv("OMP_NUM_THREADS", "1", 1);
    ::setenv("HF_HUB_CACHE", (folder() / "empty").c_str(), 1);
    const int file = ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int nothing = ::open("/dev/null", O_RDONLY);
    if (file < 0 || nothing < 0 || ::chdir(folder().path().c_str()) != 0) ::_exit(99);
    ::dup2(nothing, 0), ::dup2(file, 1), ::dup2(file, 2);
    drop_rights();
    std::vector<const char*> arguments{"trainer"};
    for (const std::string& word : words) arguments.push_back(word.c_str());
    ::alarm(60);
    const int code = cli::run(static_cast<int>(arguments.size()), arguments.data());
    std::fflush(nullptr);
    ::_exit(code);
  }

 private:
  static std::unique_ptr<TemporaryFolder> shared_;
};

std::unique_ptr<TemporaryFolder> WrongInputCodes::shared_;

bool has_word(std::string_view list, std::string_view word) {
  for (const std::string& one : split(std::string(list), ' ')) {
    if (one == word) return true;
  }
  return false;
}

struct Case {
  const Input* input;
  const Use* use;
  std::string words, output;
  pid_t child = 0;
};

void expect_documented(const Case& one, const std::string& says) {
  int status = 0;
  ASSERT_EQ(::waitpid(one.child, &status, 0), one.child);
  const std::string said = slurp(one.output);
  SCOPED_TRACE("trainer " + one.words + "\n" + said);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  const bool fine = has_word(one.input->fine, one.use->name);
  const int code = WEXITSTATUS(status);
  EXPECT_EQ(said.find("internal error"), std::string::npos);
  EXPECT_EQ(said.find("json.exception"), std::string::npos);
  if (fine) {
    EXPECT_TRUE(code == 0 || code == 64) << code;
    return;
  }
  EXPECT_EQ(code, one.input->code);
  EXPECT_NE(said.find(says), std::string::npos) << says;
  EXPECT_NE(said.find("to do:"), std::string::npos);
  std::size_t errors = 0;
  for (const std::string& line : split(said, '\n'))
    errors += line.starts_with("error: ") || line.starts_with("cannot run: ") ? 1 : 0;
  // These two end with a report.
  const bool reports = one.use->name == "verify" || one.use->name.starts_with("inspect");
  EXPECT_TRUE(errors == 1 || (errors == 0 && reports)) << errors;
}

TEST_F(WrongInputCodes, AreThoseOfTheDocumentationForEveryWrongInputOfEveryCommand) {
  std::deque<Case> running;
  const auto finish = [&] {
    expect_documented(running.front(), filled(running.front().input->says));
    running.pop_front();
  };
  int cases = 0;
  for (const Input& input : kInputs) {
    for (const Use& use : kUses) {
      if (use.kind != input.kind) continue;
      const std::string name = "case_" + std::to_string(++cases);
      Case one{&input, &use, "", folder() / (name + ".txt")};
      one.words = filled(replaced(replaced(std::string(use.words), "@", std::string(input.path)), "#", name));
      if (input.kind == Kind::output) spill(folder() / ("files/" + name), "a text");
      one.child = start(split(one.words, ' '), one.output);
      ASSERT_GT(one.child, 0);
      running.push_back(std::move(one));
      if (running.size() >= 4) finish();
    }
  }
  while (!running.empty()) finish();
  EXPECT_GE(cases, 300);
}

// Sizes that FP8 cannot take are refused when the configuration demands FP8.
TEST_F(WrongInputCodes, OfSizesThatFp8CannotTake) {
  Json config = parse_json(slurp(folder() / "run/config.json"), "config.json");
  config["intermediate_size"] = 40;
  spill(folder() / "odd/config.json", config.dump());
  for (const char* file : {"tokenizer.json", "tokenizer_config.json"})
    fs::copy(folder() / (std::string("run/") + file), folder() / (std::string("odd/") + file));
  const std::string words =
      filled("{}/fresh.yaml output_dir={}/out/fp8 model_name_or_path={}/odd bf16=true fp8=true ");
  struct Row {
    std::string words;
    int code;
    const char* says;
  };
  const Row rows[] = {
      {"plan " + words + "device=cuda card=h100 fp8_fallback=error", 64,
       "a GEMM that should run in FP8 cannot"},
      {"lint " + words + "device=cuda fp8_fallback=error", 64, "a GEMM that should run in FP8 cannot"},
      {"plan " + words + "device=cuda card=h100 fp8_fallback=warn", 0,
       "a GEMM should run in FP8, but cannot"},
      {"lint " + words + "device=cuda fp8_fallback=warn", 1, "a GEMM should run in FP8, but cannot"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.words);
    const std::string output = folder() / "fp8.txt";
    int status = 0;
    ::waitpid(start(split(row.words, ' '), output), &status, 0);
    const std::string said = slurp(output);
    EXPECT_EQ(WEXITSTATUS(status), row.code) << said;
    EXPECT_NE(said.find(row.says), std::string::npos) << said;
  }
}

}  // namespace
}  // namespace octet::test::exit_codes_test
