#include "faults/finite_weights.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "octet/base/error.h"
#include "octet/setup/adapters.h"
#include "octet/store/hashes.h"
#include "octet/weights/convert.h"
#include "octet/weights/safetensors.h"
#include "start.h"

namespace octet::train {

std::string not_finite_in(comm::Job& job, const std::string& model,
                          const std::vector<std::string>& adapters) {
  std::vector<std::pair<std::string, std::string>> folders{{model, "model"}};
  for (const std::string& adapter : adapters) folders.emplace_back(adapter, "adapter_model");
  for (const auto& [folder, stem] : folders) {
    std::int64_t first = INT64_MAX;
    std::vector<weights::StoredTensor> tensors;
    job.together([&] {
      const weights::WeightFolder weights(folder, stem);
      tensors = weights.tensors();
      const auto count = std::ssize(tensors);
      for (std::int64_t i = job.rank(); i < count && first == INT64_MAX; i += job.size()) {
        if (!weights::is_finite(weights, tensors[static_cast<std::size_t>(i)])) first = i;
      }
    });
    first = job.all_min(first);
    if (first != INT64_MAX) return weights::name_in_file(tensors[static_cast<std::size_t>(first)]);
  }
  return "";
}

namespace {

bool is_finite(const TensorSlice& slice) {
  bool finite = true;
  each_run(slice, [&](std::int64_t, std::int64_t count, const void* data) {
    if (slice.dtype == DType::f32) {
      finite = finite && !weights::first_not_finite(static_cast<const float*>(data), count);
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

std::string weight_not_finite(Engine& engine) {
  const bool finite = store::Hashes::masters_are_finite(engine.store(), engine.compute());
  if (engine.job().all_min(finite ? 1 : 0) != 0) return "";
  std::string mine;
  for (const TensorSlice& slice : state_slices(engine)) {
    const bool parameter = slice.name.find('/') == std::string::npos;
    if (mine.empty() && parameter && !is_finite(slice)) mine = slice.name;
  }
  return first_of(engine.job().all_gather_bytes(mine));
}

std::string base_not_finite(RunContext& run, const RunParts& parts) {
  if (parts.fresh) return "";
  run.begins_once("the search for values of the base that are not finite", 8);
  return not_finite_in(run.job, run.config.model_name_or_path, setup::given_adapters(run.config).added);
}

void require_finite_base(RunContext& run, const RunParts& parts) {
  const std::string wrong = weight_not_finite(*parts.engine);
  if (wrong.empty()) return;
  const std::string base = base_not_finite(run, parts);
  run.job.together([&] {
    throw Error({.what = "a trained weight is not finite",
                 .expected = "finite values",
                 .found = base.empty() ? "tensor '" + wrong + "'" : base,
                 .where = run.config.model_name_or_path,
                 .fix = "fetch the weights again, or name a base with finite weights",
                 .code = ExitCode::usage});
  });
}

void require_finite_checkpoint(RunContext& run, const RunParts& parts) {
  const std::string wrong = weight_not_finite(*parts.engine);
  if (wrong.empty()) return;
  run.job.together([&] {
    throw Error({.what = "a weight of the checkpoint is not finite",
                 .found = "tensor '" + wrong + "'",
                 .where = parts.checkpoint->path(),
                 .fix = "take an earlier checkpoint, and lower learning_rate",
                 .code = ExitCode::no_valid_checkpoint});
  });
}

}  // namespace octet::train
