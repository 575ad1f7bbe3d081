// All text that a run prints and writes to files, for synthetic runs.
#include <functional>
#include <map>
#include <regex>

#include "octet/report/plot.h"
#include "report/support.h"
#include "support/page.h"

namespace octet::report::test::said_test {
namespace {

class Said : public Run {
 protected:
  static constexpr std::int64_t total = 7;

  RunFacts everything(std::int64_t first = 0) const {
    RunFacts f = facts(first, total);
    f.logging_steps = 3, f.save_steps = 6, f.eval_steps = 2;
    f.world = 3, f.flops_per_token = 6e9, f.gpu_hour_price = 2.5, f.setup_seconds = 30;
    f.epochs = 1.75, f.examples = 12345, f.all_parameters = 7654321;
    f.hyperparameters = {{"learning_rate", "0.001"}, {"prompt", "a | b\nc"}};
    return f;
  }
  /// Returns only the required facts.
  RunFacts little() const {
    RunFacts f;
    f.output_dir = folder_;
    f.total_steps = total;
    f.logging_steps = 4;
    f.logging_first_step = true;
    return f;
  }
  static StepFacts made(std::int64_t n) {
    const auto x = static_cast<double>(n);
    StepFacts f;
    f.step = n, f.epoch = x / 4, f.loss = 5 - x / 3, f.grad_norm = 0.25 * x, f.learning_rate = 1e-7 * x;
    f.seconds = 1000 * x, f.tokens = 1000 + 7 * n, f.label_tokens = 600 + 5 * n, f.samples = 16 + n;
    f.skipped = n == 2 || n == 5;
    f.counts = {{"spikes", n / 2}};
    f.data_seconds = 0.5 * x, f.comm_seconds = 2 * x, f.comm_exposed_seconds = 0.25 * x * x;
    f.comm_kinds = {{"all_gather", 0.5 * x, 100 * n}, {"reduce_scatter", 1.5 * x, 10 * n * n}};
    f.memory_bytes = (n + 1) << 30, f.memory_peak_bytes = (n + 2) << 30;
    return f;
  }
  static StepFacts bare(std::int64_t n) {
    const auto x = static_cast<double>(n);
    StepFacts f;
    f.step = n, f.epoch = x / 4, f.loss = 5 - x / 3, f.grad_norm = 0.25 * x, f.learning_rate = 1e-7 * x;
    f.seconds = 0.01 * x, f.tokens = 1;
    return f;
  }

  void run_with_everything() const {
    Reporter reporter(everything());
    reporter.start();
    for (std::int64_t n = 1; n <= total; ++n) {
      reporter.step(made(n));
      if (n == 3)
        reporter.evaluation({.step = 3,
                             .epoch = 0.75,
                             .loss = 2,
                             .seconds = 20,
                             .samples = 50,
                             .batches = 5,
                             .perplexity = true});
      if (n == 4) reporter.save_failed(2);
      if (n == 6) reporter.saved(6, "there/checkpoint-6", 15);
    }
    reporter.waited(3);
    reporter.finish({.final_model = "the/model", .next = {"try this", "and that"}});
  }
  void run_with_little() const {
    Reporter reporter(little());
    reporter.start();
    for (std::int64_t n = 1; n <= 5; ++n) reporter.step(bare(n));
    reporter.evaluation({.step = 5, .epoch = 1.25, .loss = 1.5});
    reporter.finish({.status = "stopped"});
  }
  /// The log of an earlier run has rows of steps 3, 6 and 7, two invalid rows, and a truncated one.
  void go_on(const RunFacts& f) const {
    make_folders(folder_);
    write_file_atomically(
        folder_ + "/trainer_log.jsonl",
        "{\"current_steps\":3,\"loss\":4.5,\"epoch\":0.75,\"total_tokens\":3000,\"skipped_steps\":1,"
        "\"elapsed_seconds\":50}\n"
        "{\"current_steps\":3,\"eval_loss\":2.25}\n[]\n"
        "{\"current_steps\":6,\"loss\":4.0}\n{\"current_steps\":7,\"loss\":3.5}\n{\"current_steps\":");
    Reporter reporter(f);
    reporter.start();
    for (std::int64_t n = f.first_step + 1; n <= total; ++n) reporter.step(made(n));
    reporter.finish({});
  }

  /// Returns the printed text and the files of the folder (or only the two files with all figures). Names
  /// that differ between runs are replaced.
  std::string all_of(const std::function<void()>& run, bool whole) const {
    std::filesystem::remove_all(folder_);
    testing::internal::CaptureStderr();
    run();
    std::string text = testing::internal::GetCapturedStderr();
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      const std::string name = entry.path().filename().string();
      const bool picture = name.ends_with(".png") || name.ends_with(".svg");
      if (!entry.is_regular_file() || (!whole && name != "trainer_log.jsonl" && name != "train_results.json"))
        continue;
      files[name] = picture ? "" : read_file(entry.path().string());
    }
    for (const auto& [name, content] : files) text += "\n== " + name + "\n" + content;
    for (std::size_t at; (at = text.find(folder_)) != std::string::npos;)
      text.replace(at, folder_.size(), "FOLDER");
    text = std::regex_replace(text, std::regex("FOLDER/runs/\\S+"), "FOLDER/runs/DATE_HOST");
    return std::regex_replace(text, std::regex("\\[\\d\\d:\\d\\d<"), "[ELAPSED<");
  }
};

TEST_F(Said, OfWholeRuns) {
  octet::test::expect_page("report/said/runs.txt", [&](const std::string& question) {
    const std::map<std::string, std::function<void()>> runs{
        {"everything\n", [&] { run_with_everything(); }},
        {"little\n", [&] { run_with_little(); }},
        {"goes on after step 3, of which the log knows\n", [&] { go_on(everything(3)); }},
        {"goes on after step 3, of which the checkpoint knows\n",
         [&] {
           RunFacts f = everything(3);
           f.resumed = Json{{"global_step", 3},
                            {"num_input_tokens_seen", 3333},
                            {"epoch", 0.8},
                            {"since_last_log", {{"loss_sum", 9.0}, {"steps", 2}}},
                            {"so_far",
                             {{"elapsed_seconds", 70},
                              {"device_seconds", 300},
                              {"skipped_steps", 2},
                              {"loss_sum", 15.0},
                              {"loss_steps", 3}}}};
           go_on(f);
         }},
        {"goes on after step 3 of another run's checkpoint\n", [&] {
           RunFacts f = everything(3);
           f.resumed = Json{{"global_step", 4}, {"num_input_tokens_seen", 3333}};
           go_on(f);
         }}};
    return all_of(runs.at(question), !question.starts_with("goes on"));
  });
}

}  // namespace
}  // namespace octet::report::test::said_test
