#include "octet/train/adapter_folder.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/model/tuning.h"
#include "octet/runtime/adapter_file.h"
#include "octet/runtime/model_folder.h"
#include "octet/runtime/stacked_adapter.h"
#include "octet/setup/adapters.h"
#include "octet/setup/freezing.h"
#include "octet/train/final_model.h"
#include "octet/weights/finite.h"
#include "octet/weights/safetensors.h"
#include "octet/weights/safetensors_writer.h"

namespace octet::train {
namespace {

constexpr const char* kKey = "adapters";
constexpr const char* kWeights = "adapter_model.safetensors";
constexpr const char* kType = "finetuning_type";
constexpr const char* kHead = "base_model.model.lm_head.weight";

/// Returns the finetuning_type of the run that wrote a checkpoint with this state.
std::string type_of(const Json& state) {
  if (state.is_null()) return "full";
  return state.contains(kType) ? state[kType].get<std::string>() : "lora";
}

/// A parameter of the state, and its place in a tensor for all experts.
struct OfExpert {
  weights::TensorHeader parameter;
  runtime::StackedMatrix place;
};

/// The tensors of an adapter file. A tied table that is trained is stored under both of its names.
struct Tensors {
  std::vector<weights::TensorHeader> headers;
  std::string table;  ///< the tensor that is stored as the head; empty: the head itself
  std::map<std::string, std::vector<OfExpert>> stacked = {};  ///< by the tensor for all experts
};

template <typename Header>
Tensors tensors_of(const std::vector<Header>& state, bool tied, const model::Tuning& tuning = {}) {
  Tensors tensors;
  for (const weights::TensorHeader& tensor : state) {
    if (!tensor.name.starts_with(model::kAdapterPrefix)) continue;
    if (const auto place = runtime::stacked_matrix(tuning, tensor.name)) {
      auto& experts = tensors.stacked[place->tensor];
      if (experts.empty())
        tensors.headers.push_back(
            {.name = place->tensor, .dtype = DType::f32, .shape = place->stacked(tensor.shape)});
      experts.push_back({.parameter = tensor, .place = *place});
      continue;
    }
    tensors.headers.push_back({.name = tensor.name, .dtype = DType::f32, .shape = tensor.shape});
    if (tied && !runtime::is_adapter(tensor.name)) tensors.table = tensor.name;
  }
  if (!tensors.table.empty()) {
    weights::TensorHeader head =
        *std::ranges::find(tensors.headers, tensors.table, &weights::TensorHeader::name);
    head.name = kHead;
    tensors.headers.push_back(head);
  }
  return tensors;
}

/// Reads a tensor for all experts from the matrices of each.
void read_stacked(const checkpoint::Checkpoint& source, const std::vector<OfExpert>& experts,
                  std::vector<float>& values) {
  std::vector<float> one;
  for (const auto& [parameter, place] : experts) {
    one.resize(static_cast<std::size_t>(element_count(parameter.shape, parameter.name)));
    source.read(parameter.name, 0, std::ssize(one), one.data());
    for (std::size_t i = 0; i < one.size(); ++i)
      values[static_cast<std::size_t>(place.element(parameter.shape, static_cast<std::int64_t>(i)))] = one[i];
  }
}

/// Writes to a temporary name; publish() renames it.
std::unique_ptr<weights::SafetensorsWriter> write_weights(const std::string& path,
                                                          const checkpoint::Checkpoint& source,
                                                          const Tensors& tensors) {
  auto writer = std::make_unique<weights::SafetensorsWriter>(path, tensors.headers);
  std::vector<float> values;
  for (const weights::TensorHeader& tensor : writer->order()) {
    const std::int64_t count = element_count(tensor.shape, tensor.name);
    values.resize(static_cast<std::size_t>(count));
    const bool table = tensor.name == kHead && !tensors.table.empty();
    const auto stacked = tensors.stacked.find(tensor.name);
    if (stacked != tensors.stacked.end()) {
      read_stacked(source, stacked->second, values);
    } else {
      source.read(table ? tensors.table : tensor.name, 0, count, values.data());
    }
    weights::require_finite(tensor.name, values.data(), count, DType::f32, source.path());
    writer->append(values.data(), count);
  }
  writer->finish();
  return writer;
}

void remove_old(const std::string& path, bool allowed) {
  if (!path_exists(path)) return;
  if (!allowed) {
    throw Error({.what = "the folder has an adapter already",
                 .found = kWeights,
                 .where = path,
                 .fix = "export to another folder, or replace it with --overwrite",
                 .code = ExitCode::usage});
  }
  std::error_code code;
  if (!std::filesystem::remove(path, code) && code)
    throw Error({.what = "cannot replace an old adapter",
                 .found = code.message(),
                 .where = path,
                 .fix = "check the permissions of the folder and of the file system",
                 .code = exit_code_of(code.value())});
}

}  // namespace

Json adapter_state(const config::ModelKeys& config, std::int64_t seed,
                   const model::Architecture& architecture) {
  Json state;
  if (setup::trains_parts(config)) {
    state = {{kType, config.finetuning_type},
             {"freeze_trainable_layers", config.freeze_trainable_layers},
             {"freeze_trainable_modules", config.freeze_trainable_modules},
             {"freeze_extra_modules", config.freeze_extra_modules}};
  } else if (setup::trains_adapters(config)) {
    state = setup::adapter_config(setup::adapter_wish(config), architecture, "");
    state.erase("base_model_name_or_path");
  } else {
    return {};
  }
  state["base"] = config.train_from_scratch ? "seed " + std::to_string(seed)
                                            : weights::WeightFolder(config.model_name_or_path).fingerprint();
  state["added"] = Json::array();
  for (const std::string& folder : setup::given_adapters(config).added) {
    setup::read_adapter_folder(folder);
    state["added"].push_back(weights::WeightFolder(folder, "adapter_model").fingerprint());
  }
  if (config.quantization_bit) {
    // The same weights with other quantization codes are another base.
    state["quantization_bit"] = *config.quantization_bit;
    state["double_quantization"] = config.double_quantization;
  }
  return state;
}

void require_same_adapters(const checkpoint::Checkpoint& checkpoint, const Json& state,
                           const std::string& model) {
  const Json before = checkpoint.state().value(kKey, Json());
  const Json now = Json::parse(state.dump());
  if (before == now) return;
  const auto refuse = [&](const std::string& what, const std::string& expected, const std::string& found) {
    throw Error({.what = what,
                 .expected = expected,
                 .found = found,
                 .where = checkpoint.path() + "; " + model,
                 .fix = "resume with the configuration and the base model of the run that wrote the "
                        "checkpoint, or start a new run in another output_dir",
                 .code = ExitCode::usage});
  };
  const std::string was = type_of(before), is = type_of(now);
  if (was != is) {
    const std::string what = was == "lora"     ? "adapters"
                             : was == "freeze" ? "a part of the model"
                                               : "everything";
    refuse("the checkpoint is from a run that trained " + what, "finetuning_type: " + was, is);
  }
  const std::string other_trained = was == "lora"
                                        ? "the adapters differ from the adapters of the checkpoint"
                                        : "the trained parts differ from the trained parts of the checkpoint";
  for (const auto& [key, value] : before.items()) {
    const Json other = now.value(key, Json());
    if (value == other) continue;
    if (key == "base")
      refuse("the weights of the base model differ from the checkpoint's run",
             "the weights that this run began with", "other contents");
    if (key == "added")
      refuse("the adapters that are added to the base differ from the checkpoint's run",
             std::to_string(value.size()) + " adapters",
             std::to_string(other.size()) + ", or other contents");
    refuse(other_trained, key + ": " + value.dump(), key + ": " + other.dump());
  }
  refuse(other_trained, before.dump(), now.dump());
}

std::int64_t adapter_bytes(const std::vector<weights::TensorHeader>& state, bool tied) {
  return weights::safetensors_bytes(tensors_of(state, tied).headers);
}

std::vector<std::string> export_adapter(const AdapterExport& e, const config::ModelKeys& config) {
  const checkpoint::Checkpoint source(e.checkpoint);
  const model::Architecture architecture = runtime::read_model(config.model_name_or_path);
  const setup::AdapterWish wish = setup::adapter_wish(config);
  const Tensors tensors =
      tensors_of(source.tensors(), architecture.tied, setup::tuning_of(wish, architecture));
  const std::string weights = e.folder + "/" + kWeights;
  Json described = setup::adapter_config(wish, architecture, config.model_name_or_path);
  if (!tensors.table.empty()) described["ensure_weight_tying"] = true;
  make_folders(e.folder);
  const auto writer = write_weights(weights, source, tensors);
  // A folder with weights is complete, so old weights are removed first and new weights are published last.
  remove_old(weights, e.overwrite);
  write_file_atomically(e.folder + "/adapter_config.json", described.dump(2) + "\n");
  if (e.encoder != nullptr) save_tokenizer(e.folder, *e.encoder, most_positions(architecture));
  writer->publish();
  return {"adapter_config.json", kWeights};
}

}  // namespace octet::train
