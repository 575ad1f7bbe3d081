// Plans `trainer generate` without a GPU: memory and least time of a decoder.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octet/config/config.h"
#include "octet/plan/memory.h"
#include "octet/planner/planner.h"

namespace octet::planner {

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
  bool each_rank = false;  ///< GenerationReport::bytes_of_ranks is wanted
};

/// The plan of a decoder for `batch` questions.
struct Fit {
  std::int64_t batch = 0;
  plan::Memory memory;
  std::size_t bytes = 0;   ///< of the device, libraries included
  std::int64_t pages = 0;  ///< of the cache
  double weights = 0, weights_read = 0, cache = 0, cache_read = 0;
  std::size_t staging = 0;   ///< staging buffers, included in `bytes`
  double floor_seconds = 0;  ///< of a step with sequences of half max_length
  double tokens_per_second() const { return static_cast<double>(batch) / floor_seconds; }
};

/// All figures of a planned generation.
struct GenerationReport {
  Fit asked;                 ///< of the requested batch
  std::int64_t largest = 0;  ///< the largest batch that fits; 0: none fits
  std::int64_t parameters = 0;
  std::vector<Fit> fits = {};                    ///< by batch, `asked` among them
  std::vector<std::size_t> bytes_of_ranks = {};  ///< of the requested batch, by the ranks of a replica
};

/// Plans the memory of a decoder on the device (exact, except for libraries), the batches that fit, and the
/// floor of a step on the card. If layers are split, a Fit is that of the rank with the most bytes.
///
/// Throws Error (usage) for configuration keys that generation does not read and for an impossible split.
/// Throws Error (usage) for a world size, because all replicas hold the same.
GenerationReport plan_generation(const config::Resolved& resolved, const GeneratePlan& plan,
                                 const PlanTarget& target);

}  // namespace octet::planner
