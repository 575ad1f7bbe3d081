// The rows that a run trains, so that they can be recognised elsewhere.
#pragma once

#include <cstdint>
#include <functional>

#include "octet/config/keys.h"
#include "octet/data/dataset.h"

namespace octet::feed {

/// Calls `visit` for rows of the training data of `config` that can be read and used, at most for `most`
/// rows. Rows that val_size holds out are left out. Returns whether all rows were visited. Throws Error like
/// check_datasets().
bool visit_trained_rows(const config::DataKeys& config, std::int64_t most,
                        const std::function<void(const data::Sample&)>& visit);

}  // namespace octet::feed
