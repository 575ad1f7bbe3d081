// The bench room: times of decoding steps and of checkpoints, with random weights and data. The benchmark of
// training steps belongs to train, as it is a part of the training loop.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

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

struct SaveBenchOptions {
  std::string folder;      ///< a temporary folder is created in it and removed afterwards
  std::int64_t bytes = 0;  ///< size of a checkpoint, over all ranks
  std::int64_t turns = 5;
};

/// Times of the slowest rank in seconds, one per turn. In a turn, each rank writes the same bytes three
/// times: to a plain file through the page cache, to a plain file with O_DIRECT, and as its part of a
/// checkpoint. The file does not exist when a time starts. A time ends when the bytes are on disk.
struct SaveBenchResult {
  std::int64_t bytes = 0;  ///< of all ranks, per write
  std::vector<double> buffered, direct;
  std::vector<double> saved;   ///< checkpoints, which bypass the page cache as in a run
  std::vector<double> copied;  ///< copies of the state to host memory, before each checkpoint
  bool has_direct = true;      ///< false: the file system has no direct writes, and `direct` is empty

  /// Returns the rate of checkpoints divided by the faster rate of plain files, from medians.
  double ratio() const;
};

/// Measures plain writes and checkpoints of the same bytes in turn, in the same processes. Collective. Throws
/// Error if writing to the folder fails.
SaveBenchResult bench_saves(runtime::Session& session, const SaveBenchOptions& options);

}  // namespace octet::bench
