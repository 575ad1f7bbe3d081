// Names of models on Hugging Face's hub whose shapes are built in.
#pragma once

#include <string>

namespace octet::model {

struct HubName {
  std::string shape;   ///< "llama-3.2-1b"; "": not known
  std::string stored;  ///< quantization_config of the published weights; "": they are not quantised
};

/// Whether a text has the form of a name on the hub, with or without an owner: "Qwen/Qwen3-8B". Paths such as
/// "./model", "~/model" and "a/b/c" have not.
bool is_name_on_hub(const std::string& text);

/// Returns the built-in shape of a model by its name without the owner: "Llama-3.2-1B-Instruct".
HubName name_on_hub(const std::string& name);

}  // namespace octet::model
