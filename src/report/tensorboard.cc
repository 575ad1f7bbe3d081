#include "tensorboard.h"

#include <filesystem>

#include "octet/base/json.h"
#include "words.h"

namespace octet::report {
namespace {

std::string newest_folder(const std::string& parent) {
  std::string newest;
  std::filesystem::file_time_type time;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(parent, error)) {
    if (!entry.is_directory(error)) continue;
    const auto written = entry.last_write_time(error);
    if (error || (!newest.empty() && written <= time)) continue;
    newest = entry.path().string();
    time = written;
  }
  return newest;
}

std::string folder_of(const RunFacts& facts) {
  std::string folder = facts.logging_dir;
  if (folder.empty() && facts.first_step > 0) folder = newest_folder(facts.output_dir + "/runs");
  if (folder.empty()) folder = facts.output_dir + "/runs/" + date_and_host();
  return folder;
}

/// Adds the figures of each block of a field "experts" to TensorBoard's scalars.
void add_experts(const std::string& prefix, const Json& experts,
                 std::vector<std::pair<std::string, double>>& scalars) {
  if (!experts.is_object() || experts.empty()) return;
  for (std::size_t i = 0; i < experts.at("blocks").size(); ++i) {
    const std::string tag = prefix + experts.at("blocks")[i].dump() + "/";
    for (const char* figure : {"largest", "smallest", "entropy", "dropped"})
      scalars.emplace_back(tag + figure, experts.at(figure)[i].get<double>());
  }
}

}  // namespace

TensorBoard::TensorBoard(const RunFacts& facts) : file_(folder_of(facts), facts.first_step + 1) {}

void TensorBoard::step(const StepFacts& f, const RunFigures& run) {
  const Window& window = run.window;
  const double rate = window.per_second(static_cast<double>(window.tokens));
  Scalars scalars{{"train/loss", window.mean_loss()},
                  {"train/grad_norm", f.grad_norm},
                  {"train/learning_rate", f.learning_rate},
                  {"train/epoch", f.epoch},
                  {"train/global_step", static_cast<double>(f.step)},
                  {"perf/seconds_per_step", window.per_step(window.seconds)},
                  {"perf/tokens_per_second", rate},
                  {"train/skipped_steps", static_cast<double>(run.totals.skipped)},
                  {"perf/data_seconds", window.per_step(window.data_seconds)}};
  if (run.knows_work()) scalars.emplace_back("perf/tflops", run.teraflops(rate));
  if (run.knows_peak()) scalars.emplace_back("perf/mfu", run.utilisation(rate));
  if (f.memory_bytes > 0) scalars.emplace_back("memory/allocated_gib", gib(f.memory_bytes));
  if (f.memory_peak_bytes > 0) scalars.emplace_back("memory/peak_gib", gib(f.memory_peak_bytes));
  if (!window.kinds.empty()) {
    scalars.emplace_back("comm/bytes", window.per_step(window.bytes()));
    scalars.emplace_back("comm/ms", 1e3 * window.per_step(window.comm_seconds));
    scalars.emplace_back("comm/exposed_ms", 1e3 * window.per_step(window.exposed_seconds));
  }
  for (const auto& [name, kind] : window.kinds) {
    scalars.emplace_back("comm/" + name + "_ms", 1e3 * window.per_step(kind.seconds));
    scalars.emplace_back("comm/" + name + "_bytes", window.per_step(static_cast<double>(kind.bytes)));
  }
  for (std::size_t rank = 0; rank < f.rank_losses.size(); ++rank) {
    if (!f.rank_losses[rank]) continue;
    scalars.emplace_back("rank" + std::to_string(rank) + "/loss", *f.rank_losses[rank]);
  }
  if (f.fp8->is_object()) {
    for (const auto& [gemm_kind, operands] : f.fp8->items()) {
      for (const auto& [operand, values] : operands.items()) {
        const std::string tag = "fp8/" + gemm_kind + "/" + operand;
        scalars.emplace_back(tag + "_saturated", number_of(values, "saturated"));
        scalars.emplace_back(tag + "_lost", number_of(values, "lost"));
      }
    }
  }
  add_experts("experts/", *f.experts, scalars);
  scalars.insert(scalars.end(), f.extra.begin(), f.extra.end());
  write(f.step, scalars);
}

void TensorBoard::evaluation(const EvalFacts& facts) {
  Scalars scalars{{"eval/loss", facts.loss},
                  {"eval/runtime", facts.seconds},
                  {"eval/samples_per_second", facts.per_second(facts.samples)},
                  {"eval/steps_per_second", facts.per_second(facts.batches)}};
  add_experts("eval/experts/", *facts.experts, scalars);
  write(facts.step, scalars);
}

void TensorBoard::results(const Json& train, const RunFigures& run) {
  write(run.totals.step,
        {{"train/train_loss", run.totals.mean_loss()},
         {"train/train_runtime", run.session_elapsed},
         {"train/train_samples_per_second", train.at("train_samples_per_second").get<double>()},
         {"train/train_steps_per_second", train.at("train_steps_per_second").get<double>()},
         {"train/total_flos", train.at("total_flos").get<double>()}});
}

std::string TensorBoard::folder() const {
  return std::filesystem::path(file_.path()).parent_path().string();
}

void TensorBoard::write(std::int64_t step, const Scalars& scalars) {
  write_or_warn([&] { file_.write(step, scalars); });
}

}  // namespace octet::report
