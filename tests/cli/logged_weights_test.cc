// Logged losses, norms, rates and evaluations, against the weights in the checkpoints.
#include <utility>

#include "cli/logged.h"
#include "cli/weights.h"
#include "octet/base/json.h"
#include "support/events.h"

namespace octet::test::logged_weights_test {
namespace {

struct Probed {
  double loss = 0, norm = 0;
};

/// Returns the loss and the gradient norm of a model for samples, computed here from the probe's gradients.
Probed probe(const std::string& model, const std::vector<Sample>& samples) {
  const TemporaryFolder folder("probed");
  std::size_t length = 0;
  for (const Sample& s : samples) length = std::max(length, s.ids.size());
  std::vector<std::int64_t> ids, labels;
  for (const Sample& s : samples) {
    ids.insert(ids.end(), s.ids.begin(), s.ids.end());
    labels.insert(labels.end(), s.labels.begin(), s.labels.end());
    ids.insert(ids.end(), length - s.ids.size(), 0);
    labels.insert(labels.end(), length - s.ids.size(), -100);
  }
  const auto count = static_cast<std::int64_t>(ids.size());
  const std::vector<std::int64_t> shape{static_cast<std::int64_t>(samples.size()),
                                        static_cast<std::int64_t>(length)};
  weights::write_safetensors(folder / "batch.safetensors",
                             {{"input_ids", DType::i64, shape, 0, count, ids.data()},
                              {"labels", DType::i64, shape, 0, count, labels.data()}});
  const Outcome run = trainer("probe " + model + " device=cpu --batch " + (folder / "batch.safetensors") +
                              " --out " + (folder / "out.safetensors"));
  EXPECT_EQ(run.code, 0) << run.both();
  const weights::SafetensorsFile out(folder / "out.safetensors");
  Probed probed{.loss = read_floats(out, "loss").at(0)};
  for (const auto& tensor : out.tensors()) {
    if (!tensor.name.starts_with("grad.")) continue;
    for (const float g : read_floats(out, tensor.name)) probed.norm += static_cast<double>(g) * g;
  }
  probed.norm = std::sqrt(probed.norm);
  return probed;
}

/// Exports the weights after step n, and returns the folder.
std::string exported(const std::string& run, std::int64_t n) {
  if (n == 0) return Setting::get().base();
  const std::string folder = run + "/exported-" + std::to_string(n);
  if (!std::filesystem::exists(folder)) {
    expect_success(
        trainer("export " + run + "/checkpoint-" + std::to_string(n) + " " + folder + " --dtype fp32"));
  }
  return folder;
}

/// Returns the median and the maximum of the changes of weights by step n.
std::pair<double, double> movement(const std::string& run, std::int64_t n) {
  const Weights before = read_weights(exported(run, n - 1)), after = read_weights(exported(run, n));
  std::vector<double> moved;
  for (const auto& [name, weight] : after) {
    for (std::size_t i = 0; i < weight.values.size(); ++i) {
      const double distance = std::abs(static_cast<double>(weight.values[i]) - before.at(name).values.at(i));
      if (distance > 0) moved.push_back(distance);
    }
  }
  if (moved.empty()) return {0, 0};
  std::sort(moved.begin(), moved.end());
  return {moved[moved.size() / 2], moved.back()};
}

// Logged losses, norms and rates agree with the weights in the checkpoints.
TEST(LoggedNumerics, AreThoseOfTheWeights) {
  const TemporaryFolder folder("weights");
  const std::string run = folder / "run";
  expect_success(trainer(Setting::get().train(run, "save_steps=1 zero_stage=1"), 2));
  const auto rows = steps_of(run);
  const Events events = read_events(run + "/runs");
  for (const std::int64_t n : {1, 6}) {
    const std::vector<Sample> samples = samples_of(n);
    const std::string model = exported(run, n - 1);
    const Probed whole = probe(model, samples);
    ASSERT_GT(whole.norm, 0.06) << "clipping bites";
    expect_near(rows.at(n), "loss", whole.loss, 1e-5);
    expect_near(rows.at(n), "grad_norm", whole.norm, 1e-5);
    EXPECT_NEAR(events.at("train/grad_norm", n), whole.norm, 1e-5 * whole.norm);
    // The first half of the samples belongs to rank 0. In a partial step the last rank has fewer.
    const auto half = samples.begin() + kGlobal / 2;
    EXPECT_NEAR(events.at("rank0/loss", n), probe(model, {samples.begin(), half}).loss, 1e-4);
    EXPECT_NEAR(events.at("rank1/loss", n), probe(model, {half, samples.end()}).loss, 1e-4);
  }
  EXPECT_EQ(movement(run, 1).second, 0) << "warm-up begins with a rate of 0";
  for (const std::int64_t n : {2, 3, 6}) {
    const auto [middle, most] = movement(run, n);
    EXPECT_NEAR(middle, rate_of(n), 1e-3 * rate_of(n)) << n;
    EXPECT_NEAR(most, rate_of(n), 0.05 * rate_of(n)) << "squares of tiny gradients are rounded, step " << n;
    EXPECT_NEAR(rows.at(n).at("lr").get<double>(), middle, 1e-3 * middle) << n;
  }
}

// Evaluations and checkpoints have separate seconds and bytes, and the loss matches the weights.
TEST(LoggedEvaluation, IsItsOwn) {
  const TemporaryFolder folder("evaluation");
  const std::string options = "zero_stage=3 save_steps=2 save_async=false report_to=none ";
  expect_success(trainer(Setting::get().train(folder / "plain", options), 2));
  expect_success(trainer(
      Setting::get().train(folder / "run", options + "eval_strategy=steps eval_steps=1 eval_dataset=" +
                                               Task::get().held_out() + " per_device_eval_batch_size=4"),
      2));
  const auto plain = steps_of(folder / "plain"), rows = steps_of(folder / "run");
  double seconds = 0, last = 0;
  std::int64_t evaluations = 0;
  for (const std::string& line : split(slurp(folder / "run/trainer_log.jsonl"), '\n')) {
    if (line.empty()) continue;
    const Json row = parse_json(line, "trainer_log.jsonl");
    last = row.at("elapsed_seconds");
    if (row.contains("loss")) {
      const auto n = row.at("current_steps").get<std::int64_t>();
      expect_near(row, "loss", plain.at(n).at("loss"), 1e-9);
      // The evaluation before a step has gathered the new weights, and this small model keeps them gathered.
      const double gathered = n > 1 ? plain.at(n).at("comm_all_gather_bytes").get<double>() : 0;
      expect_near(row, "comm_bytes", plain.at(n).at("comm_bytes").get<double>() - gathered);
      seconds += row.at("seconds_per_step").get<double>();
      EXPECT_LE(row.at("comm_seconds").get<double>(), 1.01 * row.at("seconds_per_step").get<double>());
      continue;
    }
    const double runtime = row.at("eval_runtime");
    ++evaluations, seconds += runtime;
    // Twelve samples, four per rank and batch.
    expect_near(row, "eval_samples_per_second", 12 / runtime);
    expect_near(row, "eval_steps_per_second", 2 / runtime);
    expect_near(row, "epoch", static_cast<double>(row.at("current_steps")) / kEpoch);
    if (row.at("current_steps") == 1) {  // the first step has a rate of 0
      expect_near(row, "eval_loss", probe(Setting::get().base(), encoded(Task::get().held_out())).loss, 1e-5);
    }
  }
  EXPECT_EQ(evaluations, kSteps);
  EXPECT_GT(last, seconds) << "and checkpoints";
}

}  // namespace
}  // namespace octet::test::logged_weights_test
