// The table of chat templates and tool formats, as JSON text.
#pragma once

#include <string_view>

namespace octet::text {

/// {"tool_formats": [...], "templates": [...]}. template_table.cc documents the fields.
std::string_view template_table();

}  // namespace octet::text
