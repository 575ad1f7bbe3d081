// Output at the end of a run: plots, results and a summary.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>
#include <vector>

#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/report/plot.h"
#include "reporter_impl.h"

namespace octet::report {

void Reporter::Impl::write_plots() const {
  if (!facts.plot || !draws_plots()) return;
  const auto write = [&](const std::string& name, bool with_evaluation) {
    const Figure figure = loss_figure(facts, log.rows(), with_evaluation);
    write_file_atomically(facts.output_dir + "/" + name + ".svg", to_svg(figure));
    write_file_atomically(facts.output_dir + "/" + name + ".png", to_png(figure));
  };
  write("training_loss", false);
  if (!std::isnan(eval_loss)) write("training_eval_loss", true);
}

Json Reporter::Impl::train_results() const {
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

void Reporter::Impl::summary(const FinishFacts& finish) const {
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
  if (!last_checkpoint.empty() && finish.keeps_checkpoint) rows.emplace_back("checkpoint", last_checkpoint);
  if (!finish.final_model.empty()) rows.emplace_back("model", finish.final_model);
  rows.emplace_back("log", facts.output_dir + "/trainer_log.jsonl");
  if (facts.plot && draws_plots()) rows.emplace_back("plot", facts.output_dir + "/training_loss.svg");
  if (events) rows.emplace_back("TensorBoard", std::filesystem::path(events->path()).parent_path().string());
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

}  // namespace octet::report
