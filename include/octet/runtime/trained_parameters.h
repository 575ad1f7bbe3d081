#pragma once

#include <memory>

#include "octet/base/dtype.h"
#include "octet/checkpoint/checkpoint.h"

namespace octet::runtime {

/// Parameters of a checkpoint on disk that replace the parameters of a model's folder when its weights are
/// loaded.
struct TrainedParameters {
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint;  ///< null: the folder's weights are loaded
  DType dtype = DType::f32;  ///< all are first rounded to it, as in an export: f32, bf16 or f16
  /// true: the checkpoint holds the trained parameters, and the folder holds the others. false: the
  /// checkpoint holds every parameter, and the folder needs no weights.
  bool part = false;
};

}  // namespace octet::runtime
