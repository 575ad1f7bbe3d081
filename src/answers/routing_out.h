// The file of --save-routing: the experts of the answers of OUT, appended row by row.
#pragma once

#include <memory>
#include <string>

#include "octet/files/folder_lock.h"
#include "octet/runtime/routers.h"

namespace octet::answers {

/// Appends lines to the file. A partial line of a killed run is dropped. Rows of an earlier run stay, and a
/// row that is answered again has a second line with the same experts.
class RoutingOut {
 public:
  enum class New { yes, no };
  /// Throws Error (usage) if a file at `path` must stay: a folder, a file that --save-routing did not write,
  /// and, unless `replaces`, any file. Writes nothing.
  static void require_free(const std::string& path, const runtime::Routers& routers, bool replaces);
  /// New::yes: replaces the file. New::no: throws Error (usage) if it is missing, or of other routers. Throws
  /// Error (busy) if another process writes it.
  RoutingOut(const std::string& path, const runtime::Routers& routers, New fresh);
  ~RoutingOut();
  RoutingOut(const RoutingOut&) = delete;
  RoutingOut& operator=(const RoutingOut&) = delete;

  void add(const std::string& line);
  /// Blocks until all added lines are on disk.
  void sync();

 private:
  std::string path_;
  std::unique_ptr<const files::FolderLock> lock_;
  int file_ = -1;
};

}  // namespace octet::answers
