#pragma once

#include <string>
#include <vector>

#include "octet/checkpoint/export.h"

namespace octet::train {

/// The format in which a folder keeps its linear layers: f32, bf16 or f16; bf16 where it is another.
DType weights_dtype(const std::string& folder);

/// Writes a model whose weights are those of `options.source_folder` with the adapters of these folders, as
/// PEFT writes them, added one after the other: W + factor · B A (with DoRA its rows scaled to the
/// magnitudes), summed in fp32 and rounded once. What an adapter trained whole takes the place of the base's.
/// Tensors go through memory in pieces. Throws Error for an adapter that is not of this model. Returns the
/// names of the files.
std::vector<std::string> export_merged(const checkpoint::ExportOptions& options,
                                       const std::vector<std::string>& adapters);

}  // namespace octet::train
