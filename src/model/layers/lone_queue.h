// GEMMs of very few tokens that wait for those behind them, so that one kernel makes several.
#pragma once

#include <vector>

#include "octet/ops/lone_chain.h"

namespace octet::model {

/// What a pass has to enqueue before anything else reads or writes what these GEMMs do. Who enqueues
/// something else on the stream, or gives parameters back, settles the queue first.
class LoneQueue {
 public:
  /// `args` as ops::lone_gemm takes them. Where the stream takes times, each GEMM is enqueued at once.
  void add(Stream& stream, const ops::LoneGemmArgs& args);
  /// Enqueues what waits.
  void settle(Stream& stream);
  /// Forgets what a pass that failed has left.
  void clear() { gemms_.clear(); }

 private:
  std::vector<ops::LoneGemmArgs> gemms_;
};

}  // namespace octet::model
