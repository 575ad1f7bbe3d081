// Known facts about runs with a checked log: encoded rows of a data set, the schedule, the model's size.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cli/task.h"
#include "octet/base/json.h"

namespace octet::test {

constexpr std::int64_t kRows = 71, kGlobal = 24, kSteps = 8,
                       kEpoch = 3;  // steps of an epoch: 24, 24, 23 rows
constexpr double kRate = 1e-3, kPrice = 1800;

struct Sample {
  std::vector<std::int64_t> ids, labels;
  std::int64_t trained() const {
    return std::count_if(labels.begin() + 1, labels.end(), [](std::int64_t label) { return label >= 0; });
  }
};

/// Returns the samples of a file of conversations, as training encodes them.
inline std::vector<Sample> encoded(const std::string& path) {
  const Outcome run = trainer("encode " + Task::get().model() + " --template chatml --input " + path);
  std::vector<Sample> samples;
  for (const std::string& line : split(run.out, '\n')) {
    if (line.empty()) continue;
    const Json row = parse_json(line, "encode");
    samples.push_back({row.at("input_ids"), row.at("labels")});
  }
  return samples;
}

/// Rows, their encoded samples, and a model with weights, made once.
class Setting {
 public:
  static const Setting& get() {
    static const Setting setting;
    return setting;
  }
  std::string base() const { return folder_ / "base"; }
  std::string rows() const { return folder_ / "rows.jsonl"; }
  const std::vector<Sample>& samples() const { return samples_; }
  /// Eight steps in the order of the rows. The update is the sign of the gradient times the rate. Overlap is
  /// off, because it moves messages of one step into the next if a core is free.
  std::string train(const std::string& output, const std::string& more) const {
    return Task::get().train(
        output,
        "model_name_or_path=" + base() + " train_from_scratch=false dataset=" + rows() +
            " disable_shuffling=true max_steps=8 learning_rate=1.0e-3 lr_scheduler_type=cosine "
            "warmup_steps=2 weight_decay=0 adam_beta1=0 adam_beta2=0 adam_epsilon=1.0e-12 "
            "max_grad_norm=0.05 gpu_hour_price=1800 report_to=tensorboard device=cpu overlap_comm=false " +
            more);
  }

 private:
  Setting() : folder_("logged") {
    const std::vector<std::string> lines = split(slurp(Task::get().data()), '\n');
    std::string text;
    for (std::int64_t i = 0; i < kRows; ++i) text += lines.at(static_cast<std::size_t>(i)) + "\n";
    spill(rows(), text);
    samples_ = encoded(rows());
    const Outcome made = trainer(Task::get().train(base(), "max_steps=1 save_strategy=no"));
    if (made.code != 0 || samples_.size() != kRows) throw std::runtime_error(made.both());
  }
  TemporaryFolder folder_;
  std::vector<Sample> samples_;
};

/// Returns the samples of step n (from 1).
inline std::vector<Sample> samples_of(std::int64_t n) {
  const auto& all = Setting::get().samples();
  const std::int64_t first = (n - 1) % kEpoch * kGlobal;
  return {all.begin() + first, all.begin() + std::min(kRows, first + kGlobal)};
}

inline double tokens_of(const std::vector<Sample>& samples) {
  double sum = 0;
  for (const Sample& s : samples) sum += static_cast<double>(s.ids.size());
  return sum;
}

inline double labels_of(const std::vector<Sample>& samples) {
  double sum = 0;
  for (const Sample& s : samples) sum += static_cast<double>(s.trained());
  return sum;
}

/// Returns the learning rate of step n: two steps of warm-up from 0, then half a cosine over six steps.
inline double rate_of(std::int64_t n) {
  const auto done = static_cast<double>(n - 1);
  return done < 2 ? kRate * done / 2 : kRate * 0.5 * (1 + std::cos(M_PI * (done - 2) / 6));
}

/// Returns the parameters of the model in task.h: 512 tokens, width 32, two blocks with two heads of
/// dimension 16 and one KV head.
inline double parameters() {
  constexpr double v = 512, h = 32, inner = 48, blocks = 2, q = 32, kv = 16;
  return v * h + blocks * (2 * h * q + 2 * h * kv + 3 * h * inner + 2 * h) + h;
}
inline double flops_per_token() {
  double tokens = 0, squares = 0;
  for (const Sample& s : Setting::get().samples()) {
    const auto length = static_cast<double>(s.ids.size());
    tokens += length, squares += length * length;
  }
  return 6 * parameters() + 6 * 2 * squares / tokens * 32;
}

inline void expect_near(const Json& row, const char* key, double expected, double bound = 1e-9) {
  ASSERT_TRUE(row.contains(key)) << key;
  ASSERT_TRUE(row.at(key).is_number()) << key << row;
  EXPECT_NEAR(row.at(key).get<double>(), expected, bound * std::abs(expected)) << key << "\n" << row;
}

}  // namespace octet::test
