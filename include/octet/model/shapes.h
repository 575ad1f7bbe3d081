#pragma once

#include <string>
#include <vector>

#include "octet/model/architecture.h"

namespace octet::model {

/// Names of shapes that need no folder: "llama-3.1-8b", … and "tiny", a model of two million parameters for a
/// first try on a CPU.
std::vector<std::string> shape_names();

/// Returns the name of the built-in shape of a model that is named as on the hub, in any case and with any
/// owner: "llama-3.2-1b" for "meta-llama/Llama-3.2-1B-Instruct". Returns "" if no such shape is built in.
std::string shape_of_model(const std::string& name);

/// Returns the architecture of a Hugging Face folder (only its config.json is read), of a config.json, of a
/// shape with a name, or of a model that shape_of_model() knows. Throws Error, which lists the names, for
/// anything else.
Architecture find_shape(const std::string& folder_file_or_name);

}  // namespace octet::model
