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
  std::string model;                    ///< model::find_shape
  std::int64_t batch = 32;              ///< questions side by side
  std::int64_t max_length = 2048;       ///< tokens of question and answer
  std::string dtype = "fp32";           ///< fp32, bf16 or fp8
  std::string kv_cache_dtype = "auto";  ///< auto or fp8
  std::string kv_cache_bytes;           ///< "" : as much as the batch fills
  std::int64_t kv_page_tokens = 64;
  std::optional<double> gpu_memory_utilization;
  bool json = false;
};

/// Prints what a decoder holds on the device (to the byte, beside its libraries), which batches fit, and the
/// floor of a step on an H200. Returns the command's exit code: 1 where the batch does not fit. Throws Error
/// (usage) for keys of the configuration that generation does not read, and for several ranks, each of which
/// holds the whole model.
int plan_generation(const config::Resolved& resolved, const GeneratePlan& plan, const PlanTarget& target);

}  // namespace octet::cli
