#pragma once

#include <string>
#include <vector>

#include "octet/base/json_fwd.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/config/config.h"
#include "octet/data/template_encoder.h"
#include "octet/model/architecture.h"

namespace octet::train {

/// What a checkpoint's state keeps, under "adapters", of what it does not hold: the adapters' shapes and
/// factors (with finetuning_type: freeze, what is trained), and a fingerprint of the base model's weights and
/// of each adapter that is added to them. Null for runs that train everything. `architecture`: the model's,
/// without adapters.
Json adapter_state(const config::Config& config, const model::Architecture& architecture);

/// Throws Error (usage) when a run over `model`, whose adapter_state() is `now`, would go on over another
/// base, or with other adapters, than the checkpoint's.
void require_same_adapters(const checkpoint::Checkpoint& checkpoint, const Json& now,
                           const std::string& model);

/// Bytes of the adapter_model.safetensors that export_adapter() makes of a checkpoint of these tensors.
/// `tied`: the model's head is its table.
std::int64_t adapter_bytes(const std::vector<checkpoint::TensorHeader>& state, bool tied);

struct AdapterExport {
  std::string folder;
  std::string checkpoint;                          ///< whose adapters are written
  bool overwrite = false;                          ///< the folder may hold an adapter
  const data::TemplateEncoder* encoder = nullptr;  ///< whose tokenizer is saved beside them; null: none is
};

/// Writes the adapters of a checkpoint as PEFT does: adapter_config.json, the tokenizer and, last,
/// adapter_model.safetensors in fp32; other files of the folder stay. `config`: of the run that wrote the
/// checkpoint. Throws Error (usage) for a folder that holds an adapter already. Returns the names of the
/// files.
std::vector<std::string> export_adapter(const AdapterExport& e, const config::Config& config);

}  // namespace octet::train
