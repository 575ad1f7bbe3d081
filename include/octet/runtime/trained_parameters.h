#pragma once

#include <memory>

#include "octet/base/dtype.h"
#include "octet/checkpoint/checkpoint.h"

namespace octet::runtime {

/// Parameters of a checkpoint on disk that take the place of those in a model's folder when its weights are
/// loaded.
struct TrainedParameters {
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint;  ///< null: the folder's weights are loaded
  DType dtype = DType::f32;  ///< all are rounded to it first, as an export writes them: f32, bf16 or f16
  /// The checkpoint holds what was trained, and the folder's weights the rest; else it holds every parameter,
  /// and the folder needs no weights.
  bool part = false;
};

}  // namespace octet::runtime
