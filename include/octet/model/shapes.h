#pragma once

#include <string>
#include <vector>

#include "octet/model/architecture.h"

namespace octet::model {

/// Names of shapes that need no folder: "llama-3.1-8b", … and "tiny", a model of two million parameters for a
/// first try on a CPU.
std::vector<std::string> shape_names();

/// The architecture of a Hugging Face folder (its config.json alone is read), of a config.json, or of a shape
/// with a name. Throws Error, which lists the names, for anything else.
Architecture find_shape(const std::string& folder_file_or_name);

}  // namespace octet::model
