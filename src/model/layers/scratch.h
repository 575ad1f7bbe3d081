#pragma once

#include "layers/model_layers.h"

namespace octet::model {

/// The blocks [first, last) that a core runs.
struct BlockRange {
  int first = 0;
  int last = 0;  ///< one past the last one
};

/// Reserves the buffers that all layers of these blocks share, with the largest size that a layer needs.
void reserve_scratch(Arena& arena, const ModelLayers& layers, BlockRange blocks, Common& common);

}  // namespace octet::model
