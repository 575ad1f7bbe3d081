// Each count, time and rate of trainer_log.jsonl, TensorBoard and the result files, against arithmetic on the
// data and the configuration.
#include <sys/resource.h>

#include <chrono>

#include "cli/logged.h"
#include "octet/base/json.h"
#include "support/events.h"

namespace octet::test::logged_test {
namespace {

/// Memory: the printed reservation before the first step, and the usage of the ranks that the system reports.
void expect_memory(const std::map<std::int64_t, Json>& rows, const std::string& printed) {
  const std::string words = "memory per rank: ";
  const std::size_t at = printed.find(words);
  ASSERT_NE(at, std::string::npos) << printed;
  const std::string text = printed.substr(at + words.size(), 20);
  ASSERT_NE(text.find(" MiB"), std::string::npos) << text;
  rusage children{};
  ASSERT_EQ(getrusage(RUSAGE_CHILDREN, &children), 0);
  double before = 0;
  for (const auto& [n, row] : rows) {
    const double reserved = row.at("vram_allocated"), used = row.at("vram_reserved");
    EXPECT_NEAR(reserved * 1024, std::stod(text), 0.0501) << "one digit is printed";
    EXPECT_GT(reserved * 1024 * 1024 * 1024, 16 * parameters()) << "weights, gradients and two moments";
    EXPECT_GT(used, reserved);
    EXPECT_LE(used, static_cast<double>(children.ru_maxrss) / (1024 * 1024));
    EXPECT_GE(used, before) << "the highest so far";
    before = used;
  }
}

class Logged : public testing::TestWithParam<int> {
 protected:
  int world() const { return std::max(1, GetParam()); }
  /// fp32 gradients are sent to their owners after every micro-batch, and the updated weights are sent back
  /// once. Tensors have a little padding.
  void expect_bytes(const Json& row) const {
    const double share = 4 * parameters() * (world() - 1) / world();
    const double accumulation = static_cast<double>(kGlobal) / (4 * world());
    const double reduced = row.at("comm_reduce_scatter_bytes"),
                 gathered = row.at("comm_all_gather_values_bytes");
    EXPECT_GE(reduced, accumulation * share);
    EXPECT_LE(reduced, 1.04 * accumulation * share);
    EXPECT_GE(gathered, share);
    EXPECT_LE(gathered, 1.04 * share);
    double sum = 0;
    for (const auto& [key, value] : row.items()) {
      if (key.starts_with("comm_") && key.ends_with("_bytes") && key != "comm_bytes")
        sum += value.get<double>();
    }
    EXPECT_EQ(row.at("comm_bytes").get<double>(), sum);
    // Messages about a save count in the row of this step or the next.
    const double control = row.value("comm_control_bytes", 0.0);
    EXPECT_LT(control, 20000) << row;
    EXPECT_LT(sum - control, reduced + gathered + 2000) << "sums of norms and losses are small: " << row;
  }
  static std::map<std::int64_t, Json> run(const std::string& output, const std::string& more, int np) {
    expect_success(trainer(Setting::get().train(output, more), np));
    return steps_of(output);
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Logged, testing::Values(0, 2, 3), [](const auto& p) {
  return p.param == 0 ? std::string("alone") : "of" + std::to_string(p.param);
});

// Counts, the schedule, and figures derived from them.
TEST_P(Logged, CountsAreThoseOfTheData) {
  const TemporaryFolder folder("counts");
  const auto begin = std::chrono::steady_clock::now();
  const Outcome trained = trainer(Setting::get().train(folder / "run", "save_steps=4"), GetParam());
  expect_success(trained);
  const auto rows = steps_of(folder / "run");
  const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  ASSERT_EQ(rows.size(), 8u);
  double tokens = 0, samples = 0, seconds = 0;
  for (const auto& [n, row] : rows) {
    const std::vector<Sample> step = samples_of(n);
    const double passed = row.at("seconds_per_step").get<double>();
    tokens += tokens_of(step), samples += static_cast<double>(step.size()), seconds += passed;
    expect_near(row, "total_steps", 8);
    expect_near(row, "percentage", 12.5 * static_cast<double>(n));
    expect_near(row, "epoch", static_cast<double>(n) / kEpoch);
    expect_near(row, "lr", rate_of(n), 1e-12);
    expect_near(row, "total_tokens", tokens);
    expect_near(row, "skipped_steps", 0);
    expect_near(row, "throughput", tokens_of(step) / passed);
    expect_near(row, "label_tokens_per_second", labels_of(step) / passed);
    expect_near(row, "tflops", flops_per_token() * tokens_of(step) / passed / world() / 1e12);
    EXPECT_FALSE(row.contains("mfu")) << "a CPU has no yardstick";
    EXPECT_GE(row.at("elapsed_seconds").get<double>(), seconds);
    EXPECT_LE(row.at("elapsed_seconds").get<double>(), wall);
    EXPECT_EQ(row.contains("comm_bytes"), world() > 1);
    if (world() > 1) {
      EXPECT_LE(row.at("comm_exposed_seconds").get<double>(), row.at("comm_seconds").get<double>());
      EXPECT_LE(row.at("comm_seconds").get<double>(), 1.01 * passed);
      EXPECT_GT(row.at("comm_seconds").get<double>(), 0);
    }
  }
  if (world() > 1) expect_bytes(rows.at(kSteps));
  expect_memory(rows, trained.err);
  const Json results = parse_json(slurp(folder / "run/train_results.json"), "results");
  const double runtime = results.at("train_runtime");
  expect_near(results, "epoch", 8.0 / 3);
  expect_near(results, "num_input_tokens_seen", tokens);
  expect_near(results, "total_flos", tokens * flops_per_token());
  expect_near(results, "train_steps_per_second", 8 / runtime);
  expect_near(results, "train_samples_per_second", samples / runtime);
  expect_near(results, "train_tokens_per_second", tokens / runtime);
  EXPECT_GT(runtime, seconds);
  EXPECT_LT(runtime, wall);
  double losses = 0;
  for (const auto& [n, row] : rows) losses += row.at("loss").get<double>() / 8;
  expect_near(results, "train_loss", losses);
  // Hours of all ranks: at most from the start of the program to the end of the steps.
  const double hours = results.at("device_hours");
  EXPECT_GE(hours * 3600, world() * runtime);
  EXPECT_LE(hours * 3600, world() * wall);
  expect_near(results, "cost", hours * kPrice);
}

// The seconds of steps agree with the times in the event file between the first row and the last.
TEST(LoggedSeconds, AreThoseOfAClock) {
  const TemporaryFolder folder("clock");
  // Steps have enough tokens that the time between steps is negligible.
  expect_success(trainer(Setting::get().train(folder / "run", "global_batch_size=480 save_strategy=no"), 2));
  const auto rows = steps_of(folder / "run");
  const Events events = read_events(folder / "run/runs");
  double seconds = 0;
  for (const auto& [n, row] : rows) seconds += n > 1 ? row.at("seconds_per_step").get<double>() : 0;
  const double clock = events.wall_time.at(kSteps) - events.wall_time.at(1);
  EXPECT_LT(seconds, clock + 0.01);
  EXPECT_GT(seconds, 0.7 * clock - 0.05);
}

TEST(WholeLoggedNumerics, AreTheSameOnAnyNumberOfRanks) {
  const TemporaryFolder folder("ranks");
  for (const int np : {0, 2, 3}) {
    expect_success(trainer(Setting::get().train(folder / std::to_string(np), "save_strategy=no"), np));
  }
  for (const auto& [n, row] : steps_of(folder / "0")) {
    for (const char* np : {"2", "3"}) {
      const Json other = steps_of(folder / np).at(n);
      for (const char* key : {"loss", "grad_norm"}) expect_near(other, key, row.at(key), 2e-4);
      for (const char* key : {"lr", "epoch", "total_tokens"}) EXPECT_EQ(other.at(key), row.at(key)) << key;
    }
  }
}

// 1e-7 must not become 0.000000 on the screen or in the files.
TEST(LoggedNumerics, ShowSmallRates) {
  const TemporaryFolder folder("small");
  const Outcome trained =
      trainer(Setting::get().train(folder / "run", "learning_rate=1.0e-7 save_strategy=no"), 2);
  expect_success(trained);
  EXPECT_NE(trained.err.find("'learning_rate': 1e-07,"), std::string::npos) << trained.err;
  EXPECT_NE(slurp(folder / "run/README.md").find("| learning_rate | 1e-07 |"), std::string::npos);
  EXPECT_DOUBLE_EQ(steps_of(folder / "run").at(3).at("lr").get<double>(), 1e-7);
}

class LoggedEpochs : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Layouts, LoggedEpochs,
                         testing::Values("packing=false", "packing=true",
                                         "packing=true packing_strategy=llamafactory"));

// With or without shuffling and packing, two epochs have twice the tokens of the data.
TEST_P(LoggedEpochs, CountEveryTokenOnce) {
  const TemporaryFolder folder("epochs");
  expect_success(
      trainer(Setting::get().train(folder / "run", GetParam() + " disable_shuffling=false max_steps=-1 "
                                                                "num_train_epochs=2 global_batch_size=8 "
                                                                "save_strategy=no"),
              2));
  const auto rows = steps_of(folder / "run");
  double labels = 0;
  for (const auto& [n, row] : rows) {
    labels += row.at("label_tokens_per_second").get<double>() * row.at("seconds_per_step").get<double>();
  }
  const std::vector<Sample>& samples = Setting::get().samples();
  expect_near(rows.rbegin()->second, "total_tokens", 2 * tokens_of(samples));
  expect_near(rows.rbegin()->second, "epoch", 2);
  EXPECT_NEAR(labels, 2 * labels_of(samples), 1e-6);
  const double tokens_at_half = rows.at(static_cast<std::int64_t>(rows.size()) / 2).at("total_tokens");
  EXPECT_EQ(tokens_at_half, tokens_of(samples));
}

TEST(LoggedStream, CountsAsASetInMemoryDoes) {
  const TemporaryFolder folder("stream");
  expect_success(trainer(Setting::get().train(folder / "set", "save_strategy=no"), 2));
  expect_success(trainer(Setting::get().train(folder / "stream", "streaming=true save_strategy=no"), 2));
  for (const auto& [n, row] : steps_of(folder / "set")) {
    const Json other = steps_of(folder / "stream").at(n);
    for (const char* key : {"loss", "grad_norm", "lr", "total_tokens"}) {
      EXPECT_EQ(other.at(key), row.at(key)) << key << " at step " << n;
    }
    // A stream knows the number of rows so far, not the number of steps in its epoch.
    const std::int64_t of_epoch = std::min(kRows, ((n - 1) % kEpoch + 1) * kGlobal);
    const auto rows = static_cast<double>((n - 1) / kEpoch * kRows + of_epoch);
    EXPECT_NEAR(other.at("epoch").get<double>(), rows / kRows, 1e-12) << n;
  }
}

// A resumed run logs the rows of an uninterrupted run, also between two rows and in another folder.
class LoggedResumes : public Logged {};
INSTANTIATE_TEST_SUITE_P(Alone, LoggedResumes, testing::Values(0), [](const auto&) { return "alone"; });
INSTANTIATE_TEST_SUITE_P(Whole, LoggedResumes, testing::Values(3), [](const auto&) { return "of3"; });

TEST_P(LoggedResumes, CountOn) {
  const TemporaryFolder folder("resumed");
  const std::string options = "save_steps=3 save_async=false logging_steps=2 zero_stage=2 ";
  const auto expected = run(folder / "whole", options, GetParam());
  const std::string launch =
      GetParam() == 0 ? "" : OCTET_SOURCE_DIR "/launch/mpirun -np " + std::to_string(GetParam()) + " ";
  const Outcome killed = shell("OCTETRUN_FAILPOINT=before_manifest:2 " + launch + OCTET_TRAINER + " " +
                               Setting::get().train(folder / "killed", options));
  EXPECT_NE(killed.code, 0);
  const auto resumed = run(folder / "killed", options, GetParam());
  const auto moved = run(folder / "moved",
                         options + "resume_from_checkpoint=" + (folder / "whole/checkpoint-3"), GetParam());
  ASSERT_EQ(expected.size(), 4u);
  ASSERT_EQ(resumed.size(), 4u);
  ASSERT_EQ(moved.size(), 3u) << "its log begins where it went on";
  for (const auto* other : {&resumed, &moved}) {
    double elapsed = 0;
    for (const auto& [n, row] : *other) {
      for (const char* key : {"loss", "grad_norm", "lr", "epoch", "percentage", "total_tokens", "total_steps",
                              "skipped_steps"}) {
        EXPECT_EQ(row.at(key), expected.at(n).at(key)) << key << " at step " << n;
      }
      EXPECT_GT(row.at("elapsed_seconds").get<double>(), elapsed);
      elapsed = row.at("elapsed_seconds");
      // A mean over the row's steps, of which the resumed run took the last one.
      if (world() > 1 && n > 4) expect_near(row, "comm_bytes", expected.at(n).at("comm_bytes"), 1e-9);
      if (world() > 1 && n == 4) expect_near(row, "comm_bytes", expected.at(n).at("comm_bytes"), 0.02);
    }
  }
  // The checkpoint is after three steps.
  const Json state = parse_json(slurp(folder / "moved/trainer_state.json"), "state");
  EXPECT_GT(moved.at(4).at("elapsed_seconds").get<double>(),
            expected.at(2).at("seconds_per_step").get<double>() * 2);
  EXPECT_EQ(state.at("num_input_tokens_seen"), expected.at(8).at("total_tokens"));
  const Json whole = parse_json(slurp(folder / "whole/train_results.json"), "results");
  for (const char* name : {"killed", "moved"}) {
    const Json results = parse_json(slurp(folder / name + std::string("/train_results.json")), "results");
    for (const char* key : {"epoch", "total_flos", "train_loss", "num_input_tokens_seen", "skipped_steps"}) {
      expect_near(results, key, whole.at(key), 1e-12);
    }
    // This session has five steps of 24, 24, 23, 24 and 24 rows.
    expect_near(results, "train_samples_per_second", 119 / results.at("train_runtime").get<double>());
  }
}

}  // namespace
}  // namespace octet::test::logged_test
