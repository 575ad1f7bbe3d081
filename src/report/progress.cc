#include "octet/report/progress.h"

#include <fcntl.h>
#include <unistd.h>

#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"

namespace octet::report {
namespace {

constexpr std::size_t kRecordBytes = 8192;  // fits the longest path and the other fields

std::string record_of(const Progress& progress) {
  std::string text = Json{{"job", progress.job},
                          {"ranks", progress.ranks},
                          {"first_step", progress.first_step},
                          {"step", progress.step},
                          {"total_steps", progress.total_steps},
                          {"step_seconds", progress.step_seconds},
                          {"saved_step", progress.saved_step},
                          {"saved", progress.saved},
                          {"memory_step", progress.memory_step},
                          {"from", progress.from},
                          {"finished", progress.finished}}
                         .dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() < kRecordBytes) text.resize(kRecordBytes - 1, ' ');
  return text + "\n";
}

}  // namespace

std::string supervised_start() {
  const char* name = environment_variable("OCTETRUN_SUPERVISED");
  return name == nullptr ? "" : name;
}

std::string run_of(const std::string& start) {
  const std::size_t hyphen = start.rfind('-');
  return hyphen == std::string::npos ? "" : start.substr(0, hyphen);
}

std::string progress_path(const std::string& output_dir) {
  return output_dir + "/octet.progress";
}

std::optional<Progress> read_progress(const std::string& output_dir) {
  const std::string path = progress_path(output_dir);
  constexpr std::int64_t kMost = INT64_C(1) << 53;
  try {
    const Json json = parse_json(trim(read_regular_file(path, 1 << 20)), path, false, 4);
    if (!json.is_object()) return std::nullopt;
    Progress progress;
    progress.job = json_string(json, "job", "", path);
    progress.ranks = static_cast<int>(json_int(json, "ranks", 0, 0, INT64_C(1) << 30, path));
    progress.first_step = json_int(json, "first_step", 0, 0, kMost, path);
    progress.step = json_int(json, "step", 0, progress.first_step, kMost, path);
    progress.total_steps = json_int(json, "total_steps", 0, 0, kMost, path);
    progress.step_seconds = json_number(json, "step_seconds", 0, path);
    progress.saved_step = json_int(json, "saved_step", -1, -1, kMost, path);
    progress.saved = json_string(json, "saved", "", path);
    progress.memory_step = json_int(json, "memory_step", -1, -1, kMost, path);
    progress.from = json_string(json, "from", "", path);
    progress.finished = json_bool(json, "finished", false, path);
    return progress;
  } catch (const Error&) {
    return std::nullopt;
  }
}

ProgressFile::ProgressFile(const std::string& output_dir) {
  // The file is not truncated: a supervisor may read the old record at this moment.
  file_ = ::open(progress_path(output_dir).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
}

ProgressFile::~ProgressFile() {
  if (file_ >= 0) ::close(file_);
}

void ProgressFile::write(const Progress& progress) {
  if (file_ < 0) return;
  const std::string record = record_of(progress);
  [[maybe_unused]] const auto written = ::pwrite(file_, record.data(), record.size(), 0);
  [[maybe_unused]] const auto cut = ::ftruncate(file_, static_cast<off_t>(record.size()));
}

}  // namespace octet::report
