#include "row_readers.h"

#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/mapped_files.h"
#include "octet/base/strings.h"
#include "octet/data/dataset.h"

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

// Chooses the reader of a file by its ending. Readers of JSON lines and text lines.

namespace {

// The lines of a mapped file that are not blank. Only every 64th line is indexed, and the lines between are
// searched again. The index takes a quarter of a byte per line, also for files larger than memory.
class LineReader : public RowReader {
 public:
  explicit LineReader(const std::string& path) : bytes_(path) {
    Line from{0, bytes_.text().starts_with("\xEF\xBB\xBF") ? std::size_t{3} : 0, 1};
    for (Line line = from; next(line); line = from) {
      if (size_++ % kStride == 0) marks_.push_back({from.end, from.number});
      from = after(line);
    }
  }
  std::int64_t size() const override { return size_; }
  const std::string& path() const override { return bytes_.path(); }
  std::string where(std::int64_t i) const override {
    return bytes_.path() + ":" + std::to_string(line(i).number);
  }

 protected:
  // [begin, end) excludes the line end.
  struct Line {
    std::size_t begin, end;
    std::int64_t number;
  };
  Line line(std::int64_t i) const {
    check(i >= 0 && i < size_, "a line lies inside its file");
    const Mark& mark = marks_.at(static_cast<std::size_t>(i / kStride));
    Line found{0, mark.begin, mark.number};
    for (std::int64_t left = i % kStride; next(found) && left > 0; --left) found = after(found);
    return found;
  }
  std::string_view bytes() const { return bytes_.text(); }
  std::string_view text(std::int64_t i) const {
    const Line l = line(i);
    std::string_view t = bytes_.text().substr(l.begin, l.end - l.begin);
    if (t.ends_with('\r')) t.remove_suffix(1);
    if (t.size() > kMostRowBytes) {
      throw Error({.what = "a row is too long",
                   .expected = "at most " + std::to_string(kMostRowBytes) + " bytes",
                   .found = std::to_string(t.size()),
                   .where = where(i),
                   .fix = "cut its text into several rows",
                   .code = ExitCode::usage});
    }
    if (!is_utf8(t)) {
      throw Error({.what = "a row is not valid UTF-8",
                   .expected = "UTF-8",
                   .found = "bytes of another encoding",
                   .where = where(i),
                   .fix = "convert the file to UTF-8",
                   .code = ExitCode::usage});
    }
    return t;
  }

 private:
  static constexpr std::int64_t kStride = 64;
  static constexpr std::int64_t kMostBlank = 1 << 20;
  // A position from which next() finds a line.
  struct Mark {
    std::size_t begin;
    std::int64_t number;
  };
  // Returns the position after a line, from which next() continues.
  static Line after(const Line& line) { return {line.end, line.end + 1, line.number + 1}; }
  // Finds the first line that is not blank, from `line.end` on. Returns false at the end of the file.
  bool next(Line& line) const {
    const std::string_view text = bytes_.text();
    const std::int64_t first = line.number;
    for (std::size_t begin = line.end; begin < text.size(); ++line.number) {
      if (line.number - first > kMostBlank) {
        throw Error({.what = "a data file holds too many blank lines in a row",
                     .expected = "at most " + std::to_string(kMostBlank),
                     .where = bytes_.path() + ":" + std::to_string(first),
                     .fix = "check the program that wrote it",
                     .code = ExitCode::usage});
      }
      const void* found = std::memchr(text.data() + begin, '\n', text.size() - begin);
      const std::size_t end =
          found ? static_cast<std::size_t>(static_cast<const char*>(found) - text.data()) : text.size();
      if (!trim(text.substr(begin, end - begin)).empty()) {
        line.begin = begin, line.end = end;
        return true;
      }
      begin = end + 1;
    }
    return false;
  }

  RowBytes bytes_;
  std::vector<Mark> marks_;
  std::int64_t size_ = 0;
};

class JsonLines : public LineReader {
 public:
  using LineReader::LineReader;
  Json row(std::int64_t i) const override { return parse_json_digits(text(i), where(i)); }
  // Files of other JSON shapes are also named .jsonl.
  bool fits() const { return is_json_lines(bytes()); }
};

class TextLines : public LineReader {
 public:
  using LineReader::LineReader;
  Json row(std::int64_t i) const override { return Json{{"text", std::string(text(i))}}; }
};

std::unique_ptr<RowReader> reader_of(const std::string& path) {
  const std::string ending = data_ending(path);
  if (ending == "jsonl" || ending == "ndjson") {
    auto lines = std::make_unique<JsonLines>(path);
    if (lines->fits()) return lines;
    return open_json(path);
  }
  if (ending == "txt") return std::make_unique<TextLines>(path);
  if (ending == "csv") return open_csv(path, ',');
  if (ending == "tsv") return open_csv(path, '\t');
  if (ending == "parquet" || ending == "arrow" || ending == "feather") return open_columns(path, ending);
  if (ending == "json") {
    // Some tools write one object per line to a file named .json.
    const RowBytes bytes(path);
    const std::string_view text = bytes.text();
    const std::size_t first = text.find_first_of("{[");
    const bool object = first != std::string_view::npos && text[first] == '{';
    if (object && is_json_lines(text)) return std::make_unique<JsonLines>(path);
    return open_json(path);
  }
  throw Error({.what = "the format of a data file is not known",
               .expected = "a name ending in .json, .jsonl, .ndjson, .csv, .tsv or .txt, each also with a "
                           "further .gz, .parquet or .arrow",
               .found = ending.empty() ? "no ending" : "." + ending,
               .where = path,
               .fix = "convert it to JSON lines",
               .code = ExitCode::usage});
}

}  // namespace

std::unique_ptr<RowReader> open_rows(const std::string& path) {
  auto reader = reader_of(path);
  require_mapped_files();
  return reader;
}

bool is_data_file(const std::string& path) {
  static constexpr std::array<std::string_view, 9> kEndings{"json", "jsonl",   "ndjson", "txt",    "csv",
                                                            "tsv",  "parquet", "arrow",  "feather"};
  return std::ranges::find(kEndings, data_ending(path)) != kEndings.end();
}

}  // namespace octet::data
