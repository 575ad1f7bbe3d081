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

PythonJson wrapped(const PythonJson& tool) {
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

std::string describe(const PythonJson& given, std::string& names) {
  if (!given.is(Kind::object)) throw Refusal{"a tool is not a JSON object"};
  const PythonJson& tool = is_function(given) ? member(given, "function") : given;
  const PythonJson& parameters = member(tool, "parameters");
  const PythonJson& properties = member(parameters, "properties");
  if (!properties.is(Kind::object)) throw Refusal{"'properties' of a tool is not a JSON object"};
  std::string list;
  for (const auto& [name, param] : properties.members) {
    list += describe_parameter(name, param, parameters.find("required"));
  }
  const PythonJson& name = member(tool, "name");
  if (!name.is(Kind::string)) throw Refusal{"the name of a tool is not a string"};
  names += (names.empty() ? "" : ", ") + name.text;
  return "> Tool Name: " + name.text + "\nTool Description: " + optional_str(tool, "description") +
         "\nTool Args:\n" + list + "\n";
}

std::vector<ToolFormat> read_formats() {
  std::vector<ToolFormat> out;
  const Json table = parse_json(template_table(), "the table of templates");
  for (const auto& row : table.at("tool_formats")) out.emplace_back(row);
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
  const Json& tool = row.at("tool");
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
  const std::string list = json_string(call, "list", "never", where);
  call_list = list == "always" ? List::always : list == "when several" ? List::several : List::never;
}

std::string ToolFormat::write_tools(const std::string& tools, const std::string& date) const {
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
    for (const auto& tool : parsed->items) list.items.push_back(wrapped(tool));
    text = dump_python_json(list);
  } else {
    for (const auto& tool : parsed->items) {
      text += tool_before + dump_python_json(wrapped(tool), tool_indent) + tool_after;
    }
  }
  // Later marks are replaced first, because an inserted text may contain a mark.
  return fill(fill(fill(prompt, "names", names), "tools", text), "date", date);
}

std::string ToolFormat::write_calls(const std::string& content) const {
  auto parsed = parse_python_json(content);
  if (!parsed) throw Refusal{"a function call is not JSON"};
  if (!parsed->is(Kind::list)) {
    PythonJson one{Kind::list, "", {}, {}};
    one.items.push_back(std::move(*parsed));
    *parsed = std::move(one);
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
  for (const auto& format : formats()) out.push_back(format.name);
  return out;
}

std::string fill(std::string text, const std::string& name, const std::string& value) {
  const std::string mark = "{{" + name + "}}";
  const std::size_t at = text.find(mark);
  if (at != std::string::npos) text.replace(at, mark.size(), value);
  return text;
}

}  // namespace octet::text
