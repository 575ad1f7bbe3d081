// The kinds of files that rows come from.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "octet/data/dataset.h"

namespace octet::data {

/// Rows of a text file whose first record names the columns: quoted as RFC 4180 says, `separator` between
/// cells. A cell is a text; one that is empty and not quoted is null.
std::unique_ptr<RowReader> open_csv(const std::string& path, char separator);

/// Rows of a JSON text: a list, a list below a key of one object, or objects that span several lines. They
/// are found by brackets and parsed one by one, so that memory never holds the file.
std::unique_ptr<RowReader> open_json(const std::string& path);
/// Whether a JSON text holds an object a line, rather than one of the shapes of open_json().
bool is_json_lines(std::string_view text);

/// Parquet, or Arrow's file and stream formats ("parquet", "arrow", "feather"), by Apache Arrow's library.
/// Throws Error naming the conversion when the program was built without it.
std::unique_ptr<RowReader> open_columns(const std::string& path, const std::string& ending);

}  // namespace octet::data
