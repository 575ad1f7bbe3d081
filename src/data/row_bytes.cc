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
#include "octet/base/strings.h"

namespace octet::data {
namespace {

// A temporary file that the destructor unlinks. A mapping of the file stays valid after that.
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

// Limits against decompression bombs: text compresses to about a tenth, repetitive text to a hundredth.
constexpr std::size_t kMostPacked = std::size_t{256} << 20;
constexpr std::size_t kMostTimes = 400;

bool has_lines(const std::string& path) {
  const std::string ending = data_ending(path);
  return ending == "jsonl" || ending == "ndjson" || ending == "txt" || ending == "csv" || ending == "tsv";
}

[[noreturn]] void too_much(const std::string& path, const std::string& found) {
  throw Error({.what = "a compressed data file has rows that are too long",
               .expected = "rows of at most " + std::to_string(kMostRowBytes) + " bytes",
               .found = found,
               .where = path,
               .fix = "unpack it and check its contents",
               .code = ExitCode::usage});
}

MappedFile inflate_file(const std::string& path) {
  // MappedFile reports a missing file, a folder or a device.
  if (std::error_code none; !std::filesystem::is_regular_file(path, none)) return MappedFile(path);
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
  const bool lines = has_lines(path);
  std::size_t line = 0, all = 0;  // bytes of the current line, and of all lines
  std::vector<char> buffer(std::size_t{1} << 20);
  for (;;) {
    const int count = ::gzread(in.get(), buffer.data(), static_cast<unsigned>(buffer.size()));
    int code = Z_OK;
    const char* message = ::gzerror(in.get(), &code);
    if (count < 0 || (code != Z_OK && code != Z_STREAM_END)) damaged(message);
    if (count == 0) break;
    if (::gzdirect(in.get())) damaged("bytes that are not compressed");
    const auto size = static_cast<std::size_t>(count);
    const void* end = ::memrchr(buffer.data(), '\n', size);
    line = end ? static_cast<std::size_t>(buffer.data() + size - static_cast<const char*>(end)) : line + size;
    all += size;
    if (lines && line > kMostRowBytes)
      too_much(path, "a line of " + std::to_string(line) + " bytes and more");
    if (all > kMostPacked && all / kMostTimes > static_cast<std::size_t>(::gzoffset(in.get())))
      too_much(path, "more than " + std::to_string(kMostTimes) + " times its size");
    out.write(buffer.data(), size);
  }
  return MappedFile(out.path);
}

}  // namespace

RowBytes::RowBytes(const std::string& path)
    : path_(path), file_(lower_case(path).ends_with(".gz") ? inflate_file(path) : MappedFile(path)) {}

std::string data_ending(const std::string& path) {
  std::string name = lower_case(path);
  if (name.ends_with(".gz")) name.resize(name.size() - 3);
  const std::size_t dot = name.find_last_of("./");
  return dot == std::string::npos || name[dot] == '/' ? "" : name.substr(dot + 1);
}

}  // namespace octet::data
