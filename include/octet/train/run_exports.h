// Model folders that a run writes: adapters, merged models, and the final model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/base/dtype.h"
#include "octet/base/json_fwd.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/checkpoint/hub_export.h"
#include "octet/config/keys.h"
#include "octet/data/template_encoder.h"
#include "octet/model/architecture.h"

namespace octet::train {

/// Returns the format of the linear layers in a folder: f32, bf16 or f16; bf16 if it is another.
DType weights_dtype(const std::string& folder);

/// Writes a model with the weights of `options.source_folder` and the merged PEFT adapters of these folders,
/// in order: W + factor · B A, summed in fp32 and rounded once. With DoRA, rows are scaled to the magnitudes.
/// Fully trained tensors of an adapter replace tensors of the base. Tensors are processed in pieces. Throws
/// Error if an adapter does not fit the model. Returns the file names.
std::vector<std::string> export_merged(const checkpoint::ExportOptions& options,
                                       const std::vector<std::string>& adapters);

struct ModelExport {
  std::string checkpoint;    ///< folder with the parameters to write
  std::string model;         ///< Hugging Face folder with config.json and the tokenizer
  std::string folder;        ///< destination; other files in it are kept
  DType dtype = DType::f32;  ///< of the weights: f32, bf16 or f16
  std::int64_t shard_bytes = 5'000'000'000;
  bool overwrite = false;  ///< replace weights in the folder
  bool part = false;       ///< the checkpoint holds only trained parameters; `model` has the others
  /// The run started from random weights, so that `model` need not have weights for other parts.
  bool fresh = false;
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
/// write_tokenizer(). The other parts of a multimodal model are copied from `model`. Throws Error (usage) if
/// `model` has no weights for them. Call on one rank. Returns the file names.
std::vector<std::string> export_model(const ModelExport& e, const data::TemplateEncoder* encoder);

/// Returns the entry "adapters" of a checkpoint's state. It has shapes and factors of the adapters; with
/// finetuning_type: freeze, the trained parts. It also has fingerprints of the weights of the base model and
/// of each merged adapter. Null for runs that train everything. `architecture`: the model without adapters.
Json adapter_state(const config::ModelKeys& config, std::int64_t seed,
                   const model::Architecture& architecture);

/// Throws Error (usage) if a run over `model` would resume with another base or other adapters than the
/// checkpoint. `now` is the run's adapter_state().
void require_same_adapters(const checkpoint::Checkpoint& checkpoint, const Json& now,
                           const std::string& model);

/// Returns the bytes of the adapter_model.safetensors that export_adapter() writes for a checkpoint with
/// these tensors. `architecture`: of the model.
std::int64_t adapter_bytes(const std::vector<weights::TensorHeader>& state,
                           const model::Architecture& architecture);

struct AdapterExport {
  std::string folder;
  std::string checkpoint;                          ///< the checkpoint with the adapters
  bool overwrite = false;                          ///< the folder may hold an adapter
  const data::TemplateEncoder* encoder = nullptr;  ///< tokenizer to save with them; null: none
};

/// Writes the adapters of a checkpoint in the format of PEFT: adapter_config.json, the tokenizer and, last,
/// adapter_model.safetensors in fp32. Other files in the folder are kept. `config` is that of the run that
/// wrote the checkpoint. Returns the file names. Throws Error (usage) if the folder already holds an adapter,
/// unless `overwrite`.
std::vector<std::string> export_adapter(const AdapterExport& e, const config::ModelKeys& config);

}  // namespace octet::train
