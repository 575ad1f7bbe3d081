#include "octet/verify/leftovers.h"

#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "octet/base/log.h"

namespace octet::verify {
namespace {

namespace fs = std::filesystem;

// The thread checks for the end of its work at this interval.
constexpr timespec kTurn{.tv_sec = 0, .tv_nsec = 50'000'000};

// Ignored signals stay ignored: nohup and shells with background jobs set them so.
bool is_ignored(int signal) {
  struct sigaction now {};
  return ::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

}  // namespace

Leftovers::Leftovers() {
  ::sigemptyset(&stops_);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR2}) {
    if (!is_ignored(signal)) ::sigaddset(&stops_, signal);
  }
  ::pthread_sigmask(SIG_BLOCK, &stops_, &before_);
  thread_ = std::thread([this] { wait_for_signals(); });
}

Leftovers::~Leftovers() {
  over_ = true;
  thread_.join();
  remove_all();
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void Leftovers::add(const std::string& path) {
  const std::scoped_lock lock(mutex_);
  paths_.push_back(path);
}

void Leftovers::add_missing_folders(const std::string& folder) {
  std::error_code none;
  const std::scoped_lock lock(mutex_);
  for (auto path = fs::absolute(folder).lexically_normal();
       !fs::exists(path, none) && path.has_relative_path(); path = path.parent_path()) {
    folders_.push_back(path);
  }
}

void Leftovers::remove(const std::string& path) {
  std::error_code gone;
  const std::scoped_lock lock(mutex_);
  fs::remove_all(path, gone);
  std::erase(paths_, path);
}

// The paths stay listed: another rank may create a path again after this rank has removed it.
void Leftovers::remove_all() {
  std::error_code gone;
  const std::scoped_lock lock(mutex_);
  for (const std::string& path : paths_) fs::remove_all(path, gone);
  for (const std::string& folder : folders_) fs::remove(folder, gone);
}

void Leftovers::wait_for_signals() {
  while (!over_) {
    const int signal = ::sigtimedwait(&stops_, nullptr, &kTurn);
    if (signal < 0) continue;
    remove_all();
    // Other threads and ranks may have been creating files meanwhile.
    ::nanosleep(&kTurn, nullptr);
    remove_all();
    log::warn("stopped by signal " + std::to_string(signal) + ": what the checks had made is removed");
    ::_exit(128 + signal);
  }
}

}  // namespace octet::verify
