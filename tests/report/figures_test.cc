// Compares each figure in the files of a run with arithmetic on its events.
#include <fstream>
#include <functional>

#include "octet/base/json.h"
#include "octet/report/number.h"
#include "report/support.h"
#include "support/events.h"

namespace octet::report::test::figures_test {
namespace {

/// Seven different steps on three ranks, with a row every three steps: rows at 3, 6 and 7.
class Figures : public Run {
 protected:
  static constexpr std::int64_t total = 7;
  static constexpr double world = 3, flops = 6e9, price = 2.5, setup = 30, eval = 20, save = 15;

  RunFacts all(std::int64_t first = 0) const {
    RunFacts f = facts(first, total);
    f.logging_steps = 3;
    f.world = 3;
    f.flops_per_token = flops;
    f.gpu_hour_price = price;
    f.setup_seconds = setup;
    return f;
  }
  static StepFacts made(std::int64_t n) {
    const auto x = static_cast<double>(n);
    StepFacts f;
    f.step = n, f.epoch = x / 4, f.loss = 5 - x / 3, f.grad_norm = 0.25 * x, f.learning_rate = 1e-7 * x;
    f.seconds = 10 * x, f.tokens = 1000 + 7 * n, f.label_tokens = 600 + 5 * n, f.samples = 16 + n;
    f.skipped = n == 2 || n == 5;
    f.data_seconds = 0.5 * x, f.comm_seconds = 2 * x, f.comm_exposed_seconds = 0.25 * x * x;
    f.comm_kinds = {{"all_gather", 0.5 * x, 100 * n}, {"reduce_scatter", 1.5 * x, 10 * n * n}};
    f.memory_bytes = (n + 1) << 30, f.memory_peak_bytes = (n + 2) << 30;
    f.rank_losses = {x, std::nullopt, 2 * x};
    f.fp8 = Json{{"down", {{"weight", {{"amax", x}, {"saturated", 0.5 * x}, {"lost", 0.25 * x}}}}}};
    if (n == 6) f.fp8_layers = Json{{"down", "of every layer"}};
    return f;
  }
  static double sum(std::int64_t first, std::int64_t last,
                    const std::function<double(const StepFacts&)>& of) {
    double s = 0;
    for (std::int64_t n = first; n <= last; ++n) s += of(made(n));
    return s;
  }
  /// Runs everything and returns the printed text.
  std::string run() const {
    testing::internal::CaptureStderr();
    Reporter reporter(all());
    reporter.start();
    for (std::int64_t n = 1; n <= total; ++n) {
      reporter.step(made(n));
      if (n == 3)
        reporter.evaluation(
            {.step = 3, .epoch = 0.75, .loss = 2, .seconds = eval, .samples = 50, .batches = 5});
      if (n == 6) reporter.saved(6, "checkpoint-6", save);
    }
    reporter.finish({});
    return testing::internal::GetCapturedStderr();
  }
};

double seconds(const StepFacts& f) {
  return f.seconds;
}
double tokens(const StepFacts& f) {
  return static_cast<double>(f.tokens);
}
double labels(const StepFacts& f) {
  return static_cast<double>(f.label_tokens);
}
double bytes_of(const StepFacts& f, std::size_t kind) {
  return static_cast<double>(f.comm_kinds[kind].bytes);
}

TEST_F(Figures, OfEveryRowAreThoseOfItsSteps) {
  run();
  std::vector<Json> steps;
  for (const Json& row : rows()) {
    if (row.contains("loss")) steps.push_back(row);
  }
  ASSERT_EQ(steps.size(), 3u);
  std::int64_t before = 0;
  for (const Json& row : steps) {
    const auto n = row.at("current_steps").get<std::int64_t>();
    const auto mean = [&](const std::function<double(const StepFacts&)>& of) {
      return sum(before + 1, n, of) / static_cast<double>(n - before);
    };
    const double passed = sum(before + 1, n, seconds), rate = sum(before + 1, n, tokens) / passed;
    const std::map<std::string, double> expected{
        {"current_steps", static_cast<double>(n)},
        {"total_steps", 7},
        {"loss", mean([](const StepFacts& f) { return f.loss; })},
        {"grad_norm", 0.25 * static_cast<double>(n)},
        {"lr", 1e-7 * static_cast<double>(n)},
        {"epoch", static_cast<double>(n) / 4},
        {"percentage", std::round(1e4 * static_cast<double>(n) / 7) / 100},
        {"elapsed_seconds", sum(1, n, seconds) + (n > 3 ? eval : 0) + (n > 6 ? save : 0)},
        {"seconds_per_step", mean(seconds)},
        {"throughput", rate},
        {"label_tokens_per_second", sum(before + 1, n, labels) / passed},
        {"total_tokens", sum(1, n, tokens)},
        {"skipped_steps", n < 5 ? 1 : 2},
        {"tflops", flops * rate / world / 1e12},
        {"mfu", flops * rate / world / 989.4e12},
        {"comm_seconds", mean([](const StepFacts& f) { return f.comm_seconds; })},
        {"comm_exposed_seconds", mean([](const StepFacts& f) { return f.comm_exposed_seconds; })},
        {"comm_bytes", mean([](const StepFacts& f) { return bytes_of(f, 0) + bytes_of(f, 1); })},
        {"comm_all_gather_seconds", mean([](const StepFacts& f) { return f.comm_kinds[0].seconds; })},
        {"comm_all_gather_bytes", mean([](const StepFacts& f) { return bytes_of(f, 0); })},
        {"comm_reduce_scatter_seconds", mean([](const StepFacts& f) { return f.comm_kinds[1].seconds; })},
        {"comm_reduce_scatter_bytes", mean([](const StepFacts& f) { return bytes_of(f, 1); })},
        {"vram_allocated", static_cast<double>(n + 1)},
        {"vram_reserved", static_cast<double>(n + 2)}};
    for (const auto& [key, value] : row.items()) {
      if (key == "elapsed_time" || key == "remaining_time" || key.starts_with("fp8")) continue;
      ASSERT_TRUE(expected.contains(key)) << "a figure that no test knows: " << key;
      EXPECT_NEAR(value.get<double>(), expected.at(key), 1e-12 * std::abs(expected.at(key)))
          << key << " " << n;
    }
    EXPECT_EQ(row.at("fp8"), *made(n).fp8);
    EXPECT_EQ(row.contains("fp8_layers"), n == 6);
    if (n == 6) {
      EXPECT_EQ(row.at("fp8_layers"), *made(n).fp8_layers);
    }
    EXPECT_EQ(row.size(), expected.size() + (n == 6 ? 4 : 3));
    before = n;
  }
  // 60 s of steps; 210 s and the evaluation, so 38 s for the last step; the checkpoint, and nothing left.
  EXPECT_EQ(steps[0].at("elapsed_time"), "0:01:00");
  EXPECT_EQ(steps[0].at("remaining_time"), "0:01:20");
  EXPECT_EQ(steps[1].at("elapsed_time"), "0:03:50");
  EXPECT_EQ(steps[1].at("remaining_time"), "0:00:38");
  EXPECT_EQ(steps[2].at("elapsed_time"), "0:05:15");
  EXPECT_EQ(steps[2].at("remaining_time"), "0:00:00");
}

TEST_F(Figures, OfAnEvaluationAreItsOwn) {
  run();
  const Json row = rows()[1];
  EXPECT_EQ(row.at("current_steps"), 3);
  EXPECT_EQ(row.at("eval_loss").get<double>(), 2);
  EXPECT_EQ(row.at("eval_runtime").get<double>(), eval);
  EXPECT_EQ(row.at("eval_samples_per_second").get<double>(), 2.5);
  EXPECT_EQ(row.at("eval_steps_per_second").get<double>(), 0.25);
  EXPECT_EQ(row.at("elapsed_seconds").get<double>(), 60 + eval);
  EXPECT_FALSE(row.contains("perplexity"));
  const octet::test::Events events = octet::test::read_events(folder_ + "/runs");
  EXPECT_EQ(events.at("eval/loss", 3), 2);
  EXPECT_EQ(events.at("eval/runtime", 3), eval);
  EXPECT_EQ(events.at("eval/samples_per_second", 3), 2.5);
  EXPECT_EQ(events.at("eval/steps_per_second", 3), 0.25);
}

TEST_F(Figures, OfTensorBoardAreThoseOfTheRows) {
  run();
  const octet::test::Events events = octet::test::read_events(folder_ + "/runs");
  std::map<std::string, std::string> names{{"train/loss", "loss"},
                                           {"train/grad_norm", "grad_norm"},
                                           {"train/learning_rate", "lr"},
                                           {"train/epoch", "epoch"},
                                           {"train/global_step", "current_steps"},
                                           {"train/skipped_steps", "skipped_steps"},
                                           {"perf/seconds_per_step", "seconds_per_step"},
                                           {"perf/tokens_per_second", "throughput"},
                                           {"perf/tflops", "tflops"},
                                           {"perf/mfu", "mfu"},
                                           {"memory/allocated_gib", "vram_allocated"},
                                           {"memory/peak_gib", "vram_reserved"},
                                           {"comm/bytes", "comm_bytes"},
                                           {"comm/all_gather_bytes", "comm_all_gather_bytes"},
                                           {"comm/reduce_scatter_bytes", "comm_reduce_scatter_bytes"}};
  const std::map<std::string, std::string> milliseconds{
      {"comm/ms", "comm_seconds"},
      {"comm/exposed_ms", "comm_exposed_seconds"},
      {"comm/all_gather_ms", "comm_all_gather_seconds"},
      {"comm/reduce_scatter_ms", "comm_reduce_scatter_seconds"}};
  std::size_t known = 0;
  const auto near = [](double found, double expected) {
    EXPECT_NEAR(found, expected, 1e-6 * std::abs(expected));  // a float
  };
  for (const Json& row : rows()) {
    if (!row.contains("loss")) continue;
    const auto n = row.at("current_steps").get<std::int64_t>();
    for (const auto& [tag, key] : names) near(events.at(tag, n), row.at(key).get<double>());
    for (const auto& [tag, key] : milliseconds) near(events.at(tag, n), 1e3 * row.at(key).get<double>());
    near(events.at("rank0/loss", n), static_cast<double>(n));
    near(events.at("rank2/loss", n), static_cast<double>(2 * n));
    near(events.at("fp8/down/weight_saturated", n), 0.5 * static_cast<double>(n));
    near(events.at("fp8/down/weight_lost", n), 0.25 * static_cast<double>(n));
  }
  near(events.at("perf/data_seconds", 3), 0.5 * (1 + 2 + 3) / 3);
  near(events.at("perf/data_seconds", 7), 3.5);
  EXPECT_FALSE(events.scalars.contains("rank1/loss")) << "it trained nothing";
  for (const auto& [tag, values] : events.scalars) {
    const bool told = names.contains(tag) || milliseconds.contains(tag) || tag.starts_with("rank") ||
                      tag.starts_with("fp8/down/weight_") || tag.starts_with("eval/") ||
                      tag.starts_with("train/t") || tag == "perf/data_seconds";
    EXPECT_TRUE(told) << "a figure that no test knows: " << tag;
    known += told ? 1 : 0;
  }
  EXPECT_GT(known, 25u);
}

TEST_F(Figures, OfTheFilesAreThoseOfTheWholeRun) {
  run();
  const double steps = sum(1, 7, seconds), elapsed = steps + eval + save;
  const double hours = world * (elapsed + setup) / 3600;
  const double samples = sum(1, 7, [](const StepFacts& f) { return static_cast<double>(f.samples); });
  const std::map<std::string, double> expected{{"epoch", 1.75},
                                               {"total_flos", flops * sum(1, 7, tokens)},
                                               {"train_loss", 5 - 28.0 / 3 / 7},
                                               {"train_runtime", elapsed},
                                               {"train_samples_per_second", samples / elapsed},
                                               {"train_steps_per_second", 7 / elapsed},
                                               {"train_tokens_per_second", sum(1, 7, tokens) / elapsed},
                                               {"num_input_tokens_seen", sum(1, 7, tokens)},
                                               {"skipped_steps", 2},
                                               {"device_hours", hours},
                                               {"cost", hours * price}};
  const Json results = json("train_results.json");
  ASSERT_EQ(results.size(), expected.size());
  for (const auto& [key, value] : expected) {
    EXPECT_NEAR(results.at(key).get<double>(), value, 1e-12 * value) << key;
  }
  const octet::test::Events events = octet::test::read_events(folder_ + "/runs");
  for (const char* key :
       {"train_loss", "train_runtime", "train_samples_per_second", "train_steps_per_second", "total_flos"}) {
    EXPECT_NEAR(events.at(std::string("train/") + key, 7), expected.at(key), 1e-6 * expected.at(key)) << key;
  }
  const Json state = json("trainer_state.json");
  EXPECT_EQ(state.at("global_step"), 7);
  EXPECT_EQ(state.at("max_steps"), 7);
  EXPECT_EQ(state.at("epoch").get<double>(), 1.75);
  EXPECT_EQ(state.at("num_input_tokens_seen").get<double>(), sum(1, 7, tokens));
  EXPECT_DOUBLE_EQ(state.at("total_flos").get<double>(), flops * sum(1, 7, tokens));
  EXPECT_EQ(state.at("train_batch_size"), 4);
  EXPECT_EQ(state.at("logging_steps"), 3);
  EXPECT_EQ(state.at("log_history")[0].at("learning_rate").get<double>(), 3e-7);
}

/// Returns a text with each run of blanks reduced to one.
std::string squeezed(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c != ' ' || out.empty() || out.back() != ' ') out += c;
  }
  return out;
}

TEST_F(Figures, OnTheScreenAreReadable) {
  const std::string text = squeezed(run());
  // The first three steps: 5 - (1 + 2 + 3) / 9, and 3,042 tokens in 60 s, each of 6e9 FLOPs, on 3 devices.
  for (const char* part :
       {"{'loss': 4.3333, 'grad_norm': 0.75, 'learning_rate': 3e-07, 'epoch': 0.75} step 3/7, 20.0 s/it, "
        "0:01:20 left, 50.7 tokens/s, MFU 0.0102 %, memory 4.00 GiB\n",
        " steps 7 of 7 (epoch 1.75)\n", " training loss 4.333 -> 2.667 (mean 3.667)\n",
        " evaluation loss 2.0\n", " time 0:05:15, 40.0 s/it\n", " tokens 7,196, 25.7 per second\n",
        " MFU 0.0052 %\n", " model TFLOP/s 0.0514 per device\n", " skipped 2 steps, not finite or spikes",
        " waited for data 5.0 % of the time\n",
        // 56 of 280 s, 35 of them exposed; 2,800 and 1,400 bytes, 400 and 200 per step.
        " communication 20.0 % of the time, 37.5 % of it hidden; rank 0 sent 4.1 KiB\n",
        " all_gather 2.0 s and 400 B per step\n", " reduce_scatter 6.0 s and 200 B per step\n",
        " peak memory 9.00 GiB on the rank with the most\n", " cost 0.7188 (0.2875 device hours at 2.5)\n"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST_F(Figures, WithoutAYardstickThereIsNoShareOfIt) {
  testing::internal::CaptureStderr();
  RunFacts f = all();
  f.peak_flops = 0;
  f.gpu_hour_price = 0;
  {
    Reporter reporter(f);
    for (std::int64_t n = 1; n <= total; ++n) reporter.step(made(n));
    reporter.finish({});
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_FALSE(rows()[0].contains("mfu"));
  EXPECT_DOUBLE_EQ(rows()[0].at("tflops").get<double>(), flops * 3042 / 60 / world / 1e12);
  EXPECT_EQ(text.find("MFU"), std::string::npos) << text;
  EXPECT_NE(text.find("tokens/s, 0.101 TFLOP/s, memory"), std::string::npos) << text;
  EXPECT_EQ(text.find("cost"), std::string::npos) << text;
  EXPECT_FALSE(json("train_results.json").contains("cost"));
  EXPECT_FALSE(octet::test::read_events(folder_ + "/runs").scalars.contains("perf/mfu"));
}

TEST_F(Figures, OfASessionWithoutAStepHaveNoRates) {
  testing::internal::CaptureStderr();
  RunFacts f = all();
  f.first_step = total;
  Reporter(f).finish({});
  const std::string text = squeezed(testing::internal::GetCapturedStderr());
  EXPECT_NE(text.find("Training completed"), std::string::npos) << text;
  for (const char* rate : {"per second", "s/it", "TFLOP/s", "MFU", "waited for data"})
    EXPECT_EQ(text.find(rate), std::string::npos) << rate << "\n" << text;
}

TEST_F(Figures, OfTheEvaluationNameTheStepOfAnEarlierModel) {
  for (const auto& [step, says] :
       {std::pair<std::int64_t, const char*>{-1, " evaluation loss 2.0\n"},
        {total, " evaluation loss 2.0\n"},
        {2, " evaluation loss 2.0 at the last evaluation; the model is that of step 2\n"}}) {
    testing::internal::CaptureStderr();
    {
      Reporter reporter(all());
      for (std::int64_t n = 1; n <= total; ++n) reporter.step(made(n));
      reporter.evaluation(
          {.step = total, .epoch = 1.75, .loss = 2.0, .seconds = 1, .samples = 4, .batches = 1});
      reporter.finish({.model_step = step});
    }
    const std::string text = squeezed(testing::internal::GetCapturedStderr());
    EXPECT_NE(text.find(says), std::string::npos) << text;
  }
}

TEST_F(Figures, GoOnWhereACheckpointWasMade) {
  run();
  const Json whole = json("train_results.json");
  const std::vector<Json> expected = rows();
  std::filesystem::remove_all(folder_);
  testing::internal::CaptureStderr();
  // Saved in the middle of a row and resumed in another folder, with only the checkpoint.
  Json state;
  {
    Reporter first(all());
    for (std::int64_t n = 1; n <= 5; ++n) {
      first.step(made(n));
      if (n == 3) first.evaluation({.step = 3, .epoch = 0.75, .loss = 2, .seconds = eval});
    }
    state = first.state();
  }
  std::filesystem::remove_all(folder_);
  RunFacts facts = all(5);
  facts.resumed = state;
  facts.setup_seconds = 0;  // so that the hours are from one start
  {
    Reporter second(facts);
    for (std::int64_t n = 6; n <= total; ++n) {
      second.step(made(n));
      if (n == 6) second.saved(6, "checkpoint-6", save);
    }
    second.finish({});
  }
  testing::internal::GetCapturedStderr();
  const auto after = rows();
  ASSERT_EQ(after.size(), 2u);
  for (const char* key :
       {"current_steps", "loss", "epoch", "percentage", "elapsed_seconds", "total_tokens", "skipped_steps"}) {
    EXPECT_DOUBLE_EQ(after[0].at(key).get<double>(), expected[2].at(key).get<double>()) << key;
    EXPECT_DOUBLE_EQ(after[1].at(key).get<double>(), expected[3].at(key).get<double>()) << key;
  }
  // This session ran the last of the row's three steps.
  EXPECT_DOUBLE_EQ(after[0].at("seconds_per_step").get<double>(), 60);
  EXPECT_DOUBLE_EQ(after[0].at("comm_seconds").get<double>(), 12);
  EXPECT_DOUBLE_EQ(after[0].at("comm_bytes").get<double>(), 600 + 360);
  const Json results = json("train_results.json");
  for (const char* key : {"epoch", "total_flos", "train_loss", "num_input_tokens_seen", "skipped_steps",
                          "device_hours", "cost"}) {
    EXPECT_DOUBLE_EQ(results.at(key).get<double>(), whole.at(key).get<double>()) << key;
  }
  // Figures of a session are from this session.
  EXPECT_DOUBLE_EQ(results.at("train_runtime").get<double>(), 60 + 70 + save);
}

TEST_F(Figures, RememberALossThatWasNotFinite) {
  testing::internal::CaptureStderr();
  Json state;
  {
    Reporter first(all());
    for (std::int64_t n = 1; n <= 5; ++n) {
      StepFacts f = made(n);
      if (n == 4) f.loss = NAN;
      first.step(f);
    }
    // As in a checkpoint.
    state = parse_json(first.state().dump(), "state");
  }
  RunFacts facts = all(5);
  facts.resumed = state;
  {
    Reporter second(facts);
    for (std::int64_t n = 6; n <= total; ++n) second.step(made(n));
    second.finish({});
  }
  testing::internal::GetCapturedStderr();
  EXPECT_TRUE(rows().at(1).at("loss").is_null()) << "its fourth step was not finite";
  EXPECT_FALSE(rows().at(2).at("loss").is_null());
  // The mean of the six others: 5 - n / 3.
  EXPECT_NEAR(json("train_results.json").at("train_loss").get<double>(), 5 - (28.0 - 4) / 3 / 6, 1e-12);
}

TEST(Rows, AreOfEveryIntervalTheFirstAndTheLast) {
  for (std::int64_t step = 1; step <= 11; ++step) {
    EXPECT_EQ(is_logged(step, 4, false, 11), step == 4 || step == 8 || step == 11) << step;
    EXPECT_EQ(is_logged(step, 4, true, 11), step == 1 || step == 4 || step == 8 || step == 11) << step;
  }
}

}  // namespace
}  // namespace octet::report::test::figures_test
