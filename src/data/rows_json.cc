// Rows of a whole JSON text: a list, a list below a key of one object, or objects that span several lines.
#include <algorithm>
#include <array>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "row_readers.h"

namespace octet::data {
namespace {

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

std::size_t skip_blanks(std::string_view text, std::size_t at) {
  while (at < text.size() && is_blank(text[at])) ++at;
  return at;
}

std::size_t begin_of(std::string_view text) {
  return skip_blanks(text, text.starts_with("\xEF\xBB\xBF") ? 3 : 0);
}

// Returns the position after the value that begins at `at`, found by brackets and quotes alone. Returns npos
// if the value has no end or one of its strings spans lines.
std::size_t end_of_value(std::string_view text, std::size_t at) {
  std::int64_t depth = 0;
  bool quoted = false;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (quoted) {
      if (c == '\n') return std::string_view::npos;
      if (c == '\\') {
        ++at;
      } else if (c == '"') {
        quoted = false;
        if (depth == 0) return at + 1;
      }
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (depth == 0 && (c == ',' || c == '}' || c == ']' || is_blank(c))) {
      return at;
    } else if ((c == '}' || c == ']') && --depth == 0) {
      return at + 1;
    }
  }
  return depth == 0 && !quoted ? at : std::string_view::npos;
}

// The columns of recognised rows.
constexpr std::array<std::string_view, 13> kColumns{
    "messages", "conversations", "instruction", "prompt",     "question", "input", "user",
    "text",     "output",        "response",    "completion", "answer",   "target"};
// Names of lists that hold rows, also rows with other columns.
constexpr std::array<std::string_view, 9> kLists{"data",  "rows",    "examples", "instances", "items",
                                                 "train", "records", "samples",  "dataset"};

// Names of lists that are parts of one row.
constexpr std::array<std::string_view, 6> kParts{"segments", "turns",    "conversation",
                                                 "dialog",   "dialogue", "history"};

template <typename Names>
bool contains(const Names& names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// Whether a list named `name` with the first object `first` holds rows, and not messages.
bool holds_rows(std::string_view name, std::string_view first) {
  if (contains(kParts, name)) return false;
  try {
    const Json row = parse_json_digits(first, "row");
    if (!row.is_object() || row.contains("role") || row.contains("from")) return false;
    return contains(kLists, name) ||
           std::ranges::any_of(kColumns, [&row](std::string_view column) { return row.contains(column); });
  } catch (const Error&) {
    return contains(kLists, name);
  }
}

// A member of an object that is a list of rows.
struct ListOfRows {
  std::string key;
  std::size_t begin;
};

// Returns the lists of rows in the object that begins at `at`. Returns none if a key of the object is a
// column.
std::vector<ListOfRows> lists_in(std::string_view text, std::size_t at) {
  std::vector<ListOfRows> lists;
  for (at = skip_blanks(text, at + 1); at < text.size() && text[at] == '"';) {
    const std::size_t key_end = end_of_value(text, at);
    if (key_end == std::string_view::npos) return {};
    const std::string_view key = text.substr(at + 1, key_end - at - 2);
    if (contains(kColumns, key)) return {};
    at = skip_blanks(text, key_end);
    if (at == text.size() || text[at] != ':') return {};
    at = skip_blanks(text, at + 1);
    const std::size_t first = at < text.size() && text[at] == '[' ? skip_blanks(text, at + 1) : text.size();
    if (first < text.size() && text[first] == '{') {
      const std::size_t end = end_of_value(text, first);
      const std::size_t length = end == std::string_view::npos ? end : end - first;
      if (holds_rows(key, text.substr(first, length))) lists.push_back({std::string(key), at});
    }
    at = end_of_value(text, at);
    if (at == std::string_view::npos) return {};
    at = skip_blanks(text, at);
    if (at < text.size() && text[at] == ',') at = skip_blanks(text, at + 1);
  }
  return lists;
}

class JsonRows : public RowReader {
 public:
  explicit JsonRows(const std::string& path) : bytes_(path) { find_rows(); }
  std::int64_t size() const override { return static_cast<std::int64_t>(rows_.size()); }
  Json row(std::int64_t i) const override {
    const Row& r = rows_.at(static_cast<std::size_t>(i));
    return parse_json_digits(bytes_.text().substr(r.begin, r.end - r.begin), where(i));
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

  [[noreturn]] void refuse(const std::string& what, const std::string& found, std::int64_t line,
                           const std::string& fix) const {
    throw Error({.what = what,
                 .expected = "[ {…}, {…} ], or an object a line",
                 .found = found,
                 .where = bytes_.path() + ":" + std::to_string(line),
                 .fix = fix,
                 .code = ExitCode::usage});
  }

  std::int64_t line_of(std::size_t at) const {
    return 1 + std::ranges::count(bytes_.text().substr(0, at), '\n');
  }

  void find_rows() {
    const std::string_view text = bytes_.text();
    const std::size_t begin = begin_of(text);
    if (begin == text.size() || (text[begin] != '[' && text[begin] != '{')) {
      refuse("a JSON data set must be a list of objects",
             begin == text.size() ? "nothing" : "'" + std::string(text.substr(begin, 1)) + "'",
             line_of(begin), "write the rows as a list, or as one object a line");
    }
    if (text[begin] == '[') {
      const std::size_t end = skip_blanks(text, find_list(begin));
      if (end == text.size()) return;
      refuse("something follows a JSON list", "'" + std::string(1, text[end]) + "'", line_of(end),
             "write one list, or one object a line");
    }
    const std::size_t end = end_of_value(text, begin);
    const bool alone = end != std::string_view::npos && skip_blanks(text, end) == text.size();
    const std::vector<ListOfRows> lists = alone ? lists_in(text, begin) : std::vector<ListOfRows>{};
    if (lists.size() > 1) {
      std::string keys;
      for (const auto& list : lists) keys += (keys.empty() ? "'" : ", '") + list.key + "'";
      refuse("a JSON data set is an object with several lists of rows", keys, line_of(begin),
             "write the wanted list into a separate file");
    }
    if (lists.size() == 1) {
      find_list(lists[0].begin);
      log::info(bytes_.path() + ": the rows are the list '" + lists[0].key + "' of one object",
                log::Importance::data);
      return;
    }
    find_values(begin);
    if (rows_.size() > 1)
      log::info(bytes_.path() + ": the rows are objects that span several lines", log::Importance::data);
  }

  void keep(std::size_t begin, std::size_t end, std::int64_t line) {
    if (end - begin > kMostRowBytes) {
      refuse("a row is too long", std::to_string(end - begin) + " bytes", line,
             "cut its text into several rows");
    }
    rows_.push_back({begin, end, line});
  }

  // Finds consecutive objects. After an object without an end there are no further rows.
  void find_values(std::size_t at) {
    const std::string_view text = bytes_.text();
    std::int64_t line = line_of(at);
    while (at < text.size()) {
      const std::size_t found = text[at] == '{' ? end_of_value(text, at) : std::string_view::npos;
      const std::size_t end = std::min(found, text.size());
      keep(at, end, line);
      const std::size_t next = skip_blanks(text, end);
      line += std::ranges::count(text.substr(at, next - at), '\n');
      at = next;
    }
  }

  // Finds the begin and end of each row of a list. Errors inside a row are reported when it is parsed.
  // Returns the position after the list.
  std::size_t find_list(std::size_t i) {
    const std::string_view text = bytes_.text();
    std::int64_t line = line_of(i);
    const auto blanks = [&] {
      for (; i < text.size() && is_blank(text[i]); ++i) line += text[i] == '\n' ? 1 : 0;
    };
    ++i;
    blanks();
    bool ended = i < text.size() && text[i] == ']';
    if (ended) ++i;
    while (!ended) {
      blanks();
      const std::size_t begin = i;
      const std::int64_t first_line = line;
      std::int64_t depth = 0;
      bool quoted = false;
      for (;; ++i) {
        if (i == text.size()) {
          refuse("a JSON list has no end", "the end of the file in a row", first_line,
                 "fetch or write the file again: it was cut short, or lacks a bracket or a quote");
        }
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
          if (--depth < 0)
            refuse("a JSON list has a bracket too many", "'}'", line, "remove the bracket there");
        }
      }
      keep(begin, i, first_line);
      ended = text[i++] == ']';
    }
    return i;
  }

  RowBytes bytes_;
  std::vector<Row> rows_;
};

}  // namespace

bool is_json_lines(std::string_view text) {
  const std::size_t begin = begin_of(text);
  if (begin == text.size() || (text[begin] != '[' && text[begin] != '{')) return true;
  const std::size_t end = end_of_value(text, begin);
  const bool list = text[begin] == '[';
  if (end == std::string_view::npos) return !list;
  const bool alone = skip_blanks(text, end) == text.size();
  if (list) return !alone;
  const bool one_line = text.substr(begin, end - begin).find('\n') == std::string_view::npos;
  return one_line && (!alone || lists_in(text, begin).empty());
}

std::unique_ptr<RowReader> open_json(const std::string& path) {
  return std::make_unique<JsonRows>(path);
}

}  // namespace octet::data
