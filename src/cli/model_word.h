// A model as `plan`, `bench` and `lint` take it: only its shape counts.
#pragma once

#include <string>

namespace octet::cli {

struct ModelWord {
  std::string model;   ///< for model::find_shape()
  std::string note;    ///< where it was found; "" if there is nothing to say
  bool shape = false;  ///< the model is not on this machine, and a built-in shape takes its place
};

/// Looks for a model by the word that a user gave: a path, the name of a shape, or a name on the hub. A name
/// on the hub is the folder in Hugging Face's cache, or else the built-in shape of that model. Other words
/// are returned as they are.
ModelWord find_model_word(const std::string& word);

}  // namespace octet::cli
