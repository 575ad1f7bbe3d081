// Names of models on the Hugging Face hub with built-in shapes.
#pragma once

#include <string>

namespace octet::model {

struct HubName {
  std::string shape;   ///< "llama-3.2-1b"; "": unknown model
  std::string stored;  ///< quantization_config of the published weights; "": not quantised
};

/// Whether a text has the form of a name on the hub, with or without an owner: "Qwen/Qwen3-8B". Returns false
/// for paths like "./model", "~/model" and "a/b/c".
bool is_name_on_hub(const std::string& text);

/// Returns the built-in shape of a model by its name without the owner: "Llama-3.2-1B-Instruct".
HubName name_on_hub(const std::string& name);

}  // namespace octet::model
