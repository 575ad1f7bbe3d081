// Tools and tool calls in a Jinja chat template.
#pragma once

#include "templates/jinja_lines.h"
#include "templates/tool_format.h"

namespace octet::text {

/// Writes statements that add the text of `tools` to `system`.
void write_jinja_tools(Lines& out, const ToolFormat& format);

/// Writes statements that set ns.calls to the text of the tool calls of `message`.
void write_jinja_calls(Lines& out, const ToolFormat& format);

}  // namespace octet::text
