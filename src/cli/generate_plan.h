// `trainer plan MODEL --generate`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "octet/config/config.h"
#include "plan_report.h"

namespace octet::cli {

/// What is to be answered, in the words of `trainer generate`.
struct GeneratePlan {
  std::string model;                                   ///< model::find_shape
  std::string note;                                    ///< where the model was found; "": nothing to say
  std::int64_t batch = 32;                             ///< questions side by side
  std::int64_t max_length = 2048;                      ///< tokens of question and answer
  std::optional<std::int64_t> max_num_batched_tokens;  ///< of a pass at most
  std::string dtype = "fp32";                          ///< fp32, bf16 or fp8
  std::string kv_cache_dtype = "auto";                 ///< auto or fp8
  std::string kv_cache_bytes;                          ///< "" : as much as the batch fills
  std::int64_t kv_page_tokens = 64;
  std::optional<double> gpu_memory_utilization;
  int tensor_parallel_size = 1;
  int pipeline_parallel_size = 1;
  bool json = false;
};

/// Prints what a decoder holds on the device (to the byte, beside its libraries), which batches fit, and the
/// floor of a step on the card. Returns the command's exit code: 1 where the batch does not fit. Throws Error
/// (usage) for keys of the configuration that generation does not read, for a model that is not split so, and
/// for a number of ranks: replicas hold the same. Of a model whose layers are split the plan is that of the
/// rank that holds most.
int plan_generation(const config::Resolved& resolved, const GeneratePlan& plan, const PlanTarget& target);

}  // namespace octet::cli
