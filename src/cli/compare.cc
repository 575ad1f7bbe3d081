// Compares runs by their logs.
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>

#include "octet/base/json.h"
#include "octet/base/terminal.h"
#include "octet/report/logged_run.h"
#include "options.h"

namespace octet::cli {
namespace {

using report::Distance;
using report::logged_number;
using report::LoggedRun;
using report::mean_of;

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
      {"last loss", "last loss",
       [](const LoggedRun& r) { return logged_number(r.steps.rbegin()->second, "loss"); }, "%.5f"},
      {"mean loss of the last tenth", "mean loss of the last tenth",
       [last](const LoggedRun& r) { return mean_of(r, "loss", last(r) - (last(r) - 1) / 10); }, "%.5f"},
      {"last evaluation loss", "last evaluation loss", [](const LoggedRun& r) { return r.eval_loss; },
       "%.5f"},
      {"seconds per step", "seconds a step",
       [](const LoggedRun& r) { return mean_of(r, "seconds_per_step"); }, "%.4f"},
      {"tokens per second", "tokens a second", [](const LoggedRun& r) { return mean_of(r, "throughput"); },
       "%.0f"},
      {"model TFLOP/s per device", "model TFLOP/s of a device",
       [](const LoggedRun& r) { return mean_of(r, "tflops"); }, "%.4g"},
      {"model FLOPs used, %", "model FLOPs used, %",
       [](const LoggedRun& r) { return 100 * mean_of(r, "mfu"); }, "%.2f"},
      {"memory per rank, GiB", "memory of a rank, GiB",
       [](const LoggedRun& r) { return mean_of(r, "vram_allocated"); }, "%.2f"},
      {"gradient norm", "gradient norm", [](const LoggedRun& r) { return mean_of(r, "grad_norm"); }, "%.4f"}};
  return all;
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
    const Distance d = report::distance(runs[0], runs[i]);
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
    const Distance d = report::distance(runs[0], run);
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
  for (const std::string& path : paths) runs.push_back(report::read_run(path));
  (json ? print_comparison_json : print_comparison)(runs);
  return 0;
}

}  // namespace octet::cli
