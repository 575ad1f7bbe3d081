#include "octet/memory_tier/memory_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <new>
#include <string_view>
#include <thread>
#include <vector>

#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/log.h"
#include "octet/base/process.h"
#include "octet/base/strings.h"
#include "octet/base/timing.h"
#include "octet/device/cpu.h"
#include "octet/files/file_io.h"

namespace octet::memory_tier {
namespace {

namespace fs = std::filesystem;

constexpr double kKeepSeconds = 900;
constexpr std::size_t kDigits = 12;  ///< hash digits in a folder's name

std::string root() {
  const char* named = environment_variable("OCTETRUN_MEMORY_FOLDER");
  return named == nullptr ? "/dev/shm" : named;
}

std::string prefix() {
  return "octet-memory-" + std::to_string(::geteuid()) + "-";
}

double keep_seconds() {
  const char* named = environment_variable("OCTETRUN_MEMORY_KEEP");
  if (named == nullptr) return kKeepSeconds;
  char* end = nullptr;
  const double seconds = std::strtod(named, &end);
  if (end == named || *end != '\0' || !(seconds >= 0)) {
    throw Error({.what = "OCTETRUN_MEMORY_KEEP is not a number of seconds",
                 .expected = "a number of at least 0",
                 .found = named,
                 .where = "environment",
                 .fix = "set it to a number of seconds, such as 600, or leave it out",
                 .code = ExitCode::usage});
  }
  return seconds;
}

// Opens or creates a file in the folder. The descriptor is negative if the folder is gone.
files::Descriptor open_in(const std::string& folder, const char* name) {
  return files::Descriptor(
      ::open((folder + "/" + name).c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
}

bool locked(int file, int how) {
  while (::flock(file, how) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

// Returns whether `path` still names the open file. A folder may be removed and recreated between open and
// lock.
bool still_named(int file, const std::string& path) {
  struct stat opened {
  }, named{};
  return ::fstat(file, &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
         opened.st_dev == named.st_dev;
}

// Returns whether a run holds a folder. A missing folder is not held.
bool is_held(const std::string& folder) {
  const files::Descriptor file(::open((folder + "/lock").c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  return file.get() >= 0 && !locked(file.get(), LOCK_EX | LOCK_NB);
}

bool is_mine(const std::string& folder) {
  struct stat st {};
  return ::lstat(folder.c_str(), &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == ::geteuid();
}

bool is_kept(const std::string& folder) {
  const files::Descriptor file(::open((folder + "/keeper").c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  return file.get() >= 0 && !locked(file.get(), LOCK_EX | LOCK_NB);
}

}  // namespace

std::string memory_folder(const std::string& run) {
  // Hosts that share a machine get separate folders.
  const auto hash = [](const std::string& text) {
    return hash128_hex(host_name() + "\n" + text).substr(0, kDigits);
  };
  return root() + "/" + prefix() + hash(run.substr(0, run.find('-'))) + "-" + hash(run);
}

void remove_earlier_memory(const std::string& folder) {
  const std::string own = fs::path(folder).filename().string();
  if (!own.starts_with(prefix()) || own.size() < kDigits) return;
  const std::string job = own.substr(0, own.size() - kDigits);
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(fs::path(folder).parent_path(), code)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(job) && name != own && is_mine(entry.path().string()) &&
        !is_held(entry.path().string()))
      remove_memory(entry.path().string());
  }
}

MemoryHold::MemoryHold(const std::string& folder) {
  const std::string path = folder + "/lock";
  for (;;) {
    if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST)
      files::file_error("cannot make a folder for checkpoints in memory", folder, errno);
    struct stat st {};
    if (::lstat(folder.c_str(), &st) != 0) continue;  // removed in the meantime
    if (!S_ISDIR(st.st_mode) || st.st_uid != ::geteuid()) {
      throw Error(
          {.what = "the folder for checkpoints in memory belongs to another user",
           .expected = "a folder of user " + std::to_string(::geteuid()),
           .found = S_ISDIR(st.st_mode) ? "user " + std::to_string(st.st_uid) : std::string("not a folder"),
           .where = folder,
           .fix = "remove it, or name another place (OCTETRUN_MEMORY_FOLDER)",
           .code = ExitCode::usage});
    }
    files::Descriptor file = open_in(folder, "lock");
    if (file.get() < 0) {
      if (errno == ENOENT) continue;
      files::file_error("cannot open the lock of a folder for checkpoints in memory", path, errno);
    }
    if (!locked(file.get(), LOCK_SH)) files::file_error("cannot lock a file", path, errno);
    if (!still_named(file.get(), path)) continue;
    lock_ = file.release();
    touch();
    return;
  }
}

MemoryHold::~MemoryHold() {
  ::close(lock_);
}

void MemoryHold::touch() const {
  ::futimens(lock_, nullptr);
}

void remove_memory(const std::string& folder) {
  std::error_code code;
  fs::remove_all(folder, code);
  if (code) log::warn("cannot remove checkpoints in memory: " + folder + ": " + code.message());
}

void remove_stale_memory() {
  std::error_code code;
  const auto oldest = std::chrono::duration<double>(keep_seconds());
  for (const auto& entry : fs::directory_iterator(root(), code)) {
    const std::string folder = entry.path().string();
    if (!entry.path().filename().string().starts_with(prefix())) continue;
    if (!is_mine(folder)) continue;
    struct stat st {};
    if (::stat((folder + "/lock").c_str(), &st) != 0 && ::stat(folder.c_str(), &st) != 0) continue;
    const auto age = std::chrono::duration<double>(static_cast<double>(::time(nullptr) - st.st_mtime));
    if (age < oldest || is_kept(folder) || is_held(folder)) continue;
    log::info("removing checkpoints in memory of an ended run: " + folder);
    remove_memory(folder);
  }
}

void start_memory_keeper(const std::string& program, const std::string& folder) {
  const std::string flag = "--keep-memory";
  const std::array<char*, 4> words{const_cast<char*>(program.c_str()), const_cast<char*>(flag.c_str()),
                                   const_cast<char*>(folder.c_str()), nullptr};
  // Passes only the environment that the keeper needs, because it is not part of the job.
  std::vector<std::string> kept;
  for (const char* name : {"OCTETRUN_MEMORY_FOLDER", "OCTETRUN_MEMORY_KEEP", "LD_LIBRARY_PATH"}) {
    if (const char* value = environment_variable(name); value != nullptr)
      kept.push_back(std::string(name) + "=" + value);
  }
  std::vector<char*> environment;
  for (std::string& text : kept) environment.push_back(text.data());
  environment.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawnattr_t how;
  if (::posix_spawn_file_actions_init(&files) != 0) throw std::bad_alloc();
  if (::posix_spawnattr_init(&how) != 0) throw std::bad_alloc();
  for (const int standard : {0, 1, 2})
    ::posix_spawn_file_actions_addopen(&files, standard, "/dev/null", O_RDWR, 0);
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&how, &none);
  ::posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
  pid_t pid = -1;
  const int code = ::posix_spawn(&pid, program.c_str(), &files, &how, words.data(), environment.data());
  ::posix_spawn_file_actions_destroy(&files);
  ::posix_spawnattr_destroy(&how);
  if (code != 0) {
    log::warn(
        "no process watches the checkpoints in memory: they are not removed if a killed run is not "
        "restarted: " +
        folder + ": " + std::strerror(code));
    return;
  }
  // The keeper continues as a grandchild.
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
  }
}

int keep_memory(const std::string& folder) {
  if (!fs::path(folder).filename().string().starts_with(prefix()) ||
      fs::path(folder).parent_path().string() != root()) {
    throw Error(
        {.what = "this is not a folder for checkpoints in memory",
         .found = folder,
         .where = "command line",
         .fix =
             "name a folder of /dev/shm that a run made; trainer inspect PATH shows a checkpoint on a disk",
         .code = ExitCode::usage});
  }
  ::close_range(3, ~0U, 0);
  const double patience = keep_seconds();
  if (::fork() != 0) ::_exit(0);
  if (::chdir("/") != 0) return 1;
  const files::Descriptor mine = open_in(folder, "keeper");
  if (mine.get() < 0 || !locked(mine.get(), LOCK_EX | LOCK_NB)) return 0;
  auto held = Clock::now();
  while (still_named(mine.get(), folder + "/keeper")) {
    if (is_held(folder)) held = Clock::now();
    if (seconds_since(held) > patience) {
      remove_memory(folder);
      return 0;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
  return 0;
}

namespace {

// Returns the bytes that the files of a folder occupy.
std::int64_t bytes_in(const std::string& folder) {
  std::int64_t bytes = 0;
  std::error_code code;
  for (fs::recursive_directory_iterator at(folder, code), end; !code && at != end; at.increment(code)) {
    struct stat st {};
    if (::lstat(at->path().c_str(), &st) == 0 && S_ISREG(st.st_mode)) bytes += st.st_blocks * 512;
  }
  return bytes;
}

}  // namespace

MemoryRoom memory_room(const std::string& folder) {
  constexpr std::int64_t kEndless = INT64_C(1) << 60;
  const std::int64_t own = bytes_in(folder);
  MemoryRoom room{.file_system = kEndless, .memory = kEndless};
  struct statvfs files {};
  if (::statvfs(fs::path(folder).parent_path().c_str(), &files) == 0 && files.f_blocks > 0)
    room.file_system = static_cast<std::int64_t>(files.f_bavail * files.f_frsize) + own;
  const std::size_t free = make_cpu_device({.threads = cpu::op_threads()})->memory().free;
  room.memory = static_cast<std::int64_t>(std::min<std::size_t>(free, kEndless)) + own;
  return room;
}

void require_memory_room(std::int64_t need, const MemoryRoom& room, const std::string& folder,
                         const std::string& host) {
  const auto text = [](std::int64_t bytes) { return human_bytes(static_cast<double>(bytes)); };
  if (need <= room.file_system && need <= room.memory) return;
  throw Error({.what = "a host has too little memory for checkpoints in memory",
               .expected = text(need) + " of host " + host + ", for two checkpoints of its ranks" +
                           ", and with several hosts also for two of another host",
               .found = text(room.memory) + " of memory (of the machine or its control group), " +
                        text(room.file_system) + " in " + fs::path(folder).parent_path().string(),
               .where = "memory_checkpoint_steps",
               .fix = "leave memory_checkpoint_steps out, spread the ranks over more hosts, or enlarge the "
                      "memory file system (mount -o remount,size=)",
               .code = ExitCode::usage});
}

}  // namespace octet::memory_tier
