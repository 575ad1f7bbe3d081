#include "model_source.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/checkpoint/folder.h"
#include "octet/runtime/model_folder.h"
#include "octet/setup/adapters.h"
#include "octet/setup/model_options.h"
#include "octet/setup/run_options.h"
#include "octet/train/run_exports.h"
#include "octet/weights/safetensors.h"

namespace octet::answers {
namespace {

/// Returns the checkpoint that `path` names. Returns "" if it names a model, an adapter or nothing.
std::string checkpoint_at(const std::string& path) {
  if (path_exists(path + "/config.json") || path_exists(path + "/adapter_config.json")) return "";
  std::error_code none;
  if (!std::filesystem::is_directory(path, none)) return "";
  const std::string found = checkpoint::checkpoint_of_run(path);
  return checkpoint::is_checkpoint(found) ? found : "";
}

void require_base(const ModelSource& source) {
  const std::string& where = source.checkpoint->path();
  if (!path_exists(source.folder + "/config.json")) {
    throw Error({.what = "the model that the run started from does not exist",
                 .expected = "a folder with config.json and tokenizer",
                 .found = source.folder.empty() ? "no name" : source.folder,
                 .where = where,
                 .fix = "name its folder in an export, and answer from that: trainer export " + where +
                        " OUT --model FOLDER",
                 .code = ExitCode::usage});
  }
  const bool all = !setup::trains_adapters(source.run) && !setup::trains_parts(source.run);
  if (all || !source.run.train_from_scratch) return;
  throw Error({.what = "the checkpoint has only a part of a model, and its run started from random weights",
               .expected = "a run that began with the weights of its model",
               .found = "train_from_scratch: true with finetuning_type: " + source.run.finetuning_type,
               .where = where,
               .fix = "train the whole model (finetuning_type: full), or begin with weights",
               .code = ExitCode::usage});
}

void take_checkpoint(ModelSource& source, const std::string& path) {
  source.checkpoint = std::make_shared<const checkpoint::Checkpoint>(path);
  const checkpoint::Checkpoint& checkpoint = *source.checkpoint;
  checkpoint::require_own_name(path, checkpoint.step());
  source.run =
      config::load_text(checkpoint.config_yaml(), path + " (configuration)", {}, {.for_training = false})
          .config;
  source.folder = source.run.model_name_or_path;
  require_base(source);
  runtime::require_model_of(checkpoint, source.folder);
  source.architecture = setup::model_of_stage(source.run, runtime::read_model(source.folder), source.folder);
  train::require_same_adapters(
      checkpoint, train::adapter_state(source.run, source.run.seed, source.architecture), source.folder);
  if (setup::trains_adapters(source.run)) {
    // First the adapters that the run added to the base, then the adapter that it trained.
    source.added = setup::added_adapters(setup::given_adapters(source.run).added, source.architecture);
    model::Architecture tuned = setup::tuned(source.run, source.architecture);
    source.added.push_back(
        {.folder = path, .architecture = std::move(tuned), .checkpoint = source.checkpoint});
    return;
  }
  source.trained = {.checkpoint = source.checkpoint,
                    .dtype = setup::export_dtype(source.run),
                    .part = setup::trains_parts(source.run)};
  // All weights are read from the checkpoint, so quantised weights of the folder do not count.
  if (!source.trained.part) source.architecture.stored = {};
}

void take_folder(ModelSource& source, const std::string& path) {
  const setup::NamedModel named = setup::named_model(path);
  if (!path_exists(named.folder)) {
    throw Error({.what = "the folder of the model does not exist",
                 .expected = "a folder with config.json",
                 .found = "nothing",
                 .where = named.folder,
                 .fix = "name the folder that holds it",
                 .code = ExitCode::usage});
  }
  source.folder = named.folder;
  source.adapters = named.adapters;
  source.architecture = runtime::read_model(named.folder);
}

/// Adds the head of a reward model if an adapter has one.
void take_head(ModelSource& source) {
  if (source.architecture.scores || std::ranges::none_of(source.adapters, setup::is_reward_adapter)) return;
  source.architecture = model::as_reward_model(std::move(source.architecture), source.folder);
}

/// Returns one hash of the manifest's hashes of all parameters.
std::string parameters_hash(const checkpoint::Checkpoint& checkpoint) {
  std::string words;
  for (const checkpoint::CheckpointTensor& tensor : checkpoint.tensors()) {
    if (tensor.name.find('/') == std::string::npos) words += tensor.name + " " + tensor.hash + "\n";
  }
  return hash128_hex(words);
}

}  // namespace

ModelSource find_model(const GenerateOptions& options) {
  ModelSource source;
  const std::string checkpoint = checkpoint_at(options.model);
  if (checkpoint.empty()) {
    take_folder(source, options.model);
  } else {
    take_checkpoint(source, checkpoint);
  }
  if (!options.adapter.empty()) {
    for (const std::string& folder : setup::adapter_folders(options.adapter))
      source.adapters.push_back(folder);
  }
  take_head(source);
  for (runtime::AddedAdapter& added : setup::added_adapters(source.adapters, source.architecture))
    source.added.push_back(std::move(added));
  source.tokenizer = source.folder;
  for (const std::string& folder : source.adapters) {
    if (path_exists(folder + "/tokenizer.json")) source.tokenizer = folder;
  }
  return source;
}

std::string ModelSource::fingerprint() const {
  const bool all = trained.checkpoint != nullptr && !trained.part;
  std::string weights = all ? "" : weights::WeightFolder(folder).fingerprint();
  if (checkpoint == nullptr) return weights;
  return hash128_hex(weights + "\n" + parameters_hash(*checkpoint) + "\n" +
                     std::string(name_of(trained.dtype)));
}

std::string ModelSource::told() const {
  if (checkpoint == nullptr) return "";
  const std::string what = setup::trains_adapters(run) ? "the adapter of "
                           : trained.part              ? "the trained part of "
                                                       : "the weights of ";
  return "answering with " + what + checkpoint->path() + ", saved after step " +
         with_commas(checkpoint->step()) +
         (trained.checkpoint != nullptr && !trained.part ? "; config.json and tokenizer of "
                                                         : "; the rest is of ") +
         folder;
}

}  // namespace octet::answers
