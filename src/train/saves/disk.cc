#include "octet/train/disk.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/checkpoint/hub_export.h"
#include "octet/config/derive.h"
#include "octet/model/layout.h"
#include "octet/setup/adapters.h"
#include "octet/setup/model_options.h"
#include "octet/setup/run_options.h"
#include "octet/train/run_exports.h"
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
                                  .tied = architecture.tied,
                                  .model_tensors = model::text_tensors(architecture)},
                                 parameters_of(outline.tensors, part && !weights ? &architecture : nullptr));
  files.model_weights =
      setup::trains_adapters(config) ? adapter_bytes(outline.tensors, architecture) : size.weights;
  if (folder) files.model_others = size.others + size.largest + kTemplate;
  return files;
}

std::int64_t saves_of_run(const config::SaveKeys& config, const RunSteps& steps) {
  std::int64_t every = 1;
  switch (setup::saves_when(config)) {
    case setup::When::never:
      return 1;  // it holds the weights for the final model
    case setup::When::steps:
      every = config::interval_steps(config.save_steps, steps.total);
      break;
    case setup::When::epoch:
      every = std::max<std::int64_t>(1, steps.of_epoch);
      break;
    case setup::When::best:
      every = std::max<std::int64_t>(1, steps.between_evaluations);
      break;
  }
  return steps.total / every - steps.done / every + (steps.total % every != 0 ? 1 : 0);
}

CheckpointCount checkpoints_of_run(const config::SaveKeys& config, std::int64_t saves, std::int64_t there) {
  if (!config.save_total_limit || *config.save_total_limit < 1) return {saves, saves};
  const std::int64_t kept = *config.save_total_limit + (setup::keeps_best(config) ? 1 : 0) - there;
  return {.most = std::min(saves, std::max<std::int64_t>(1, kept + 1)),
          .at_end = std::min(saves, std::max<std::int64_t>(0, kept))};
}

namespace {

constexpr std::int64_t kFiles = 64;  // generous bound of a run's files except checkpoints

std::int64_t in_blocks(std::int64_t bytes, std::int64_t block) {
  return (bytes + block - 1) / block * block;
}

std::string text(std::int64_t bytes) {
  return human_bytes(static_cast<double>(bytes));
}

std::string checkpoints_text(std::int64_t count, std::int64_t bytes) {
  return std::to_string(count) + (count == 1 ? " checkpoint of " : " checkpoints of ") + text(bytes);
}

std::string contents_text(const DiskNeed& need) {
  const CheckpointCount first = need.first();
  return checkpoints_text(first.most, need.checkpoint_bytes) +
         (first.at_end < first.most ? ", one of which is removed before the final model of "
                                    : " and the final model of ") +
         text(need.model_bytes) + (first.at_end < first.most ? " is written" : "");
}

// The fallback takes checkpoints that do not fit in the output folder, but not the model.
bool fallback_helps(const DiskNeed& need, const DiskPlace& output, const std::optional<DiskPlace>& fallback) {
  return fallback && fallback->disk.device != output.disk.device &&
         output.disk.free_bytes >= need.model_bytes &&
         (fallback->disk.free_bytes < 0 || fallback->disk.free_bytes >= need.least_checkpoints());
}

void require_files(const DiskNeed& need, const DiskPlace& output) {
  // A checkpoint is a folder with two files, plus one file with a temporary name.
  const std::int64_t files = kFiles + 4 * need.checkpoints.most;
  if (output.disk.free_files < 0 || output.disk.free_files >= files) return;
  throw Error({.what = "the disk has too few inodes for this run",
               .expected = std::to_string(files) + " files (inodes)",
               .found = std::to_string(output.disk.free_files) + " free",
               .where = output.folder,
               .fix = "remove files, or choose another output_dir",
               .code = ExitCode::storage});
}

}  // namespace

CheckpointCount DiskNeed::first() const {
  return {.most = std::min<std::int64_t>(2, checkpoints.most),
          .at_end = std::min<std::int64_t>(2, checkpoints.at_end)};
}

std::int64_t DiskNeed::fullest(const CheckpointCount& count) const {
  const std::int64_t then =
      std::max(count.most * checkpoint_bytes, count.at_end * checkpoint_bytes + model_bytes);
  return std::max(checkpoint_bytes, then - going_bytes);
}

DiskNeed disk_need(const config::SaveKeys& config, const DiskFacts& facts) {
  const std::int64_t block = std::max<std::int64_t>(1, facts.block);
  const checkpoint::CheckpointSize& size = facts.files.checkpoint;
  DiskNeed need;
  // The folder itself takes one block.
  need.checkpoint_bytes = in_blocks(size.data_file, block) + in_blocks(size.manifest, block) + block;
  need.model_bytes = in_blocks(facts.files.model_weights, block) + in_blocks(facts.files.model_others, block);
  need.going_bytes = facts.going_bytes;
  // Only the run can measure how many saves fit between two failures.
  need.counted = !facts.measured_saves || config.save_total_limit;
  std::int64_t saves = saves_of_run(
      config, {facts.first_step, facts.total_steps, facts.steps_per_epoch, facts.between_evaluations});
  if (facts.measured_saves) saves = facts.total_steps - facts.first_step;
  if (!need.counted) saves = std::min<std::int64_t>(2, saves);
  need.checkpoints = checkpoints_of_run(config, saves, facts.checkpoints);
  return need;
}

DiskState disk_state(const std::string& folder) {
  struct statvfs disk {};
  struct stat entry {};
  if (::statvfs(folder.c_str(), &disk) != 0 || ::stat(folder.c_str(), &entry) != 0) return {};
  const bool root = ::geteuid() == 0;
  DiskState state;
  state.block = static_cast<std::int64_t>(disk.f_frsize);
  state.device = static_cast<std::uint64_t>(entry.st_dev);
  state.free_bytes = static_cast<std::int64_t>((root ? disk.f_bfree : disk.f_bavail) * disk.f_frsize);
  // File systems without a limit on files report 0 of 0.
  if (disk.f_files > 0) state.free_files = static_cast<std::int64_t>(root ? disk.f_ffree : disk.f_favail);
  return state;
}

DiskState disk_state_for(const std::string& folder) {
  std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  while (!path_exists(path.string()) && path.has_relative_path()) path = path.parent_path();
  return disk_state(path.string());
}

std::int64_t bytes_of_folder(const std::string& folder) {
  std::int64_t bytes = 0;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator(folder, code)) {
    std::error_code none;
    const auto size = entry.file_size(none);
    if (!none) bytes += static_cast<std::int64_t>(size);
  }
  return bytes;
}

std::string check_disk(const DiskNeed& need, const DiskPlace& output,
                       const std::optional<DiskPlace>& fallback) {
  const std::int64_t free = output.disk.free_bytes;
  require_files(need, output);
  if (free < 0 || (need.counted && free >= need.all())) return "";
  if (free < need.least()) {
    if (fallback_helps(need, output, fallback)) {
      return "output_dir has no room for " + contents_text(need) + ": " + text(free) + " are free in " +
             output.folder + "; checkpoints that do not fit are written to save_fallback_dir, " +
             fallback->folder;
    }
    throw Error({.what = "the disk has too little space for this run",
                 .expected = text(need.least()) + " at least, for " + contents_text(need),
                 .found = text(free) + " free" +
                          (fallback && fallback->disk.free_bytes >= 0
                               ? ", and " + text(fallback->disk.free_bytes) + " in save_fallback_dir"
                               : ""),
                 .where = output.folder,
                 .fix = "free some disk space, or choose another output_dir",
                 .code = ExitCode::storage});
  }
  if (!need.counted) return "";
  return "the disk will be full before the run ends: " +
         checkpoints_text(need.checkpoints.most, need.checkpoint_bytes) + " and the model of " +
         text(need.model_bytes) + " take " + text(need.all()) + " at the fullest moment, but only " +
         text(free) + " are free in " + output.folder +
         "; save_total_limit keeps fewer, save_steps saves less often";
}

}  // namespace octet::train
