// The format of tools and tool calls in a template.
#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "jinja/python_json.h"
#include "octet/base/json_fwd.h"

namespace octet::text {

/// Thrown for a conversation that cannot be written. It becomes Outcome::refused.
struct Refusal {
  std::string reason;
};

/// One row of the table's tool formats.
struct ToolFormat {
  enum class List { never, several, always };
  /// How a tool is written: as {"type": "function", "function": ...}, without this object, or as in the data.
  enum class Wrap { wrapped, bare, given };
  std::string name, prompt;
  std::string refused;  ///< why tools and calls are refused; "" for a format that can be written
  std::string tool_form, tool_before, tool_after;
  int tool_indent = 0;
  Wrap tool_wrap = Wrap::wrapped;
  std::string call_form, call_text, call_arguments, call_before, call_after, call_between;
  std::string call_parameter;  ///< an argument of a call, with {{key}} and {{value}}
  List call_list = List::never;
  std::size_t most_calls = std::numeric_limits<std::size_t>::max();

  explicit ToolFormat(const Json& row);
  /// Returns the text that describes `tools`, a JSON list; "" for an empty list. `date` is like "09 Mar
  /// 2026". Throws Refusal.
  std::string write_tools(const std::string& tools, const std::string& date) const;
  /// Reprints `content`, one call or a list of calls as JSON. Throws Refusal.
  std::string write_calls(const std::string& content) const;
};

/// Returns null if there is no such format.
const ToolFormat* find_tool_format(const std::string& name);
std::vector<std::string> tool_format_names();

/// Returns `text` with the first `{{name}}` replaced.
std::string fill(std::string text, const std::string& name, const std::string& value);

}  // namespace octet::text
