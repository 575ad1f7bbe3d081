#include "cleanup.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "octet/base/environment.h"
#include "octet/base/process.h"
#include "octet/launch/processes.h"

namespace octet::launch {
namespace {

namespace fs = std::filesystem;

bool is_own(const fs::path& path, struct stat* out = nullptr) {
  struct stat st {};
  const bool own = ::lstat(path.c_str(), &st) == 0 && st.st_uid == ::getuid();
  if (out != nullptr) *out = st;
  return own;
}

// Removes files that no process has mapped.
void remove_unmapped(const std::vector<fs::path>& files) {
  if (files.empty()) return;
  std::vector<std::string> mapped;
  for (const pid_t process : all_processes()) mapped.push_back(file_of(process, "maps"));
  for (const fs::path& file : files) {
    const bool is_mapped = std::ranges::any_of(
        mapped, [&](const std::string& maps) { return maps.find(file.string()) != std::string::npos; });
    std::error_code none;
    if (!is_mapped) fs::remove(file, none);
  }
}

// Returns the ranks of a killed mpirun, which have the name of its folder in their environment. Ranks of Open
// MPI 4 remain for a moment, others until they end by themselves.
std::vector<pid_t> ranks_of_folder(const std::string& folder) {
  std::vector<pid_t> found;
  for (const pid_t process : all_processes()) {
    const std::string environment = file_of(process, "environ");
    for (const char* name : {"OMPI_MCA_orte_jobfam_session_dir=", "PMIX_SERVER_TMPDIR="}) {
      const std::string variable = name + folder + '\0';
      const std::size_t at = environment.find(variable);
      if (at != std::string::npos && (at == 0 || environment[at - 1] == '\0')) {
        found.push_back(process);
        break;
      }
    }
  }
  return found;
}

void remove_folder(const std::string& folder) {
  constexpr int kLooks = 30;
  constexpr std::chrono::milliseconds kBetween(100);
  for (int look = 0; look < kLooks; ++look) {
    const std::vector<pid_t> ranks = ranks_of_folder(folder);
    if (ranks.empty()) break;
    for (const pid_t rank : ranks) ::kill(rank, SIGKILL);
    std::this_thread::sleep_for(kBetween);
  }
  std::error_code none;
  fs::remove_all(folder, none);
}

fs::path folder_for_temporary_files() {
  const char* tmp = environment_variable("TMPDIR");
  return tmp == nullptr || *tmp == '\0' ? "/tmp" : tmp;
}

}  // namespace

std::string short_host_name() {
  const std::string whole = host_name();
  return whole.substr(0, whole.find('.'));
}

Leftovers::Leftovers(std::string sessions, pid_t mpirun, std::chrono::system_clock::time_point began)
    : sessions_(std::move(sessions)), mpirun_(mpirun), began_(began) {}

bool Leftovers::clear_up() const {
  std::vector<std::string> folders;
  const std::string number = std::to_string(mpirun_);
  if (!sessions_.empty()) {
    folders.push_back(sessions_ + number);
    // Open MPI 5.0.7 names it prterun.HOST.PROCESS.USER.
    const fs::path parent = fs::path(sessions_).parent_path();
    const std::string end = "." + number + "." + std::to_string(::getuid());
    std::error_code none;
    for (const auto& entry : fs::directory_iterator(parent, none)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("prterun.") && name.ends_with(end)) folders.push_back(entry.path().string());
    }
  }
  bool found = false;
  for (const std::string& folder : folders) {
    if (!is_own(folder) || !fs::is_directory(folder)) continue;
    found = true;
    remove_folder(folder);
  }
  // A rank that is killed while it creates shared memory leaves memory that mpirun does not remove.
  std::vector<fs::path> segments;
  const std::time_t began = std::chrono::system_clock::to_time_t(began_);
  std::error_code none;
  for (const auto& entry : fs::directory_iterator("/dev/shm", none)) {
    const std::string name = entry.path().filename().string();
    const bool is_segment = name.starts_with("vader_segment." + short_host_name()) ||
                            name.starts_with("sm_segment." + short_host_name());
    struct stat st {};
    if (is_segment && is_own(entry.path(), &st) && st.st_mtime >= began) segments.push_back(entry.path());
  }
  remove_unmapped(segments);
  remove_pmix_files();
  return found;
}

void Leftovers::remove_pmix_files() const {
  std::vector<fs::path> files;
  const std::string begin = "pmix-gds-shmem." + short_host_name(), end = "." + std::to_string(mpirun_);
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder_for_temporary_files(), none)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(begin) && name.ends_with(end) && is_own(entry.path())) files.push_back(entry.path());
  }
  remove_unmapped(files);
}

namespace {

constexpr pid_t kDismissed = -1;

// Reads a number from the pipe. Returns false if launch/mpirun is gone.
bool read_number(int file, pid_t& number) {
  ssize_t n = 0;
  do {
    n = ::read(file, &number, sizeof number);
  } while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(sizeof number);
}

// Ends the ranks; mpirun then clears up. The search repeats, because mpirun may be about to start ranks.
void end_orphans(const Process& mpirun) {
  constexpr int kLooks = 30;
  constexpr std::chrono::milliseconds kBetween(100);
  for (int look = 0; look < kLooks && !mpirun.gone(); ++look) {
    std::vector<pid_t> ranks = ProcessTree().below(mpirun.pid());
    std::ranges::reverse(ranks);
    for (const pid_t rank : ranks) ::kill(rank, SIGKILL);
    std::this_thread::sleep_for(kBetween);
  }
  if (!mpirun.gone()) ::kill(mpirun.pid(), SIGKILL);
}

void keep_watch(int file, const std::string& sessions, std::chrono::system_clock::time_point began) {
  pid_t number = 0;
  if (!read_number(file, number) || number == kDismissed) return;
  const Process mpirun(number);
  if (read_number(file, number)) return;  // dismissed
  end_orphans(mpirun);
  Leftovers(sessions, mpirun.pid(), began).clear_up();
}

}  // namespace

Guard::Guard(const std::string& sessions, std::chrono::system_clock::time_point began) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return;
  process_ = ::fork();
  if (process_ != 0) {
    ::close(ends[0]);
    words_ = ends[1];
    return;
  }
  ::setsid();
  ::prctl(PR_SET_NAME, "octet-guard");
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2}) ::signal(signal, SIG_IGN);
  // A reader of launch/mpirun's output must not wait for the guard to close it.
  const int nothing = ::open("/dev/null", O_RDWR);
  for (const int file : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nothing, file);
  // The guard closes its end of the pipe and the files of launch/mpirun's caller.
  ::close(ends[1]);
  constexpr int kKept = STDERR_FILENO + 1, kUsualFiles = 1024;
  if (ends[0] != kKept) ::dup2(ends[0], kKept);
  if (::close_range(kKept + 1, ~0U, 0) != 0) {  // Linux before 5.9
    for (int file = kKept + 1; file < kUsualFiles; ++file) ::close(file);
  }
  keep_watch(kKept, sessions, began);
  ::_exit(0);
}

Guard::~Guard() {
  dismiss();
}

void Guard::watch(pid_t mpirun) const {
  if (::write(words_, &mpirun, sizeof mpirun) < 0) return;  // the guard was killed
}

void Guard::dismiss() {
  if (process_ < 0 || words_ < 0) return;
  watch(kDismissed);
  ::close(words_);
  words_ = -1;
  ::waitpid(process_, nullptr, 0);
}

}  // namespace octet::launch
