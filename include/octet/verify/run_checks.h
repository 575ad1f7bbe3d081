// The verify room: checks whether machines and their ranks can train. It has the checks of machines,
// messages, disks and a small step, and the removal of their files. The room train measures
// training steps, and the room cli prints.
#pragma once

#include <signal.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "octet/base/error.h"
#include "octet/config/config.h"
#include "octet/runtime/session.h"

namespace octet::verify {

// Removes the files of `trainer verify`, however it ends.

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

/// Input of run_checks().
struct Wish {
  config::Resolved resolved;
  std::string folder;               ///< where checkpoints would be written
  std::optional<Problem> unopened;  ///< the error of opening the session, if any
};

/// The result of a check.
struct Result {
  std::string name;
  std::string found;  ///< findings of a check that passed
  std::optional<Problem> problem;
};

struct Summary {
  int checks = 0, wrong = 0;
  ExitCode code = ExitCode::ok;  ///< of the first check that failed
};

/// Runs all checks, one after the other, and calls `tell` with each result on the rank that prints. All ranks
/// call it. A failed check does not end the others. Throws an Error only if the ranks did not agree on it.
Summary run_checks(runtime::Session& session, const Wish& wish, Leftovers& leftovers,
                   const std::function<void(const Result&)>& tell);

}  // namespace octet::verify
