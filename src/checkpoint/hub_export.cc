#include "octet/checkpoint/hub_export.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <span>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/weights/convert.h"
#include "octet/weights/expert_stacks.h"
#include "octet/weights/safetensors.h"
#include "octet/weights/safetensors_header.h"
#include "octet/weights/safetensors_writer.h"

namespace octet::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kCopiedFiles[] = {"generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "tokenizer.model",
                                        "chat_template.jinja",
                                        "chat_template.json",
                                        "preprocessor_config.json",
                                        "processor_config.json",
                                        "video_preprocessor_config.json"};
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kWhole = "model.safetensors";
constexpr std::int64_t kRead = 4 << 20;  ///< elements read at a time: whole chunks of fp32 and bf16

const char* torch_name(DType dtype) {
  if (dtype == DType::f32) return "float32";
  if (dtype == DType::f16) return "float16";
  check(dtype == DType::bf16, "an export's dtype is f32, bf16 or f16");
  return "bfloat16";
}

/// Sets the dtype in a config. Returns false if the config has no dtype.
bool set_dtype(Json& config, DType dtype) {
  bool known = false;
  for (const char* key : {"dtype", "torch_dtype"}) {
    if (!config.contains(key)) continue;
    config[key] = torch_name(dtype);
    known = true;
  }
  return known;
}

/// Returns whether the head is tied. The config of the whole model decides if it has the key, otherwise the
/// text model's.
bool ties_head(const Json& config, const std::string& path) {
  const auto text = config.find("text_config");
  const bool nested = text != config.end() && text->is_object() &&
                      json_bool(*text, "tie_word_embeddings", false, path + ": text_config");
  return json_bool(config, "tie_word_embeddings", nested, path);
}

std::string config_path_of(const std::string& folder) {
  return folder + "/config.json";
}

bool is_tied(const ExportOptions& options, const Json& config) {
  return options.tied ? *options.tied : ties_head(config, config_path_of(options.source_folder));
}

std::string config_text(const Json& config, const ExportOptions& options) {
  const DType dtype = options.dtype;
  Json changed = config;
  const bool tied = is_tied(options, config);
  if (tied != ties_head(config, config_path_of(options.source_folder))) changed["tie_word_embeddings"] = tied;
  if (!options.reward_class.empty()) {
    changed["architectures"] = Json::array({options.reward_class});
    changed["id2label"] = {{"0", "LABEL_0"}};
    changed["label2id"] = {{"LABEL_0", 0}};
    changed.erase("num_labels");
  }
  changed.erase("quantization_config");  // the exported weights are floats
  if (!set_dtype(changed, dtype)) changed["torch_dtype"] = torch_name(dtype);
  for (const char* part : {"text_config", "vision_config"}) {
    if (changed.contains(part) && changed[part].is_object()) set_dtype(changed[part], dtype);
  }
  return changed.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

/// Returns the shards that the folder's index names, or none if there is no readable index.
std::vector<std::string> indexed_shards(const std::string& folder) {
  const std::string index = folder + "/" + kIndex;
  std::set<std::string> shards;
  if (!path_exists(index)) return {};
  try {
    for (const auto& [tensor, file] : weights::parse_weight_map(read_file(index), index)) shards.insert(file);
  } catch (const Error& e) {
    log::warn("the old weight shards are not removed, because their index cannot be read: " +
              e.problem().what + ": " + index);
  }
  return {shards.begin(), shards.end()};
}

/// Returns the weight files of the model in a folder, its index first: without an index, no reader looks for
/// shards. Other files named model*.safetensors belong to the user.
std::vector<fs::path> weight_files(const std::string& folder) {
  std::vector<fs::path> files;
  std::vector<std::string> names = indexed_shards(folder);
  names.insert(names.begin(), {kIndex, kWhole});
  for (const std::string& name : names) {
    const fs::path file = fs::path(folder) / name;
    std::error_code none;
    const bool there = fs::exists(fs::symlink_status(file, none));
    if (there && std::ranges::find(files, file) == files.end()) files.push_back(file);
  }
  return files;
}

/// Returns whether a file contains exactly these tensors, which means that an export without its index yet
/// left it.
bool holds(const std::string& path, const std::vector<weights::TensorHeader>& tensors) {
  try {
    const weights::SafetensorsFile file(path);
    return file.tensors().size() == tensors.size() &&
           std::ranges::all_of(tensors,
                               [&](const weights::TensorHeader& t) { return file.find(t.name) != nullptr; });
  } catch (const Error&) {
    return false;
  }
}

/// Throws Error if a file of the export would replace a file that is not part of the model in the folder.
void require_free_names(const std::string& folder, const weights::ShardPlan& plan) {
  const std::vector<fs::path> old = weight_files(folder);
  for (std::size_t i = 0; i < plan.files.size(); ++i) {
    const fs::path file = fs::path(folder) / plan.files[i];
    if (!path_exists(file.string()) || std::ranges::find(old, file) != old.end()) continue;
    if (holds(file.string(), plan.tensors[i])) continue;
    throw Error({.what = "a shard of the export has the name of another file",
                 .expected = "no file of this name, or one that " + std::string(kIndex) + " names",
                 .where = file.string(),
                 .fix = "move the file out of the folder, or choose another export_size",
                 .code = ExitCode::usage});
  }
}

/// The values of the tensors of an export.
struct Values {
  TensorReader read;
  const weights::WeightFolder* source = nullptr;  ///< export_model()

  /// Returns whether a tensor is copied byte for byte from `source`.
  bool copies(const ExportOptions& options, const std::string& tensor) const {
    const auto begins = [&](const std::string& name) { return tensor.starts_with(name); };
    return source != nullptr && !options.model_tensors.empty() &&
           std::ranges::none_of(options.model_tensors, begins) && source->quantised(tensor) == nullptr;
  }
};

void append(const Values& values, const ExportOptions& options, const weights::TensorHeader& tensor,
            weights::SafetensorsWriter& shard) {
  if (values.copies(options, tensor.name)) {
    return values.source->read_bytes(tensor.name, [&](std::span<const std::byte> bytes) {
      shard.append_bytes(bytes.data(), bytes.size());
    });
  }
  const std::int64_t count = element_count(tensor.shape, tensor.name);
  std::vector<float> run;
  for (std::int64_t at = 0; at < count; at += kRead) {
    const std::int64_t n = std::min(kRead, count - at);
    run.resize(static_cast<std::size_t>(n));
    values.read(tensor.name, at, n, run.data());
    shard.append(run.data(), n);
  }
}

// Writes the export into the existing `folder`.
std::vector<std::string> fill(const std::string& folder, const ExportOptions& options, const Json& config,
                              const std::vector<weights::TensorHeader>& tensors, const Values& values) {
  std::vector<std::string> written;
  const auto put = [&](const std::string& name, const std::string& bytes) {
    write_file_atomically(folder + "/" + name, bytes);
    written.push_back(name);
  };
  const weights::ShardPlan plan = weights::plan_shards(tensors, options.shard_bytes);
  require_free_names(folder, plan);
  std::vector<std::unique_ptr<weights::SafetensorsWriter>> shards;
  for (std::size_t i = 0; i < plan.files.size(); ++i) {
    shards.push_back(
        std::make_unique<weights::SafetensorsWriter>(folder + "/" + plan.files[i], plan.tensors[i]));
    for (const auto& tensor : shards.back()->order()) append(values, options, tensor, *shards.back());
    shards.back()->finish();
  }
  put("config.json", config_text(config, options));
  for (const char* name : kCopiedFiles) {
    const std::string from = options.source_folder + "/" + name;
    if (path_exists(from)) put(name, read_file(from));
  }
  if (options.complete) options.complete(folder);
  // From here on, old weights are removed and new ones renamed. The index is written after the last shard.
  for (const auto& old : weight_files(folder)) {
    std::error_code code;
    if (!fs::remove(old, code) && code)
      throw Error({.what = "cannot replace old weights",
                   .found = code.message(),
                   .where = old.string(),
                   .fix = "check the permissions of the folder and of the file system",
                   .code = exit_code_of(code.value())});
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    shards[i]->publish();
    written.push_back(plan.files[i]);
  }
  if (shards.size() > 1) put(kIndex, weights::index_json(plan));
  return written;
}

}  // namespace

bool stays_fp32(const std::string& tensor) {
  return tensor.ends_with(".e_score_correction_bias");
}

namespace {

Json config_of(const std::string& folder) {
  const Json config = read_json(config_path_of(folder));
  if (!config.is_object())
    throw Error({.what = "config.json is not a JSON object",
                 .expected = "{...}",
                 .where = config_path_of(folder),
                 .fix = "write the configuration of the model into it, as transformers' save_pretrained does",
                 .code = ExitCode::usage});
  return config;
}

/// Returns the layout of experts in the weights of the source folder. Without weights, returns the layout in
/// which transformers writes them. `source`: these weights if they are open, otherwise null.
weights::ExpertLayout expert_layout(const ExportOptions& options, const Json& config,
                                    const weights::WeightFolder* source) {
  const std::string type = json_string(config, "model_type", "", config_path_of(options.source_folder));
  if (type.find("moe") == std::string::npos) return weights::ExpertLayout::separate;
  if (source != nullptr) return source->expert_layout();
  if (weights::WeightFolder::exists(options.source_folder))
    return weights::WeightFolder(options.source_folder).expert_layout();
  if (type == "qwen3_vl_moe") return weights::ExpertLayout::inputs_first;
  return type == "qwen3_5_moe" ? weights::ExpertLayout::outputs_first : weights::ExpertLayout::separate;
}

/// Returns the tensors of the export.
std::vector<weights::TensorHeader> as_exported(const std::vector<weights::TensorHeader>& tensors,
                                               const ExportOptions& options, bool tied,
                                               const Values& values) {
  const DType dtype = options.dtype;
  torch_name(dtype);
  std::vector<weights::TensorHeader> wanted;
  for (const auto& tensor : tensors) {
    if (values.copies(options, tensor.name)) {
      wanted.push_back(tensor);
      continue;
    }
    check(weights::is_float(tensor.dtype), "parameters are floats");
    if (tied && tensor.name.ends_with("lm_head.weight")) continue;
    wanted.push_back({tensor.name, stays_fp32(tensor.name) ? DType::f32 : dtype, tensor.shape});
  }
  return wanted;
}

}  // namespace

std::vector<std::string> export_model(const ExportOptions& options,
                                      const std::vector<weights::TensorHeader>& tensors,
                                      const TensorReader& read, const weights::WeightFolder* source) {
  const Json config = config_of(options.source_folder);
  weights::ExpertStacks stacks(tensors, expert_layout(options, config, source));
  const Values values{.read = [&](const std::string& name, std::int64_t begin, std::int64_t count,
                                  float* out) { stacks.read(read, name, begin, count, out); },
                      .source = source};
  const std::vector<weights::TensorHeader> wanted =
      as_exported(stacks.tensors(), options, is_tied(options, config), values);
  if (wanted.empty())
    throw Error({.what = "there are no parameters to export",
                 .expected = "at least one tensor",
                 .found = "none",
                 .where = options.folder,
                 .fix = "name a checkpoint of a model with weights",
                 .code = ExitCode::usage});

  std::error_code code;
  if (!fs::exists(options.folder, code) || fs::is_empty(options.folder, code)) {
    const std::string folder = fs::path(options.folder + "/.").lexically_normal().parent_path().string();
    const std::string temporary = folder + ".tmp-" + std::to_string(::getpid());
    // Process numbers repeat (in a container at every start), so a killed export may have left this folder.
    fs::remove_all(temporary, code);
    make_folders(temporary);
    try {
      auto written = fill(temporary, options, config, wanted, values);
      fs::rename(temporary, folder, code);
      if (code)
        throw Error({.what = "cannot rename a finished export into place",
                     .found = code.message(),
                     .where = folder,
                     .fix = "check the permissions of the folder and of the file system, and export again",
                     .code = exit_code_of(code.value())});
      const auto parent = fs::path(folder).parent_path();
      sync_folder(parent.empty() ? "." : parent.string());
      return written;
    } catch (...) {
      std::error_code ignored;
      fs::remove_all(temporary, ignored);
      throw;
    }
  }
  if (!options.overwrite && !weight_files(options.folder).empty()) {
    throw Error({.what = "the folder has weights already",
                 .found = weight_files(options.folder).front().filename().string(),
                 .where = options.folder,
                 .fix = "export to another folder or remove the weights",
                 .code = ExitCode::usage});
  }
  return fill(options.folder, options, config, wanted, values);
}

namespace {

/// Returns whether the model has other parts than the trained text model.
bool has_other_parts(const std::string& folder) {
  const Json config = read_json(config_path_of(folder));
  return config.is_object() && (config.contains("text_config") || config.contains("vision_config"));
}

/// Returns the source of the tensors that the checkpoint lacks, or null if it holds all.
std::unique_ptr<weights::WeightFolder> other_weights(const ExportOptions& options) {
  const std::string& folder = options.source_folder;
  const bool there =
      options.rest_from_source || (has_other_parts(folder) && weights::WeightFolder::exists(folder));
  return there ? std::make_unique<weights::WeightFolder>(folder) : nullptr;
}

/// Returns the tensors that are copied unchanged from the source.
std::vector<weights::TensorHeader> untrained(const weights::WeightFolder& others,
                                             const ExportOptions& options,
                                             const std::vector<weights::TensorHeader>& parameters) {
  std::set<std::string> trained;
  for (const auto& parameter : parameters) trained.insert(parameter.name);
  std::vector<weights::TensorHeader> copied;
  for (const weights::StoredTensor& tensor : others.tensors()) {
    const bool needed = options.rest_from_source && options.reward_class.empty();
    const bool head = !needed && tensor.name.ends_with("lm_head.weight");
    if (!trained.contains(tensor.name) && !head) copied.push_back(tensor);
  }
  return copied;
}

}  // namespace

ExportSize size_of_export(const ExportOptions& options,
                          const std::vector<weights::TensorHeader>& parameters) {
  const std::string& folder = options.source_folder;
  std::vector<weights::TensorHeader> tensors = parameters;
  ExportSize size;
  bool tied = false;
  weights::ExpertLayout layout = weights::ExpertLayout::separate;
  std::unique_ptr<weights::WeightFolder> others;
  if (!folder.empty()) {
    const Json config = config_of(folder);
    tied = is_tied(options, config);
    others = other_weights(options);
    layout = expert_layout(options, config, others.get());
    if (others != nullptr) {
      for (weights::TensorHeader& tensor : untrained(*others, options, parameters)) tensors.push_back(tensor);
    }
    const auto add = [&size](std::int64_t bytes) {
      size.others += bytes;
      size.largest = std::max(size.largest, bytes);
    };
    add(static_cast<std::int64_t>(config_text(config, options).size()));
    for (const char* name : kCopiedFiles) {
      std::error_code none;
      const auto bytes = fs::file_size(folder + "/" + name, none);
      if (!none) add(static_cast<std::int64_t>(bytes));
    }
  }
  const weights::ShardPlan plan =
      weights::plan_shards(as_exported(weights::ExpertStacks(tensors, layout).tensors(), options, tied,
                                       {.read = {}, .source = others.get()}),
                           options.shard_bytes);
  for (const std::vector<weights::TensorHeader>& shard : plan.tensors)
    size.weights += weights::safetensors_bytes(shard);
  if (plan.files.size() > 1) size.weights += static_cast<std::int64_t>(weights::index_json(plan).size());
  return size;
}

std::vector<std::string> export_checkpoint(const ExportOptions& options, const std::string& checkpoint) {
  const Checkpoint source(checkpoint);
  std::vector<weights::TensorHeader> parameters;
  for (const auto& tensor : source.tensors()) {
    if (tensor.name.find('/') == std::string::npos) parameters.push_back(tensor);
  }
  std::set<std::string> trained;
  for (const auto& parameter : parameters) trained.insert(parameter.name);
  const std::string& folder = options.source_folder;
  const std::unique_ptr<weights::WeightFolder> others = other_weights(options);
  bool has_parts = false;  // whether the base has tensors that were not trained
  if (others != nullptr) {
    const std::vector<weights::TensorHeader> copied = untrained(*others, options, parameters);
    has_parts = !copied.empty();
    parameters.insert(parameters.end(), copied.begin(), copied.end());
    if (has_parts)
      log::info("copying " + std::to_string(copied.size()) + " tensors that were not trained from " + folder);
  }
  if (!has_parts && has_other_parts(folder)) {
    log::warn(folder + (others == nullptr ? " has no weights" : " has only weights of the text model") +
              ": the export holds only the text model. Other parts that config.json describes (images) get " +
              "random values when the export is loaded");
  }
  return export_model(
      options, parameters,
      [&](const std::string& name, std::int64_t begin, std::int64_t count, float* out) {
        if (trained.contains(name)) {
          source.read(name, begin, count, out);
          weights::require_finite(name, out, count, options.dtype, checkpoint);
        } else {
          others->read(name, begin, count, out);
          weights::require_finite(name, out, count, options.dtype, folder,
                                  "use weights of the base model without such values");
        }
      },
      others.get());
}

}  // namespace octet::checkpoint
