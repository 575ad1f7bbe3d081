#include "model_word.h"

#include "octet/base/files.h"
#include "octet/base/model_file.h"
#include "octet/model/shapes.h"

namespace octet::cli {

ModelWord find_model_word(const std::string& word) {
  if (word.empty() || path_exists(word)) return {.model = word, .note = ""};
  if (const std::string cached = hub_snapshot(hub_folder(), HubKind::model, word); !cached.empty())
    return {.model = cached, .note = "'" + word + "' is taken from Hugging Face's cache: " + cached};
  const std::string shape = model::shape_of_model(word);
  if (shape.empty() || shape == word) return {.model = word, .note = ""};
  return {.model = word,
          .note = "the model '" + word + "' is not on this machine: its built-in shape " + shape +
                  " takes its place. Training and generation need the model itself; nothing is downloaded",
          .shape = true};
}

}  // namespace octet::cli
