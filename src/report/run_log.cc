#include "run_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "words.h"

namespace octet::report {
namespace {

// Whether a row is valid: an object with a whole number in range as current_steps.
bool is_row(const Json& row) {
  if (!row.is_object()) return false;
  const double step = number_of(row, "current_steps");
  return step >= 0 && step < 9e15 && step == std::floor(step);
}

}  // namespace

void write_or_warn(const std::function<void()>& write) {
  try {
    write();
  } catch (const Error& e) {
    log::warn(std::string("a file of the report was not written: ") + e.what());
  }
}

double number_of(const Json& row, const char* key) {
  const auto found = row.find(key);
  return found != row.end() && found->is_number() ? found->get<double>() : NAN;
}

RunLog::RunLog(const std::string& path, std::int64_t first_step) : path_(path) {
  std::string kept;
  if (first_step > 0 && path_exists(path)) {
    for (const auto& line : split(read_file(path), '\n')) {
      if (trim(line).empty()) continue;
      Json row;
      try {
        row = parse_json(line, path, false, 16);
      } catch (const Error&) {
        ++broken_;
        continue;
      }
      if (!is_row(row)) {
        ++broken_;
      } else if (number_of(row, "current_steps") <= static_cast<double>(first_step)) {
        kept += line + "\n";
        rows_.push_back(std::move(row));
      }
    }
  }
  write_file_atomically(path, kept);
  file_ = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (file_ < 0)
    throw Error({.what = "the log cannot be opened",
                 .found = std::strerror(errno),
                 .where = path,
                 .fix = "check the permissions of the folder and the free space of its disk",
                 .code = exit_code_of(errno)});
}

RunLog::~RunLog() {
  if (file_ >= 0) close(file_);
}

void RunLog::append(Json row) {
  waiting_ += row.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  rows_.push_back(std::move(row));
  const bool waited = rows_waiting_ > 0;
  ++rows_waiting_;
  if (flush() > 0 && !waited) {
    log::warn(path_ + " cannot be written (" + std::strerror(errno) +
              "): its rows wait in memory until there is room");
  } else if (waited && rows_waiting_ == 0) {
    log::info(path_ + " can be written again: no row is missing");
  }
}

std::int64_t RunLog::flush() {
  std::size_t done = 0;
  while (done < waiting_.size()) {
    const ssize_t n = ::write(file_, waiting_.data() + done, waiting_.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += static_cast<std::size_t>(n);
  }
  waiting_.erase(0, done);
  rows_waiting_ = std::count(waiting_.begin(), waiting_.end(), '\n');
  return rows_waiting_;
}

// Ignores errors, because missing rows of a log must not prevent the save of a checkpoint.
void RunLog::sync() const {
  (void)::fdatasync(file_);
}

namespace {

// Names of values in trainer_log.jsonl and in Hugging Face's log_history.
constexpr std::pair<const char*, const char*> kNames[] = {
    {"epoch", "epoch"},
    {"loss", "loss"},
    {"grad_norm", "grad_norm"},
    {"lr", "learning_rate"},
    {"eval_loss", "eval_loss"},
    {"eval_runtime", "eval_runtime"},
    {"eval_samples_per_second", "eval_samples_per_second"},
    {"eval_steps_per_second", "eval_steps_per_second"},
    {"perplexity", "perplexity"},
};

std::string shown(double value, int digits) {
  return std::isnan(value) ? "" : python_number(value, digits);
}

}  // namespace

double Totals::mean_loss() const {
  return loss_steps > 0 ? loss_sum / static_cast<double>(loss_steps) : NAN;
}

Json trainer_state(const RunFacts& facts, const Totals& totals, const std::vector<Json>& rows) {
  Json history = Json::array();
  for (const Json& row : rows) {
    Json entry = Json::object();
    for (const auto& [ours, theirs] : kNames) {
      if (row.contains(ours)) entry[theirs] = row.at(ours);
    }
    entry["step"] = row.at("current_steps");
    history.push_back(std::move(entry));
  }
  Json state;
  state["best_metric"] = nullptr;
  state["best_model_checkpoint"] = nullptr;
  state["epoch"] = totals.epoch;
  state["eval_steps"] = facts.eval_steps;
  state["global_step"] = totals.step;
  state["is_hyper_param_search"] = false;
  state["is_local_process_zero"] = true;
  state["is_world_process_zero"] = true;
  state["log_history"] = std::move(history);
  state["logging_steps"] = facts.logging_steps;
  state["max_steps"] = facts.total_steps;
  state["num_input_tokens_seen"] = totals.tokens;
  state["num_train_epochs"] = static_cast<std::int64_t>(std::min(9e15, std::ceil(facts.epochs)));
  state["save_steps"] = facts.save_steps;
  state["stateful_callbacks"] = Json::object();
  state["total_flos"] = facts.flops_per_token * static_cast<double>(totals.tokens);
  state["train_batch_size"] = facts.micro_batch;
  state["trial_name"] = nullptr;
  state["trial_params"] = nullptr;
  return state;
}

namespace {

// Returns the last two parts of a path: "quickstart/model", which looks like "Qwen/Qwen3-4B".
std::string short_path(const std::string& path) {
  std::size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return path;
  const std::size_t last = path.rfind('/', end);
  if (last == std::string::npos || last == 0) return path.substr(0, end + 1);
  const std::size_t before = path.rfind('/', last - 1);
  return path.substr(before == std::string::npos ? 0 : before + 1,
                     end - (before == std::string::npos ? 0 : before + 1) + 1);
}

std::string title_of(const RunFacts& facts) {
  std::string title = "Loss of " + (facts.run_name.empty() ? facts.output_dir : facts.run_name);
  if (facts.base_model.empty()) return title;
  title += ": " + short_path(facts.base_model);
  if (facts.datasets.empty()) return title;
  title += " on " + short_path(facts.datasets.front());
  if (facts.datasets.size() > 1) title += " and " + std::to_string(facts.datasets.size() - 1) + " more";
  return title;
}

}  // namespace

Figure loss_figure(const RunFacts& facts, const std::vector<Json>& rows, bool with_evaluation) {
  Figure figure{.title = title_of(facts), .x_label = "step", .y_label = "loss", .series = {}, .panels = {}};
  Series train{.name = "training", .points = {}, .smooth = true};
  Series eval{.name = "evaluation", .points = {}, .markers = true};
  static constexpr std::pair<const char*, const char*> kPanels[] = {{"lr", "learning rate"},
                                                                    {"grad_norm", "gradient norm"},
                                                                    {"throughput", "tokens/s"},
                                                                    {"vram_allocated", "memory, GiB"}};
  for (const auto& [key, name] : kPanels) figure.panels.push_back({.name = name, .points = {}});
  double before = 0;
  for (const Json& row : rows) {
    const double step = number_of(row, "current_steps");
    if (row.contains("eval_loss")) eval.points.emplace_back(step, number_of(row, "eval_loss"));
    if (!row.contains("loss")) continue;
    // A row has the mean loss of its steps, so it is drawn at their middle. At its last step the curve would
    // be above the evaluations.
    train.points.emplace_back((before + 1 + step) / 2, number_of(row, "loss"));
    before = step;
    for (std::size_t i = 0; i < figure.panels.size(); ++i) {
      if (row.contains(kPanels[i].first))
        figure.panels[i].points.emplace_back(step, number_of(row, kPanels[i].first));
    }
  }
  std::erase_if(figure.panels, [](const Series& panel) { return panel.points.empty(); });
  figure.series.push_back(std::move(train));
  if (with_evaluation) figure.series.push_back(std::move(eval));
  return figure;
}

std::string model_card(const RunFacts& facts, const std::vector<Json>& rows, const Json& results) {
  const std::string name = facts.run_name.empty() ? facts.output_dir : facts.run_name;
  std::string text = "---\n";
  if (!facts.base_model.empty()) text += "base_model: " + quoted(facts.base_model) + "\n";
  if (!facts.datasets.empty()) {
    text += "datasets:\n";
    for (const auto& dataset : facts.datasets) text += "- " + quoted(dataset) + "\n";
  }
  text += "tags:\n- octet\n- generated_from_trainer\nmodel-index:\n- name: " + quoted(name) +
          "\n  results: []\n---\n\n";
  text += "# " + cell(name) + "\n\n";
  if (!facts.base_model.empty()) text += "Trained from `" + cell(facts.base_model) + "`";
  if (!facts.base_model.empty() && !facts.datasets.empty()) {
    text += " on ";
    for (std::size_t i = 0; i < facts.datasets.size(); ++i)
      text += (i > 0 ? ", `" : "`") + cell(facts.datasets[i]) + "`";
  }
  if (!facts.base_model.empty()) text += ".\n\n";
  text += "## Results\n\n| | |\n|---|---|\n";
  for (const auto& [key, value] : results.items()) {
    text += "| " + key + " | " +
            (value.is_number_float() ? python_number(value.get<double>(), 6) : value.dump()) + " |\n";
  }
  text += "\n## Hyperparameters\n\n| key | value |\n|---|---|\n";
  for (const auto& [key, value] : facts.hyperparameters)
    text += "| " + cell(key) + " | " + cell(value) + " |\n";
  text += "\n## Training\n\n| step | epoch | training loss | evaluation loss |\n|---:|---:|---:|---:|\n";
  // Keeps at most about forty rows, plus all evaluations and the last row.
  const std::size_t stride = rows.size() / 40 + 1;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Json& row = rows[i];
    if (i % stride != 0 && i + 1 != rows.size() && !row.contains("eval_loss")) continue;
    text += "| " + row.at("current_steps").dump() + " | " + shown(number_of(row, "epoch"), 4) + " | " +
            shown(number_of(row, "loss"), 5) + " | " + shown(number_of(row, "eval_loss"), 5) + " |\n";
  }
  return text;
}

namespace {

void take_double(const Json& from, const char* key, double& to) {
  if (const double x = number_of(from, key); std::isfinite(x)) to = x;
}
void take_seconds(const Json& from, const char* key, double& to) {
  if (const double x = number_of(from, key); x >= 0 && x < 9e15) to = x;
}
void take_count(const Json& from, const char* key, std::int64_t& to) {
  if (const double x = number_of(from, key); x >= 0 && x < 9e18) to = static_cast<std::int64_t>(x);
}

/// Bounds step counts, so that sums over all rows of a log do not overflow.
constexpr std::int64_t kMostSteps = std::int64_t{1} << 48;

Json part_of(const Json& state, const char* name) {
  const auto found = state.find(name);
  return found != state.end() && found->is_object() ? *found : Json::object();
}

}  // namespace

void add_rows(const std::vector<Json>& rows, Totals& totals) {
  std::int64_t counted = 0;
  for (const Json& row : rows) {
    if (!row.contains("loss")) continue;
    std::int64_t step = counted;  // a row without a step adds no steps
    take_count(row, "current_steps", step);
    step = std::min(step, kMostSteps);
    if (const double loss = number_of(row, "loss"); std::isfinite(loss)) {
      totals.loss_sum += loss * static_cast<double>(step - counted);
      totals.loss_steps += step - counted;
    }
    counted = step;
    take_double(row, "epoch", totals.epoch);
    take_count(row, "total_tokens", totals.tokens);
    take_count(row, "skipped_steps", totals.skipped);
    take_seconds(row, "elapsed_seconds", totals.elapsed);
  }
}

void add_sums(Json& state, const Totals& totals, const Window& window) {
  state["since_last_log"] = {{"loss_sum", window.loss}, {"steps", window.steps}};
  state["so_far"] = {{"elapsed_seconds", totals.elapsed},
                     {"device_seconds", totals.device_seconds},
                     {"skipped_steps", totals.skipped},
                     {"loss_sum", totals.loss_sum},
                     {"loss_steps", totals.loss_steps}};
}

void take_over_state(const Json& state, Totals& totals, Window& window) {
  take_count(state, "num_input_tokens_seen", totals.tokens);
  take_double(state, "epoch", totals.epoch);
  const Json since = part_of(state, "since_last_log"), so_far = part_of(state, "so_far");
  std::int64_t steps = -1;
  take_count(since, "steps", steps);
  if (steps >= 0 && steps <= totals.step) {
    window.loss = number_of(since, "loss_sum");  // null if one of them was not finite
    window.steps = window.steps_before = steps;
    if (std::isfinite(window.loss)) totals.loss_sum += window.loss, totals.loss_steps += steps;
  }
  take_seconds(so_far, "elapsed_seconds", totals.elapsed);
  take_seconds(so_far, "device_seconds", totals.device_seconds);
  take_count(so_far, "skipped_steps", totals.skipped);
  take_double(so_far, "loss_sum", totals.loss_sum);
  take_count(so_far, "loss_steps", totals.loss_steps);
}

}  // namespace octet::report
