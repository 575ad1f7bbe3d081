// A queue of GEMMs of very few tokens. It lets one kernel run several GEMMs.
#pragma once

#include <vector>

#include "octet/ops/decode_chain.h"

namespace octet::model {

/// The waiting GEMMs of a pass. Call settle() before other work on the stream that uses their operands or
/// results, and before parameters are released.
class DecodeQueue {
 public:
  /// `args`: see ops::decode_gemm(). If the stream is profiled, each GEMM is enqueued at once.
  void add(Stream& stream, const ops::DecodeGemmArgs& args);
  /// Enqueues the waiting GEMMs.
  void settle(Stream& stream);
  /// Drops the GEMMs of a failed pass.
  void clear() { gemms_.clear(); }

 private:
  std::vector<ops::DecodeGemmArgs> gemms_;
};

}  // namespace octet::model
