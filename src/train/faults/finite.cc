// Checks for values that are not finite. A run never saves such a weight, and fails if it made no update.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include "faults/finite.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/checkpoint/finite.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/setup/adapters.h"
#include "octet/store/hashes.h"
#include "run.h"
#include "start.h"

namespace octet::train {
namespace {

bool is_finite(const TensorSlice& slice) {
  bool finite = true;
  each_run(slice, [&](std::int64_t, std::int64_t count, const void* data) {
    if (slice.dtype == DType::f32) {
      finite = finite && !checkpoint::first_not_finite(static_cast<const float*>(data), count);
    } else if (slice.dtype == DType::bf16) {
      const auto* bits = static_cast<const std::uint16_t*>(data);
      finite =
          finite && std::all_of(bits, bits + count, [](std::uint16_t b) { return (b & 0x7f80) != 0x7f80; });
    }
  });
  return finite;
}

/// Returns the first text that is not empty, or "".
std::string first_of(const std::vector<std::string>& texts) {
  const auto found = std::ranges::find_if(texts, [](const std::string& text) { return !text.empty(); });
  return found == texts.end() ? "" : *found;
}

}  // namespace

std::string not_finite_in(comm::Job& job, const std::string& model,
                          const std::vector<std::string>& adapters) {
  std::vector<std::pair<std::string, std::string>> folders{{model, "model"}};
  for (const std::string& adapter : adapters) folders.emplace_back(adapter, "adapter_model");
  for (const auto& [folder, stem] : folders) {
    std::int64_t first = INT64_MAX;
    std::vector<checkpoint::StoredTensor> tensors;
    job.together([&] {
      const checkpoint::WeightFolder weights(folder, stem);
      tensors = weights.tensors();
      const auto count = std::ssize(tensors);
      for (std::int64_t i = job.rank(); i < count && first == INT64_MAX; i += job.size()) {
        if (!checkpoint::is_finite(weights, tensors[static_cast<std::size_t>(i)])) first = i;
      }
    });
    first = job.all_min(first);
    if (first != INT64_MAX) return checkpoint::name_in_file(tensors[static_cast<std::size_t>(first)]);
  }
  return "";
}

std::string Run::weight_not_finite() {
  const bool finite = store::Hashes::masters_are_finite(engine_->store(), engine_->compute());
  if (job_.all_min(finite ? 1 : 0) != 0) return "";
  std::string mine;
  for (const TensorSlice& slice : state_slices(*engine_)) {
    const bool parameter = slice.name.find('/') == std::string::npos;
    if (mine.empty() && parameter && !is_finite(slice)) mine = slice.name;
  }
  return first_of(job_.all_gather_bytes(mine));
}

std::string Run::base_not_finite() {
  if (fresh_) return "";
  begins_once("the search for values of the base that are not finite", 8);
  return not_finite_in(job_, config_.model_name_or_path, setup::given_adapters(config_).added);
}

void Run::require_finite_base() {
  const std::string wrong = weight_not_finite();
  if (wrong.empty()) return;
  const std::string base = base_not_finite();
  job_.together([&] {
    throw Error({.what = "a trained weight is not finite",
                 .expected = "finite values",
                 .found = base.empty() ? "tensor '" + wrong + "'" : base,
                 .where = config_.model_name_or_path,
                 .fix = "fetch the weights again, or name a base with finite weights",
                 .code = ExitCode::usage});
  });
}

void Run::require_finite_checkpoint() {
  const std::string wrong = weight_not_finite();
  if (wrong.empty()) return;
  job_.together([&] {
    throw Error({.what = "a weight of the checkpoint is not finite",
                 .found = "tensor '" + wrong + "'",
                 .where = checkpoint_->path(),
                 .fix = "take an earlier checkpoint, and lower learning_rate",
                 .code = ExitCode::no_valid_checkpoint});
  });
}

void Run::look_at_base() {
  if (std::exchange(looked_at_base_, true)) return;
  base_wrong_ = base_not_finite();
  begins("a step");
  if (base_wrong_.empty() || !session_.prints()) return;
  log::warn("step " + std::to_string(step_) + ": the base has values that are not finite, first in " +
            base_wrong_);
}

bool Run::weights_are_finite() {
  const std::string wrong = weight_not_finite();
  if (wrong.empty()) return true;
  const std::string what = "the weights are not finite: tensor '" + wrong + "' is the first";
  if (spikes_->action() == setup::SpikeAction::rollback) {
    stands_out(what, true);
    return false;
  }
  settle_save();
  job_.together([&] {
    throw Error({.what = "the weights are not finite, so no checkpoint is written",
                 .found = "tensor '" + wrong + "'",
                 .where = "step " + std::to_string(step_),
                 .fix = "lower learning_rate; " + (last_checkpoint_.empty()
                                                       ? "there is no checkpoint"
                                                       : "the last checkpoint is " + last_checkpoint_)});
  });
  return false;
}

void Run::require_updates() {
  if (engine_->store().optimizer_steps() > 0) return;
  job_.together([&] {
    throw Error({.what = "the run has made no update: all of its steps were skipped",
                 .expected = "at least one step with a finite gradient",
                 .found = base_wrong_.empty() ? "" : "values that are not finite in " + base_wrong_,
                 .where = "step " + std::to_string(step_) + ", " + config_.output_dir,
                 .fix = base_wrong_.empty() ? "lower learning_rate, and check the data and the precision"
                                            : "fetch the weights again, or name a base with finite weights",
                 .code = base_wrong_.empty() ? ExitCode::failure : ExitCode::usage});
  });
}

}  // namespace octet::train
