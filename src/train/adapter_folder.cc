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
#include "octet/setup/freezing.h"

namespace octet::train {
namespace {

constexpr const char* kKey = "adapters";
constexpr const char* kType = "finetuning_type";
constexpr const char* kHead = "base_model.model.lm_head.weight";

/// What a run trained whose checkpoint has such a state.
std::string type_of(const Json& state) {
  if (state.is_null()) return "full";
  return state.contains(kType) ? state[kType].get<std::string>() : "lora";
}

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
  Json state;
  if (setup::trains_parts(config)) {
    state = {{kType, config.finetuning_type},
             {"freeze_trainable_layers", config.freeze_trainable_layers},
             {"freeze_trainable_modules", config.freeze_trainable_modules},
             {"freeze_extra_modules", config.freeze_extra_modules}};
  } else if (setup::trains_adapters(config)) {
    state = setup::adapter_config(setup::adapter_wish(config), "");
    state.erase("base_model_name_or_path");
  } else {
    return {};
  }
  state["base"] = config.train_from_scratch
                      ? "seed " + std::to_string(config.seed)
                      : checkpoint::WeightFolder(config.model_name_or_path).fingerprint();
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
  const std::string was = type_of(before), is = type_of(now);
  if (was != is) {
    const std::string what = was == "lora"     ? "adapters"
                             : was == "freeze" ? "a part of the model"
                                               : "everything";
    refuse("the checkpoint is of a run that trained " + what, "finetuning_type: " + was, is);
  }
  const std::string other_trained = was == "lora"
                                        ? "the adapters are not those of the checkpoint"
                                        : "the parts that are trained are not those of the checkpoint";
  for (const auto& [key, value] : before.items()) {
    const Json other = now.value(key, Json());
    if (value == other) continue;
    if (key == "base")
      refuse("the base model's weights are not those of the checkpoint's run", "", "other contents");
    refuse(other_trained, key + ": " + value.dump(), key + ": " + other.dump());
  }
  refuse(other_trained, before.dump(), now.dump());
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
