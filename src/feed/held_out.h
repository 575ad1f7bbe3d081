// Number of rows that are held out for evaluation.
#pragma once

#include <cstdint>

#include "octet/config/keys.h"

namespace octet::feed {

/// Returns the number of rows that val_size holds out of `rows`. Throws Error if none are left to train.
std::int64_t held_out_of(std::int64_t rows, const config::DatasetKeys& config);

}  // namespace octet::feed
