#include "octet/runtime/model_folder.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/model/build.h"
#include "octet/runtime/same_model.h"

namespace octet::runtime {

bool has_weights(const std::string& folder) {
  if (checkpoint::WeightFolder::exists(folder)) return true;
  static constexpr std::array kOther{".bin",  ".pt",      ".pth", ".ckpt",
                                     ".gguf", ".msgpack", ".h5",  ".safetensors"};
  std::error_code code;
  for (std::filesystem::directory_iterator at(folder, code), end; !code && at != end; at.increment(code)) {
    const std::string name = at->path().filename().string();
    const bool weights =
        std::ranges::any_of(kOther, [&](const char* ending) { return name.ends_with(ending); });
    if (!weights || name == "training_args.bin") continue;
    throw Error(
        {.what = "the weights of a model are in a format that is not read",
         .expected = "model.safetensors, or model.safetensors.index.json with its shards",
         .found = name,
         .where = folder,
         .fix = "load it in transformers and save it with save_pretrained, which writes safetensors; or set "
                "train_from_scratch: true to begin without weights",
         .code = ExitCode::usage});
  }
  return false;
}

void require_weights(const std::string& folder) {
  if (has_weights(folder)) return;
  throw Error({.what = "there are no weights to begin with",
               .expected = "model.safetensors, or model.safetensors.index.json with its shards",
               .where = folder,
               .fix = "fetch the weights, or set train_from_scratch: true to begin with random ones",
               .code = ExitCode::usage});
}

namespace {

/// Which tensors of the blocks' linear layers have no codes among those that do: the files say it better than
/// llm_int8_skip_modules, whose names follow those of a class. Throws Error for codes of another shape.
void find_unquantised(model::Architecture& architecture, const checkpoint::WeightFolder& weights) {
  if (architecture.stored.format != model::StoredWeights::Format::nf4) return;
  for (const model::GroupSpec& group : model::build_layout(architecture).groups) {
    for (const model::SegmentSpec& segment : group.segments) {
      for (const model::TensorSpec& tensor : segment.tensors) {
        for (const model::NamedPart& part : tensor.parts) {
          const checkpoint::QuantisedTensor* codes = weights.quantised(part.name);
          const bool nf4 = codes != nullptr && codes->format == checkpoint::QuantisedTensor::Format::nf4;
          if (nf4) weights.expect(part.name, part.shape);
          if (tensor.fp8 && !segment.expert && !nf4) architecture.stored.unquantised.insert(part.name);
        }
      }
    }
  }
}

}  // namespace

model::Architecture read_model(const std::string& folder) {
  if (!path_exists(folder)) {
    throw Error({.what = "the folder of the model is not there",
                 .expected = "a folder with config.json, tokenizer and weights, or the name of a model in "
                             "Hugging Face's cache; nothing is downloaded",
                 .where = folder,
                 .fix = "fetch the model first (hf download NAME), or name a folder that holds it",
                 .code = ExitCode::usage});
  }
  if (!path_exists(folder + "/config.json") && path_exists(folder + "/adapter_config.json")) {
    throw Error({.what = "the folder holds an adapter and no model",
                 .expected = "config.json, tokenizer and weights",
                 .found = "adapter_config.json",
                 .where = folder,
                 .fix =
                     "merge it into its base with trainer export FOLDER OUT --merge; or train on with it: "
                     "finetuning_type=lora adapter_name_or_path=FOLDER, and its base as model_name_or_path",
                 .code = ExitCode::usage});
  }
  model::Architecture architecture = model::read_architecture(folder);
  const bool asks =
      architecture.multimodal || architecture.stored.format == model::StoredWeights::Format::nf4;
  if (!asks || !checkpoint::WeightFolder::exists(folder)) return architecture;
  const checkpoint::WeightFolder weights(folder);
  model::name_tensors(architecture, [&](const std::string& name) { return weights.find(name) != nullptr; });
  find_unquantised(architecture, weights);
  return architecture;
}

void require_model_of(const checkpoint::Checkpoint& checkpoint, const std::string& folder) {
  require_same_model(checkpoint, read_model(folder), nullptr, folder);
}

void require_fit(const text::Tokenizer& tokenizer, const model::Architecture& architecture,
                 const std::string& folder) {
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
