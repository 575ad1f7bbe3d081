#include "octet/report/reporter.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/report/number.h"
#include "octet/report/plot.h"
#include "octet/report/progress.h"
#include "progress_bar.h"
#include "run_figures.h"
#include "run_log.h"
#include "tensorboard.h"
#include "words.h"

namespace octet::report {
namespace {

/// Whether a model card may be written to `path`: there is none, or an earlier run wrote it.
bool is_own_card(const std::string& path) {
  return !path_exists(path) || read_file(path).find("\ntags:\n- octet\n") != std::string::npos;
}

std::int64_t logged_steps(const RunFacts& f) {
  const std::int64_t left = f.total_steps - f.first_step,
                     interval = std::max<std::int64_t>(1, f.logging_steps);
  return (left + interval - 1) / interval + (f.logging_first_step && interval > 1 ? 1 : 0);
}

}  // namespace

struct Reporter::Impl {
  RunFacts facts;
  RunLog log;
  ProgressBar bar;
  RunFigures figures;
  std::unique_ptr<TensorBoard> board;           ///< null: no TensorBoard
  std::unique_ptr<ProgressFile> progress_file;  ///< for a supervisor; null without one
  Progress progress;
  Json eval_results;
  std::string last_checkpoint;

  explicit Impl(RunFacts f);

  struct BannerLine {
    std::string text;
    bool shown = false;  ///< on the screen; otherwise only logged
  };
  std::vector<BannerLine> banner() const;

  bool logs_at(std::int64_t step) const {
    return is_logged(step, facts.logging_steps, facts.logging_first_step, facts.total_steps);
  }
  Json row_of(std::int64_t step) const;
  void finish_row(Json& row, double epoch) const;
  void tell_progress() {
    if (progress_file) progress_file->write(progress);
  }
  void log_step(const StepFacts& f);
  Json state(bool with_history) const;
  void write_state() const;
  void write_plots() const;
  void summary(const FinishFacts& finish) const;
};

Reporter::Impl::Impl(RunFacts f)
    : facts(std::move(f)),
      log((make_folders(facts.output_dir), facts.output_dir + "/trainer_log.jsonl"), facts.first_step),
      bar(facts.first_step, facts.total_steps, {.lines = logged_steps(facts)}),
      figures(facts) {
  if (log.broken() > 0) {
    log::warn(std::to_string(log.broken()) + " broken lines of trainer_log.jsonl were dropped",
              log::Importance::setting);
  }
  if (facts.plot && !draws_plots())
    log::warn(
        "plot_loss: this program was built without cairo and draws no plots: install libcairo2-dev and build "
        "again",
        log::Importance::setting);
  figures.take_over(log.rows());
  progress.job = supervised_start();
  if (!progress.job.empty()) {
    progress_file = std::make_unique<ProgressFile>(facts.output_dir);
  } else {
    std::error_code none;  // a file of an earlier run would be taken for this run's
    std::filesystem::remove(progress_path(facts.output_dir), none);
  }
  progress.ranks = static_cast<int>(facts.world);
  progress.first_step = progress.step = facts.first_step;
  progress.total_steps = facts.total_steps;
  progress.from = facts.resumed_from;
  tell_progress();
  if (facts.tensorboard) board = std::make_unique<TensorBoard>(facts);
}

Json Reporter::Impl::row_of(std::int64_t step) const {
  Json row;
  row["current_steps"] = step;
  row["total_steps"] = facts.total_steps;
  return row;
}

void Reporter::Impl::finish_row(Json& row, double epoch) const {
  row["epoch"] = epoch;
  row["percentage"] = facts.total_steps > 0 ? std::round(1e4 * static_cast<double>(row["current_steps"]) /
                                                         static_cast<double>(facts.total_steps)) /
                                                  100
                                            : 100.0;
  row["elapsed_time"] = clock_time(figures.totals.elapsed);
  row["remaining_time"] = clock_time(figures.remaining_seconds());
  row["elapsed_seconds"] = figures.totals.elapsed;
}

void Reporter::Impl::log_step(const StepFacts& f) {
  Window& window = figures.window;
  const Totals& totals = figures.totals;
  const double loss = window.mean_loss();
  const double seconds = window.per_step(window.seconds);
  const double rate = window.per_second(static_cast<double>(window.tokens));
  if (std::isnan(figures.first_loss)) figures.first_loss = loss;
  figures.last_loss = loss;

  Json row = row_of(f.step);
  row["loss"] = loss;
  row["grad_norm"] = f.grad_norm;
  row["lr"] = f.learning_rate;
  finish_row(row, f.epoch);
  row["seconds_per_step"] = seconds;
  row["throughput"] = rate;
  row["label_tokens_per_second"] = window.per_second(static_cast<double>(window.label_tokens));
  row["total_tokens"] = totals.tokens;
  row["skipped_steps"] = totals.skipped;
  if (figures.failed_saves > 0) row["failed_saves"] = figures.failed_saves;
  for (const auto& [name, count] : f.counts) row[name] = count;
  if (figures.knows_work()) row["tflops"] = figures.teraflops(rate);
  if (figures.knows_peak()) row["mfu"] = figures.utilisation(rate);
  if (!window.kinds.empty()) {
    row["comm_seconds"] = window.per_step(window.comm_seconds);
    row["comm_exposed_seconds"] = window.per_step(window.exposed_seconds);
    row["comm_bytes"] = window.per_step(window.bytes());
    for (const auto& [name, kind] : window.kinds) {
      row["comm_" + name + "_seconds"] = window.per_step(kind.seconds);
      row["comm_" + name + "_bytes"] = window.per_step(static_cast<double>(kind.bytes));
    }
  }
  if (f.memory_bytes > 0) row["vram_allocated"] = gib(f.memory_bytes);
  if (f.memory_peak_bytes > 0) row["vram_reserved"] = gib(f.memory_peak_bytes);
  if (!f.fp8->is_null()) row["fp8"] = *f.fp8;
  if (!f.fp8_layers->is_null()) row["fp8_layers"] = *f.fp8_layers;
  if (!f.experts->is_null()) row["experts"] = *f.experts;
  for (const auto& [name, value] : f.extra) row[name] = value;
  log.append(std::move(row));

  std::string extra;
  for (const auto& [name, value] : f.extra) extra += ", '" + name + "': " + python_number(value, 4);
  std::string line =
      "{'loss': " + python_number(loss, 5) + ", 'grad_norm': " + python_number(f.grad_norm, 4) +
      ", 'learning_rate': " + python_number(f.learning_rate, 5) + extra +
      ", 'epoch': " + python_number(std::round(f.epoch * 100) / 100, 6) + "}  step " +
      std::to_string(f.step) + "/" + std::to_string(facts.total_steps) + ", " + python_number(seconds, 3) +
      " s/it, " + clock_time(figures.remaining_seconds()) + " left, " + rate_text(rate) + " tokens/s";
  if (figures.knows_work()) line += ", " + figures.work_text(rate);
  if (f.memory_bytes > 0) line += ", memory " + human_bytes(static_cast<double>(f.memory_bytes));
  if (bar.line_is_due()) {
    log::info(line);
  } else {
    log::debug(line);
  }
  if (board) board->step(f, figures);
  window = {};
}

Json Reporter::Impl::state(bool with_history) const {
  Json state = trainer_state(facts, figures.totals, with_history ? log.rows() : std::vector<Json>());
  if (!with_history) state.erase("log_history");
  add_sums(state, figures.totals, figures.window);
  return state;
}

void Reporter::Impl::write_state() const {
  write_file_atomically(facts.output_dir + "/trainer_state.json",
                        state(true).dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void Reporter::Impl::write_plots() const {
  if (!facts.plot || !draws_plots()) return;
  const auto write = [&](const std::string& name, bool with_evaluation) {
    const Figure figure = loss_figure(facts, log.rows(), with_evaluation);
    write_file_atomically(facts.output_dir + "/" + name + ".svg", to_svg(figure));
    write_file_atomically(facts.output_dir + "/" + name + ".png", to_png(figure));
  };
  write("training_loss", false);
  if (!std::isnan(figures.eval_loss)) write("training_eval_loss", true);
}

void Reporter::Impl::summary(const FinishFacts& finish) const {
  std::vector<std::pair<std::string, std::string>> rows = figures.summary(finish);
  if (!last_checkpoint.empty() && finish.keeps_checkpoint) rows.emplace_back("checkpoint", last_checkpoint);
  if (!finish.final_model.empty()) rows.emplace_back("model", finish.final_model);
  rows.emplace_back("log", facts.output_dir + "/trainer_log.jsonl");
  if (facts.plot && draws_plots()) rows.emplace_back("plot", facts.output_dir + "/training_loss.svg");
  if (board) rows.emplace_back("TensorBoard", board->folder());
  std::size_t width = 0;
  for (const auto& [name, value] : rows) width = std::max(width, name.size());
  log::info("***** Training " + finish.status + " *****");
  for (std::size_t i = 1; i < rows.size(); ++i) {
    log::info("  " + rows[i].first + std::string(width - rows[i].first.size(), ' ') + "  " + rows[i].second);
  }
  if (finish.next.empty()) return;
  log::info("***** What to do next *****");
  for (const auto& line : finish.next) log::info("  " + line);
}

bool is_logged(std::int64_t step, std::int64_t every, bool with_first, std::int64_t total) {
  return step % std::max<std::int64_t>(1, every) == 0 || step == total || (with_first && step == 1);
}

Reporter::Reporter(RunFacts facts) : impl_(std::make_unique<Impl>(std::move(facts))) {}
Reporter::~Reporter() = default;

bool Reporter::logs_at(std::int64_t step) const {
  return impl_->logs_at(step);
}
Json Reporter::state() const {
  return impl_->state(false);
}

// Returns the rows of the table, then lines with the names of Hugging Face's Trainer. Other tools search the
// output for three of these lines. The other lines are only written to training.log.
std::vector<Reporter::Impl::BannerLine> Reporter::Impl::banner() const {
  std::vector<BannerLine> lines{{"***** Running training *****", true}};
  std::size_t width = 0;
  for (const auto& [name, value] : facts.about) width = std::max(width, name.size());
  for (const auto& [name, value] : facts.about)
    lines.push_back({"  " + name + std::string(width + 2 - name.size(), ' ') + value, true});
  const auto add = [&](const std::string& name, const std::string& value, bool shown = false) {
    lines.push_back({"  " + name + " = " + value, shown});
  };
  add("Num examples", with_commas(facts.examples), facts.lines_of_hugging_face);
  add("Num Epochs", python_number(facts.epochs, 6));
  add("Instantaneous batch size per device", with_commas(facts.micro_batch));
  add("Total train batch size (w. parallel, distributed & accumulation)",
      with_commas(facts.micro_batch * facts.accumulation * facts.world), facts.lines_of_hugging_face);
  add("Gradient Accumulation steps", with_commas(facts.accumulation));
  add("Total optimization steps", with_commas(facts.total_steps));
  add("Number of trainable parameters", with_commas(facts.trainable_parameters), facts.lines_of_hugging_face);
  return lines;
}

int Reporter::start_rows() const {
  int rows = 0;
  for (const Impl::BannerLine& line : impl_->banner()) rows += line.shown ? log::rows_of(line.text) : 0;
  return rows;
}

void Reporter::start() {
  const RunFacts& f = impl_->facts;
  for (const Impl::BannerLine& line : impl_->banner()) {
    if (line.shown) {
      log::info(line.text);
    } else {
      log::debug(line.text);
    }
  }
  const double share = f.all_parameters > 0 ? 100.0 * static_cast<double>(f.trainable_parameters) /
                                                  static_cast<double>(f.all_parameters)
                                            : 0;
  log::debug("trainable params: " + with_commas(f.trainable_parameters) +
             " || all params: " + with_commas(f.all_parameters) + " || trainable%: " + fixed(share, 4));
  if (f.first_step > 0) log::debug("  Continuing from global step " + with_commas(f.first_step));
  impl_->bar.start();
}

void Reporter::step(const StepFacts& facts) {
  Impl& r = *impl_;
  r.figures.add(facts);
  r.progress.step = facts.step;
  r.progress.step_seconds += facts.seconds;
  r.tell_progress();
  // The bar is updated first: it is redrawn below the log line and should show this step.
  const Window& session = r.figures.session;
  r.bar.advance(facts.step, session.per_step(session.seconds), r.figures.remaining_seconds());
  if (r.logs_at(facts.step)) r.log_step(facts);
}

void Reporter::evaluation(const EvalFacts& facts) {
  Impl& r = *impl_;
  Json results;
  results["epoch"] = facts.epoch;
  results["eval_loss"] = facts.loss;
  results["eval_runtime"] = facts.seconds;
  results["eval_samples_per_second"] = facts.per_second(facts.samples);
  results["eval_steps_per_second"] = facts.per_second(facts.batches);
  if (facts.perplexity) results["perplexity"] = std::exp(facts.loss);
  for (const auto& [name, value] : facts.extra) results["eval_" + name] = value;
  r.eval_results = results;
  r.figures.eval_loss = facts.loss;
  r.figures.pass(facts.seconds);
  Json row = r.row_of(facts.step);
  for (const auto& [key, value] : results.items()) {
    if (key != "epoch") row[key] = value;
  }
  if (!facts.experts->is_null()) row["eval_experts"] = *facts.experts;
  r.finish_row(row, facts.epoch);
  r.log.append(std::move(row));
  std::string line = "{'eval_loss': " + python_number(facts.loss, 5) +
                     ", 'eval_runtime': " + python_number(facts.seconds, 4) +
                     ", 'eval_samples_per_second': " + python_number(facts.per_second(facts.samples), 4) +
                     ", 'eval_steps_per_second': " + python_number(facts.per_second(facts.batches), 4);
  if (facts.perplexity) line += ", 'perplexity': " + python_number(std::exp(facts.loss), 5);
  for (const auto& [name, value] : facts.extra) line += ", 'eval_" + name + "': " + python_number(value, 4);
  log::info(line + ", 'epoch': " + python_number(std::round(facts.epoch * 100) / 100, 6) + "}");
  if (r.board) r.board->evaluation(facts);
}

void Reporter::waited(double seconds) {
  impl_->figures.pass(seconds);
}

void Reporter::sync_log() const {
  impl_->log.sync();
}

void Reporter::saved(std::int64_t step, const std::string& path, double seconds) {
  impl_->figures.pass(seconds);
  impl_->last_checkpoint = path;
  impl_->progress.saved_step = step;
  impl_->progress.saved = path;
  impl_->tell_progress();
  write_or_warn([&] {
    impl_->write_state();
    impl_->write_plots();
  });
  log::info("checkpoint of step " + with_commas(step) + " saved to " + path);
}

void Reporter::in_memory(std::int64_t step) {
  impl_->progress.memory_step = step;
  impl_->tell_progress();
}

void Reporter::save_failed(double seconds) {
  impl_->figures.pass(seconds);
  ++impl_->figures.failed_saves;
}

void Reporter::finish(const FinishFacts& facts) {
  Impl& r = *impl_;
  r.bar.finish();
  // A finished run that is started again trains nothing. The result files of its earlier session are kept.
  const bool keeps_results = r.figures.session.steps == 0 &&
                             path_exists(r.facts.output_dir + "/train_results.json") &&
                             path_exists(r.facts.output_dir + "/all_results.json");
  const Json train = r.figures.train_results();
  Json all = train;
  const auto write = [&](const std::string& name, const Json& json) {
    write_file_atomically(r.facts.output_dir + "/" + name,
                          json.dump(4, ' ', false, Json::error_handler_t::replace) + "\n");
  };
  if (!r.eval_results.is_null()) {
    // The epoch is that of the end of the run, not of the last evaluation.
    for (const auto& [key, value] : r.eval_results.items()) {
      if (key != "epoch") all[key] = value;
    }
  }
  write_or_warn([&] {
    if (!r.eval_results.is_null()) write("eval_results.json", r.eval_results);
    if (!keeps_results) {
      write("train_results.json", train);
      write("all_results.json", all);
      const std::string card = r.facts.output_dir + "/README.md";
      if (is_own_card(card)) {
        write_file_atomically(card, model_card(r.facts, r.log.rows(), all));
      } else {
        log::info("no model card is written, because a file with its name exists: " + card);
      }
    }
    r.write_state();
    r.write_plots();
  });
  if (const std::int64_t rows = r.log.flush(); rows > 0)
    log::warn(std::to_string(rows) + " rows of trainer_log.jsonl could not be written");
  if (r.board && r.figures.session.steps > 0) r.board->results(train, r.figures);
  r.summary(facts);
  r.progress.finished = facts.status == "completed";
  r.tell_progress();
}

}  // namespace octet::report
