// `trainer bench MODEL --decode`.
#pragma once

#include <string>

#include "octet/config/config.h"
#include "octet/generate/bench.h"
#include "octet/runtime/session.h"

namespace octet::cli {

/// What is decoded, and what is printed.
struct DecodeBench {
  std::string model;  ///< model::find_shape
  generate::BenchOptions options;
  bool json = false;
  int tensor_parallel_size = 1;
  int pipeline_parallel_size = 1;
};

/// How a configuration computes, for people: "FP8 current in bf16".
std::string precision_words(const config::Config& config);

/// Times decoding steps of fresh weights and prints the figures, those of all ranks together where layers are
/// split among them. Throws Error (usage) for more ranks than one replica has, of which each would answer by
/// itself, and for delayed scaling, which only a model in training has.
/// FP8 without fp8_recipe is RecipeKind::rows.
void bench_decoding(runtime::Session& session, const config::Resolved& resolved, const DecodeBench& bench);

}  // namespace octet::cli
