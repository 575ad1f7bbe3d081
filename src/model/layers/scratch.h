#pragma once

#include "layers/model_layers.h"

namespace octet::model {

/// Blocks of a model that a core runs.
struct BlockRange {
  int first = 0;
  int last = 0;  ///< one past the last one
};

/// Reserves the buffers that all layers of these blocks use in turn, as large as the largest of them needs.
void reserve_scratch(Arena& arena, const ModelLayers& layers, BlockRange blocks, Common& common);

}  // namespace octet::model
