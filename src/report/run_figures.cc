#include "run_figures.h"

#include <algorithm>
#include <cmath>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/report/number.h"
#include "words.h"

namespace octet::report {
namespace {

Json state_of_folder(const std::string& folder) {
  const std::string path = folder + "/trainer_state.json";
  if (!path_exists(path)) return {};
  try {
    return read_json(path);
  } catch (const Error& e) {
    log::warn(std::string("trainer_state.json is not read: ") + e.what());
    return {};
  }
}

}  // namespace

void RunFigures::take_over(const std::vector<Json>& rows) {
  for (const Json& row : rows) {
    if (row.contains("eval_loss")) eval_loss = number_of(row, "eval_loss");
    if (!row.contains("loss")) continue;
    last_loss = number_of(row, "loss");
    if (std::isnan(first_loss)) first_loss = last_loss;
  }
  totals.step = facts.first_step;
  add_rows(rows, totals);
  totals.device_seconds = totals.elapsed * static_cast<double>(facts.world);
  if (facts.first_step > 0) {
    const Json state = facts.resumed->is_object() ? *facts.resumed : state_of_folder(facts.output_dir);
    if (state.is_object() && number_of(state, "global_step") == static_cast<double>(facts.first_step)) {
      take_over_state(state, totals, window);
    }
  }
  totals.device_seconds += facts.setup_seconds * static_cast<double>(facts.world);
}

void RunFigures::add(const StepFacts& step) {
  window.add(step);
  session.add(step);
  totals.step = step.step;
  totals.epoch = step.epoch;
  totals.tokens += step.tokens;
  totals.skipped += step.skipped ? 1 : 0;
  pass(step.seconds);
  if (std::isfinite(step.loss)) {
    totals.loss_sum += step.loss;
    ++totals.loss_steps;
  }
  peak_memory = std::max(peak_memory, step.memory_peak_bytes);
}

void RunFigures::pass(double seconds) {
  session_elapsed += seconds;
  totals.elapsed += seconds;
  totals.device_seconds += seconds * static_cast<double>(facts.world);
}

double RunFigures::utilisation(double tokens_per_second) const {
  return flop_utilisation(facts.flops_per_token, tokens_per_second, facts.world, facts.peak_flops);
}

double RunFigures::teraflops(double tokens_per_second) const {
  return 1e-12 * facts.flops_per_token * tokens_per_second / static_cast<double>(facts.world);
}

std::string RunFigures::work_text(double tokens_per_second) const {
  if (knows_peak()) return "MFU " + python_number(100 * utilisation(tokens_per_second), 3) + " %";
  return python_number(teraflops(tokens_per_second), 3) + " TFLOP/s";
}

double RunFigures::remaining_seconds() const {
  return session.per_step(session_elapsed) *
         static_cast<double>(std::max<std::int64_t>(0, facts.total_steps - totals.step));
}

Json RunFigures::train_results() const {
  const auto per_second = [this](std::int64_t n) {
    return session_elapsed > 0 ? static_cast<double>(n) / session_elapsed : 0.0;
  };
  Json results;
  results["epoch"] = totals.epoch;
  results["total_flos"] = facts.flops_per_token * static_cast<double>(totals.tokens);
  results["train_loss"] = totals.mean_loss();
  results["train_runtime"] = session_elapsed;
  results["train_samples_per_second"] = per_second(session.samples);
  results["train_steps_per_second"] = per_second(session.steps);
  results["train_tokens_per_second"] = per_second(session.tokens);
  results["num_input_tokens_seen"] = totals.tokens;
  results["skipped_steps"] = totals.skipped;
  results["device_hours"] = device_hours();
  if (facts.gpu_hour_price > 0) results["cost"] = cost();
  return results;
}

std::vector<std::pair<std::string, std::string>> RunFigures::summary(const FinishFacts& finish) const {
  std::vector<std::pair<std::string, std::string>> rows;
  const double rate = session.per_second(static_cast<double>(session.tokens));
  rows.emplace_back("status", finish.status);
  rows.emplace_back("steps", with_commas(totals.step) + " of " + with_commas(facts.total_steps) + " (epoch " +
                                 fixed(totals.epoch, 2) + ")");
  if (!std::isnan(last_loss)) {
    rows.emplace_back("training loss", python_number(first_loss, 4) + " -> " + python_number(last_loss, 4) +
                                           " (mean " + python_number(totals.mean_loss(), 4) + ")");
  }
  if (!std::isnan(eval_loss)) {
    const bool last = finish.model_step < 0 || finish.model_step == totals.step;
    rows.emplace_back("evaluation loss", python_number(eval_loss, 4) +
                                             (last ? ""
                                                   : " at the last evaluation; the model is that of step " +
                                                         with_commas(finish.model_step)));
  }
  // Without a step in this session there is no rate.
  const bool stepped = session.steps > 0;
  rows.emplace_back(
      "time", clock_time(totals.elapsed) +
                  (stepped ? ", " + python_number(session.per_step(session.seconds), 3) + " s/it" : ""));
  rows.emplace_back("tokens",
                    with_commas(totals.tokens) + (stepped ? ", " + rate_text(rate) + " per second" : ""));
  if (stepped && knows_peak()) rows.emplace_back("MFU", python_number(100 * utilisation(rate), 3) + " %");
  if (stepped && knows_work())
    rows.emplace_back("model TFLOP/s", python_number(teraflops(rate), 3) + " per device");
  if (totals.skipped > 0) {
    rows.emplace_back("skipped", with_commas(totals.skipped) + " steps, not finite or spikes");
  }
  if (failed_saves > 0) rows.emplace_back("failed saves", with_commas(failed_saves));
  if (session.data_seconds > 0) {
    rows.emplace_back("waited for data",
                      fixed(100 * session.per_second(session.data_seconds), 1) + " % of the time");
  }
  if (!session.kinds.empty()) {
    rows.emplace_back("communication", fixed(100 * session.per_second(session.comm_seconds), 1) +
                                           " % of the time, " + fixed(100 * session.hidden(), 1) +
                                           " % of it hidden; rank 0 sent " + human_bytes(session.bytes()));
    for (const auto& [name, kind] : session.kinds) {
      rows.emplace_back("  " + name, python_number(session.per_step(kind.seconds), 3) + " s and " +
                                         human_bytes(session.per_step(static_cast<double>(kind.bytes))) +
                                         " per step");
    }
  }
  if (peak_memory > 0)
    rows.emplace_back("peak memory",
                      human_bytes(static_cast<double>(peak_memory)) + " on the rank with the most");
  if (facts.gpu_hour_price > 0) {
    rows.emplace_back("cost", python_number(cost(), 4) + " (" + python_number(device_hours(), 4) +
                                  " device hours at " + python_number(facts.gpu_hour_price, 6) + ")");
  }
  return rows;
}

}  // namespace octet::report
