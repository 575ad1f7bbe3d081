// Number of rows that are held out for evaluation.
#pragma once

#include <cstdint>

#include "octet/config/config.h"

namespace octet::feed {

/// Returns the number of rows that val_size holds out of `rows`. Throws Error if none are left to train.
std::int64_t held_out_of(std::int64_t rows, const config::Config& config);

}  // namespace octet::feed
