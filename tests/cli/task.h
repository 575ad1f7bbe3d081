// A task that trains in seconds: generated questions, a tokenizer of 512 tokens, a Llama with two small
// blocks.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "support/program.h"

namespace octet::test {

/// Data, model and configuration in a folder of this process, made once.
class Task {
 public:
  static const Task& get() {
    static const Task task;
    return task;
  }

  std::string model() const { return folder_ / "made/model"; }
  std::string data() const { return folder_ / "made/data/train.jsonl"; }
  std::string held_out() const { return folder_ / "made/data/held_out.jsonl"; }
  /// Twelve steps of 24 questions, a checkpoint every five steps, a log line per step.
  std::string config() const { return folder_ / "config.yaml"; }
  std::string train(const std::string& output, const std::string& more = "") const {
    return "train " + config() + " output_dir=" + output + " " + more;
  }

 private:
  Task() : folder_("task") {
    const Outcome made = trainer("quickstart " + (folder_ / "made") + " --rows 240 --held-out 12");
    if (made.code != 0) throw std::runtime_error("quickstart failed: " + made.both());
    Json model_config = parse_json(slurp(model() + "/config.json"), "config.json");
    model_config["hidden_size"] = 32, model_config["intermediate_size"] = 48;
    model_config["num_hidden_layers"] = 2, model_config["num_attention_heads"] = 2;
    model_config["num_key_value_heads"] = 1, model_config["head_dim"] = 16;
    model_config["tie_word_embeddings"] = true;
    spill(model() + "/config.json", model_config.dump());
    spill(config(), "model_name_or_path: " + model() +
                        "\ntrain_from_scratch: true\ntemplate: chatml\ndataset: " + data() +
                        "\ncutoff_len: 128\nglobal_batch_size: 24\nper_device_train_batch_size: 4\n"
                        "max_steps: 12\nlearning_rate: 2.0e-3\nlogging_steps: 1\nsave_steps: 5\n");
  }
  TemporaryFolder folder_;
};

/// Returns the rows of steps in trainer_log.jsonl, by step. A repeated step fails the test.
inline std::map<std::int64_t, Json> steps_of(const std::string& output) {
  std::map<std::int64_t, Json> steps;
  for (const auto& line : split(slurp(output + "/trainer_log.jsonl"), '\n')) {
    if (line.empty()) continue;
    const Json row = parse_json(line, "trainer_log.jsonl");
    if (!row.contains("loss")) continue;
    EXPECT_TRUE(steps.emplace(row["current_steps"].get<std::int64_t>(), row).second) << line;
  }
  return steps;
}

/// Expects the steps 1 to `last`, each once.
inline void expect_every_step(const std::string& output, std::int64_t last) {
  const auto steps = steps_of(output);
  EXPECT_EQ(steps.size(), static_cast<std::size_t>(last));
  for (std::int64_t i = 1; i <= last; ++i) EXPECT_TRUE(steps.contains(i)) << "step " << i;
}

/// Expects equal losses of two runs, step by step, within a relative bound.
inline void expect_same_losses(const std::string& a, const std::string& b, double bound) {
  const auto one = steps_of(a), other = steps_of(b);
  ASSERT_EQ(one.size(), other.size());
  ASSERT_FALSE(one.empty());
  for (const auto& [step, row] : one) {
    ASSERT_TRUE(other.contains(step));
    EXPECT_NEAR(row["loss"].get<double>() / other.at(step)["loss"].get<double>(), 1.0, bound)
        << "step " << step;
  }
}

inline void expect_identical(const std::string& a, const std::string& b) {
  const Outcome diff = trainer("inspect " + a + " --diff " + b);
  EXPECT_EQ(diff.code, 0) << diff.both();
}

inline void expect_success(const Outcome& outcome) {
  ASSERT_EQ(outcome.code, 0) << outcome.both();
}

/// Returns the number of this program's errors in the output of a run.
inline int errors_in(const Outcome& outcome) {
  int count = 0;
  for (const auto& line : split(outcome.err, '\n')) count += line.starts_with("error: ") ? 1 : 0;
  return count;
}

}  // namespace octet::test
