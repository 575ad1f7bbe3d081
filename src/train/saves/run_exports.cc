#include "octet/train/run_exports.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/model_file.h"
#include "octet/checkpoint/hub_export.h"
#include "octet/model/layout.h"
#include "octet/model/tuning.h"
#include "octet/runtime/adapter_file.h"
#include "octet/runtime/initial_weights.h"
#include "octet/runtime/model_folder.h"
#include "octet/runtime/same_model.h"
#include "octet/setup/adapters.h"
#include "octet/setup/model_options.h"
#include "octet/weights/convert.h"
#include "octet/weights/safetensors.h"
#include "octet/weights/safetensors_writer.h"

namespace octet::train {

DType weights_dtype(const std::string& folder) {
  const weights::WeightFolder weights(folder);
  for (const weights::StoredTensor& tensor : weights.tensors()) {
    const bool written =
        tensor.dtype == DType::f32 || tensor.dtype == DType::bf16 || tensor.dtype == DType::f16;
    if (written && tensor.name.ends_with("_proj.weight")) return tensor.dtype;
  }
  return DType::bf16;
}

std::vector<std::string> export_merged(const checkpoint::ExportOptions& options,
                                       const std::vector<std::string>& adapters) {
  model::Architecture architecture = runtime::read_model(options.source_folder);
  if (std::ranges::any_of(adapters, setup::is_reward_adapter))
    architecture = model::as_reward_model(std::move(architecture), options.source_folder);
  const weights::WeightFolder base(options.source_folder);
  runtime::AddedAdapters added(setup::added_adapters(adapters, architecture),
                               [&](const std::string& name, std::int64_t begin, std::int64_t count,
                                   float* out) { base.read(name, begin, count, out); });
  // Checks that all weights of the model are present and expected.
  const runtime::InitialWeights complete({.folder = options.source_folder,
                                          .tensor_prefix = architecture.tensor_prefix,
                                          .unread = model::unread_tensors(architecture),
                                          .new_head = architecture.scores ? architecture.head_name : ""},
                                         model::build_layout(architecture));
  const bool quantised = architecture.stored.format != model::StoredWeights::Format::plain;
  log::info(std::string(adapters.size() == 1 ? "the adapter is" : "the adapters are") + " merged into " +
            (quantised ? "the dequantised weights of " : "the weights of ") + options.source_folder);
  std::vector<weights::TensorHeader> tensors;
  for (const weights::StoredTensor& tensor : base.tensors()) {
    if (!architecture.scores || tensor.name != "lm_head.weight") tensors.push_back(tensor);
  }
  const std::string new_head =
      architecture.scores && base.find(architecture.head_name) == nullptr ? architecture.head_name : "";
  if (!new_head.empty())
    tensors.push_back({.name = new_head, .dtype = DType::f32, .shape = {1, architecture.hidden}});
  checkpoint::ExportOptions whole = options;
  if (architecture.scores) whole.reward_class = model::reward_class(architecture);
  whole.tied = architecture.tied;
  whole.model_tensors = model::text_tensors(architecture);
  return checkpoint::export_model(
      whole, tensors,
      [&](const std::string& name, std::int64_t begin, std::int64_t count, float* out) {
        if (name != new_head) {
          base.read(name, begin, count, out);
          weights::require_finite(name, out, count, options.dtype, options.source_folder,
                                  "use weights of the base model without such values");
        }
        added.add_to(name, begin, count, out);
        weights::require_finite(name, out, count, options.dtype, adapters.back());
      },
      &base);
}

namespace {

constexpr auto kReplaced = Json::error_handler_t::replace;  ///< for bytes in a file that are not UTF-8

// Returns the end tokens. If the model was trained to end answers with the template's token, inference must
// stop at it. The end tokens of the base follow. They are in its generation_config.json or, if not there, in
// its config.json, as in transformers.
Json ends_of(const std::string& model, const data::TemplateEncoder& encoder) {
  // Some readers use only the first end token, so the end token of the tokenizer is the first.
  std::vector<std::int32_t> stops = encoder.stop_ids();
  std::ranges::stable_partition(stops, [&](std::int32_t id) { return id == encoder.tokenizer().eos_id(); });
  std::vector<std::int32_t> base =
      token_ids(read_model_file(model, "generation_config.json"), "eos_token_id");
  if (base.empty()) base = token_ids(read_model_file(model, "config.json"), "eos_token_id");
  for (const std::int32_t id : base) {
    if (std::ranges::find(stops, id) == stops.end()) stops.push_back(id);
  }
  return stops;
}

Json one_or_all(const Json& ends) {
  return ends.size() == 1 ? ends[0] : ends;
}

std::string generation_config(const std::string& model, const data::TemplateEncoder& encoder) {
  Json config = read_model_file(model, "generation_config.json");
  const Json ends = ends_of(model, encoder);
  if (!ends.empty()) config["eos_token_id"] = one_or_all(ends);
  const text::Tokenizer& tokenizer = encoder.tokenizer();
  if (tokenizer.bos_id() >= 0 && !config.contains("bos_token_id"))
    config["bos_token_id"] = tokenizer.bos_id();
  if (tokenizer.pad_id() >= 0) config["pad_token_id"] = tokenizer.pad_id();
  return config.dump(2) + "\n";
}

// Replaces a pad token that differs from the tokenizer's. The embedding row of a pad token is not trained. So
// an end token, which some tokenizers use for padding, does not become the pad token.
void fit_pad(Json& part, std::int32_t pad, const Json& ends) {
  const auto found = part.find("pad_token_id");
  if (pad < 0 || found == part.end() || !found->is_number_integer() || *found == pad) return;
  *found = std::ranges::find(ends, Json(pad)) == ends.end() ? Json(pad) : Json();
}

/// Sets the end tokens of the folder's config.json to the end tokens of generation_config.json.
void fit_config(const std::string& path, const std::string& model, const data::TemplateEncoder& encoder) {
  if (!path_exists(path)) return;
  const Json before = read_json(path);
  Json config = before;
  const Json ends = ends_of(model, encoder);
  if (!ends.empty()) config["eos_token_id"] = one_or_all(ends);
  const std::int32_t pad = encoder.tokenizer().pad_id();
  fit_pad(config, pad, ends);
  if (const auto text = config.find("text_config"); text != config.end() && text->is_object()) {
    if (!ends.empty() && text->contains("eos_token_id")) (*text)["eos_token_id"] = one_or_all(ends);
    fit_pad(*text, pad, ends);
  }
  if (config != before) write_file_atomically(path, config.dump(2, ' ', false, kReplaced) + "\n");
}

/// Sets model_max_length, at which transformers truncates texts.
void fit_length(const std::string& path, std::int64_t positions) {
  if (positions <= 0 || !path_exists(path)) return;
  Json config = read_json(path);
  const auto found = config.find("model_max_length");
  // If it is missing, transformers assumes no limit.
  const bool fits =
      found != config.end() && found->is_number() && found->get<double>() <= static_cast<double>(positions);
  if (fits) return;
  config["model_max_length"] = positions;
  write_file_atomically(path, config.dump(2, ' ', false, kReplaced) + "\n");
}

}  // namespace

std::int64_t most_positions(const model::Architecture& architecture) {
  double most = static_cast<double>(architecture.max_positions);
  for (const model::Rope& rope : architecture.ropes) {
    if (rope.kind != model::RopeKind::yarn) continue;
    most = std::max(most, static_cast<double>(rope.original_max_positions) * rope.factor);
  }
  return static_cast<std::int64_t>(std::min(most, 1e15));
}

void save_tokenizer(const std::string& folder, const data::TemplateEncoder& encoder, std::int64_t positions) {
  encoder.tokenizer().save(folder);
  const std::string path = folder + "/tokenizer_config.json";
  fit_length(path, positions);
  const std::optional<std::string> jinja = encoder.jinja_for(folder);
  if (!jinja) return;
  // Readers use different places for the template, so the other places are removed.
  if (path_exists(path)) {
    Json config = read_json(path);
    if (config.erase("chat_template") > 0) write_file_atomically(path, config.dump(2) + "\n");
  }
  std::error_code ignored;
  std::filesystem::remove(folder + "/chat_template.json", ignored);
  write_file_atomically(folder + "/chat_template.jinja", *jinja);
}

void write_tokenizer(const std::string& folder, const std::string& model,
                     const data::TemplateEncoder& encoder) {
  const bool described = path_exists(model + "/config.json");
  save_tokenizer(folder, encoder, described ? most_positions(runtime::read_model(model)) : 0);
  write_file_atomically(folder + "/generation_config.json", generation_config(model, encoder));
  fit_config(folder + "/config.json", model, encoder);
}

namespace {

/// Throws Error if a multimodal model has no weights for the parts that were not trained.
void require_other_parts(const ModelExport& e, model::Architecture architecture) {
  if (!architecture.multimodal || weights::WeightFolder::exists(e.model)) return;
  const checkpoint::Checkpoint trained(e.checkpoint);
  model::name_tensors(architecture, [&](const std::string& name) { return trained.find(name) != nullptr; });
  if (!architecture.multimodal) return;  // the run started from the text model alone
  throw Error({.what = "the parts of the model that were not trained (vision tower, projector) are missing",
               .expected = "the weights that the run started from: model.safetensors or its shards",
               .found = "config.json without weights",
               .where = e.model,
               .fix = "fetch the model again, or name a folder with its weights: trainer export " +
                      e.checkpoint + " FOLDER --model MODEL",
               .code = ExitCode::usage});
}

}  // namespace

std::vector<std::string> export_model(const ModelExport& e, const data::TemplateEncoder* encoder) {
  checkpoint::ExportOptions options;
  options.folder = e.folder;
  options.source_folder = e.model;
  options.dtype = e.dtype;
  options.shard_bytes = e.shard_bytes;
  options.overwrite = e.overwrite;
  options.rest_from_source = e.part;
  if (path_exists(e.model + "/config.json")) {
    model::Architecture architecture = runtime::read_model(e.model);
    if (runtime::trained_reward_model(checkpoint::Checkpoint(e.checkpoint))) {
      architecture = model::as_reward_model(std::move(architecture), e.model);
      options.reward_class = model::reward_class(architecture);
    }
    options.tied = architecture.tied;
    options.model_tensors = model::text_tensors(architecture);
    if (!e.fresh) require_other_parts(e, architecture);
  }
  if (encoder != nullptr)
    options.complete = [&](const std::string& folder) { write_tokenizer(folder, e.model, *encoder); };
  std::vector<std::string> files = checkpoint::export_checkpoint(options, e.checkpoint);
  if (encoder != nullptr && std::ranges::find(files, "generation_config.json") == files.end())
    files.push_back("generation_config.json");
  return files;
}

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
  std::map<std::string, std::string> in_state = {};  ///< names in the state, by names in the file
  std::string table;  ///< the tensor that is stored as the head; empty: the head itself
  std::map<std::string, std::vector<OfExpert>> stacked = {};  ///< by the tensor for all experts
};

/// `tuning`: of the adapters; without experts, it may be empty.
template <typename Header>
Tensors tensors_of(const std::vector<Header>& state, const model::Architecture& architecture,
                   const model::Tuning& tuning = {}) {
  Tensors tensors;
  const auto put = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    const std::string in_file = runtime::name_in_peft(architecture, name);
    tensors.in_state[in_file] = name;
    tensors.headers.push_back({.name = in_file, .dtype = DType::f32, .shape = shape});
  };
  for (const weights::TensorHeader& tensor : state) {
    if (!tensor.name.starts_with(model::kAdapterPrefix)) continue;
    if (const auto place = runtime::stacked_matrix(tuning, tensor.name)) {
      auto& experts = tensors.stacked[place->tensor];
      if (experts.empty()) put(place->tensor, place->stacked(tensor.shape));
      experts.push_back({.parameter = tensor, .place = *place});
      continue;
    }
    put(tensor.name, tensor.shape);
    if (architecture.tied && tensor.name.ends_with(".embed_tokens.weight"))
      tensors.table = tensors.headers.back().name;
  }
  if (!tensors.table.empty()) {
    weights::TensorHeader head =
        *std::ranges::find(tensors.headers, tensors.table, &weights::TensorHeader::name);
    head.name = kHead;
    tensors.in_state[kHead] = tensors.in_state.at(tensors.table);
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
    const std::string& name = tensors.in_state.at(tensor.name);
    const auto stacked = tensors.stacked.find(name);
    if (stacked != tensors.stacked.end()) {
      read_stacked(source, stacked->second, values);
    } else {
      source.read(name, 0, count, values.data());
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

std::int64_t adapter_bytes(const std::vector<weights::TensorHeader>& state,
                           const model::Architecture& architecture) {
  return weights::safetensors_bytes(tensors_of(state, architecture).headers);
}

std::vector<std::string> export_adapter(const AdapterExport& e, const config::ModelKeys& config) {
  const checkpoint::Checkpoint source(e.checkpoint);
  model::Architecture architecture = runtime::read_model(config.model_name_or_path);
  if (runtime::trained_reward_model(source))
    architecture = model::as_reward_model(std::move(architecture), config.model_name_or_path);
  const setup::AdapterWish wish = setup::adapter_wish(config);
  const Tensors tensors = tensors_of(source.tensors(), architecture, setup::tuning_of(wish, architecture));
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
