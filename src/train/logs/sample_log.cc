#include "logs/sample_log.h"

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"

namespace octet::train {
namespace {

// Returns the lines of steps up to `last`, without lines that a kill truncated.
std::string lines_until(const std::string& path, std::int64_t last) {
  std::string kept;
  if (last == 0 || !path_exists(path)) return kept;
  for (const auto& line : split(read_file(path), '\n')) {
    try {
      if (json_int(parse_json(line, path, false, 8), "step", INT64_MAX, 0, INT64_MAX, path) <= last)
        kept += line + "\n";
    } catch (const Error&) {
      continue;
    }
  }
  return kept;
}

}  // namespace

SampleLog::SampleLog(comm::Channel& channel, const std::string& output_dir, std::int64_t first_step)
    : channel_(channel) {
  channel.together([&] {
    if (channel.rank() != 0) return;
    const std::string path = output_dir + "/samples.jsonl";
    write_file_atomically(path, lines_until(path, first_step));
    file_.open(path, std::ios::app | std::ios::binary);
    if (!file_)
      throw Error({.what = "the log of samples cannot be opened",
                   .expected = "a file that can be written",
                   .found = std::strerror(errno),
                   .where = path,
                   .fix = "check the permissions of the folder and the free space of its disk"});
  });
}

void SampleLog::end_step(std::int64_t step) {
  Json rows = Json::array();
  for (const std::string& of_rank : channel_.all_gather_bytes(Json(own_).dump())) {
    if (file_.is_open()) rows.push_back(Json::parse(of_rank));
  }
  own_.clear();
  if (!file_.is_open()) return;
  file_ << Json{{"step", step}, {"rows", std::move(rows)}}.dump() << std::endl;
  if (!file_ && !told_) log::warn("samples.jsonl cannot be written: lines of it are missing");
  told_ = told_ || !file_;
  file_.clear();
}

}  // namespace octet::train
