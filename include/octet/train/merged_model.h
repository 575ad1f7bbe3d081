#pragma once

#include <string>
#include <vector>

#include "octet/checkpoint/export.h"

namespace octet::train {

/// Writes a model whose weights are W + factor · B A (with DoRA their rows scaled to the magnitudes): those
/// of `options.source_folder` with the adapter in `adapter`, as PEFT writes it, summed in fp32 and rounded
/// once. What was trained whole takes the place of the base's. Tensors go through memory in pieces. Throws
/// Error for an adapter that is not of this model. Returns the names of the files.
std::vector<std::string> export_merged(const checkpoint::ExportOptions& options, const std::string& adapter);

}  // namespace octet::train
