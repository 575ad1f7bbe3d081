// `trainer bench MODEL --decode`.
#pragma once

#include <string>

#include "octet/config/config.h"
#include "octet/generate/bench.h"
#include "octet/runtime/session.h"

namespace octet::cli {

/// Options of the decoding benchmark.
struct DecodeBench {
  std::string model;  ///< model::find_shape
  generate::BenchOptions options;
  bool json = false;
  int tensor_parallel_size = 1;
  int pipeline_parallel_size = 1;
};

/// Returns the precision of a configuration for people: "FP8 current in bf16".
std::string precision_words(const config::Config& config);

/// Times decoding steps of a model with random weights and prints the results. If layers are split among
/// ranks, the results cover all ranks together. FP8 without fp8_recipe uses RecipeKind::rows.
///
/// Throws Error (usage) if there are more ranks than one replica has: each replica would decode
/// independently. Throws Error (usage) for delayed scaling, which needs the amax history of training.
void bench_decoding(runtime::Session& session, const config::Resolved& resolved, const DecodeBench& bench);

}  // namespace octet::cli
