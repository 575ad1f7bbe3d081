// Files of rows: JSON lists, JSON lines, text lines.
#include <algorithm>
#include <cstring>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/strings.h"
#include "octet/data/dataset.h"

namespace octet::data {
namespace {

// Lines of a mapped file that are not blank; [begin, end) without the line end.
class LineReader : public RowReader {
 public:
  explicit LineReader(const std::string& path) : file_(path) {
    const std::string_view text = file_.text();
    std::size_t begin = text.starts_with("\xEF\xBB\xBF") ? 3 : 0;
    std::int64_t number = 1;
    while (begin < text.size()) {
      const void* found = std::memchr(text.data() + begin, '\n', text.size() - begin);
      const std::size_t end =
          found ? static_cast<std::size_t>(static_cast<const char*>(found) - text.data()) : text.size();
      if (!trim(text.substr(begin, end - begin)).empty()) lines_.push_back({begin, end, number});
      begin = end + 1;
      ++number;
    }
  }
  std::int64_t size() const override { return static_cast<std::int64_t>(lines_.size()); }
  std::string where(std::int64_t i) const override {
    return file_.path() + ":" + std::to_string(line(i).number);
  }

 protected:
  struct Line {
    std::size_t begin, end;
    std::int64_t number;
  };
  const Line& line(std::int64_t i) const { return lines_.at(static_cast<std::size_t>(i)); }
  std::string_view text(std::int64_t i) const {
    const Line& l = line(i);
    std::string_view t = file_.text().substr(l.begin, l.end - l.begin);
    if (t.ends_with('\r')) t.remove_suffix(1);
    if (!is_utf8(t)) {
      throw Error({.what = "a row is not valid UTF-8",
                   .where = where(i),
                   .fix = "convert the file to UTF-8",
                   .code = ExitCode::usage});
    }
    return t;
  }

 private:
  MappedFile file_;
  std::vector<Line> lines_;
};

class JsonLines : public LineReader {
 public:
  using LineReader::LineReader;
  Json row(std::int64_t i) const override { return parse_json(text(i), where(i)); }
};

class TextLines : public LineReader {
 public:
  using LineReader::LineReader;
  Json row(std::int64_t i) const override { return Json{{"text", std::string(text(i))}}; }
};

class JsonList : public RowReader {
 public:
  explicit JsonList(const std::string& path) : path_(path), rows_(read_json(path)) {
    if (!rows_.is_array()) {
      throw Error({.what = "a JSON data set must be a list of objects",
                   .expected = "[ {…}, {…} ]",
                   .found = rows_.type_name(),
                   .where = path,
                   .fix = "name a file with one object a line .jsonl",
                   .code = ExitCode::usage});
    }
  }
  std::int64_t size() const override { return static_cast<std::int64_t>(rows_.size()); }
  Json row(std::int64_t i) const override { return rows_.at(static_cast<std::size_t>(i)); }
  std::string where(std::int64_t i) const override { return path_ + " row " + std::to_string(i + 1); }

 private:
  std::string path_;
  Json rows_;
};

}  // namespace

std::unique_ptr<RowReader> open_rows(const std::string& path) {
  const std::size_t dot = path.find_last_of("./");
  const std::string ending = dot == std::string::npos || path[dot] == '/' ? "" : path.substr(dot + 1);
  if (ending == "jsonl" || ending == "ndjson") return std::make_unique<JsonLines>(path);
  if (ending == "txt") return std::make_unique<TextLines>(path);
  if (ending == "json") {
    // Some tools write one object a line under the name .json.
    const std::string text = read_file(path);
    const std::string_view body = trim(std::string_view(text).substr(0, 4096));
    if (body.starts_with('{')) return std::make_unique<JsonLines>(path);
    return std::make_unique<JsonList>(path);
  }
  throw Error({.what = "a data file of an unknown kind",
               .expected = "a name ending in .json, .jsonl, .ndjson or .txt",
               .found = ending.empty() ? "no ending" : "." + ending,
               .where = path,
               .fix = "convert it to JSON lines",
               .code = ExitCode::usage});
}

}  // namespace octet::data
