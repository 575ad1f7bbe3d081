// Compares runs by their logs.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/printable.h"
#include "octet/base/strings.h"
#include "options.h"

namespace octet::cli {
namespace {

/// The logged steps of a run.
struct LoggedRun {
  std::string name;
  std::map<std::int64_t, Json> steps;
  double eval_loss = NAN;  ///< the last
};

double number(const Json& row, const char* key) {
  const auto found = row.find(key);
  return found != row.end() && found->is_number() ? found->get<double>() : NAN;
}

LoggedRun read_run(const std::string& path) {
  const bool folder = std::filesystem::is_directory(path);
  const std::string file = folder ? path + "/trainer_log.jsonl" : path;
  LoggedRun run{.name = folder ? std::filesystem::path(path).lexically_normal().string() : path};
  std::int64_t line = 0;
  for (const std::string& text : split(read_file(file), '\n')) {
    ++line;
    if (trim(text).empty()) continue;
    Json row;
    try {
      row = parse_json(text, file + ":" + std::to_string(line));
    } catch (const Error&) {
      continue;  // a line that is being written, or was cut short
    }
    if (!row.is_object()) continue;
    if (!std::isnan(number(row, "eval_loss"))) run.eval_loss = number(row, "eval_loss");
    if (std::isnan(number(row, "loss")) || std::isnan(number(row, "current_steps"))) continue;
    run.steps[static_cast<std::int64_t>(number(row, "current_steps"))] = row;
  }
  if (run.steps.empty()) {
    throw Error({.what = "the log of a run has no step",
                 .expected = "rows with current_steps and loss",
                 .where = file,
                 .fix = "name the output_dir of a run",
                 .code = ExitCode::usage});
  }
  return run;
}

/// Returns the mean of a column over the rows from step `first` on; NaN if there are none.
double mean(const LoggedRun& run, const char* key, std::int64_t first = 0) {
  double sum = 0, count = 0;
  for (const auto& [step, row] : run.steps) {
    const double x = number(row, key);
    if (step < first || std::isnan(x)) continue;
    sum += x, count += 1;
  }
  return count > 0 ? sum / count : NAN;
}

struct Column {
  const char* label;  ///< in the table
  const char* key;    ///< in JSON; stable, because scripts read it
  std::function<double(const LoggedRun&)> of;
  const char* format;
};

const std::vector<Column>& columns() {
  const auto last = [](const LoggedRun& r) { return r.steps.rbegin()->first; };
  static const std::vector<Column> all{
      {"last step", "last step", [last](const LoggedRun& r) { return static_cast<double>(last(r)); }, "%.0f"},
      {"last loss", "last loss", [](const LoggedRun& r) { return number(r.steps.rbegin()->second, "loss"); },
       "%.5f"},
      {"mean loss of the last tenth", "mean loss of the last tenth",
       [last](const LoggedRun& r) { return mean(r, "loss", last(r) - (last(r) - 1) / 10); }, "%.5f"},
      {"last evaluation loss", "last evaluation loss", [](const LoggedRun& r) { return r.eval_loss; },
       "%.5f"},
      {"seconds per step", "seconds a step", [](const LoggedRun& r) { return mean(r, "seconds_per_step"); },
       "%.4f"},
      {"tokens per second", "tokens a second", [](const LoggedRun& r) { return mean(r, "throughput"); },
       "%.0f"},
      {"model TFLOP/s per device", "model TFLOP/s of a device",
       [](const LoggedRun& r) { return mean(r, "tflops"); }, "%.4g"},
      {"model FLOPs used, %", "model FLOPs used, %", [](const LoggedRun& r) { return 100 * mean(r, "mfu"); },
       "%.2f"},
      {"memory per rank, GiB", "memory of a rank, GiB",
       [](const LoggedRun& r) { return mean(r, "vram_allocated"); }, "%.2f"},
      {"gradient norm", "gradient norm", [](const LoggedRun& r) { return mean(r, "grad_norm"); }, "%.4f"}};
  return all;
}

/// Relative difference between the losses of two runs, over the steps that both runs logged.
struct Distance {
  std::int64_t steps = 0, most_at = 0;
  double mean = 0, most = 0;  ///< relative
};

Distance distance(const LoggedRun& a, const LoggedRun& b) {
  Distance d;
  for (const auto& [step, row] : a.steps) {
    const auto other = b.steps.find(step);
    if (other == b.steps.end()) continue;
    const double loss = number(row, "loss"), theirs = number(other->second, "loss");
    const double relative = std::abs(theirs - loss) / std::max(std::abs(loss), 1e-30);
    ++d.steps;
    d.mean += relative;
    if (relative < d.most && d.most_at > 0) continue;
    d.most = relative, d.most_at = step;
  }
  if (d.steps > 0) d.mean /= static_cast<double>(d.steps);
  return d;
}

void print_comparison(const std::vector<LoggedRun>& runs) {
  std::printf("%-28s", "");
  for (std::size_t i = 0; i < runs.size(); ++i)
    std::printf(" %14s", ("run " + std::to_string(i + 1)).c_str());
  std::printf("\n");
  for (const Column& column : columns()) {
    std::printf("%-28s", column.label);
    for (const LoggedRun& run : runs) {
      std::array<char, 64> text{};
      std::snprintf(text.data(), text.size(), column.format, column.of(run));
      std::printf(" %14s", std::isnan(column.of(run)) ? "-" : text.data());
    }
    std::printf("\n");
  }
  std::printf("\n");
  for (std::size_t i = 0; i < runs.size(); ++i) {
    std::printf("run %zu  %s", i + 1, printable(runs[i].name).c_str());
    const Distance d = distance(runs[0], runs[i]);
    if (i > 0 && d.steps > 0) {
      std::printf(": losses differ from run 1 by %.2e on average, at most %.2e at step %lld (of %lld steps)",
                  d.mean, d.most, static_cast<long long>(d.most_at), static_cast<long long>(d.steps));
    } else if (i > 0) {
      std::printf(": no step was logged by both this and run 1");
    }
    std::printf("\n");
  }
}

void print_comparison_json(const std::vector<LoggedRun>& runs) {
  Json all = Json::array();
  for (const LoggedRun& run : runs) {
    Json row{{"run", run.name}};
    for (const Column& column : columns()) {
      const double x = column.of(run);
      row[column.key] = std::isnan(x) ? Json() : Json(x);
    }
    const Distance d = distance(runs[0], run);
    row["shared_steps"] = d.steps;
    row["mean_relative_difference"] = d.mean;
    row["most_relative_difference"] = d.most;
    all.push_back(row);
  }
  std::printf("%s\n", all.dump().c_str());
}

}  // namespace

int compare_command(const Arguments& arguments) {
  Options options("compare",
                  "Shows runs side by side: losses, speed and memory, from their trainer_log.jsonl");
  options.example("trainer compare runs/bf16 runs/fp8");
  std::vector<std::string> paths;
  bool json = false;
  options.add_option("RUN", paths, "output folders (or logs) of runs").required();
  options.add_flag("--json", json, "print one line of JSON");
  if (!options.parse(arguments)) return 0;
  std::vector<LoggedRun> runs;
  for (const std::string& path : paths) runs.push_back(read_run(path));
  (json ? print_comparison_json : print_comparison)(runs);
  return 0;
}

}  // namespace octet::cli
