#include "octet/train/adapter_folder.h"

#include <algorithm>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/checkpoint/safetensors_writer.h"
#include "octet/model/tuning.h"
#include "octet/runtime/initial_weights.h"
#include "octet/runtime/model_folder.h"
#include "octet/setup/adapters.h"

namespace octet::train {
namespace {

constexpr const char* kKey = "adapters";
constexpr const char* kHead = "base_model.model.lm_head.weight";

/// The tensors of an adapter's file. A tied table that is trained stands under both of its names.
struct Tensors {
  std::vector<checkpoint::TensorHeader> headers;
  std::string table;  ///< what the head's name stands for; empty: itself
};

Tensors tensors_of(const checkpoint::Checkpoint& source, bool tied) {
  Tensors tensors;
  for (const auto& tensor : source.tensors()) {
    if (!tensor.name.starts_with(model::kAdapterPrefix)) continue;
    tensors.headers.push_back({.name = tensor.name, .dtype = DType::f32, .shape = tensor.shape});
    if (tied && !runtime::is_adapter(tensor.name)) tensors.table = tensor.name;
  }
  if (!tensors.table.empty()) {
    checkpoint::TensorHeader head =
        *std::ranges::find(tensors.headers, tensors.table, &checkpoint::TensorHeader::name);
    head.name = kHead;
    tensors.headers.push_back(head);
  }
  return tensors;
}

}  // namespace

Json adapter_state(const config::Config& config) {
  if (!setup::trains_adapters(config)) return {};
  const setup::AdapterWish wish = setup::adapter_wish(config);
  Json state = setup::adapter_config(wish, "");
  state.erase("base_model_name_or_path");
  state["base"] = config.train_from_scratch
                      ? "seed " + std::to_string(config.seed)
                      : checkpoint::WeightFolder(config.model_name_or_path).fingerprint();
  if (config.quantization_bit) {
    // The same weights in other codes are another base.
    state["quantization_bit"] = *config.quantization_bit;
    state["double_quantization"] = config.double_quantization;
  }
  return state;
}

void require_same_adapters(const checkpoint::Checkpoint& checkpoint, const config::Config& config) {
  const Json before = checkpoint.state().value(kKey, Json());
  const Json now = Json::parse(adapter_state(config).dump());
  if (before == now) return;
  const auto refuse = [&](const std::string& what, const std::string& expected, const std::string& found) {
    throw Error(
        {.what = what,
         .expected = expected,
         .found = found,
         .where = checkpoint.path() + "; " + config.model_name_or_path,
         .fix = "go on with the configuration and the base model of the run that wrote the checkpoint, or "
                "begin a run of its own in another output_dir",
         .code = ExitCode::usage});
  };
  if (before.is_null())
    refuse("the checkpoint is of a run that trained everything", "finetuning_type: full", "lora");
  if (now.is_null())
    refuse("the checkpoint is of a run that trained adapters", "finetuning_type: lora", "full");
  for (const auto& [key, value] : before.items()) {
    const Json other = now.value(key, Json());
    if (value == other) continue;
    if (key == "base")
      refuse("the base model's weights are not those of the checkpoint's run", "", "other contents");
    refuse("the adapters are not those of the checkpoint", key + ": " + value.dump(),
           key + ": " + other.dump());
  }
  refuse("the adapters are not those of the checkpoint", before.dump(), now.dump());
}

std::vector<std::string> export_adapter(const std::string& folder, const std::string& checkpoint,
                                        const config::Config& config) {
  const checkpoint::Checkpoint source(checkpoint);
  const bool tied = runtime::read_model(config.model_name_or_path).tied;
  const Tensors tensors = tensors_of(source, tied);
  make_folders(folder);
  const std::string weights = "adapter_model.safetensors", description = "adapter_config.json";
  checkpoint::SafetensorsWriter writer(folder + "/" + weights, tensors.headers);
  std::vector<float> values;
  for (const checkpoint::TensorHeader& tensor : writer.order()) {
    const std::int64_t count = element_count(tensor.shape, tensor.name);
    values.resize(static_cast<std::size_t>(count));
    const bool table = tensor.name == kHead && !tensors.table.empty();
    source.read(table ? tensors.table : tensor.name, 0, count, values.data());
    writer.append(values.data(), count);
  }
  writer.publish();
  Json described = setup::adapter_config(setup::adapter_wish(config), config.model_name_or_path);
  if (!tensors.table.empty()) described["ensure_weight_tying"] = true;
  write_file_atomically(folder + "/" + description, described.dump(2) + "\n");
  return {description, weights};
}

}  // namespace octet::train
