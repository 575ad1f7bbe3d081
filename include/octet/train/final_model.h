#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/base/dtype.h"
#include "octet/data/template_encoder.h"
#include "octet/model/architecture.h"

namespace octet::train {

struct ModelExport {
  std::string checkpoint;    ///< folder with the parameters to write
  std::string model;         ///< Hugging Face folder with config.json and the tokenizer
  std::string folder;        ///< destination; other files in it are kept
  DType dtype = DType::f32;  ///< of the weights: f32, bf16 or f16
  std::int64_t shard_bytes = 5'000'000'000;
  bool overwrite = false;  ///< replace weights in the folder
  bool part = false;       ///< the checkpoint holds only trained parameters; `model` has the others
};

/// Returns the longest text of the model: the limit in its config, extended by YaRN if present.
std::int64_t most_positions(const model::Architecture& architecture);

/// Writes the tokenizer's files into `folder`, including tokens and roles added by the template. Writes the
/// chat template as chat_template.jinja and replaces a different one (TemplateEncoder::jinja_for). Sets
/// model_max_length in tokenizer_config.json to `positions`, the limit of the model, if it is larger or
/// absent. 0: the limit is unknown.
void save_tokenizer(const std::string& folder, const data::TemplateEncoder& encoder, std::int64_t positions);

/// Writes the tokenizer (save_tokenizer, with the limit of `model`) and a generation_config.json into
/// `folder`. The latter has the end tokens of answers, and the other entries of `model`. A config.json in
/// `folder` gets the same end tokens, and the tokenizer's pad token if it has a different one.
void write_tokenizer(const std::string& folder, const std::string& model,
                     const data::TemplateEncoder& encoder);

/// Writes a folder that Hugging Face libraries load: config.json, weights and, with an encoder, the files of
/// write_tokenizer(). Call on one rank. Returns the file names.
std::vector<std::string> export_model(const ModelExport& e, const data::TemplateEncoder* encoder);

}  // namespace octet::train
