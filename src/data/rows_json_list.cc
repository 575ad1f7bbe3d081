// JSON lists of rows.
#include <vector>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "row_bytes.h"
#include "row_readers.h"

namespace octet::data {
namespace {

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

class JsonList : public RowReader {
 public:
  explicit JsonList(const std::string& path) : bytes_(path) { find_rows(); }
  std::int64_t size() const override { return static_cast<std::int64_t>(rows_.size()); }
  Json row(std::int64_t i) const override {
    const Row& r = rows_.at(static_cast<std::size_t>(i));
    return parse_json(bytes_.text().substr(r.begin, r.end - r.begin), where(i));
  }
  const std::string& path() const override { return bytes_.path(); }
  std::string where(std::int64_t i) const override {
    return bytes_.path() + ":" + std::to_string(rows_.at(static_cast<std::size_t>(i)).line) + " (row " +
           std::to_string(i + 1) + ")";
  }

 private:
  struct Row {
    std::size_t begin, end;
    std::int64_t line;
  };

  [[noreturn]] void refuse(const std::string& what, const std::string& found, std::int64_t line) const {
    throw Error({.what = what,
                 .expected = "[ {…}, {…} ]",
                 .found = found,
                 .where = bytes_.path() + ":" + std::to_string(line),
                 .fix = "name a file with one object a line .jsonl",
                 .code = ExitCode::usage});
  }

  // Finds where rows begin and end by brackets and quotes alone; a row's own mistakes show when it is parsed.
  void find_rows() {
    const std::string_view text = bytes_.text();
    std::size_t i = text.starts_with("\xEF\xBB\xBF") ? 3 : 0;
    std::int64_t line = 1;
    const auto skip_blanks = [&] {
      for (; i < text.size() && is_blank(text[i]); ++i) line += text[i] == '\n' ? 1 : 0;
    };
    skip_blanks();
    if (i == text.size() || text[i] != '[') {
      refuse("a JSON data set must be a list of objects",
             i == text.size() ? "nothing" : "'" + std::string(text.substr(i, 1)) + "'", line);
    }
    ++i;
    skip_blanks();
    bool ended = i < text.size() && text[i] == ']';
    if (ended) ++i;
    while (!ended) {
      skip_blanks();
      Row row{i, i, line};
      std::int64_t depth = 0;
      bool quoted = false;
      for (;; ++i) {
        if (i == text.size()) refuse("a JSON list has no end", "the end of the file in a row", row.line);
        const char c = text[i];
        line += c == '\n' ? 1 : 0;
        if (quoted) {
          if (c == '\\' && i + 1 < text.size()) {
            ++i;
          } else if (c == '"') {
            quoted = false;
          }
          continue;
        }
        if (c == '"') {
          quoted = true;
        } else if (c == '{' || c == '[') {
          ++depth;
        } else if (depth == 0 && (c == ',' || c == ']')) {
          break;
        } else if (c == '}' || c == ']') {
          if (--depth < 0) refuse("a JSON list has a bracket too many", "'}'", line);
        }
      }
      row.end = i;
      if (row.end - row.begin > kMostRowBytes)
        refuse("a row is too long", std::to_string(row.end - row.begin) + " bytes", row.line);
      rows_.push_back(row);
      ended = text[i++] == ']';
    }
    skip_blanks();
    if (i < text.size()) refuse("something follows a JSON list", "'" + std::string(1, text[i]) + "'", line);
  }

  RowBytes bytes_;
  std::vector<Row> rows_;
};

}  // namespace

std::unique_ptr<RowReader> open_json_list(const std::string& path) {
  return std::make_unique<JsonList>(path);
}

}  // namespace octet::data
