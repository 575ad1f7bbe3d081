// A queue of GEMMs of very few tokens. It lets one kernel run several GEMMs.
#pragma once

#include <vector>

#include "octet/ops/lone_chain.h"

namespace octet::model {

/// The waiting GEMMs of a pass. Call settle() before other work on the stream that uses their operands or
/// results, and before parameters are released.
class LoneQueue {
 public:
  /// `args`: see ops::lone_gemm(). If the stream is profiled, each GEMM is enqueued at once.
  void add(Stream& stream, const ops::LoneGemmArgs& args);
  /// Enqueues the waiting GEMMs.
  void settle(Stream& stream);
  /// Drops the GEMMs of a failed pass.
  void clear() { gemms_.clear(); }

 private:
  std::vector<ops::LoneGemmArgs> gemms_;
};

}  // namespace octet::model
