#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octet/base/json_fwd.h"
#include "octet/config/config.h"
#include "octet/device/step_profile.h"
#include "octet/runtime/session.h"

namespace octet::train {

struct BenchOptions {
  std::string model;        ///< model::find_shape
  std::int64_t steps = 10;  ///< timed
  std::int64_t warmup = 3;
  bool profile = false;      ///< where the time goes; the marks around each op cost a little of it
  bool logged = false;       ///< each step does what one with a row in the log does: statistics of casts
  double label_share = 1.0;  ///< of the tokens that are trained, at the end of each sequence; in (0, 1]
};

/// Speed of whole training steps. The same on all ranks, but memory, which is the most that any rank
/// holds, and what is said of this rank.
struct BenchResult {
  std::int64_t parameters = 0;
  std::int64_t tokens = 0;  ///< of an optimizer step, over all ranks
  double setup_seconds = 0;
  double median_seconds = 0, least_seconds = 0, most_seconds = 0;  ///< of a step
  double tokens_per_second = 0;                                    ///< of the median step
  double flops_per_second = 0;                                     ///< of a device: the model's, no recompute
  /// These over the yardstick of report/throughput.h; null on a CPU, which has none.
  std::optional<double> utilisation;
  double first_loss = 0, last_loss = 0;
  std::size_t reserved_bytes = 0;  ///< by name, before the first step
  std::size_t used_bytes = 0;      ///< of the device, by all its processes; of this process on a CPU
  double comm_seconds = 0, exposed_seconds = 0;  ///< of a step, this rank: messages under way, waited for
  /// The least and the most that a rank waited: who waits least is the slowest, and its waiting is what
  /// messages cost; others wait for it too.
  double least_exposed_seconds = 0, most_exposed_seconds = 0;
  double comm_bytes = 0;           ///< of a step, sent by this rank
  std::string audit;               ///< what ran in FP8, on all ranks, warm-up included
  JsonMember products;             ///< the same as precision::Audit::to_json has it
  std::string recompute;           ///< the level, also where the configuration says auto
  bool transposes_at_use = false;  ///< FP8 weights, likewise
  JsonMember fp8;                  ///< with `logged`: as the field of the last step's row
  /// With `profile`: kinds of work, longest first, and what none of them took ("waiting and gaps").
  std::vector<StepProfileRow> profile;
};

/// Trains fresh weights on random tokens with the engine, store and core of training: sequences of
/// cutoff_len, per_device_train_batch_size of them in a micro-batch, as many micro-batches as the
/// configuration makes a step of. Reads no data set and no weights. All ranks call it. Throws Error when a
/// loss is not finite, and when FP8 is asked for and no product ran in it.
BenchResult bench(runtime::Session& session, const config::Config& config, const BenchOptions& options);

}  // namespace octet::train
