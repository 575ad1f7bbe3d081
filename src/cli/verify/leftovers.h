// What `trainer verify` puts on the disk, and takes away again however it ends.
#pragma once

#include <signal.h>

#include <atomic>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace octet::cli {

/// Removes what it is told of: when its time is over, when its owner fails, and when the process is asked to
/// stop (TERM, INT, HUP, and USR2, which launch/mpirun hands on in place of these). Requests to stop are
/// blocked in the thread that makes it, and in those that this one starts from then on: they go to a thread
/// of its own, which removes all and ends the process with 128 + the signal, whatever the others wait for.
class Leftovers {
 public:
  Leftovers();
  ~Leftovers();
  Leftovers(const Leftovers&) = delete;
  Leftovers& operator=(const Leftovers&) = delete;

  /// A file, or a folder with all that it holds, there or yet to come.
  void add(const std::string& path);
  /// Folders that are not there yet on the way to `folder`, itself included: each goes where it is empty.
  void add_missing_folders(const std::string& folder);
  /// One of them goes now.
  void remove(const std::string& path);
  /// All go now.
  void remove_all();

  /// One that goes with its scope.
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
  std::vector<std::string> folders_;  ///< the innermost first
  sigset_t stops_{};
  sigset_t before_{};
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

}  // namespace octet::cli
