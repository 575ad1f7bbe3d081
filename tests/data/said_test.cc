// Exact texts for rows of files: the rows, their samples, and the errors of invalid rows.
#include <gtest/gtest.h>

#include <functional>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/data/dataset.h"
#include "support/page.h"
#include "support/program.h"

namespace octet::data::said_test {
namespace {

std::string answer_of(const std::function<std::string()>& body) {
  try {
    return body();
  } catch (const Error& e) {
    return std::string(e.what()) + "\n";
  }
}

/// A question is the name of a file, a blank, and its contents as a JSON string.
TEST(Said, OfRowsOfFiles) {
  const test::TemporaryFolder folder("said_rows");
  test::expect_page("data/said/files.txt", [&](const std::string& question) {
    const std::size_t blank = question.find(' ');
    const std::string path = folder / question.substr(0, blank);
    test::spill(path, parse_json(question.substr(blank + 1), "question").get<std::string>());
    std::string said = answer_of([&] {
      const auto rows = open_rows(path);
      std::string text = std::to_string(rows->size()) + " rows\n";
      for (std::int64_t i = 0; i < rows->size(); ++i)
        text += rows->where(i) + ": " + answer_of([&] { return rows->row(i).dump(); }) + "\n";
      return text;
    });
    for (std::size_t at; (at = said.find(folder.path())) != std::string::npos;)
      said.replace(at, folder.path().size(), "FOLDER");
    return said;
  });
}

std::string shown(const Json& row, const RowFormat& format) {
  std::string why;
  const auto sample = convert_row(row, format, &why);
  if (!sample) return "left out: " + why + "\n";
  std::string text = sample->plain ? "text: " + sample->text + "\n" : "";
  if (!sample->system.empty()) text += "system: " + sample->system + "\n";
  if (!sample->tools.empty()) text += "tools: " + sample->tools + "\n";
  for (const auto& turn : sample->turns) text += turn.role + ": " + turn.content + "\n";
  return text;
}

/// A question is a row with automatic format. Before the row, it may have an entry of dataset_info.json, or
/// "columns" and the columns of a configuration.
TEST(Said, OfWhatRowsBecome) {
  test::expect_page("data/said/rows.txt", [](const std::string& question) {
    return answer_of([&] {
      const std::size_t end = question.find('\n');
      const std::string first = question.substr(0, end), second = question.substr(end + 1);
      if (second.empty()) {
        const Json row = parse_json(first, "row");
        return shown(row, detect_format(row, "FILE:1"));
      }
      const Json row = parse_json(second, "row");
      if (!first.starts_with("columns "))
        return shown(row, format_of_entry(parse_json(first, "entry"), "name", "INFO"));
      const Json names = parse_json(first.substr(8), "columns");
      return shown(row, format_of_columns({.messages = names.value("messages", ""),
                                           .prompt = names.value("prompt", ""),
                                           .response = names.value("response", "")},
                                          row));
    });
  });
}

}  // namespace
}  // namespace octet::data::said_test
