#include "templates/jinja_tools.h"

#include <limits>
#include <utility>
#include <vector>

#include "octet/base/error.h"

namespace octet::text {
namespace {

/// Returns an expression for a tool with or without {"type": "function", "function": ...}.
std::string tool_expression(const ToolFormat& format) {
  switch (format.tool_wrap) {
    case ToolFormat::Wrap::bare:
      return "(tool['function'] if tool['type'] == 'function' else tool)";
    case ToolFormat::Wrap::given:
      return "tool";
    case ToolFormat::Wrap::wrapped:
      break;
  }
  return "(tool if tool['type'] == 'function' else {'type': 'function', 'function': tool})";
}

/// Adds `text` with each {{mark}} replaced by the value of an expression.
void add_marked(Joined& to, std::string_view text,
                const std::vector<std::pair<std::string, std::string>>& values) {
  while (!text.empty()) {
    std::size_t first = std::string_view::npos;
    const std::pair<std::string, std::string>* next = nullptr;
    for (const auto& one : values) {
      const std::size_t at = text.find("{{" + one.first + "}}");
      if (at >= first) continue;
      first = at;
      next = &one;
    }
    to.literal(text.substr(0, first));
    if (next == nullptr) return;
    to.expression(next->second);
    text.remove_prefix(first + next->first.size() + 4);
  }
}

/// Writes descriptions of tools into ns.tools, and their names into ns.names. Servers may pass tools without
/// parameters, or parameters without properties. These tools have no arguments.
void describe_tools(Lines& out) {
  out.set("f", "tool['function'] if tool['type'] == 'function' else tool");
  out.set("ns.names", "ns.names + (', ' if ns.names else '') + f['name']");
  out.set("ns.tools",
          "ns.tools + '> Tool Name: ' + f['name'] + '\\nTool Description: ' ~ "
          "f.get('description', '') ~ '\\nTool Args:\\n'");
  out.set("parameters", "f.get('parameters') or {}");
  out.set("required", "parameters.get('required') or []");
  out.tag("for name, p in (parameters.get('properties') or {}) | items");
  out.set(
      "ns.tools",
      "ns.tools + '  - ' + name + ' (' ~ p.get('type', '') ~ (', required' if name in required else '') ~ "
      "'): ' ~ p.get('description', '')");
  out.tag("if p.get('enum')");
  out.set("ns.tools", "ns.tools + ', should be one of [' + p['enum'] | join(', ') + ']'");
  out.tag("endif").tag("if p.get('items')");
  out.set("ns.tools", "ns.tools + ', where each item should be ' ~ p['items'].get('type', '')");
  out.tag("endif");
  out.set("ns.tools", "ns.tools + '\\n'");
  out.tag("endfor");
  out.set("ns.tools", "ns.tools + '\\n'");
}

/// Returns the format's prompt with tools, names and date inserted.
std::string tools_prompt(const ToolFormat& format) {
  Joined out;
  std::string_view rest = format.prompt;
  while (!rest.empty()) {
    const std::size_t open = rest.find("{{");
    out.literal(rest.substr(0, open));
    if (open == std::string_view::npos) break;
    const std::size_t close = rest.find("}}", open);
    const std::string_view name = rest.substr(open + 2, close - open - 2);
    out.expression(name == "tools" ? "ns.tools" : name == "names" ? "ns.names" : "strftime_now('%d %b %Y')");
    rest = rest.substr(close + 2);
  }
  return out.text();
}

/// Writes the arguments of the call `f` into ns.parameters.
void write_call_arguments(Lines& out, const ToolFormat& format) {
  out.tag("if f['arguments'] is string");
  out.print("raise_exception('the arguments of a tool call must be an object')").tag("endif");
  out.set("ns.parameters", "''");
  out.tag("for key, value in f['arguments'] | items");
  Joined one;
  one.expression("ns.parameters");
  add_marked(one, format.call_parameter,
             {{"key", "key"}, {"value", "(value if value is string else value | tojson)"}});
  out.set("ns.parameters", one.text()).tag("endfor");
}

}  // namespace

void write_jinja_tools(Lines& out, const ToolFormat& format) {
  out.tag("if tools");
  if (!format.refused.empty()) {
    out.print("raise_exception(" + jinja_string(format.refused) + ")").tag("endif");
    return;
  }
  out.tag("for tool in tools");
  if (format.tool_form == "description") {
    describe_tools(out);
  } else if (format.tool_form == "json list" || format.tool_form == "raw") {
    out.set("ns.tools", "ns.tools + (', ' if ns.tools else '') + " + tool_expression(format) + " | tojson");
  } else {
    const std::string indent =
        format.tool_indent > 0 ? "(indent=" + std::to_string(format.tool_indent) + ")" : "";
    const std::string tool = tool_expression(format);
    Joined one;
    one.expression("ns.tools");
    add_marked(one, format.tool_before, {{"name", tool + "['name']"}});
    one.expression(tool + " | tojson" + indent);
    one.literal(format.tool_after);
    out.set("ns.tools", one.text());
  }
  out.tag("endfor");
  if (format.tool_form == "json list" || format.tool_form == "raw")
    out.set("ns.tools", "'[' + ns.tools + ']'");
  out.set("system", "system + " + tools_prompt(format));
  out.tag("endif");
}

void write_jinja_calls(Lines& out, const ToolFormat& format) {
  using List = ToolFormat::List;
  if (!format.refused.empty()) {
    out.print("raise_exception(" + jinja_string(format.refused) + ")");
    return;
  }
  if (format.most_calls < std::numeric_limits<std::size_t>::max()) {
    const std::string most = std::to_string(format.most_calls);
    out.tag("if message['tool_calls'] | length > " + most);
    out.print("raise_exception('at most " + most + " tool calls in an answer can be written')").tag("endif");
  }
  out.set("ns.calls", "''");
  out.tag("for call in message['tool_calls']");
  out.set("f", "call['function'] if call['function'] else call");
  out.set("arguments", "f['arguments'] if f['arguments'] is string else f['arguments'] | tojson");
  Joined one;
  if (format.call_form == "parameters") {
    write_call_arguments(out, format);
    add_marked(one, format.call_before, {{"name", "f['name']"}});
    one.expression("ns.parameters");
    one.literal(format.call_after);
  } else if (format.call_form == "text") {
    const std::string& text = format.call_text;
    const std::size_t name = text.find("{{name}}"), arguments = text.find("{{arguments}}");
    check(name < arguments && arguments != std::string::npos, "a call names its function first");
    one.literal(std::string_view(text).substr(0, name));
    one.expression("f['name']");
    one.literal(std::string_view(text).substr(name + 8, arguments - name - 8));
    one.expression("arguments");
    one.literal(std::string_view(text).substr(arguments + 13));
  } else {
    if (format.call_list == List::never) one.literal(format.call_before);
    one.literal("{\"name\": ");
    one.expression("f['name'] | tojson");
    one.literal(", \"" + format.call_arguments + "\": ");
    one.expression("arguments");
    one.literal("}");
    if (format.call_list == List::never) one.literal(format.call_after);
  }
  const bool apart = format.call_form != "json" || format.call_list == List::never;
  const std::string between = jinja_string(apart ? format.call_between : ", ");
  out.set("ns.calls", "ns.calls + (" + between + " if ns.calls else '') + " + one.text());
  out.tag("endfor");
  if (apart) return;
  if (format.call_list == List::always) {
    out.set("ns.calls", "'[' + ns.calls + ']'");
  } else {
    out.set("ns.calls", "'[' + ns.calls + ']' if message['tool_calls'] | length > 1 else ns.calls");
  }
}

}  // namespace octet::text
