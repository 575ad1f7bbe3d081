// The fields of rows and messages that other programs write. One table defines how each is handled.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "octet/base/json_fwd.h"
#include "octet/data/dataset.h"

namespace octet::data {

/// Notes of one row. A set, because each note counts once per row.
using Noted = std::set<std::string>;

/// Checks the columns of a row that its format does not name. Throws Unusable for a column that masks or
/// replaces trained text and is not read.
void check_row_fields(const Json& row, const RowFormat& format, Noted& noted);

/// Checks the fields of a message, and returns whether it is trained. `turn` is its role as in Turn, or
/// "system". Throws Unusable for a field that masks or replaces trained text and is not read.
bool check_message_fields(const Json& message, const RowFormat& format, std::string_view turn, Noted& noted);

/// Checks the fields of a part of an answer's content. Throws Unusable for a field that masks or replaces
/// trained text. `content` is the field of the content.
void check_part_fields(const Json& part, const std::string& content);

/// Whether every format reads a column of this name.
bool is_read_column(const std::string& name);

/// Whether a field of this name changes the text of a message or whether it is trained.
bool is_read_message_field(const std::string& name, const RowFormat& format);

/// Columns that the format names.
std::set<std::string> named_columns(const RowFormat& format);

/// Columns that hold a system text if the column of the format has none.
inline constexpr const char* kSystemColumns[] = {"system_prompt", "system_message"};
/// The note of a row with two system texts.
inline constexpr const char* kOtherSystem = "both a system message and a column with a system text";
/// Fields that hold the thoughts of an answer.
inline constexpr const char* kThoughtFields[] = {"reasoning_content", "reasoning", "thinking", "thought"};

}  // namespace octet::data
