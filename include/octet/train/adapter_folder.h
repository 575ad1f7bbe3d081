#pragma once

#include <string>
#include <vector>

#include "octet/base/json_fwd.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/config/keys.h"
#include "octet/data/template_encoder.h"
#include "octet/model/architecture.h"

namespace octet::train {

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
/// these tensors. `tied`: the head of the model is its embedding table.
std::int64_t adapter_bytes(const std::vector<weights::TensorHeader>& state, bool tied);

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
