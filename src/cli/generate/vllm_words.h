// Arguments of `trainer generate` as scripts around vLLM write them.
#pragma once

#include "command.h"

namespace octet::cli {

/// The arguments in the way of this program's options: the value of `--model` becomes the first argument,
/// MODEL; the value of a flag, as in `--enforce_eager False`, is joined to the flag; PyTorch's names of formats
/// become ours.
Arguments without_vllm_words(const Arguments& arguments);

}  // namespace octet::cli
