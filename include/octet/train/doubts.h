#pragma once

#include <cstddef>
#include <string>

#include "octet/config/config.h"
#include "octet/model/architecture.h"

namespace octet::train {

/// Returns what is allowed and rarely meant, each as a sentence with what to do instead. The configuration
/// (config::doubts()), its model and its output folder are looked at. `architecture` is that of the model.
config::Strings doubts(const config::Resolved& resolved, const model::Architecture& architecture);

/// Says from which checkpoint of output_dir a run will resume that names none; empty if it starts anew.
std::string resumption(const config::Config& config);

/// Returns a warning for each GEMM that `fp8: true` asks for and that a GPU computes in bf16, because the
/// model's sizes are no multiples of 16. With `fp8_fallback: error` such a run ends before its first step.
config::Strings fp8_fallbacks(const config::Config& config, const model::Architecture& architecture);

/// Throws the Error (usage) that ends a run on a GPU if `fp8_fallback: error` is set and there are fallbacks.
void require_no_fallback(const config::Config& config, const model::Architecture& architecture);

/// The sentences in at most `most` lines, at least two: where there are more, the last line counts the rest.
config::Strings first_doubts(const config::Strings& doubts, std::size_t most);

}  // namespace octet::train
