#include "row_bytes.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "octet/base/environment.h"
#include "octet/base/error.h"

namespace octet::data {
namespace {

// A file that vanishes with this object; a mapping made before stays valid.
struct TemporaryFile {
  TemporaryFile() {
    std::error_code none;
    path = (std::filesystem::temp_directory_path(none) / "octet-rows-XXXXXX").string();
    if (none) {
      const char* folder = environment_variable("TMPDIR");
      path = folder ? folder : "/tmp";
      errno = none.value();
      fail();
    }
    descriptor = ::mkstemp(path.data());
    if (descriptor < 0) fail();
  }
  ~TemporaryFile() {
    ::close(descriptor);
    ::unlink(path.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  void write(const char* bytes, std::size_t count) {
    while (count > 0) {
      const ssize_t done = ::write(descriptor, bytes, count);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) fail();
      bytes += done;
      count -= static_cast<std::size_t>(done);
    }
  }
  [[noreturn]] void fail() const {
    throw Error({.what = "a compressed data file cannot be unpacked",
                 .found = std::strerror(errno),
                 .where = path,
                 .fix = "set TMPDIR to a folder with room, or unpack the file yourself",
                 .code = exit_code_of(errno)});
  }
  std::string path;
  int descriptor = -1;
};

MappedFile inflate_file(const std::string& path) {
  if (!path_exists(path)) return MappedFile(path);  // says that it is missing
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> in(::gzopen(path.c_str(), "rb"), &::gzclose);
  const auto damaged = [&path](const std::string& found) {
    throw Error({.what = "a compressed data file is damaged",
                 .expected = "a whole gzip file",
                 .found = found,
                 .where = path,
                 .fix = "fetch it again, or unpack it yourself",
                 .code = ExitCode::usage});
  };
  if (!in) damaged(std::strerror(errno));
  ::gzbuffer(in.get(), 1u << 18);
  TemporaryFile out;
  std::vector<char> buffer(std::size_t{1} << 20);
  for (;;) {
    const int count = ::gzread(in.get(), buffer.data(), static_cast<unsigned>(buffer.size()));
    int code = Z_OK;
    const char* message = ::gzerror(in.get(), &code);
    if (count < 0 || (code != Z_OK && code != Z_STREAM_END)) damaged(message);
    if (count == 0) break;
    if (::gzdirect(in.get())) damaged("bytes that are not compressed");
    out.write(buffer.data(), static_cast<std::size_t>(count));
  }
  return MappedFile(out.path);
}

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

}  // namespace

RowBytes::RowBytes(const std::string& path)
    : path_(path), file_(lower(path).ends_with(".gz") ? inflate_file(path) : MappedFile(path)) {}

std::string data_ending(const std::string& path) {
  std::string name = lower(path);
  if (name.ends_with(".gz")) name.resize(name.size() - 3);
  const std::size_t dot = name.find_last_of("./");
  return dot == std::string::npos || name[dot] == '/' ? "" : name.substr(dot + 1);
}

}  // namespace octet::data
