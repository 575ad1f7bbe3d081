#include "octet/runtime/model_folder.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/model_file.h"
#include "octet/model/layout.h"
#include "octet/runtime/same_model.h"
#include "octet/weights/safetensors.h"

namespace octet::runtime {

bool has_weights(const std::string& folder) {
  if (weights::WeightFolder::exists(folder)) return true;
  static constexpr std::array kOther{".bin",  ".pt",      ".pth", ".ckpt",
                                     ".gguf", ".msgpack", ".h5",  ".safetensors"};
  std::error_code code;
  for (std::filesystem::directory_iterator at(folder, code), end; !code && at != end; at.increment(code)) {
    const std::string name = at->path().filename().string();
    const bool weights =
        std::ranges::any_of(kOther, [&](const char* ending) { return name.ends_with(ending); });
    if (!weights || name == "training_args.bin") continue;
    throw Error({.what = "the weights of a model are in an unsupported format",
                 .expected = "model.safetensors, or model.safetensors.index.json with its shards",
                 .found = name,
                 .where = folder,
                 .fix = "load it in transformers and save it with save_pretrained, which writes safetensors; "
                        "or set train_from_scratch: true to start from random weights",
                 .code = ExitCode::usage});
  }
  return false;
}

void require_weights(const std::string& folder, const std::string& otherwise) {
  if (has_weights(folder)) return;
  throw Error({.what = "there are no weights to start from",
               .expected = "model.safetensors, or model.safetensors.index.json with its shards",
               .where = folder,
               .fix = "fetch the weights, or " + otherwise,
               .code = ExitCode::usage});
}

namespace {

/// Finds the linear-layer tensors of the blocks that are stored without codes. The files are more reliable
/// than llm_int8_skip_modules, which uses the names of a class. Throws Error for codes of another shape.
void find_unquantised(model::Architecture& architecture, const weights::WeightFolder& weights) {
  if (architecture.stored.format != model::StoredWeights::Format::nf4) return;
  for (const model::GroupSpec& group : model::build_layout(architecture).groups) {
    for (const model::SegmentSpec& segment : group.segments) {
      for (const model::TensorSpec& tensor : segment.tensors) {
        for (const model::NamedPart& part : tensor.parts) {
          const weights::QuantisedTensor* codes = weights.quantised(part.name);
          const bool nf4 = codes != nullptr && codes->format == weights::QuantisedTensor::Format::nf4;
          if (nf4) weights.expect(part.name, part.shape);
          if (tensor.fp8 && !nf4) architecture.stored.unquantised.insert(part.name);
        }
      }
    }
  }
}

/// Prints each line once per process, because a folder is opened several times.
void warn_once(const std::string& line) {
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::lock_guard<std::mutex> lock(mutex);
  if (said.insert(line).second) log::warn(line, log::Importance::training);
}

/// Returns whether the weights hold a head and an embedding with different values.
bool holds_another_head(const model::Architecture& architecture, const weights::WeightFolder& weights) {
  const std::string table = architecture.tensor_prefix + "embed_tokens.weight", head = architecture.head_name;
  const weights::StoredTensor* const one = weights.find(head);
  const weights::StoredTensor* const other = weights.find(table);
  if (one == nullptr || other == nullptr) return false;
  if (one->count != other->count) return true;
  constexpr std::int64_t kRun = 1 << 16;
  std::vector<float> a(kRun), b(kRun);
  for (std::int64_t at = 0; at < one->count; at += kRun) {
    const std::int64_t n = std::min(kRun, one->count - at);
    weights.read(head, at, n, a.data());
    weights.read(table, at, n, b.data());
    if (!std::equal(a.begin(), a.begin() + n, b.begin())) return true;
  }
  return false;
}

// Reads a file that is only compared. Code that needs the file refuses a broken one.
Json readable(const std::string& folder, const std::string& name) {
  try {
    return read_model_file(folder, name);
  } catch (const Error&) {
    return Json::object();
  }
}

std::set<std::int32_t> end_tokens(const Json& config) {
  const std::vector<std::int32_t> ids = token_ids(config, "eos_token_id");
  return {ids.begin(), ids.end()};
}

/// Warns that no text ends with a token if the model has no row for it. transformers warns, too.
void warn_of_ends_beyond(std::int64_t vocabulary, const std::string& folder) {
  for (const char* name : {"config.json", "generation_config.json"}) {
    for (const std::int32_t id : end_tokens(readable(folder, name))) {
      if (id < vocabulary) continue;
      warn_once(folder + "/" + name + ": eos_token_id " + std::to_string(id) + " is beyond the " +
                std::to_string(vocabulary) +
                " tokens of the model: no answer ends with it. Check whether the files belong together");
    }
  }
}

/// transformers converts weights to the dtype in config.json; Octet reads them unconverted.
void compare_dtype(const Json& config, const std::string& folder) {
  static const std::map<std::string, DType> kNames{
      {"float32", DType::f32}, {"bfloat16", DType::bf16}, {"float16", DType::f16}};
  const auto named = config.find(config.contains("dtype") ? "dtype" : "torch_dtype");
  if (named == config.end() || !named->is_string()) return;
  const auto wanted = kNames.find(named->get<std::string>());
  if (wanted == kNames.end()) return;
  std::map<DType, std::int64_t> elements;
  for (const weights::StoredTensor& tensor : weights::WeightFolder(folder).tensors()) {
    if (tensor.name.ends_with(".weight")) elements[tensor.dtype] += tensor.count;
  }
  const auto most = std::ranges::max_element(elements, {}, [](const auto& entry) { return entry.second; });
  const bool floats = most != elements.end() &&
                      (most->first == DType::f32 || most->first == DType::bf16 || most->first == DType::f16);
  if (!floats || most->first == wanted->second) return;
  warn_once(folder + ": config.json says dtype " + wanted->first + ", but most weights are stored as " +
            std::string(name_of(most->first)) + ": they are read as they are stored, and nothing is rounded");
}

}  // namespace

model::Architecture read_model(const std::string& folder) {
  if (!path_exists(folder)) {
    throw Error({.what = "the folder of the model does not exist",
                 .expected = "a folder with config.json, tokenizer and weights, or the name of a model in "
                             "Hugging Face's cache; nothing is downloaded",
                 .where = folder,
                 .fix = "fetch the model first (hf download NAME), or name a folder that holds it",
                 .code = ExitCode::usage});
  }
  if (!path_exists(folder + "/config.json") && path_exists(folder + "/adapter_config.json")) {
    throw Error(
        {.what = "the folder has an adapter, but no model",
         .expected = "config.json, tokenizer and weights",
         .found = "adapter_config.json",
         .where = folder,
         .fix = "merge it into its base with trainer export FOLDER OUT --merge; or continue to train it: "
                "finetuning_type=lora adapter_name_or_path=FOLDER, and its base as model_name_or_path",
         .code = ExitCode::usage});
  }
  model::Architecture architecture = model::read_architecture(folder);
  const bool asks = architecture.multimodal || architecture.tied ||
                    architecture.stored.format == model::StoredWeights::Format::nf4;
  if (!asks || !weights::WeightFolder::exists(folder)) return architecture;
  const weights::WeightFolder weights(folder);
  model::name_tensors(architecture, [&](const std::string& name) { return weights.find(name) != nullptr; });
  find_unquantised(architecture, weights);
  if (architecture.tied && holds_another_head(architecture, weights)) {
    architecture.tied = false;
    warn_once(folder + ": config.json ties the head to the embedding, but the weights hold another '" +
              architecture.head_name +
              "': the head is not tied, as in transformers 5. If that is right, set tie_word_embeddings: "
              "false in config.json; else remove the tensor");
  }
  return architecture;
}

void compare_sources(const text::Tokenizer& tokenizer, const std::string& folder) {
  const Json config = readable(folder, "config.json");
  const Json generation = readable(folder, "generation_config.json");
  const std::set<std::int32_t> ends = end_tokens(config), generated = end_tokens(generation);
  const auto named = [&](const std::set<std::int32_t>& ids) {
    std::string all;
    for (const std::int32_t id : ids) all += (all.empty() ? "" : ", ") + std::to_string(id);
    return all;
  };
  if (!ends.empty() && !generated.empty() &&
      std::ranges::none_of(ends, [&](auto id) { return generated.contains(id); })) {
    warn_once(folder + ": config.json ends texts with eos_token_id " + named(ends) +
              ", generation_config.json with " + named(generated) +
              ": generation_config.json counts, as in transformers");
  }
  const std::set<std::int32_t>& known = generated.empty() ? ends : generated;
  // A template may have changed the tokenizer's end token.
  const bool own = !tokenizer.changed() && tokenizer.eos_id() >= 0;
  if (own && !known.empty() && !known.contains(tokenizer.eos_id()) && !ends.contains(tokenizer.eos_id())) {
    warn_once(folder + ": the tokenizer's eos_token '" + tokenizer.eos_token() + "' has the id " +
              std::to_string(tokenizer.eos_id()) + ", and the model's configuration ends texts with " +
              named(known) + ": trained answers end with eos_token; check whether the files belong together");
  }
  if (!weights::WeightFolder::exists(folder)) return;
  if (path_exists(folder + "/model.safetensors") && path_exists(folder + "/model.safetensors.index.json")) {
    warn_once(folder +
              ": model.safetensors and model.safetensors.index.json both exist: model.safetensors is read, "
              "as in transformers, and the shards are ignored");
  }
  compare_dtype(config, folder);
}

void require_model_of(const checkpoint::Checkpoint& checkpoint, const std::string& folder) {
  model::Architecture architecture = read_model(folder);
  if (trained_reward_model(checkpoint))
    architecture = model::as_reward_model(std::move(architecture), folder);
  require_same_model(checkpoint, architecture, nullptr, folder);
}

void require_fit(const text::Tokenizer& tokenizer, const model::Architecture& architecture,
                 const std::string& folder) {
  compare_sources(tokenizer, folder);
  warn_of_ends_beyond(architecture.vocabulary, folder);
  if (tokenizer.vocab_size() <= architecture.vocabulary) return;
  throw Error(
      {.what = "the tokenizer does not fit the model",
       .expected = "at most " + std::to_string(architecture.vocabulary) + " tokens, the model's vocab_size",
       .found = std::to_string(tokenizer.vocab_size()) + " tokens",
       .where = folder,
       .fix = "use the tokenizer that belongs to the model, and a template whose tokens it has",
       .code = ExitCode::usage});
}

}  // namespace octet::runtime
