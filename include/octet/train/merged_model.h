#pragma once

#include <string>
#include <vector>

#include "octet/checkpoint/export.h"

namespace octet::train {

/// Returns the format of the linear layers in a folder: f32, bf16 or f16; bf16 if it is another.
DType weights_dtype(const std::string& folder);

/// Writes a model with the weights of `options.source_folder` and the merged PEFT adapters of these folders,
/// in order: W + factor · B A, summed in fp32 and rounded once. With DoRA, rows are scaled to the magnitudes.
/// Fully trained tensors of an adapter replace tensors of the base. Tensors are processed in pieces. Throws
/// Error if an adapter does not fit the model. Returns the file names.
std::vector<std::string> export_merged(const checkpoint::ExportOptions& options,
                                       const std::vector<std::string>& adapters);

}  // namespace octet::train
