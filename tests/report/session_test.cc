// Values that a session takes over from the previous session, and each fact in a row, a file or on the
// screen.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <vector>

#include "../src/report/progress_bar.h"
#include "../src/report/run_log.h"
#include "../src/report/words.h"
#include "octet/base/json.h"
#include "octet/report/number.h"
#include "octet/report/progress.h"
#include "report/support.h"
#include "support/events.h"

namespace octet::report::test::session_test {
namespace {

// ---- progress ----

// Add new fields here and in the record.
TEST(Progress, KeepsEveryField) {
  const octet::test::TemporaryFolder folder("fields");
  const Progress made{.job = "j",
                      .ranks = 5,
                      .first_step = 3,
                      .step = 8,
                      .total_steps = 9,
                      .step_seconds = 0.125,
                      .saved_step = 7,
                      .saved = "/a \"path\"",
                      .memory_step = 6,
                      .from = "memory",
                      .finished = true};
  ProgressFile(folder.path()).write(made);
  const auto read = read_progress(folder.path());
  ASSERT_TRUE(read);
  const auto& [job, ranks, first_step, step, total_steps, step_seconds, saved_step, saved, memory_step, from,
               finished] = *read;
  EXPECT_EQ(job, "j");
  EXPECT_EQ(ranks, 5);
  EXPECT_EQ(first_step, 3);
  EXPECT_EQ(step, 8);
  EXPECT_EQ(total_steps, 9);
  EXPECT_EQ(step_seconds, 0.125);
  EXPECT_EQ(saved_step, 7);
  EXPECT_EQ(saved, "/a \"path\"");
  EXPECT_EQ(memory_step, 6);
  EXPECT_EQ(from, "memory");
  EXPECT_TRUE(finished);
  // Missing keys of a record have their initial values.
  octet::test::spill(progress_path(folder.path()), "{}");
  const auto none = read_progress(folder.path());
  ASSERT_TRUE(none);
  EXPECT_EQ(none->saved_step, -1);
  EXPECT_EQ(none->memory_step, -1);
  EXPECT_EQ(none->step, 0);
  EXPECT_EQ(none->ranks, 0);
  EXPECT_TRUE(none->job.empty() && none->saved.empty() && none->from.empty() && !none->finished);
  for (const char* text : {R"({"saved_step": -2})", R"({"memory_step": -2})", R"({"total_steps": -1})",
                           R"({"step": 9007199254740993})", R"({"finished": 1})", R"({"from": 1})"}) {
    octet::test::spill(progress_path(folder.path()), text);
    EXPECT_FALSE(read_progress(folder.path())) << text;
  }
}

TEST(Progress, ARunIsNamedByAllButTheLastPartOfItsStarts) {
  EXPECT_EQ(run_of("a-12.3-14.1"), "a-12.3");
  EXPECT_EQ(run_of("a-"), "a");
  EXPECT_EQ(run_of("alone"), "");
  EXPECT_EQ(run_of(""), "");
}

TEST_F(Run, ProgressTellsCheckpointsInMemoryAndWhatTheRunGoesOnFrom) {
  ::setenv("OCTETRUN_SUPERVISED", "run-1", 1);
  testing::internal::CaptureStderr();
  RunFacts f = facts(4, 12);
  f.resumed_from = "other host's memory";
  {
    Reporter reporter(f);
    const auto at_first = read_progress(folder_);
    ASSERT_TRUE(at_first);
    EXPECT_EQ(at_first->from, "other host's memory");
    EXPECT_EQ(at_first->step, 4);
    EXPECT_EQ(at_first->memory_step, -1);
    EXPECT_EQ(at_first->saved_step, -1);
    reporter.step(step(5));
    reporter.in_memory(5);
    EXPECT_EQ(read_progress(folder_)->memory_step, 5);
    EXPECT_EQ(read_progress(folder_)->step, 5);
  }
  testing::internal::GetCapturedStderr();
  ::unsetenv("OCTETRUN_SUPERVISED");
}

// ---- sums that a session takes over ----

Totals totals_of(std::int64_t step) {
  Totals totals;
  totals.step = step;
  return totals;
}

// Add new sums here, too.
TEST(Sums, AreTakenOverEachByItself) {
  Totals before = totals_of(100);
  before.epoch = 1.25, before.tokens = 7001, before.skipped = 3, before.elapsed = 55.5;
  before.device_seconds = 444.25, before.loss_sum = 201.5, before.loss_steps = 97;
  Window window;
  window.loss = 8.5, window.steps = 4;
  Json state{{"num_input_tokens_seen", before.tokens}, {"epoch", before.epoch}};
  add_sums(state, before, window);
  const auto took = [](const Json& from, std::int64_t step) {
    Totals totals = totals_of(step);
    Window w;
    take_over_state(from, totals, w);
    return std::pair(totals, w);
  };
  const auto [after, w] = took(parse_json(state.dump(), "s"), 100);
  EXPECT_EQ(after.epoch, 1.25);
  EXPECT_EQ(after.tokens, 7001);
  EXPECT_EQ(after.skipped, 3);
  EXPECT_EQ(after.elapsed, 55.5);
  EXPECT_EQ(after.device_seconds, 444.25);
  EXPECT_EQ(after.loss_sum, 201.5);
  EXPECT_EQ(after.loss_steps, 97);
  EXPECT_EQ(w.loss, 8.5);
  EXPECT_EQ(w.steps, 4);
  EXPECT_EQ(w.steps_before, 4);
  EXPECT_EQ(w.mean_loss(), 8.5 / 4);
  // If a checkpoint has no sums, the window of the last row is added to the sums of the rows.
  Json bare = state;
  bare.erase("so_far");
  Totals rows = totals_of(100);
  rows.loss_sum = 10, rows.loss_steps = 5, rows.elapsed = 9;
  Window other;
  take_over_state(bare, rows, other);
  EXPECT_EQ(rows.loss_sum, 18.5);
  EXPECT_EQ(rows.loss_steps, 9);
  EXPECT_EQ(rows.elapsed, 9);
  // A window cannot be longer than the run.
  EXPECT_EQ(took(state, 4).second.steps, 4);
  EXPECT_EQ(took(state, 3).second.steps, 0);
  // Invalid numbers are ignored.
  for (const Json& wrong : {Json(-1), Json("x"), Json(nullptr), Json(1e19)}) {
    Json spoilt = state;
    for (const char* key : {"elapsed_seconds", "device_seconds", "skipped_steps", "loss_steps"})
      spoilt["so_far"][key] = wrong;
    const Totals none = took(spoilt, 100).first;
    EXPECT_EQ(none.elapsed, 0) << wrong;
    EXPECT_EQ(none.device_seconds, 0) << wrong;
    EXPECT_EQ(none.skipped, 0) << wrong;
    EXPECT_EQ(none.loss_steps, 4) << wrong;
  }
}

TEST(Sums, OfRowsAreThoseOfTheirSteps) {
  Totals totals;
  std::vector<Json> rows{{{"current_steps", 4},
                          {"loss", 2.0},
                          {"epoch", 0.5},
                          {"total_tokens", 40},
                          {"skipped_steps", 1},
                          {"elapsed_seconds", 8.0}},
                         {{"current_steps", 4}, {"eval_loss", 9.0}, {"elapsed_seconds", 99.0}},
                         {{"current_steps", 6}, {"loss", nullptr}, {"epoch", 0.75}},
                         {{"current_steps", 9},
                          {"loss", 5.0},
                          {"total_tokens", 90},
                          {"skipped_steps", 2},
                          {"elapsed_seconds", 20.0}}};
  add_rows(rows, totals);
  EXPECT_EQ(totals.loss_sum, 2 * 4 + 5 * 3);
  EXPECT_EQ(totals.loss_steps, 7) << "two steps were not finite";
  EXPECT_EQ(totals.epoch, 0.75);
  EXPECT_EQ(totals.tokens, 90);
  EXPECT_EQ(totals.skipped, 2);
  EXPECT_EQ(totals.elapsed, 20);
  EXPECT_EQ(totals.mean_loss(), 23.0 / 7);
  EXPECT_TRUE(std::isnan(Totals().mean_loss()));
}

TEST(Sums, RowsThatDoNotSayTheirStepCountForNothing) {
  Totals totals;
  const std::vector<Json> rows{{{"current_steps", 4}, {"loss", 2.0}},
                               {{"loss", 7.0}},
                               {{"current_steps", "six"}, {"loss", 7.0}},
                               {{"current_steps", -1}, {"loss", 7.0}},
                               {{"current_steps", 6}, {"loss", 5.0}}};
  add_rows(rows, totals);
  EXPECT_EQ(totals.loss_sum, 2 * 4 + 5 * 2);
  EXPECT_EQ(totals.loss_steps, 6);
  // A number that no run reaches.
  add_rows({{{"current_steps", 1e300}, {"loss", 1.0}}, {{"current_steps", 9e17}, {"loss", 1.0}}}, totals);
  EXPECT_LE(totals.loss_steps, (std::int64_t{1} << 48) + 6);
}

class Sessions : public Run {
 protected:
  /// Runs a session of steps (first, last] and returns the printed text.
  std::string session(RunFacts f, std::int64_t last,
                      const std::function<void(Reporter&, std::int64_t)>& then = {}, bool ends = true) const {
    testing::internal::CaptureStderr();
    {
      Reporter reporter(f);
      for (std::int64_t n = f.first_step + 1; n <= last; ++n) {
        StepFacts s = step(n);
        s.memory_peak_bytes = (n == 3 ? 9 : 1) * (INT64_C(1) << 30);
        s.skipped = n == 4;
        reporter.step(s);
        if (then) then(reporter, n);
      }
      if (ends) reporter.finish({});
    }
    return testing::internal::GetCapturedStderr();
  }
  static bool holds(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }
};

// The row of the saved step stays, and later rows are removed.
TEST_F(Sessions, RowsUpToTheCheckpointStay) {
  session(facts(), 15, {}, false);
  session(facts(10), 10, {}, false);
  ASSERT_EQ(rows().size(), 2u);
  EXPECT_EQ(rows()[1].at("current_steps"), 10);
}

// The rows decide without a state, and with the state of another step.
TEST_F(Sessions, WithoutItsStateTheRowsTell) {
  for (const bool other : {false, true}) {
    std::filesystem::remove_all(folder_);
    session(
        facts(), 10,
        [](Reporter& r, std::int64_t n) {
          if (n == 7) r.saved(7, "c");
        },
        false);
    if (!other) std::filesystem::remove(folder_ + "/trainer_state.json");
    RunFacts f = facts(10);
    f.gpu_hour_price = 2;
    f.setup_seconds = 30;
    session(f, 20);
    const Json results = json("train_results.json");
    EXPECT_EQ(results.at("num_input_tokens_seen"), 20000);
    EXPECT_EQ(results.at("skipped_steps"), 1);
    EXPECT_DOUBLE_EQ(results.at("device_hours").get<double>(), 2 * (10 + 30) / 3600.0);
    EXPECT_DOUBLE_EQ(results.at("cost").get<double>(), 2 * results.at("device_hours").get<double>());
    double mean = 0;
    for (int n = 1; n <= 20; ++n) mean += step(n).loss / 20;
    EXPECT_NEAR(results.at("train_loss").get<double>(), mean, 1e-12);
  }
}

TEST_F(Sessions, TheFirstLossAndTheEvaluationOfTheRunAreKnownLater) {
  session(
      facts(), 10,
      [](Reporter& r, std::int64_t n) {
        if (n == 5) r.evaluation({.step = 5, .epoch = 0.5, .loss = 1.75, .seconds = 1});
        if (n == 10) r.saved(10, "c");
      },
      false);
  const std::string text = session(facts(10), 20);
  double first = 0, last = 0;
  for (int n = 1; n <= 5; ++n) first += step(n).loss / 5, last += step(n + 15).loss / 5;
  EXPECT_TRUE(holds(text, python_number(first, 4) + " -> " + python_number(last, 4))) << text;
  EXPECT_TRUE(holds(text, "evaluation loss  1.75\n")) << text;
  EXPECT_TRUE(path_exists(folder_ + "/training_eval_loss.svg"));
  // A session without steps reports the same.
  const std::string idle = session(facts(20), 20);
  EXPECT_TRUE(holds(idle, python_number(first, 4) + " -> " + python_number(last, 4))) << idle;
}

// A start that trains nothing does not overwrite the results of a complete run.
TEST_F(Sessions, AStartBehindTheEndLeavesTheResults) {
  session(facts(), 20);
  const Json train = json("train_results.json"), all = json("all_results.json");
  const std::string card = read_file(folder_ + "/README.md");
  session(facts(20), 20);
  EXPECT_EQ(json("train_results.json"), train);
  EXPECT_EQ(json("all_results.json"), all);
  EXPECT_EQ(read_file(folder_ + "/README.md"), card);
  for (const char* gone : {"train_results.json", "all_results.json"}) {
    std::filesystem::remove(folder_ + "/" + gone);
    session(facts(20), 20);
    EXPECT_TRUE(path_exists(folder_ + "/" + gone));
  }
}

TEST_F(Sessions, CountsExtrasAndFailuresReachTheirRows) {
  RunFacts f = facts(0, 7);
  f.logging_first_step = true;
  testing::internal::CaptureStderr();
  {
    Reporter reporter(f);
    EXPECT_TRUE(reporter.logs_at(1));
    for (int n = 1; n <= 7; ++n) {
      StepFacts s = step(n);
      s.counts = {{"spikes", n}, {"flips", 2 * n}};
      s.extra = {{"fp8/overflows", n}, {"other", 3 * n}};
      reporter.step(s);
      if (n == 2) reporter.save_failed(3), reporter.save_failed(4);
      if (n == 6) reporter.waited(5);
      if (n == 6)
        reporter.evaluation({.step = 6,
                             .epoch = 0.6,
                             .loss = 2,
                             .seconds = 0,
                             .samples = 4,
                             .batches = 2,
                             .perplexity = true});
    }
    reporter.finish({});
  }
  const std::string text = testing::internal::GetCapturedStderr();
  const auto all = rows();
  ASSERT_EQ(all.size(), 4u);  // steps 1, 5, the evaluation, 7
  EXPECT_EQ(all[0].at("current_steps"), 1);
  EXPECT_FALSE(all[0].contains("failed_saves"));
  EXPECT_EQ(all[1].at("failed_saves"), 2);
  EXPECT_EQ(all[1].at("spikes"), 5);
  EXPECT_EQ(all[1].at("flips"), 10);
  EXPECT_EQ(all[1].at("elapsed_seconds").get<double>(), 2.5 + 7);
  EXPECT_EQ(all[3].at("elapsed_seconds").get<double>(), 3.5 + 7 + 5);
  EXPECT_EQ(all[2].at("eval_samples_per_second").get<double>(), 0) << "it took no time";
  EXPECT_EQ(all[2].at("eval_steps_per_second").get<double>(), 0);
  EXPECT_DOUBLE_EQ(all[2].at("perplexity").get<double>(), std::exp(2.0));
  EXPECT_EQ(all[2].at("percentage").get<double>(), 85.71);
  EXPECT_EQ(json("all_results.json").at("epoch").get<double>(), 0.7) << "the run's, not the evaluation's";
  EXPECT_EQ(json("eval_results.json").at("epoch").get<double>(), 0.6);
  const octet::test::Events events = octet::test::read_events(folder_ + "/runs");
  EXPECT_EQ(events.at("fp8/overflows", 5), 5);
  EXPECT_EQ(events.at("other", 5), 15);
  EXPECT_TRUE(holds(text, "failed saves     2\n")) << text;
  EXPECT_TRUE(holds(text, "'perplexity': 7.3891, 'epoch': 0.6}\n")) << text;
}

TEST_F(Sessions, TheStateHasTheSettingsOfTheRun) {
  RunFacts f = facts();
  f.epochs = 2.25, f.save_steps = 11, f.eval_steps = 13;
  session(f, 20, [](Reporter& r, std::int64_t n) {
    if (n == 10)
      r.evaluation(
          {.step = 10, .epoch = 1, .loss = 2, .seconds = 4, .samples = 8, .batches = 2, .perplexity = true});
  });
  const Json state = json("trainer_state.json");
  EXPECT_EQ(state.at("num_train_epochs"), 3);
  EXPECT_EQ(state.at("save_steps"), 11);
  EXPECT_EQ(state.at("eval_steps"), 13);
  EXPECT_EQ(state.at("logging_steps"), 5);
  EXPECT_EQ(state.at("train_batch_size"), 4);
  EXPECT_EQ(state.at("is_local_process_zero"), true);
  EXPECT_EQ(state.at("is_world_process_zero"), true);
  EXPECT_EQ(state.at("is_hyper_param_search"), false);
  for (const char* key : {"best_metric", "best_model_checkpoint", "trial_name", "trial_params"})
    EXPECT_TRUE(state.at(key).is_null()) << key;
  EXPECT_EQ(state.at("stateful_callbacks"), Json::object());
  const Json& history = state.at("log_history");
  ASSERT_EQ(history.size(), 5u);
  EXPECT_EQ(history[0].at("grad_norm").get<double>(), 0.5);
  EXPECT_EQ(history[0].at("epoch").get<double>(), 0.5);
  EXPECT_EQ(history[0].size(), 5u) << "loss, gradient, rate, epoch, step";
  EXPECT_EQ(history[2].at("eval_loss").get<double>(), 2);
  EXPECT_EQ(history[2].at("eval_runtime").get<double>(), 4);
  EXPECT_EQ(history[2].at("eval_samples_per_second").get<double>(), 2);
  EXPECT_EQ(history[2].at("eval_steps_per_second").get<double>(), 0.5);
  EXPECT_TRUE(history[2].contains("perplexity"));
  EXPECT_EQ(history[2].at("step"), 10);
}

TEST_F(Sessions, TheScreenNamesWhatTheRunIsAndWhatItLeft) {
  RunFacts f = facts();
  f.all_parameters = 4 * f.trainable_parameters;
  f.logging_dir = folder_ + "/elsewhere";
  testing::internal::CaptureStderr();
  {
    Reporter reporter(f);
    reporter.start();
    for (int n = 1; n <= 20; ++n) {
      StepFacts s = step(n);
      s.memory_peak_bytes = (n == 3 ? 9 : 1) * (INT64_C(1) << 30);
      reporter.step(s);
    }
    reporter.saved(20, "there/checkpoint-20");
    reporter.finish({.status = "stopped", .final_model = "m", .next = {"one", "two"}});
  }
  const std::string text = testing::internal::GetCapturedStderr();
  for (const char* part :
       {"  Instantaneous batch size per device = 4\n", "  Gradient Accumulation steps = 2\n",
        "  Total optimization steps = 20\n", "|| all params: 4,938,268 || trainable%: 25.0000\n",
        "checkpoint of step 20 saved to there/checkpoint-20\n", "***** Training stopped *****\n",
        "peak memory    9.00 GiB on the rank with the most\n", "checkpoint     there/checkpoint-20\n",
        "model          m\n", "/trainer_log.jsonl\n", "/training_loss.svg\n", "/elsewhere\n",
        "\n***** What to do next *****\n  one\n  two\n"}) {
    EXPECT_TRUE(holds(text, part)) << part << "\n" << text;
  }
  EXPECT_FALSE(holds(text, "Continuing from"));
  EXPECT_FALSE(octet::test::read_events(folder_ + "/elsewhere").scalars.empty());
  EXPECT_FALSE(path_exists(folder_ + "/runs"));
  // A checkpoint that no longer exists is not named.
  testing::internal::CaptureStderr();
  {
    Reporter reporter(f);
    reporter.start();
    reporter.step(step(1));
    reporter.saved(1, "there/checkpoint-1");
    reporter.finish({.final_model = "m", .keeps_checkpoint = false});
  }
  EXPECT_FALSE(holds(testing::internal::GetCapturedStderr(), "checkpoint     there"));
  // A run without a plot, TensorBoard, a model or a checkpoint does not mention them.
  f.plot = f.tensorboard = false;
  std::filesystem::remove_all(folder_);
  const std::string plain = session(f, 20);
  for (const char* part : {"plot ", "TensorBoard", "checkpoint", "model  ", "skipped", "cost"})
    EXPECT_EQ(holds(plain, part), std::string(part) == "skipped") << part << "\n" << plain;
  EXPECT_FALSE(path_exists(folder_ + "/training_loss.svg"));
}

TEST_F(Sessions, ARunThatGoesOnWritesIntoTheNewestFolderOfEvents) {
  session(
      facts(), 10,
      [](Reporter& r, std::int64_t n) {
        if (n == 10) r.saved(10, "c");
      },
      false);
  make_folders(folder_ + "/runs/an older one");
  std::filesystem::last_write_time(folder_ + "/runs/an older one",
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  const auto folders = [&] {
    std::map<std::string, int> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ + "/runs"))
      if (entry.is_regular_file()) ++files[entry.path().parent_path().filename().string()];
    return files;
  };
  ASSERT_EQ(folders().size(), 1u);
  session(facts(10), 20);
  ASSERT_EQ(folders().size(), 1u);
  EXPECT_EQ(folders().begin()->second, 2);
  EXPECT_NE(folders().begin()->first, "an older one");
}

// Failures to write files for people, like the last TensorBoard values, do not end a run.
TEST_F(Sessions, AFullDiskAtTheEndEndsNothing) {
  testing::internal::CaptureStderr();
  Reporter reporter(facts());
  for (int n = 1; n <= 20; ++n) reporter.step(step(n));
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit none{1, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &none);
  std::string thrown;
  try {
    reporter.finish({});
  } catch (const Error& e) {
    thrown = e.what();
  }
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(thrown, "");
}

// ---- figures and cards ----

TEST(Figure, ShowsRowsWithALossAndEvaluationsWhereAsked) {
  RunFacts f;
  f.output_dir = "folder";
  const std::vector<Json> rows{{{"current_steps", 1}, {"loss", 3.0}, {"lr", 0.5}},
                               {{"current_steps", 2}, {"eval_loss", 2.5}},
                               {{"current_steps", 4}, {"loss", 2.0}}};
  const Figure with = loss_figure(f, rows, true), without = loss_figure(f, rows, false);
  using Points = std::vector<std::pair<double, double>>;
  EXPECT_EQ(with.title, "Loss of folder");
  ASSERT_EQ(with.panels.size(), 1u) << "nothing is drawn of what no row has";
  EXPECT_EQ(with.panels[0].name, "learning rate");
  EXPECT_EQ(with.panels[0].points, (Points{{1, 0.5}}));
  ASSERT_EQ(with.series.size(), 2u);
  EXPECT_EQ(with.series[0].points, (Points{{1, 3}, {3, 2}})) << "the middle of steps 2 to 4";
  EXPECT_EQ(with.series[1].points, (Points{{2, 2.5}}));
  EXPECT_TRUE(with.series[0].smooth && !with.series[0].markers);
  EXPECT_TRUE(!with.series[1].smooth && with.series[1].markers);
  EXPECT_EQ(without.series.size(), 1u);
  f.run_name = "name";
  EXPECT_EQ(loss_figure(f, rows, true).title, "Loss of name");
  f.base_model = "/models/Qwen/Qwen3-4B/", f.datasets = {"data/train.jsonl"};
  EXPECT_EQ(loss_figure(f, rows, true).title, "Loss of name: Qwen/Qwen3-4B on data/train.jsonl");
  f.base_model = "model", f.datasets = {"/a/b/c", "d", "e"};
  EXPECT_EQ(loss_figure(f, rows, true).title, "Loss of name: model on b/c and 2 more");
}

TEST(Card, NamesModelDataAndTables) {
  RunFacts f;
  f.output_dir = "folder";
  const std::string bare = model_card(f, {}, {{"steps", 3}});
  EXPECT_TRUE(
      bare.starts_with("---\ntags:\n- octet\n- generated_from_trainer\nmodel-index:\n- name: \"folder\"\n"))
      << bare;
  EXPECT_EQ(bare.find("Trained from"), std::string::npos);
  EXPECT_NE(bare.find("# folder\n\n## Results\n"), std::string::npos) << bare;
  EXPECT_NE(bare.find("| steps | 3 |\n"), std::string::npos) << bare;
  f.run_name = "a|b\nc", f.base_model = "m", f.datasets = {"x", "y"};
  f.hyperparameters = {{"k|", "1\r2"}, {"z", "3"}};
  const std::string card = model_card(f,
                                      {{{"current_steps", 2}, {"epoch", 0.5}, {"loss", 1.23456789}},
                                       {{"current_steps", 3}, {"eval_loss", 2.0}}},
                                      {{"a", 1.23456789}});
  for (const char* part :
       {"base_model: \"m\"\ndatasets:\n- \"x\"\n- \"y\"\ntags:",
        "# a\\|b c\n\nTrained from `m` on `x`, `y`.\n\n", "| a | 1.23457 |\n", "| k\\| | 1 2 |\n| z | 3 |\n",
        "| 2 | 0.5 | 1.2346 |  |\n", "| 3 |  |  | 2.0 |\n"}) {
    EXPECT_NE(card.find(part), std::string::npos) << part << "\n" << card;
  }
  f.datasets.clear();
  EXPECT_NE(model_card(f, {}, {}).find("Trained from `m`.\n"), std::string::npos);
}

// ---- words ----

TEST(Words, AtTheirLimits) {
  EXPECT_EQ(rate_text(99.96), "100.0");
  EXPECT_EQ(rate_text(100), "100");
  EXPECT_EQ(rate_text(1234.5), "1,235");
  EXPECT_EQ(rate_text(NAN), "?");
  EXPECT_EQ(rate_text(INFINITY), "?");
  EXPECT_EQ(python_number(2, 3), "2.0");
  EXPECT_EQ(python_number(-INFINITY, 3), "-inf");
  EXPECT_EQ(python_number(1e-5, 3), "1e-05");
  EXPECT_EQ(python_number(123456, 3), "1.23e+05");
  EXPECT_EQ(bar_time(3599), "59:59");
  EXPECT_EQ(bar_time(3600), "1:00:00");
  EXPECT_EQ(bar_time(0), "00:00");
  EXPECT_EQ(bar_time(-1), "?");
  EXPECT_EQ(bar_text(1, 2, 0, 0.1, 0.1, 2), " 50%|█ | 1/2 [00:00<00:00,  0.10s/it]");
  EXPECT_EQ(bar_text(1, 2, 0, 0.09, 0.09, 2), " 50%|█ | 1/2 [00:00<00:00, 0.0900s/it]");
}

TEST(Words, SumsOfNothingAreNothing) {
  const Window none;
  EXPECT_EQ(none.mean_loss(), 0);
  EXPECT_EQ(none.per_step(5), 0);
  EXPECT_EQ(none.per_second(5), 0);
  EXPECT_EQ(none.hidden(), 1);
  Window waits;
  waits.comm_seconds = 2, waits.exposed_seconds = 3;
  EXPECT_EQ(waits.hidden(), 0) << "never below";
}

}  // namespace
}  // namespace octet::report::test::session_test
