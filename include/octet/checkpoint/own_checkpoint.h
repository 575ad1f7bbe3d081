// Recognises the checkpoint folders of this program.
#pragma once

#include <string>

namespace octet::checkpoint {

/// Returns whether a folder contains a file of this program's checkpoints. Other folders belong to the user
/// or another trainer, and are neither moved nor removed.
bool is_own_checkpoint(const std::string& path);

}  // namespace octet::checkpoint
