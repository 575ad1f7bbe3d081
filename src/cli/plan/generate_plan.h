// `trainer plan MODEL --generate`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "octet/config/config.h"
#include "plan/plan_report.h"

namespace octet::cli {

/// The planned generation, with the option names of `trainer generate`.
struct GeneratePlan {
  std::string model;                                   ///< model::find_shape
  std::string note;                                    ///< where the model was found; "": nothing to report
  std::int64_t batch = 32;                             ///< questions that are answered at the same time
  std::int64_t max_length = 2048;                      ///< tokens of question and answer
  std::optional<std::int64_t> max_num_batched_tokens;  ///< most tokens of a forward pass
  std::string dtype = "fp32";                          ///< fp32, bf16 or fp8
  std::string kv_cache_dtype = "auto";                 ///< auto or fp8
  std::string kv_cache_bytes;                          ///< "": the size that the batch fills
  std::int64_t kv_page_tokens = 64;
  std::optional<double> gpu_memory_utilization;
  int tensor_parallel_size = 1;
  int pipeline_parallel_size = 1;
  bool json = false;
};

/// Prints the memory of a decoder on the device (exact, except for libraries), the batches that fit, and the
/// floor of a step on the card. If layers are split, the plan is that of the rank with the most bytes.
/// Returns the exit code of the command: 1 if the batch does not fit.
///
/// Throws Error (usage) for configuration keys that generation does not read and for an impossible split.
/// Throws Error (usage) for a world size, because all replicas hold the same.
int plan_generation(const config::Resolved& resolved, const GeneratePlan& plan, const PlanTarget& target);

}  // namespace octet::cli
