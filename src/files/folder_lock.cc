#include "octet/files/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <optional>
#include <thread>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/process.h"
#include "octet/base/strings.h"
#include "octet/files/file_io.h"

namespace octet::files {
namespace {

constexpr std::size_t kRecordBytes = 768;  // fixed, so that a heartbeat overwrites the record with one write

std::chrono::duration<double> seconds(double count) {
  return std::chrono::duration<double>(count);
}

/// Identity of a process, unique over all machines.
struct Owner {
  std::string host;
  std::string boot;        ///< ID of the current kernel boot
  std::string namespace_;  ///< PID namespace, because containers have their own
  std::int64_t pid = 0;
  std::int64_t started = 0;  ///< start time, in clock ticks since the boot
  std::string since;         ///< when it locked the folder, for messages
  std::int64_t beat = 0;

  bool same_process(const Owner& other) const {
    return host == other.host && boot == other.boot && namespace_ == other.namespace_ && pid == other.pid &&
           started == other.started;
  }
};

// Returns the text of a kernel pseudo-file, or "" if it cannot be read.
std::string line_of(const std::string& path) {
  try {
    return std::string(trim(read_file(path)));
  } catch (const Error&) {
    return "";
  }
}

// Returns the start time of a process (field 22 of its stat), or 0 if it does not run.
std::int64_t start_of(const std::string& process) {
  const std::string stat = line_of("/proc/" + process + "/stat");
  const std::size_t name_end = stat.rfind(')');  // the process name may contain ')'
  if (name_end == std::string::npos) return 0;
  const std::vector<std::string> fields = split(stat.substr(name_end + 1), ' ');
  constexpr std::size_t kStart = 20;  // field 22, counted after the name
  const bool gone = fields.size() > 1 && (fields[1] == "Z" || fields[1] == "X");
  return fields.size() > kStart && !gone ? std::atoll(fields[kStart].c_str()) : 0;
}

Owner this_process() {
  Owner owner;
  owner.host = host_name();
  owner.boot = line_of("/proc/sys/kernel/random/boot_id");
  std::error_code none;
  owner.namespace_ = std::filesystem::read_symlink("/proc/self/ns/pid", none).string();
  owner.pid = ::getpid();
  owner.started = start_of("self");
  char text[64] = "";
  const time_t now = ::time(nullptr);
  tm local{};
  if (::localtime_r(&now, &local) != nullptr) std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  owner.since = text;
  return owner;
}

std::string record_of(const Owner& owner) {
  std::string text = Json{{"host", owner.host}, {"boot", owner.boot},       {"namespace", owner.namespace_},
                          {"pid", owner.pid},   {"started", owner.started}, {"since", owner.since},
                          {"beat", owner.beat}}
                         .dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize(kRecordBytes - 1, ' ');
  return text + "\n";
}

// Returns the owner that a lock file names, or nothing if this version cannot read the file.
std::optional<Owner> owner_in(const std::string& path) {
  try {
    const std::string text = read_regular_file(path, 1 << 20);
    const Json json = parse_json(text, path);
    Owner owner;
    owner.host = json_string(json, "host", "", path);
    owner.boot = json_string(json, "boot", "", path);
    owner.namespace_ = json_string(json, "namespace", "", path);
    owner.since = json_string(json, "since", "", path);
    owner.pid = json_int(json, "pid", 0, 0, INT64_MAX, path);
    owner.started = json_int(json, "started", 0, 0, INT64_MAX, path);
    owner.beat = json_int(json, "beat", 0, 0, INT64_MAX, path);
    if (owner.pid == 0) return std::nullopt;
    return owner;
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Texts of the error message for a process that finds the lock taken, by kind of lock.
struct Words {
  const char* what;
  const char* expected;
  const char* signal;   ///< signal that stops the owner
  const char* instead;  ///< alternative to `path`
};

Words words_of(Held held) {
  if (held == Held::file)
    return {"another command is writing here", "one command at a time", "TERM", "name another place"};
  return {"another run is using the output folder", "one run to a folder", "USR2",
          "choose another output_dir"};
}

[[noreturn]] void refuse(const std::string& path, Held held, const std::optional<Owner>& owner) {
  const Words words = words_of(held);
  const std::string who = !owner ? "a run that has not written its name yet"
                                 : "process " + std::to_string(owner->pid) + " on " + owner->host +
                                       ", which began on " + owner->since;
  const std::string stop =
      owner ? " (on " + owner->host + ": kill -" + words.signal + " " + std::to_string(owner->pid) + ")" : "";
  throw Error({.what = words.what,
               .expected = words.expected,
               .found = who,
               .where = path,
               .fix = "wait for it or stop it" + stop + ", or " + words.instead,
               .code = ExitCode::busy});
}

// Paths of the lock files that this process holds. Atomic, because a signal handler may read them.
std::array<std::atomic<const char*>, 8> held_files{};

void hold(const char* path) {
  for (auto& held : held_files) {
    const char* none = nullptr;
    if (held.compare_exchange_strong(none, path)) return;
  }
}

void release(const char* path) {
  for (auto& held : held_files) {
    const char* same = path;
    if (held.compare_exchange_strong(same, nullptr)) return;
  }
}

}  // namespace

class FolderLock::Impl {
 public:
  Impl(const std::string& path, const FolderLockOptions& options)
      : held_path_(path),
        path_(path + (options.held == Held::folder ? "/octet.lock" : ".octet.lock")),
        options_(options),
        self_(this_process()) {
    take();
    hold(path_.c_str());
    beating_ = std::thread([this] { beat(); });
  }

  ~Impl() {
    {
      const std::lock_guard guard(mutex_);
      ends_ = true;
    }
    wake_.notify_all();
    beating_.join();
    release(path_.c_str());
    // The file is unlinked before it is unlocked. A process that opened it before then detects the unlink.
    if (!lost_) ::unlink(path_.c_str());
  }

  void require_held() const {
    if (lost_) refuse_for(owner_in(path_));
  }

 private:
  enum class Kernel { held, elsewhere, none };

  [[noreturn]] void refuse_for(const std::optional<Owner>& owner) const {
    refuse(held_path_, options_.held, owner);
  }

  Kernel ask_kernel() {
    if (!options_.kernel) return Kernel::none;
    while (::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return Kernel::elsewhere;
      if (errno != EINTR) return Kernel::none;  // the file system does not support flock
    }
    return Kernel::held;
  }

  // Returns false if a previous owner unlinked the file between open() and flock() of this process.
  bool still_named() const {
    struct stat opened {
    }, named{};
    return ::fstat(file_.get(), &opened) == 0 && ::stat(path_.c_str(), &named) == 0 &&
           opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
  }

  void take() {
    for (;;) {
      file_ = open_file(path_, O_RDWR | O_CREAT | O_NONBLOCK | O_NOFOLLOW);
      const Kernel kernel = ask_kernel();
      if (kernel == Kernel::elsewhere) refuse_for(named_owner());
      if (kernel == Kernel::held && !still_named()) continue;
      const std::optional<Owner> owner = owner_in(path_);
      if (owner && lives(*owner, kernel)) refuse_for(owner);
      if (kernel == Kernel::held) {
        write_record();
      } else {
        claim();
      }
      return;
    }
  }

  // Returns the owner that the file names. Retries, because an owner locks the file before it writes its
  // name.
  std::optional<Owner> named_owner() const {
    for (int tries = 0; tries < 20; ++tries) {
      if (auto owner = owner_in(path_)) return owner;
      std::this_thread::sleep_for(seconds(0.05));
    }
    return std::nullopt;
  }

  // Returns whether an owner still runs. If it is not visible here, watches its heartbeats.
  bool lives(const Owner& owner, Kernel kernel) const {
    const bool this_machine = !self_.boot.empty() && owner.boot == self_.boot;
    if (this_machine && kernel == Kernel::held) return false;
    if (this_machine && owner.namespace_ == self_.namespace_)
      return owner.started != 0 && start_of(std::to_string(owner.pid)) == owner.started;
    log::info("checking whether the last owner of the folder still runs, process " +
                  std::to_string(owner.pid) + " on " + owner.host + ": " + held_path_,
              log::Importance::waiting);
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < seconds(options_.patience_seconds)) {
      std::this_thread::sleep_for(seconds(options_.beat_seconds / 4));
      const std::optional<Owner> now = owner_in(path_);
      if (now && !(now->same_process(owner) && now->beat == owner.beat)) return true;
      if (!path_exists(path_)) return false;
    }
    return false;
  }

  void write_record() {
    const std::string record = record_of(self_);
    write_at(file_.get(), path_, record.data(), static_cast<std::int64_t>(record.size()), 0);
  }

  // Takes the lock without a kernel lock. All processes that saw no owner write their names, and the last
  // name in the file is the owner. So this process writes its name, waits, and then checks the name in the
  // file.
  void claim() {
    write_file_atomically(path_, record_of(self_));
    std::this_thread::sleep_for(seconds(options_.beat_seconds / 2));
    const std::optional<Owner> owner = owner_in(path_);
    if (!owner || !owner->same_process(self_)) refuse_for(owner);
    file_ = open_file(path_, O_RDWR);
  }

  void beat() {
    std::unique_lock guard(mutex_);
    while (!wake_.wait_for(guard, seconds(options_.beat_seconds), [this] { return ends_; })) {
      const std::optional<Owner> owner = owner_in(path_);
      if (owner && !owner->same_process(self_)) {
        lost_ = true;
        release(path_.c_str());
        return;
      }
      ++self_.beat;
      try {
        write_record();
      } catch (const Error&) {
        // A failing disk is reported by the writes of the run itself.
      }
    }
  }

  const std::string held_path_, path_;  ///< the locked path, and the lock file
  const FolderLockOptions options_;
  Owner self_;  ///< after take(), only the heartbeat thread uses it
  Descriptor file_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ends_ = false;
  std::atomic<bool> lost_ = false;
  std::thread beating_;
};

FolderLock::FolderLock(const std::string& path, const FolderLockOptions& options)
    : impl_(std::make_unique<Impl>(path, options)) {}

FolderLock::~FolderLock() = default;

void FolderLock::require_held() const {
  impl_->require_held();
}

std::unique_ptr<const FolderLock> lock_output(const std::string& path) {
  // The path of a folder may end with "/".
  const std::filesystem::path whole = std::filesystem::path(path + "/.").lexically_normal().parent_path();
  if (whole.has_parent_path()) make_folders(whole.parent_path().string());
  return std::make_unique<const FolderLock>(whole.string(), FolderLockOptions{.held = Held::file});
}

void remove_held_lock_files() noexcept {
  for (const auto& held : held_files) {
    if (const char* path = held.load()) ::unlink(path);
  }
}

}  // namespace octet::files
