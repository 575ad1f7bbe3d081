#include "traces.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "octet/base/error.h"
#include "octet/base/files.h"

namespace octet::supervise {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFolder = "OMPI_MCA_orte_jobfam_session_dir=";
constexpr std::string_view kJob = "PMIX_NAMESPACE=";
constexpr const char* kSharedMemory = "/dev/shm";

bool is_mine(const fs::path& path) {
  struct stat st {};
  return ::lstat(path.c_str(), &st) == 0 && st.st_uid == ::getuid();
}

void remove_mine(const fs::path& path) {
  std::error_code none;
  if (is_mine(path)) fs::remove_all(path, none);
}

// A job's number as Open MPI writes it into names: vader_segment.HOST.USER.JOB.RANK.
std::string job_in(const std::string& name) {
  if (!name.starts_with("vader_segment.")) return "";
  const std::size_t rank = name.rfind('.');
  const std::size_t job = name.rfind('.', rank - 1);
  return job == std::string::npos ? "" : name.substr(job + 1, rank - job - 1);
}

}  // namespace

void Traces::note(pid_t process) {
  std::string environment;
  try {
    environment = read_file("/proc/" + std::to_string(process) + "/environ");
  } catch (const Error&) {
    return;  // it is gone, or another user's
  }
  for (std::string_view left = environment; !left.empty();) {
    const std::string_view word = left.substr(0, left.find('\0'));
    left.remove_prefix(std::min(word.size() + 1, left.size()));
    if (word.starts_with(kFolder)) {
      const fs::path folder = word.substr(kFolder.size());
      if (folder.is_absolute() && folder.filename().string().starts_with("pid."))
        folders_.insert(folder.string());
    }
    if (word.starts_with(kJob)) {
      const std::string_view number = word.substr(kJob.size());
      std::uint32_t job = 0;
      const auto read = std::from_chars(number.begin(), number.end(), job);
      if (read.ec != std::errc() || read.ptr != number.end()) continue;
      char text[16];
      std::snprintf(text, sizeof text, "%x", job);
      jobs_.insert(text);
    }
  }
}

void Traces::remove() const {
  for (const std::string& folder : folders_) remove_mine(folder);
  if (jobs_.empty()) return;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(kSharedMemory, none)) {
    if (jobs_.contains(job_in(entry.path().filename().string()))) remove_mine(entry.path());
  }
}

}  // namespace octet::supervise
