#include "templates/tool_format.h"

#include <algorithm>

#include "octet/base/json.h"
#include "templates/template_row.h"

namespace octet::text {
namespace {

using Kind = PythonJson::Kind;

/// Returns Python's str(value) of a plain value. Throws Refusal for lists and objects: the reference prints
/// these with Python's repr, which is no format of tools.
std::string python_str(const PythonJson& value, const std::string& what) {
  switch (value.kind) {
    case Kind::string:
    case Kind::number:
      return value.text;
    case Kind::null:
      return "None";
    case Kind::boolean:
      return value.text == "true" ? "True" : "False";
    default:
      throw Refusal{what + " of a tool is not plain text"};
  }
}

bool truthy(const PythonJson* value) {
  if (!value) return false;
  switch (value->kind) {
    case Kind::null:
      return false;
    case Kind::boolean:
      return value->text == "true";
    case Kind::number:
      return value->text.find_first_not_of("-0.") != std::string::npos;
    case Kind::string:
      return !value->text.empty();
    case Kind::list:
      return !value->items.empty();
    case Kind::object:
      return !value->members.empty();
  }
  return false;
}

const PythonJson& member(const PythonJson& object, const char* key) {
  const PythonJson* found = object.is(Kind::object) ? object.find(key) : nullptr;
  if (!found) throw Refusal{"a tool lacks '" + std::string(key) + "'"};
  return *found;
}

std::string optional_str(const PythonJson& object, const char* key) {
  const PythonJson* found = object.find(key);
  return found ? python_str(*found, key) : "";
}

bool is_function(const PythonJson& tool) {
  const PythonJson* type = tool.find("type");
  return type && type->is(Kind::string) && type->text == "function";
}

/// Returns a tool without {"type": "function", "function": ...}.
const PythonJson& bare_tool(const PythonJson& tool) {
  if (!tool.is(Kind::object)) throw Refusal{"a tool is not a JSON object"};
  return is_function(tool) ? member(tool, "function") : tool;
}

PythonJson written_tool(const PythonJson& tool, ToolFormat::Wrap wrap) {
  if (wrap == ToolFormat::Wrap::given) return tool;
  if (wrap == ToolFormat::Wrap::bare) return bare_tool(tool);
  if (!tool.is(Kind::object)) throw Refusal{"a tool is not a JSON object"};
  if (is_function(tool)) return tool;
  PythonJson out{Kind::object, "", {}, {}};
  out.members.emplace_back("type", PythonJson::string("function"));
  out.members.emplace_back("function", tool);
  return out;
}

std::string describe_parameter(const std::string& name, const PythonJson& param, const PythonJson* required) {
  if (!param.is(Kind::object)) throw Refusal{"a parameter of a tool is not a JSON object"};
  std::string out = "  - " + name + " (" + optional_str(param, "type");
  if (required) {
    if (!required->is(Kind::list)) throw Refusal{"'required' of a tool is not a list"};
    const auto& items = required->items;
    const bool needed = std::any_of(items.begin(), items.end(), [&](const auto& item) {
      return item.is(Kind::string) && item.text == name;
    });
    if (needed) out += ", required";
  }
  out += "): " + optional_str(param, "description");
  if (const PythonJson* values = param.find("enum"); truthy(values)) {
    if (!values->is(Kind::list)) throw Refusal{"'enum' of a tool is not a list"};
    out += ", should be one of [";
    for (std::size_t i = 0; i < values->items.size(); ++i) {
      if (!values->items[i].is(Kind::string))
        throw Refusal{"'enum' of a tool holds something other than strings"};
      out += (i > 0 ? ", " : "") + values->items[i].text;
    }
    out += "]";
  }
  if (const PythonJson* items = param.find("items"); truthy(items)) {
    if (!items->is(Kind::object)) throw Refusal{"'items' of a tool is not a JSON object"};
    out += ", where each item should be " + optional_str(*items, "type");
  }
  return out + "\n";
}

std::string name_of_tool(const PythonJson& tool) {
  const PythonJson& name = member(tool, "name");
  if (!name.is(Kind::string)) throw Refusal{"the name of a tool is not a string"};
  return name.text;
}

std::string describe(const PythonJson& given, std::string& names) {
  const PythonJson& tool = bare_tool(given);
  const PythonJson& parameters = member(tool, "parameters");
  const PythonJson& properties = member(parameters, "properties");
  if (!properties.is(Kind::object)) throw Refusal{"'properties' of a tool is not a JSON object"};
  std::string list;
  for (const auto& [name, param] : properties.members) {
    list += describe_parameter(name, param, parameters.find("required"));
  }
  const std::string name = name_of_tool(tool);
  names += (names.empty() ? "" : ", ") + name;
  return "> Tool Name: " + name + "\nTool Description: " + optional_str(tool, "description") +
         "\nTool Args:\n" + list + "\n";
}

/// Returns the arguments of a call, each written with the format's text for one argument.
std::string write_parameters(const ToolFormat& format, const PythonJson& arguments) {
  if (!arguments.is(Kind::object)) throw Refusal{"the arguments of a function call are not an object"};
  std::string out;
  for (const auto& [key, value] : arguments.members) {
    const std::string text = value.is(Kind::string) ? value.text : dump_python_json(value);
    out += fill(fill(format.call_parameter, "value", text), "key", key);
  }
  return out;
}

/// Throws Refusal if the format cannot be written.
void require_writable(const ToolFormat& format) {
  if (!format.refused.empty()) throw Refusal{format.refused + "; set tool_format, or remove the row"};
}

std::vector<ToolFormat> read_formats() {
  std::vector<ToolFormat> out;
  for (const auto& row : template_table().at("tool_formats")) out.emplace_back(row);
  return out;
}

const std::vector<ToolFormat>& formats() {
  static const std::vector<ToolFormat> all = read_formats();
  return all;
}

}  // namespace

ToolFormat::ToolFormat(const Json& row) {
  const std::string where = "the table of tool formats";
  name = json_string(row, "name", "", where);
  prompt = json_string(row, "prompt", "", where);
  refused = json_string(row, "refused", "", where);
  if (!refused.empty()) return;
  const Json& tool = row.at("tool");
  const std::string wrap = json_string(tool, "as", "wrapped", where);
  tool_wrap = wrap == "bare" ? Wrap::bare : wrap == "given" ? Wrap::given : Wrap::wrapped;
  tool_form = json_string(tool, "form", "", where);
  tool_before = json_string(tool, "before", "", where);
  tool_after = json_string(tool, "after", "", where);
  tool_indent = static_cast<int>(json_int(tool, "indent", 0, 0, 16, where));
  const Json& call = row.at("call");
  call_form = json_string(call, "form", "", where);
  call_text = json_string(call, "text", "", where);
  call_arguments = json_string(call, "arguments", "", where);
  call_before = json_string(call, "before", "", where);
  call_after = json_string(call, "after", "", where);
  call_between = json_string(call, "between", "", where);
  call_parameter = json_string(call, "parameter", "", where);
  if (call.contains("most")) most_calls = call.at("most").get<std::size_t>();
  const std::string list = json_string(call, "list", "never", where);
  call_list = list == "always" ? List::always : list == "when several" ? List::several : List::never;
}

std::string ToolFormat::write_tools(const std::string& tools, const std::string& date) const {
  require_writable(*this);
  if (tool_form == "raw") return fill(prompt, "tools", tools);
  const auto parsed = parse_python_json(tools);
  if (!parsed) throw Refusal{"the tools are not JSON"};
  if ((parsed->is(Kind::list) && parsed->items.empty()) ||
      (parsed->is(Kind::object) && parsed->members.empty()) ||
      (parsed->is(Kind::string) && parsed->text.empty())) {
    return "";
  }
  if (!parsed->is(Kind::list)) throw Refusal{"the tools are not a JSON list"};
  std::string text, names;
  if (tool_form == "description") {
    for (const auto& tool : parsed->items) text += describe(tool, names);
  } else if (tool_form == "json list") {
    PythonJson list{Kind::list, "", {}, {}};
    for (const auto& tool : parsed->items) list.items.push_back(written_tool(tool, tool_wrap));
    text = dump_python_json(list);
  } else {
    for (const auto& tool : parsed->items) {
      const PythonJson one = written_tool(tool, tool_wrap);
      const bool named = tool_before.find("{{name}}") != std::string::npos;
      text += named ? fill(tool_before, "name", name_of_tool(one)) : tool_before;
      text += dump_python_json(one, tool_indent) + tool_after;
    }
  }
  // Later marks are replaced first, because an inserted text may contain a mark.
  return fill(fill(fill(prompt, "names", names), "tools", text), "date", date);
}

std::string ToolFormat::write_calls(const std::string& content) const {
  require_writable(*this);
  auto parsed = parse_python_json(content);
  if (!parsed) throw Refusal{"a function call is not JSON"};
  if (!parsed->is(Kind::list)) {
    PythonJson one{Kind::list, "", {}, {}};
    one.items.push_back(std::move(*parsed));
    *parsed = std::move(one);
  }
  if (parsed->items.size() > most_calls) {
    throw Refusal{"an answer has several function calls, and the tool format " + name + " writes only " +
                  std::to_string(most_calls) + "; set tool_format, or remove the row"};
  }
  std::string text;
  PythonJson list{Kind::list, "", {}, {}};
  for (const auto& call : parsed->items) {
    const PythonJson* function = call.is(Kind::object) ? call.find("name") : nullptr;
    const PythonJson* arguments = call.is(Kind::object) ? call.find("arguments") : nullptr;
    if (!function || !arguments || !function->is(Kind::string))
      throw Refusal{"a function call lacks its name or arguments"};
    if (call_form == "text") {
      if (!text.empty()) text += call_between;
      text += fill(fill(call_text, "arguments", dump_python_json(*arguments)), "name", function->text);
      continue;
    }
    if (call_form == "parameters") {
      if (!text.empty()) text += call_between;
      text += fill(call_before, "name", function->text) + write_parameters(*this, *arguments) + call_after;
      continue;
    }
    PythonJson object{Kind::object, "", {}, {}};
    object.members.emplace_back("name", *function);
    object.members.emplace_back(call_arguments, *arguments);
    if (call_list == List::never) {
      if (!text.empty()) text += call_between;
      text += call_before + dump_python_json(object) + call_after;
    } else {
      list.items.push_back(std::move(object));
    }
  }
  if (call_form == "text" || call_list == List::never) return text;
  const bool single = call_list == List::several && list.items.size() == 1;
  return dump_python_json(single ? list.items[0] : list);
}

const ToolFormat* find_tool_format(const std::string& name) {
  for (const auto& format : formats()) {
    if (format.name == name) return &format;
  }
  return nullptr;
}

std::vector<std::string> tool_format_names() {
  std::vector<std::string> out;
  for (const auto& format : formats()) {
    if (format.refused.empty() && format.tool_form != "raw") out.push_back(format.name);
  }
  return out;
}

std::string fill(std::string text, const std::string& name, const std::string& value) {
  const std::string mark = "{{" + name + "}}";
  const std::size_t at = text.find(mark);
  if (at != std::string::npos) text.replace(at, mark.size(), value);
  return text;
}

}  // namespace octet::text
