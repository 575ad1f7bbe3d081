#include "octet/train/disk.h"

#include <algorithm>

#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/checkpoint/export.h"
#include "octet/config/derive.h"
#include "octet/model/build.h"
#include "octet/setup/adapters.h"
#include "octet/setup/freezing.h"
#include "octet/setup/run_options.h"
#include "octet/train/adapter_folder.h"
#include "octet/weights/safetensors.h"

namespace octet::train {
namespace {

/// Upper bound of a run's state in a checkpoint (counters, position in the data, sums of its log), without
/// adapters. Less than 16 KiB in total does not change the size of the checkpoint.
constexpr std::int64_t kStateOfRun = 8 << 10;
/// Upper bound of a template's additions to the tokenizer's files, and of generation_config.json.
constexpr std::int64_t kTemplate = 64 << 10;

/// Returns the tensors of the final weights. These are the tensors of a checkpoint. If only a part is trained
/// and the rest is in no folder, they are the tensors of the whole model.
std::vector<weights::TensorHeader> parameters_of(const std::vector<weights::TensorHeader>& state,
                                                 const model::Architecture* whole) {
  std::vector<weights::TensorHeader> parameters;
  if (whole != nullptr) {
    model::Architecture plain = *whole;
    plain.tuning = {};
    for (const model::GroupSpec& group : model::build_layout(plain).groups) {
      for (const model::SegmentSpec& segment : group.segments) {
        for (const model::TensorSpec& tensor : segment.tensors) {
          for (const model::NamedPart& part : tensor.parts)
            parameters.push_back({.name = part.name, .dtype = DType::f32, .shape = part.shape});
        }
      }
    }
    return parameters;
  }
  for (const weights::TensorHeader& tensor : state) {
    if (tensor.name.find('/') == std::string::npos) parameters.push_back(tensor);
  }
  return parameters;
}

}  // namespace

RunFiles files_of_run(const config::Config& config, const model::Architecture& architecture,
                      const RunOutline& outline) {
  RunFiles files;
  files.checkpoint = checkpoint::size_of(
      {.tensors = outline.tensors,
       .state_bytes = kStateOfRun + static_cast<std::int64_t>(outline.adapters->dump().size()),
       .config_bytes = static_cast<std::int64_t>(outline.config_yaml.size()),
       .step = outline.step,
       .world = outline.world,
       .zero_stage = static_cast<int>(config.zero_stage)});
  const std::string& model = config.model_name_or_path;
  const bool folder = path_exists(model + "/config.json");
  const bool part = setup::trains_parts(config), weights = weights::WeightFolder::exists(model);
  const checkpoint::ExportSize size =
      checkpoint::size_of_export({.folder = {},
                                  .source_folder = folder ? model : "",
                                  .dtype = setup::export_dtype(config),
                                  .shard_bytes = setup::export_bytes(config),
                                  .complete = {},
                                  .rest_from_source = part && weights,
                                  .tied = architecture.tied},
                                 parameters_of(outline.tensors, part && !weights ? &architecture : nullptr));
  files.model_weights =
      setup::trains_adapters(config) ? adapter_bytes(outline.tensors, architecture.tied) : size.weights;
  if (folder) files.model_others = size.others + size.largest + kTemplate;
  return files;
}

std::int64_t saves_of_run(const config::SaveKeys& config, const RunSteps& steps) {
  const setup::When when = setup::saves_when(config);
  if (when == setup::When::never) return 1;  // it holds the weights for the final model
  const std::int64_t every = when == setup::When::epoch
                                 ? std::max<std::int64_t>(1, steps.of_epoch)
                                 : config::interval_steps(config.save_steps, steps.total);
  return steps.total / every - steps.done / every + (steps.total % every != 0 ? 1 : 0);
}

CheckpointCount checkpoints_of_run(const config::SaveKeys& config, std::int64_t saves, std::int64_t there) {
  if (!config.save_total_limit || *config.save_total_limit < 1) return {saves, saves};
  const std::int64_t kept = *config.save_total_limit + (config.load_best_model_at_end ? 1 : 0) - there;
  return {.most = std::min(saves, std::max<std::int64_t>(1, kept + 1)),
          .at_end = std::min(saves, std::max<std::int64_t>(0, kept))};
}

}  // namespace octet::train
