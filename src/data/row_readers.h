// The kinds of files that rows come from.
#pragma once

#include <memory>
#include <string>

#include "octet/data/dataset.h"

namespace octet::data {

/// Rows of a text file whose first record names the columns: quoted as RFC 4180 says, `separator` between
/// cells. A cell is a text; one that is empty and not quoted is null.
std::unique_ptr<RowReader> open_csv(const std::string& path, char separator);

/// Rows of a JSON list, found by its brackets and parsed one by one, so that memory never holds the file.
std::unique_ptr<RowReader> open_json_list(const std::string& path);

/// Parquet, or Arrow's file and stream formats ("parquet", "arrow", "feather"), by Apache Arrow's library.
/// Throws Error naming the conversion when the program was built without it.
std::unique_ptr<RowReader> open_columns(const std::string& path, const std::string& ending);

}  // namespace octet::data
