// Steps with gradients that are not finite are skipped, counted and reported. Five in a row end the run, also
// across restarts.
#include <cmath>
#include <filesystem>
#include <set>

#include "cli/task.h"
#include "cli/weights.h"
#include "octet/base/json.h"

namespace octet::test::not_finite_test {
namespace {

constexpr int kSamples = 8;  // samples per step

/// A base with a NaN embedding of one token, and rows of which some contain it. A step with this token has no
/// finite gradient.
class Poisoned {
 public:
  Poisoned() : folder_("poisoned") {
    const std::string model = folder_ / "model";
    expect_success(trainer(Task::get().train(model, "max_steps=1 save_strategy=no")));
    Json config = parse_json(slurp(model + "/config.json"), "config.json");
    config["tie_word_embeddings"] = false;
    spill(model + "/config.json", config.dump());
    Weights weights = read_weights(model);
    Weight& embedding = weights.at("model.embed_tokens.weight");
    weights["lm_head.weight"] = embedding;
    const auto width = static_cast<std::size_t>(embedding.shape.at(1));
    for (std::size_t i = 0; i < width; ++i) embedding.values.at(poison(model) * width + i) = NAN;
    write_weights(model, weights);
  }
  /// Trains `steps` steps in order on two ranks. The given steps are poisoned.
  Outcome train(const std::string& output, int steps, const std::vector<int>& poisoned,
                const std::string& more = "") const {
    std::string rows;
    for (int n = 1; n <= steps; ++n) {
      const bool bad = std::find(poisoned.begin(), poisoned.end(), n) != poisoned.end();
      for (int i = 0; i < kSamples; ++i) {
        // One poisoned sample on one rank is enough.
        const std::string question = bad && i == kSamples - 1 ? "Sort ~ these" : "Sort these";
        rows += Json{{"messages",
                      {{{"role", "user"}, {"content", question + " " + std::to_string(n * i)}},
                       {{"role", "assistant"}, {"content", "salt, tea " + std::to_string(i)}}}}}
                    .dump() +
                "\n";
      }
    }
    spill(folder_ / "rows.jsonl", rows);
    return trainer(
        Task::get().train(output, "model_name_or_path=" + (folder_ / "model") +
                                      " train_from_scratch=false finetuning_type=lora device=cpu dataset=" +
                                      (folder_ / "rows.jsonl") +
                                      " disable_shuffling=true global_batch_size=8 "
                                      "per_device_train_batch_size=2 save_steps=1 max_steps=" +
                                      std::to_string(steps) + " " + more),
        2);
  }
  std::string operator/(const std::string& name) const { return folder_ / name; }

 private:
  // Makes the embedding of a character NaN that no other text contains, and returns its token.
  std::size_t poison(const std::string& model) const {
    spill(folder_ / "poison.jsonl", "{\"text\": \"~\"}\n");
    const Outcome run = trainer("encode " + model + " --input " + (folder_ / "poison.jsonl"));
    const std::vector<std::size_t> ids = parse_json(run.out, "encode").at("ids_plain");
    EXPECT_EQ(ids.size(), 1u);
    return ids.front();
  }
  TemporaryFolder folder_;
};

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(NotFinite, StepsAreSkippedCountedAndLeaveTheWeights) {
  const Poisoned task;
  const std::string run = task / "run";
  const Outcome trained = task.train(run, 8, {2, 4, 5, 6, 7});
  expect_success(trained);  // four in a row are not five
  const auto rows = steps_of(run);
  ASSERT_EQ(rows.size(), 8u);
  const std::map<std::int64_t, int> skipped{{1, 0}, {2, 1}, {3, 1}, {4, 2}, {5, 3}, {6, 4}, {7, 5}, {8, 5}};
  double losses = 0;
  for (const auto& [n, row] : rows) {
    const bool bad = n == 2 || (n >= 4 && n <= 7);
    EXPECT_EQ(row.at("skipped_steps"), skipped.at(n)) << n;
    EXPECT_EQ(row.at("loss").is_null(), bad) << n;
    EXPECT_EQ(row.at("grad_norm").is_null(), bad) << n;
    if (!bad) losses += row.at("loss").get<double>();
  }
  for (const std::int64_t n : {2, 4, 5, 6, 7}) {
    const std::string warning =
        "step " + std::to_string(n) + ": the gradient is not finite; the step was skipped";
    EXPECT_EQ(count(trained.err, warning), 1u) << trained.err;
  }
  EXPECT_EQ(count(trained.err, "not finite; the step was skipped"), 5u);
  expect_identical(run + "/checkpoint-1", run + "/checkpoint-2");
  expect_identical(run + "/checkpoint-3", run + "/checkpoint-7");
  EXPECT_NE(trainer("inspect " + run + "/checkpoint-2 --diff " + run + "/checkpoint-3").code, 0);
  EXPECT_NE(trainer("inspect " + run + "/checkpoint-7 --diff " + run + "/checkpoint-8").code, 0);
  const Json results = parse_json(slurp(run + "/train_results.json"), "results");
  EXPECT_EQ(results.at("skipped_steps"), 5);
  EXPECT_NEAR(results.at("train_loss").get<double>(), losses / 3, 1e-9) << "the mean of those that have one";
}

TEST(WholeNotFinite, FiveInARowEndTheRunAndEveryOneThatGoesOnWithIt) {
  const Poisoned task;
  const std::string run = task / "run";
  const std::vector<int> poisoned{3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  for (int start = 0; start < 2; ++start) {
    const Outcome ended = task.train(run, 12, poisoned);
    EXPECT_EQ(ended.code, 64) << "the base is at fault: " << ended.both();
    EXPECT_EQ(errors_in(ended), 1) << ended.err;
    EXPECT_NE(ended.err.find("was not finite in 5 steps in a row"), std::string::npos) << ended.err;
    EXPECT_NE(ended.err.find("step 7"), std::string::npos) << ended.err;
    EXPECT_NE(ended.err.find("not finite in the base: tensor 'model.embed_tokens.weight' of " +
                             (task / "model/model.safetensors")),
              std::string::npos)
        << ended.err;
    EXPECT_NE(ended.err.find("fetch the weights again"), std::string::npos) << ended.err;
    // The second start resumes after step 6, with a count of four.
    EXPECT_EQ(count(ended.err, "the step was skipped"), start == 0 ? 5u : 1u) << ended.err;
    EXPECT_TRUE(std::filesystem::exists(run + "/checkpoint-6"));
    EXPECT_FALSE(std::filesystem::exists(run + "/checkpoint-7"));
    EXPECT_EQ(steps_of(run).rbegin()->first, 7);
    EXPECT_EQ(steps_of(run).at(7).at("skipped_steps"), 5);
  }
}

// spike_action applies to these steps like to spikes.
TEST(WholeNotFinite, ARunGoesBackAndLeavesSuchDataOutOrStops) {
  const Poisoned task;
  const Outcome back = task.train(task / "back", 8, {5}, "spike_action=rollback save_steps=2");
  expect_success(back);
  EXPECT_NE(back.err.find("step 5: its loss or its gradient is not finite (loss nan, gradient norm nan); the "
                          "run returns to the last checkpoint\n"),
            std::string::npos)
      << back.err;
  EXPECT_NE(back.err.find("returned from step 5 to " + (task / "back/checkpoint-4") +
                          "; the data since this checkpoint are skipped"),
            std::string::npos)
      << back.err;
  const auto rows = steps_of(task / "back");
  EXPECT_EQ(rows.size(), 8u);
  EXPECT_FALSE(rows.at(5).at("loss").is_null()) << "of the data behind those of the bad step";
  EXPECT_EQ(rows.at(8).at("rollbacks"), 1);
  EXPECT_EQ(rows.at(8).at("skipped_steps"), 0);

  const Outcome stop = task.train(task / "stop", 8, {2}, "spike_action=stop save_strategy=no");
  EXPECT_EQ(stop.code, 1) << stop.both();
  EXPECT_EQ(errors_in(stop), 1) << stop.err;
  EXPECT_NE(stop.err.find("(loss nan, gradient norm nan); the run stops\n"), std::string::npos) << stop.err;
  EXPECT_NE(stop.err.find("there is no checkpoint; spike_action: rollback skips such data"),
            std::string::npos)
      << stop.err;
}

/// Returns the names of weights and checkpoints with a value that is not finite, in an output folder.
std::set<std::string> bad_files(const std::string& output) {
  std::set<std::string> bad;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(output, none)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".safetensors")) bad.insert(name);
    if (!name.starts_with("checkpoint-")) continue;
    const Outcome shown = trainer("inspect " + entry.path().string());
    if (shown.out.find("not finite") != std::string::npos) bad.insert(name);
  }
  return bad;
}

// A run without an update fails, whether it is short or long and however it trains and saves.
TEST(NotFinite, ARunWithoutAnUpdateFailsAndSavesNoValueThatIsNotFinite) {
  struct Row {
    const char *name, *keys;
    int code;
    std::vector<const char*> says;
  };
  const std::string tensor = "tensor 'model.embed_tokens.weight' of ";
  const Poisoned task;
  const std::vector<int> all{1, 2, 3};
  for (const Row& row : {
           Row{"whole", "finetuning_type=full", 64, {"a trained weight is not finite"}},
           {"adapters", "", 64, {"the run has made no update", "step 1: the base has values"}},
           {"unsaved", "save_strategy=no", 64, {"the run has made no update"}},
           {"beside", "save_async=true", 64, {"the run has made no update"}},
       }) {
    SCOPED_TRACE(row.name);
    const Outcome run = task.train(task / row.name, 3, all, row.keys);
    EXPECT_EQ(run.code, row.code) << run.both();
    EXPECT_EQ(errors_in(run), 1) << run.err;
    EXPECT_NE(run.err.find(tensor), std::string::npos) << run.err;
    for (const char* piece : row.says) EXPECT_NE(run.err.find(piece), std::string::npos) << run.err;
    EXPECT_EQ(run.err.find("Training completed"), std::string::npos) << run.err;
    EXPECT_EQ(bad_files(task / row.name), std::set<std::string>{});
  }
}

TEST(NotFinite, AnUpdateThatBreaksTheWeightsIsNotSaved) {
  const TemporaryFolder folder("broken");
  const std::string base = folder / "base";
  expect_success(trainer(Task::get().train(base, "max_steps=1 save_strategy=no")));
  for (const std::string keys :
       {"save_steps=1", "save_steps=1 save_async=true", "save_strategy=no max_steps=1",
        "save_steps=1 bf16=true param_dtype=bf16 grad_dtype=bf16 optim_dtype=bf16",
        "save_steps=1 finetuning_type=lora train_from_scratch=false lora_rank=2 model_name_or_path=BASE"}) {
    SCOPED_TRACE(keys);
    const std::string output = folder / "out";
    std::filesystem::remove_all(output);
    std::string more = keys;
    if (const std::size_t at = more.find("BASE"); at != std::string::npos) more.replace(at, 4, base);
    const Outcome run = trainer(Task::get().train(
        output, "learning_rate=1e308 weight_decay=0.1 device=cpu lr_scheduler_type=constant " + more));
    EXPECT_EQ(run.code, 1) << run.both();
    EXPECT_EQ(errors_in(run), 1) << run.err;
    EXPECT_NE(run.err.find("the weights are not finite, so no checkpoint is written"), std::string::npos)
        << run.err;
    EXPECT_EQ(bad_files(output), std::set<std::string>{});
  }
}

// Every command that computes with this base fails, and names the tensor and its file.
TEST(WholeNotFinite, CommandsNameTheTensorOfTheBase) {
  const TemporaryFolder folder("not_finite_commands");
  const std::string model = folder / "model", rows = folder / "rows.jsonl";
  std::filesystem::copy(OCTET_SOURCE_DIR "/tests/golden/models/qwen3", model);
  Weights weights = read_weights(model);
  const std::string name = "model.layers.1.mlp.down_proj.weight";
  weights.at(name).values[7] = NAN;
  write_weights(model, weights);
  write_batch(folder / "batch.safetensors", 8, 50);
  spill(rows, "{\"prompt_ids\": [1, 2, 3, 4]}\n");
  spill(folder / "ids.jsonl", "{\"input_ids\": [1, 2, 3, 4]}\n");
  const std::string probe =
      "probe " + model + " --device cpu --batch " + (folder / "batch.safetensors") + " --out ";
  const std::string generate =
      "generate " + model + " --device cpu --overwrite --max-broken-rows 5 --out " + (folder / "out.jsonl");
  struct Row {
    std::string command;
    int ranks;
  };
  for (const Row& row : {Row{probe + (folder / "out.safetensors") + " bf16=true", 0},
                         {probe + (folder / "out.safetensors") + " zero_stage=3", 2},
                         {generate + " --file " + rows, 0},
                         {generate + " --file " + rows + " --logprobs 1 --temperature 1", 0},
                         {generate + " --file " + rows + " --score", 0},
                         {generate + " --file " + rows + " --score --tensor-parallel-size 2", 2}}) {
    SCOPED_TRACE(row.command);
    const Outcome run = trainer(row.command, row.ranks);
    EXPECT_EQ(run.code, 64) << run.both();
    EXPECT_EQ(errors_in(run), 1) << run.err;
    EXPECT_NE(run.err.find("not finite"), std::string::npos) << run.err;
    EXPECT_NE(run.err.find("tensor '" + name + "' of " + model + "/model.safetensors"), std::string::npos)
        << run.err;
    EXPECT_NE(run.err.find("fetch the weights again"), std::string::npos) << run.err;
  }
}

// Sends a signal to a run of two ranks once its log has a row.
Outcome signal_after_first_step(const std::string& arguments, const std::string& output,
                                const std::string& signal) {
  return shell(std::string(OCTET_SOURCE_DIR "/launch/mpirun -np 2 " OCTET_TRAINER " ") + arguments +
               " & run=$!; while kill -0 $run && ! grep -q loss " + output +
               "/trainer_log.jsonl; do sleep 0.05; done; kill -" + signal + " $run; wait $run");
}

TEST(WholeNotFinite, NeitherRanksNorARequestSaveWeightsThatAreNotFinite) {
  const TemporaryFolder folder("broken_ranks");
  struct Row {
    std::string keys, signal;
  };
  for (const Row& row :
       {Row{"save_steps=1 zero_stage=1", ""}, Row{"save_steps=1 zero_stage=2 save_async=true", ""},
        Row{"save_steps=1 zero_stage=3", ""}, Row{"save_strategy=no zero_stage=3", "TERM"},
        Row{"save_strategy=no zero_stage=0", "USR1"}}) {
    SCOPED_TRACE(row.keys + " " + row.signal);
    const std::string output = folder / "out";
    std::filesystem::remove_all(output);
    const std::string arguments = Task::get().train(
        output,
        "learning_rate=1e308 weight_decay=0.1 device=cpu lr_scheduler_type=constant max_steps=100000 " +
            row.keys);
    const Outcome run =
        row.signal.empty() ? trainer(arguments, 2) : signal_after_first_step(arguments, output, row.signal);
    EXPECT_EQ(run.code, 1) << run.both();
    EXPECT_EQ(errors_in(run), 1) << run.err;
    EXPECT_NE(run.err.find("not finite"), std::string::npos) << run.err;
    EXPECT_EQ(bad_files(output), std::set<std::string>{});
  }
}

}  // namespace
}  // namespace octet::test::not_finite_test
