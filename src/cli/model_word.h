// Finds models for `plan`, `bench` and `lint`, which only need the shape.
#pragma once

#include <string>

namespace octet::cli {

struct ModelWord {
  std::string model;   ///< for model::find_shape()
  std::string note;    ///< where the model was found; "": nothing to report
  bool shape = false;  ///< the model is not on this machine; a built-in shape is used instead
};

/// Finds a model by the argument of a user: a path, the name of a shape, or a name on the hub. A name on the
/// hub gives the folder in Hugging Face's cache, or else the built-in shape of that model. Other arguments
/// are returned unchanged.
ModelWord find_model_word(const std::string& word);

}  // namespace octet::cli
