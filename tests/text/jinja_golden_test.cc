// Methods of str, filters and white space in Jinja give the results of Python and jinja2
// (tests/golden/make/make_jinja).
#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "golden.h"
#include "octet/base/error.h"
#include "octet/text/jinja.h"

namespace octet::text::jinja_golden_test {
namespace {

/// Returns the output of a template; nothing if it fails.
std::optional<std::string> written(const std::string& source, const Json& variables) {
  try {
    return JinjaTemplate(source).render(variables);
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<std::string> text_of(const Json& json) {
  return json.is_null() ? std::nullopt : std::optional<std::string>(json.get<std::string>());
}

TEST(JinjaGolden, MethodsAndFiltersOfTextsGiveWhatPythonGives) {
  int answers = 0;
  const int texts =
      each_case(golden_path("jinja/texts.jsonl"), [&](const Json& line, const std::string& where) {
        for (const auto& [expression, answer] : line["answers"].items()) {
          ++answers;
          EXPECT_EQ(written("{{ [" + expression + "] }}", {{"x", line["x"]}}), text_of(answer))
              << where << ": " << expression << " of " << line["x"];
        }
      });
  EXPECT_EQ(texts, 92);
  EXPECT_GT(answers, 7500);
}

// Unsupported features are refused, never ignored.
TEST(JinjaGolden, TemplatesGiveWhatPythonGivesOrAreRefused) {
  const std::set<std::string> refused{
      "format",    "% 1",        "casefold",  "encode",      "escape",    "urlencode",      "truncate",
      "wordwrap",  "batch",      "slice",     "dictsort",    "striptags", "filesizeformat", "xmlattr",
      "groupby",   "|attr(",     "pprint",    "round(1)",    "round(0,",  "int(base",       "isidentifier",
      "sort_keys", "separators", "translate", "ensure_ascii"};
  each_case(golden_path("jinja/templates.jsonl"), [&](const Json& line, const std::string& where) {
    const auto source = line["template"].get<std::string>();
    const bool built = std::ranges::none_of(
        refused, [&](const std::string& name) { return source.find(name) != std::string::npos; });
    EXPECT_EQ(written(source, Json::object()), built ? text_of(line["text"]) : std::nullopt)
        << where << ": " << source;
  });
}

}  // namespace
}  // namespace octet::text::jinja_golden_test
