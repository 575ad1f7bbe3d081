// CSV and TSV files.
#include <cstring>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "row_readers.h"

namespace octet::data {
namespace {

class CsvReader : public RowReader {
 public:
  CsvReader(const std::string& path, char separator) : bytes_(path), separator_(separator) {
    find_records();
    if (records_.empty()) return;
    if (take_other_separator()) {
      log::info(path + ": the cells are separated by " +
                    (separator_ == '\t' ? "tabs" : std::string("'") + separator_ + "'"),
                log::Importance::data);
      records_.clear();
      find_records();
    }
    for (const auto& cell : cells(0)) columns_.push_back(cell.text);
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (columns_[i] == columns_[j]) refuse("two columns have the same name", "'" + columns_[i] + "'", 0);
      }
    }
  }
  std::int64_t size() const override {
    return records_.empty() ? 0 : static_cast<std::int64_t>(records_.size()) - 1;
  }
  const std::string& path() const override { return bytes_.path(); }
  std::string where(std::int64_t i) const override {
    return bytes_.path() + ":" + std::to_string(records_.at(static_cast<std::size_t>(i) + 1).line);
  }
  Json row(std::int64_t i) const override {
    const auto record = static_cast<std::size_t>(i) + 1;
    const auto found = cells(record);
    if (found.size() != columns_.size()) {
      refuse("a row has another number of cells than the file has columns",
             std::to_string(found.size()) + " cells for " + std::to_string(columns_.size()) + " columns",
             record);
    }
    Json row = Json::object();
    for (std::size_t c = 0; c < found.size(); ++c) {
      row[columns_[c]] = found[c].text.empty() && !found[c].quoted ? Json() : Json(found[c].text);
    }
    return row;
  }

 private:
  static constexpr std::size_t kMostColumns = 4096;
  struct Record {
    std::size_t begin, end;
    std::int64_t line;
  };
  struct Cell {
    std::string text;
    bool quoted = false;
  };

  [[noreturn]] void refuse(const std::string& what, const std::string& found, std::size_t record) const {
    throw Error(
        {.what = what,
         .found = found,
         .where = bytes_.path() + ":" + std::to_string(records_.at(record).line),
         .fix = "quote cells that hold separators, quotes or line ends, and double the quotes in them",
         .code = ExitCode::usage});
  }

  // Spreadsheets of many countries write semicolons or tabs. With the wrong separator, the header is a single
  // cell.
  bool take_other_separator() {
    if (cells(0).size() != 1) return false;
    const char given = separator_;
    for (const char other : {',', ';', '\t', '|'}) {
      separator_ = other;
      if (cells(0).size() > 1) return true;
    }
    separator_ = given;
    return false;
  }

  // Line ends inside quotes belong to a cell. Quotes open only at the beginning of a cell. Blank lines are
  // skipped.
  void find_records() {
    const std::string_view text = bytes_.text();
    std::size_t begin = text.starts_with("\xEF\xBB\xBF") ? 3 : 0;
    std::int64_t line = 1, first_line = 1;
    bool quoted = false, cell_begins = true;
    for (std::size_t i = begin; i <= text.size(); ++i) {
      const char c = i < text.size() ? text[i] : '\n';
      if (c == '"') {
        if (!quoted) {
          quoted = cell_begins;
        } else if (i + 1 < text.size() && text[i + 1] == '"') {
          ++i;
        } else {
          quoted = false;
        }
      }
      cell_begins = !quoted && (c == separator_ || c == '\n');
      if (i < text.size() && text[i] != '\n') continue;
      ++line;
      if (quoted && i < text.size()) continue;
      if (!trim(text.substr(begin, i - begin)).empty()) records_.push_back({begin, i, first_line});
      if (quoted) refuse("a quoted cell has no end", "the end of the file", records_.size() - 1);
      begin = i + 1;
      first_line = line;
    }
  }

  std::vector<Cell> cells(std::size_t record) const {
    const Record& r = records_.at(record);
    std::string_view text = bytes_.text().substr(r.begin, r.end - r.begin);
    if (text.ends_with('\r')) text.remove_suffix(1);
    if (!is_utf8(text)) {
      throw Error({.what = "a row is not valid UTF-8",
                   .expected = "UTF-8",
                   .found = "bytes of another encoding",
                   .where = bytes_.path() + ":" + std::to_string(r.line),
                   .fix = "convert the file to UTF-8",
                   .code = ExitCode::usage});
    }
    std::vector<Cell> found(1);
    bool quoted = false;
    if (text.size() > kMostRowBytes)
      refuse("a row is too long", std::to_string(text.size()) + " bytes", record);
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (found.size() > kMostColumns) refuse("a row has too many cells", "more than 4096", record);
      Cell& cell = found.back();
      if (text[i] == '"') {
        if (!quoted && cell.text.empty() && !cell.quoted) {
          quoted = cell.quoted = true;
        } else if (quoted && i + 1 < text.size() && text[i + 1] == '"') {
          cell.text += '"';
          ++i;
        } else if (quoted) {
          quoted = false;
        } else {
          cell.text += '"';
        }
      } else if (text[i] == separator_ && !quoted) {
        found.emplace_back();
      } else {
        cell.text += text[i];
      }
    }
    return found;
  }

  RowBytes bytes_;
  char separator_;
  std::vector<Record> records_;
  std::vector<std::string> columns_;
};

}  // namespace

std::unique_ptr<RowReader> open_csv(const std::string& path, char separator) {
  return std::make_unique<CsvReader>(path, separator);
}

}  // namespace octet::data
