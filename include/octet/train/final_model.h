#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/base/dtype.h"
#include "octet/data/template_encoder.h"
#include "octet/model/architecture.h"

namespace octet::train {

struct ModelExport {
  std::string checkpoint;    ///< folder whose parameters are written
  std::string model;         ///< Hugging Face folder that config.json and the tokenizer come from
  std::string folder;        ///< where the model goes; other files in it stay
  DType dtype = DType::f32;  ///< of the weights: f32, bf16, f16
  std::int64_t shard_bytes = 5'000'000'000;
  bool overwrite = false;  ///< the folder may hold weights
  bool part = false;       ///< the checkpoint holds what was trained, and `model` the rest
};

/// How long a text the model was made for: what its config says, and with YaRN what it stretches that to.
std::int64_t most_positions(const model::Architecture& architecture);

/// Writes the tokenizer's files into `folder`, with the tokens and roles that the template gave it, and the
/// chat template as chat_template.jinja, in place of one that writes otherwise (TemplateEncoder::jinja_for).
/// tokenizer_config.json's model_max_length becomes `positions`, those of the model, where it is larger or
/// absent; 0: they are not known.
void save_tokenizer(const std::string& folder, const data::TemplateEncoder& encoder, std::int64_t positions);

/// Writes the tokenizer (save_tokenizer, with the positions of `model`) and a generation_config.json whose
/// end tokens are those that end an answer, beside what `model`'s own says, into `folder`. A config.json that
/// is there gets the same end tokens, and the tokenizer's pad token where it names another.
void write_tokenizer(const std::string& folder, const std::string& model,
                     const data::TemplateEncoder& encoder);

/// Writes a folder that Hugging Face's libraries load: config.json, with an encoder what
/// write_tokenizer() does, and weights. Called by one rank. Returns the names of the files.
std::vector<std::string> export_model(const ModelExport& e, const data::TemplateEncoder* encoder);

}  // namespace octet::train
