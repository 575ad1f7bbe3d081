// Accepts arguments of `trainer generate` in the form of vLLM scripts.
#pragma once

#include "command.h"

namespace octet::cli {

/// Returns the arguments in the form of this program:
/// - the value of `--model` becomes the first argument, MODEL;
/// - the value of a flag, as in `--enforce_eager False`, is joined to the flag;
/// - PyTorch's dtype names become Octet's.
Arguments without_vllm_words(const Arguments& arguments);

}  // namespace octet::cli
