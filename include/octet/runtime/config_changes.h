// The keys of a model's config.json and generation_config.json that changed since a checkpoint was written.
#pragma once

#include <string>

#include "octet/base/json_fwd.h"

namespace octet::runtime {

/// Returns the part of a checkpoint's state under "model_config": the keys of config.json and of
/// generation_config.json. Long values are hashed. Keys that name the writer of the file are left out.
Json config_state(const std::string& folder);
/// Returns the keys that differ between two such states with both values, or "" if none does. `before` may be
/// null: the checkpoint kept none.
std::string config_changes(const Json& before, const Json& now);

}  // namespace octet::runtime
