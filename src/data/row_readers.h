// Readers of rows, one per kind of file.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "octet/data/dataset.h"

namespace octet::data {

/// Opens a CSV file. The first record names the columns. Cells are quoted as in RFC 4180 and separated by
/// `separator`. A cell is a text; an empty cell without quotes is null.
std::unique_ptr<RowReader> open_csv(const std::string& path, char separator);

/// Opens a JSON text: a list, a list below a key of one object, or objects that span several lines. Rows are
/// located by brackets and parsed one by one, so the whole file is never parsed at once.
std::unique_ptr<RowReader> open_json(const std::string& path);
/// Whether a JSON text holds one object per line, and not one of the shapes of open_json().
bool is_json_lines(std::string_view text);

/// Opens a Parquet file or an Arrow file or stream (`ending`: "parquet", "arrow", "feather") with Apache
/// Arrow's library. Without that library in the build, throws an Error that names the command to convert the
/// file.
std::unique_ptr<RowReader> open_columns(const std::string& path, const std::string& ending);

}  // namespace octet::data
