#include "octet/report/logged_run.h"

#include <algorithm>
#include <filesystem>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/strings.h"

namespace octet::report {

double logged_number(const Json& row, const char* key) {
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
    if (!std::isnan(logged_number(row, "eval_loss"))) run.eval_loss = logged_number(row, "eval_loss");
    if (std::isnan(logged_number(row, "loss")) || std::isnan(logged_number(row, "current_steps"))) continue;
    run.steps[static_cast<std::int64_t>(logged_number(row, "current_steps"))] = row;
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

double mean_of(const LoggedRun& run, const char* key, std::int64_t first) {
  double sum = 0, count = 0;
  for (const auto& [step, row] : run.steps) {
    const double x = logged_number(row, key);
    if (step < first || std::isnan(x)) continue;
    sum += x, count += 1;
  }
  return count > 0 ? sum / count : NAN;
}

Distance distance(const LoggedRun& a, const LoggedRun& b) {
  Distance d;
  for (const auto& [step, row] : a.steps) {
    const auto other = b.steps.find(step);
    if (other == b.steps.end()) continue;
    const double loss = logged_number(row, "loss"), theirs = logged_number(other->second, "loss");
    const double relative = std::abs(theirs - loss) / std::max(std::abs(loss), 1e-30);
    ++d.steps;
    d.mean += relative;
    if (relative < d.most && d.most_at > 0) continue;
    d.most = relative, d.most_at = step;
  }
  if (d.steps > 0) d.mean /= static_cast<double>(d.steps);
  return d;
}

}  // namespace octet::report
