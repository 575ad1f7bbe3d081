// The bench room: times of decoding steps and of checkpoints, with random weights and data. The benchmark of
// training steps belongs to train, as it is a part of the training loop.
#pragma once

#include <functional>
#include <string>

#include "octet/config/config.h"
#include "octet/generate/decoder_bench.h"
#include "octet/runtime/session.h"

namespace octet::bench {

/// Options of the decoding benchmark.
struct DecodeBench {
  std::string model;  ///< model::find_shape
  generate::BenchOptions options;
  int tensor_parallel_size = 1;
  int pipeline_parallel_size = 1;
};

/// Returns the precision of a configuration for people: "FP8 current in bf16".
std::string precision_words(const config::Config& config);

/// The results of a decoding benchmark.
struct DecodeResult {
  generate::BenchResult measured;
  std::string precision;  ///< for people: "FP8 rows in bf16, cache in FP8"
};

/// Times decoding steps of a model with random weights and calls `tell` with the results on one rank. If
/// layers are split among ranks, the results cover all ranks together. FP8 without fp8_recipe uses
/// RecipeKind::rows.
///
/// Throws Error (usage) if there are more ranks than one replica has: each replica would decode
/// independently. Throws Error (usage) for delayed scaling, which needs the amax history of training.
void bench_decoding(runtime::Session& session, const config::Resolved& resolved, const DecodeBench& bench,
                    const std::function<void(const DecodeResult&)>& tell);

}  // namespace octet::bench
