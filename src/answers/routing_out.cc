#include "routing_out.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/feed/routing_file.h"

namespace octet::answers {
namespace {

[[noreturn]] void cannot_write_routing(const std::string& path) {
  const int error = errno;
  throw Error({.what = "the experts of answers cannot be written",
               .found = std::strerror(error),
               .where = path,
               .fix = "free disk space or choose another --save-routing",
               .code = exit_code_of(error)});
}

/// Returns the whole lines of the file of an earlier run.
std::string earlier_lines(const std::string& path, const std::string& head) {
  const std::string text = path_exists(path) ? read_file(path) : "";
  const std::string whole = text.substr(0, text.rfind('\n') + 1);
  if (whole.starts_with(head)) return whole;
  throw Error({.what = "the experts of the earlier answers are missing",
               .expected = "the file of --save-routing of the run that began --out",
               .found = text.empty() ? "no such file" : "another file",
               .where = path,
               .fix = "name that file, or start again with --overwrite",
               .code = ExitCode::usage});
}

}  // namespace

void RoutingOut::require_free(const std::string& path, const runtime::Routers& routers, bool replaces) {
  if (is_folder(path)) {
    throw Error({.what = "--save-routing names a folder",
                 .expected = "a file for the experts of answers",
                 .where = path,
                 .fix = "name a file in it, such as " + path + "/experts.jsonl",
                 .code = ExitCode::usage});
  }
  if (!path_exists(path)) return;
  // The first line names the format before the routers.
  const std::string head = feed::routing_head(routers), format = head.substr(0, head.find(','));
  std::string begin(format.size(), '\0');
  std::ifstream(path, std::ios::binary).read(begin.data(), std::ssize(begin));
  const bool ours = begin == format;
  if (ours && replaces) return;
  throw Error(
      {.what = "the file for the experts of answers exists",
       .expected = "a path without a file",
       .found = ours ? "the experts of other answers" : "a file that --save-routing did not write",
       .where = path,
       .fix = std::string("choose another --save-routing") + (ours ? ", or replace it with --overwrite" : ""),
       .code = ExitCode::usage});
}

RoutingOut::RoutingOut(const std::string& path, const runtime::Routers& routers, New fresh)
    : path_(path), lock_(files::lock_output(path)) {
  const std::string head = feed::routing_head(routers) + "\n";
  write_file_atomically(path, fresh == New::yes ? head : earlier_lines(path, head));
  file_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (file_ < 0) cannot_write_routing(path_);
}

RoutingOut::~RoutingOut() {
  if (file_ >= 0) ::close(file_);
}

void RoutingOut::add(const std::string& line) {
  const std::string text = line + "\n";
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(file_, text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) cannot_write_routing(path_);
    done += static_cast<std::size_t>(count);
  }
}

void RoutingOut::sync() {
  if (::fdatasync(file_) != 0) cannot_write_routing(path_);
}

}  // namespace octet::answers
