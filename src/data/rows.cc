// Files of rows, by their endings; JSON lines and text lines.
#include <algorithm>
#include <array>
#include <cstring>

#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "octet/data/dataset.h"
#include "row_bytes.h"
#include "row_readers.h"

namespace octet::data {
namespace {

// Lines of a mapped file that are not blank; [begin, end) without the line end.
class LineReader : public RowReader {
 public:
  explicit LineReader(const std::string& path) : bytes_(path) {
    const std::string_view text = bytes_.text();
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
    return bytes_.path() + ":" + std::to_string(line(i).number);
  }

 protected:
  struct Line {
    std::size_t begin, end;
    std::int64_t number;
  };
  const Line& line(std::int64_t i) const { return lines_.at(static_cast<std::size_t>(i)); }
  std::string_view text(std::int64_t i) const {
    const Line& l = line(i);
    std::string_view t = bytes_.text().substr(l.begin, l.end - l.begin);
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
  RowBytes bytes_;
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

}  // namespace

std::unique_ptr<RowReader> open_rows(const std::string& path) {
  const std::string ending = data_ending(path);
  if (ending == "jsonl" || ending == "ndjson") return std::make_unique<JsonLines>(path);
  if (ending == "txt") return std::make_unique<TextLines>(path);
  if (ending == "csv") return open_csv(path, ',');
  if (ending == "tsv") return open_csv(path, '\t');
  if (ending == "parquet" || ending == "arrow" || ending == "feather") return open_columns(path, ending);
  if (ending == "json") {
    // Some tools write one object a line under the name .json.
    const RowBytes bytes(path);
    std::string_view text = bytes.text();
    if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
    if (trim(text.substr(0, 4096)).starts_with('{')) return std::make_unique<JsonLines>(path);
    return open_json_list(path);
  }
  throw Error({.what = "a data file of an unknown kind",
               .expected = "a name ending in .json, .jsonl, .ndjson, .csv, .tsv or .txt, each also with .gz "
                           "behind it, .parquet or .arrow",
               .found = ending.empty() ? "no ending" : "." + ending,
               .where = path,
               .fix = "convert it to JSON lines",
               .code = ExitCode::usage});
}

bool is_data_file(const std::string& path) {
  static constexpr std::array<std::string_view, 9> kEndings{"json", "jsonl",   "ndjson", "txt",    "csv",
                                                            "tsv",  "parquet", "arrow",  "feather"};
  return std::ranges::find(kEndings, data_ending(path)) != kEndings.end();
}

}  // namespace octet::data
