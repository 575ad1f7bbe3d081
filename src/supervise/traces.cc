#include "traces.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <system_error>

#include "octet/launch/processes.h"

namespace octet::supervise {
namespace {

namespace fs = std::filesystem;

// Variables of Open MPI 4 and 5.
constexpr std::string_view kFolders[] = {"OMPI_MCA_orte_jobfam_session_dir=", "PMIX_SERVER_TMPDIR="};
constexpr std::string_view kJob = "PMIX_NAMESPACE=";
// Open MPI 4 and 5: vader_segment.HOST.USER.JOB.RANK.
constexpr std::string_view kSegments[] = {"vader_segment.", "sm_segment."};
constexpr const char* kSharedMemory = "/dev/shm";
// Files of PMIx 5 in the folder for temporary files: pmix-gds-shmem.HOST-NUMBER.KIND.N, with mpirun's process
// id N.
constexpr std::string_view kOfPmix = "/pmix-gds-shmem.";

bool is_mine(const fs::path& path) {
  struct stat st {};
  return ::lstat(path.c_str(), &st) == 0 && st.st_uid == ::getuid();
}

void remove_mine(const fs::path& path) {
  std::error_code none;
  if (is_mine(path)) fs::remove_all(path, none);
}

// Returns the job number in the name of a shared memory file; "" for other names.
std::string job_in(const std::string& name) {
  if (std::ranges::none_of(kSegments, [&](std::string_view begin) { return name.starts_with(begin); }))
    return "";
  const std::size_t rank = name.rfind('.');
  const std::size_t job = name.rfind('.', rank - 1);
  return job == std::string::npos ? "" : name.substr(job + 1, rank - job - 1);
}

// Whether the name of a folder is of a single mpirun. Folders with other names are shared by several jobs.
bool is_of_one_job(std::string_view name) {
  if (name.starts_with("prterun.")) return true;
  for (const std::string_view begin : {"pid.", "ompi."}) {
    if (!name.starts_with(begin)) continue;
    const std::string_view number = name.substr(begin.size());
    return !number.empty() && number.find_first_not_of("0123456789") == std::string_view::npos;
  }
  return false;
}

}  // namespace

void Traces::note(pid_t process) {
  const std::string environment = launch::file_of(process, "environ");
  bool rank = false;
  for (std::string_view left = environment; !left.empty();) {
    const std::string_view word = left.substr(0, left.find('\0'));
    left.remove_prefix(std::min(word.size() + 1, left.size()));
    for (const std::string_view variable : kFolders) {
      if (!word.starts_with(variable)) continue;
      const fs::path folder = word.substr(variable.size());
      if (!folder.is_absolute() || !is_of_one_job(folder.filename().string())) continue;
      folders_.insert(folder.string());
      rank = true;
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
  if (rank) note_memory(process);
}

// Open MPI 5 uses a hash as the job number, so it is read from the shared memory that a rank has mapped.
// PMIx's files are found there, too.
void Traces::note_memory(pid_t process) {
  std::istringstream maps(launch::file_of(process, "maps"));
  const std::string begin = std::string(kSharedMemory) + "/";
  for (std::string line; std::getline(maps, line);) {
    const std::size_t path = line.find('/');
    if (path == std::string::npos) continue;
    // A removed file has a word after its name.
    const std::string file = line.substr(path, line.find(' ', path) - path);
    if (file.rfind(kOfPmix) == file.rfind('/')) files_.insert(file);
    if (!file.starts_with(begin)) continue;
    if (const std::string job = job_in(file.substr(begin.size())); !job.empty()) jobs_.insert(job);
  }
}

void Traces::remove() const {
  for (const std::string& folder : folders_) remove_mine(folder);
  for (const std::string& file : files_) remove_mine(file);
  if (jobs_.empty()) return;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(kSharedMemory, none)) {
    if (jobs_.contains(job_in(entry.path().filename().string()))) remove_mine(entry.path());
  }
}

}  // namespace octet::supervise
