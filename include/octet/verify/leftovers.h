// Removes the files of `trainer verify`, however it ends.
#pragma once

#include <signal.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace octet::verify {

/// Removes the added paths in its destructor, or if the process is asked to stop by TERM, INT, HUP or USR2.
/// (launch/mpirun sends USR2 instead of the others.) The signals are blocked in the constructing thread and
/// in threads that it starts later. A separate thread receives them, removes all paths and exits with 128 +
/// signal, even if other threads are blocked.
class Leftovers {
 public:
  Leftovers();
  ~Leftovers();
  Leftovers(const Leftovers&) = delete;
  Leftovers& operator=(const Leftovers&) = delete;

  /// Adds a file or a folder with its content. It need not exist yet.
  void add(const std::string& path);
  /// Adds `folder` and its parents if they do not exist yet. Each is removed only if it is empty.
  void add_missing_folders(const std::string& folder);
  /// Removes one path now.
  void remove(const std::string& path);
  /// Removes all paths now.
  void remove_all();

  /// A path that is removed at the end of its scope.
  class Own {
   public:
    Own(Leftovers& leftovers, std::string path) : leftovers_(leftovers), path_(std::move(path)) {
      leftovers_.add(path_);
    }
    ~Own() { leftovers_.remove(path_); }
    Own(const Own&) = delete;
    Own& operator=(const Own&) = delete;
    const std::string& path() const { return path_; }

   private:
    Leftovers& leftovers_;
    std::string path_;
  };

 private:
  void wait_for_signals();

  std::mutex mutex_;
  std::vector<std::string> paths_;
  std::vector<std::string> folders_;  ///< innermost first
  sigset_t stops_{};
  sigset_t before_{};
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

}  // namespace octet::verify
