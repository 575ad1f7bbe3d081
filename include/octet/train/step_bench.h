#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octet/base/json_fwd.h"
#include "octet/config/config.h"
#include "octet/device/profile.h"
#include "octet/runtime/session.h"

namespace octet::train {

struct BenchOptions {
  std::string model;        ///< model::find_shape
  std::int64_t steps = 10;  ///< timed
  std::int64_t warmup = 3;
  bool profile = false;      ///< measure the time of each op; the marks around the ops cost a little time
  bool logged = false;       ///< each step collects cast statistics, like a step with a log row
  double label_share = 1.0;  ///< fraction of trained tokens, at the end of each sequence; in (0, 1]
};

/// Speed of whole training steps. Equal on all ranks, except fields of this rank. Memory is that of the rank
/// with most.
struct BenchResult {
  std::int64_t parameters = 0;
  std::int64_t tokens = 0;  ///< of an optimizer step, over all ranks
  double setup_seconds = 0;
  double median_seconds = 0, least_seconds = 0, most_seconds = 0;  ///< of a step
  double tokens_per_second = 0;                                    ///< of the median step
  double flops_per_second = 0;  ///< per device: FLOPs of the model, without recomputation
  /// flops_per_second over the peak of report/number.h; null on a CPU, which has no peak.
  std::optional<double> utilisation;
  double first_loss = 0, last_loss = 0;
  std::size_t reserved_bytes = 0;  ///< reservations before the first step
  std::size_t used_bytes = 0;      ///< of the device, by all its processes; on a CPU, by this process
  double comm_seconds = 0,
         exposed_seconds = 0;  ///< of a step on this rank: messages in flight, and waiting for them
  /// Least and most waiting of a rank. The rank that waits least is the slowest: its waiting is the cost of
  /// the messages. Other ranks also wait for that rank.
  double least_exposed_seconds = 0, most_exposed_seconds = 0;
  double comm_bytes = 0;           ///< sent by this rank per step
  std::string audit;               ///< GEMMs that ran in FP8 on all ranks, including warm-up
  JsonMember gemms;                ///< likewise, from precision::Audit::to_json
  std::string recompute;           ///< the level in use, also with recompute: auto
  bool transposes_at_use = false;  ///< transposed FP8 weights are computed at use, also with auto
  JsonMember fp8;                  ///< with `logged`: the field of the last step's row
  /// With `profile`: kinds of work, longest first, and the remaining time ("waiting and gaps").
  std::vector<StepProfileRow> profile;
};

/// Trains fresh weights on random tokens with the engine, store and core of training. Sequences have
/// cutoff_len tokens; the configuration sets sequences per micro-batch and micro-batches per step. Reads no
/// data set and no weights. Collective. Throws Error if a loss is not finite, or if FP8 is configured and no
/// GEMM ran in FP8.
BenchResult bench(runtime::Session& session, const config::Config& config, const BenchOptions& options);

}  // namespace octet::train
