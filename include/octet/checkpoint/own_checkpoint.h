// Which folders checkpoint-<step> are this program's.
#pragma once

#include <string>

namespace octet::checkpoint {

/// Returns whether a folder holds a file of this program's checkpoints. Others are the user's, or those of
/// another trainer, and are neither moved nor removed.
bool is_own_checkpoint(const std::string& path);

}  // namespace octet::checkpoint
