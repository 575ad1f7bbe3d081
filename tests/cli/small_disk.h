// A small file system, for tests of a full disk.
#pragma once

#include <string>

#include "cli/task.h"

namespace octet::test {

/// Mounts a file system in a temporary folder during its lifetime. The process needs the right to mount.
class SmallDisk {
 public:
  explicit SmallDisk(std::int64_t kilobytes) : folder_("disk") {
    const std::string size = std::to_string(kilobytes) + "k";
    mounted_ = shell("mount -t tmpfs -o size=" + size + " tmpfs " + folder_.path()).code == 0;
  }
  ~SmallDisk() {
    if (mounted_) shell("umount " + folder_.path());
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  bool mounted() const { return mounted_; }
  const std::string& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
  bool mounted_ = false;
};

/// The reason for skipping a test that needs a SmallDisk.
inline constexpr const char* kNoSmallDisk = "needs the right to mount a file system";

}  // namespace octet::test
