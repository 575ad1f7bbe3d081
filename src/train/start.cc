#include "start.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/checkpoint/folder.h"
#include "saves/saver.h"

namespace octet::train {
namespace {

constexpr const char* kFinalWeights[] = {"model.safetensors", "model.safetensors.index.json",
                                         "adapter_model.safetensors", "pytorch_model.bin",
                                         "pytorch_model.bin.index.json"};

bool holds_final_weights(const std::string& folder) {
  return std::ranges::any_of(kFinalWeights,
                             [&](const char* name) { return path_exists(folder + "/" + name); });
}

/// Whether a folder has final weights that are newer than a checkpoint.
bool has_model_of(const checkpoint::Checkpoint& checkpoint, const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code wrong;
  const auto saved = fs::last_write_time(checkpoint.path() + "/manifest.json", wrong);
  if (wrong) return true;
  return std::ranges::any_of(kFinalWeights, [&](const char* name) {
    std::error_code none;
    const auto written = fs::last_write_time(folder + "/" + name, none);
    return !none && written >= saved;
  });
}

// Handles state that the checkpoint stores in another format than this run. Numbers are converted, which is
// logged. 8-bit moments are codes, which only a run with 8-bit moments can use.
void match_formats(const checkpoint::Checkpoint& checkpoint, const std::vector<TensorSlice>& needed,
                   bool says) {
  std::map<std::string, std::string> converted;  // by kind of state
  for (const TensorSlice& slice : needed) {
    const checkpoint::CheckpointTensor* tensor = checkpoint.find(slice.name);
    if (tensor == nullptr || tensor->dtype == slice.dtype) continue;
    const std::string from(name_of(tensor->dtype)), to(name_of(slice.dtype));
    if (tensor->dtype == DType::u8 || slice.dtype == DType::u8) {
      throw Error({.what = "the optimizer's moments cannot change their format",
                   .expected = "optim_dtype: " + (tensor->dtype == DType::u8 ? "int8" : from) +
                               ", as in the checkpoint",
                   .found = "optim_dtype: " + (slice.dtype == DType::u8 ? "int8" : to),
                   .where = checkpoint.path() + ", tensor '" + slice.name + "'",
                   .fix = "set optim_dtype as in the checkpoint; or export it and start a new run from the "
                          "exported weights",
                   .code = ExitCode::usage});
    }
    const std::size_t slash = slice.name.find('/');
    converted[slash == std::string::npos ? "parameters" : slice.name.substr(0, slash)] = from + " to " + to;
  }
  for (const auto& [kind, how] : converted) {
    if (says) log::warn("the checkpoint's " + kind + " are converted from " + how, log::Importance::training);
  }
}

// Whether a tensor has scales of delayed scaling, of weights, activations or gradients.
bool is_scale(const std::string& name) {
  return name.starts_with("fp8_weights/") || name.starts_with("precision/activations/");
}

// Whether a resumed run may leave a tensor unused, because it belongs to a precision or a wire format that
// this run may not have.
bool may_be_left(const std::string& name) {
  return is_scale(name) || name.starts_with("residuals/");
}

// Whether the checkpoint has the needed scales. If it has none, or a history of another length, scales are
// initialised again. Every rank needs all scales, so all ranks decide alike.
bool has_scales(const checkpoint::Checkpoint& checkpoint, std::vector<TensorSlice>& needed, bool says) {
  const bool missing = std::ranges::any_of(needed, [&](const TensorSlice& slice) {
    if (!is_scale(slice.name)) return false;
    const checkpoint::CheckpointTensor* tensor = checkpoint.find(slice.name);
    return tensor == nullptr || tensor->shape != slice.shape;
  });
  if (!missing) return true;
  std::erase_if(needed, [](const TensorSlice& slice) { return is_scale(slice.name); });
  if (says)
    log::warn("the FP8 scales start from new values: the checkpoint has none, or a history of another length",
              log::Importance::training);
  return false;
}

// Each rank has its own rounding residuals of narrow wires. If the checkpoint has none, or was written with
// another number of ranks, they are initialised to zero.
void drop_strange_residuals(const checkpoint::Checkpoint& checkpoint, std::vector<TensorSlice>& needed,
                            bool says) {
  const auto dropped = std::erase_if(needed, [&](const TensorSlice& slice) {
    if (!slice.name.starts_with("residuals/")) return false;
    const checkpoint::CheckpointTensor* tensor = checkpoint.find(slice.name);
    return tensor == nullptr || tensor->shape != slice.shape;
  });
  if (dropped > 0 && says) {
    log::warn(
        "error_feedback starts from zero: the checkpoint has no rounding errors for this number of ranks",
        log::Importance::training);
  }
}

// Throws Error if the checkpoint has tensors that no rank needs. They belong to another model or optimizer,
// and the next save would lose them. Exceptions: tensors that may_be_left().
void require_all_used(comm::Channel& channel, const checkpoint::Checkpoint& checkpoint,
                      const std::vector<TensorSlice>& needed) {
  std::set<std::string> asked;
  for (const TensorSlice& slice : needed) asked.insert(slice.name);
  std::string mine;
  for (const auto& tensor : checkpoint.tensors()) mine += asked.contains(tensor.name) ? '1' : '0';
  const std::vector<std::string> all = channel.all_gather_bytes(mine);
  std::vector<std::string> left;
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const std::string& name = checkpoint.tensors()[i].name;
    if (may_be_left(name)) continue;
    if (std::ranges::none_of(all, [i](const std::string& of_rank) { return of_rank[i] == '1'; }))
      left.push_back(name);
  }
  channel.together([&] {
    if (left.empty()) return;
    throw Error({.what = "the checkpoint has tensors that this run does not use",
                 .found = std::to_string(left.size()) + " of " + std::to_string(mine.size()) +
                          ", the first: '" + left.front() + "'",
                 .where = checkpoint.path(),
                 .fix = "resume with the model and the optimizer that wrote the checkpoint",
                 .code = ExitCode::usage});
  });
}

// Verifies the tensors that no rank reads. After a run has started from a checkpoint, the whole checkpoint
// counts as verified.
void verify_others(const comm::Channel& channel, const checkpoint::Checkpoint& checkpoint,
                   const std::vector<TensorSlice>& needed) {
  if (channel.rank() != 0) return;
  std::set<std::string> asked;
  for (const TensorSlice& slice : needed) asked.insert(slice.name);
  for (const auto& tensor : checkpoint.tensors()) {
    if (may_be_left(tensor.name) && !asked.contains(tensor.name)) checkpoint.verify(tensor);
  }
}

// Returns true if the output folder belongs to an interrupted run with this configuration. Its newest
// readable checkpoint then has this configuration, with overwrite_output_dir. Also, it is not the last
// checkpoint of the run, or the final model is missing.
bool is_interrupted(const config::Config& config) {
  const auto all = checkpoint::list_checkpoints(config.output_dir);
  for (auto at = all.rbegin(); at != all.rend(); ++at) {
    try {
      const checkpoint::Checkpoint newest(at->second);
      const config::Config saved = saved_config(newest);
      if (!saved.overwrite_output_dir || !config::resume_differences(saved, config).empty()) return false;
      const std::int64_t steps = json_int(newest.state(), "total_steps", 0, 0, INT64_MAX, newest.path());
      return newest.step() < steps || !has_model_of(newest, config.output_dir);
    } catch (const std::exception&) {
      continue;  // a damaged checkpoint is skipped
    }
  }
  return false;
}

// Returns the step of a path from find_latest; -1 if none was found.
std::int64_t step_named(const std::string& path) {
  const std::size_t dash = path.rfind('-');
  return path.empty() || dash == std::string::npos ? -1 : std::stoll(path.substr(dash + 1));
}

}  // namespace

config::Config saved_config(const checkpoint::Checkpoint& checkpoint) {
  return config::load_text(checkpoint.config_yaml(), checkpoint.path() + " (configuration)", {},
                           {.for_training = false, .environment = {}})
      .config;
}

bool names_checkpoint(const config::SaveKeys& config) {
  const std::string wish = config.resume_from_checkpoint.value_or("");
  return !wish.empty() && wish != "false" && wish != "true" && wish != "auto";
}

checkpoint::Found find_newest(comm::Channel& channel, const config::SaveKeys& config,
                              const checkpoint::FindOptions& options) {
  checkpoint::Found found = checkpoint::find_latest(channel, config.output_dir, options);
  if (config.save_fallback_dir) {
    const checkpoint::Found other = checkpoint::find_latest(
        channel, fallback_folder(*config.save_fallback_dir, config.output_dir), options);
    if (step_named(other.path) > step_named(found.path)) found = other;
  }
  return found;
}

std::optional<std::string> find_start(comm::Channel& channel, const config::Config& config,
                                      const std::optional<Damaged>& damaged) {
  const std::string wish = config.resume_from_checkpoint.value_or("");
  if (wish == "false") return std::nullopt;
  if (config.overwrite_output_dir && wish.empty() && !damaged) {
    bool resumes = false;
    channel.together([&] { resumes = channel.rank() == 0 && is_interrupted(config); });
    if (channel.all_max(resumes ? 1 : 0) == 0) return std::nullopt;
  }
  if (names_checkpoint(config)) {
    // A named checkpoint must be valid; its bytes are verified while they are read.
    channel.together([&] { checkpoint::require_own_name(wish, checkpoint::Checkpoint(wish).step()); });
    return wish;
  }
  checkpoint::FindOptions options{.verify_data = false};
  if (damaged) options.before_step = damaged->step;
  checkpoint::Found found = find_newest(channel, config, options);
  if (damaged) found.rejected.insert(found.rejected.begin(), {config.output_dir, damaged->why});
  if (!found.path.empty()) return found.path;
  channel.together([&] {
    if (!found.rejected.empty()) {
      throw Error({.what = "all checkpoints of the output folder are damaged",
                   .expected = "at least one undamaged checkpoint-N",
                   .found = std::to_string(found.rejected.size()) +
                            " damaged, the newest: " + found.rejected.front().second,
                   .where = config.output_dir,
                   .fix = "start a new run with overwrite_output_dir=true, or choose another output_dir",
                   .code = ExitCode::no_valid_checkpoint});
    }
    if (wish == "true") {
      throw Error({.what = "there is no checkpoint to resume from",
                   .expected = "a folder checkpoint-N",
                   .where = config.output_dir,
                   .fix = "leave resume_from_checkpoint out to start a new run",
                   .code = ExitCode::no_valid_checkpoint});
    }
  });
  channel.together([&] {
    if (channel.rank() == 0 && holds_final_weights(config.output_dir)) {
      throw Error(
          {.what = "Output directory already exists and is not empty. Please set `overwrite_output_dir`.",
           .expected = "an empty folder, or one with checkpoints to resume from",
           .found = "the weights of a finished model",
           .where = config.output_dir,
           .fix = "choose another output_dir, or set overwrite_output_dir=true",
           .code = ExitCode::usage});
    }
  });
  return std::nullopt;
}

void restore(Engine& engine, const checkpoint::Checkpoint& checkpoint) {
  std::vector<TensorSlice> needed;
  engine.job().together([&] { needed = engine.store().needed_slices(engine.activation_state()); });
  require_all_used(engine.job(), checkpoint, needed);
  bool scales = true;
  engine.job().together([&] {
    scales = has_scales(checkpoint, needed, engine.job().rank() == 0);
    drop_strange_residuals(checkpoint, needed, engine.job().rank() == 0);
    match_formats(checkpoint, needed, engine.job().rank() == 0);
  });
  checkpoint::read_together(engine.job(), checkpoint, needed);
  engine.job().together([&] {
    try {
      verify_others(engine.job(), checkpoint, needed);
    } catch (const Error& e) {
      if (e.code() == ExitCode::usage) throw;
      Problem problem = e.problem();  // all other errors mean damaged bytes
      problem.code = ExitCode::no_valid_checkpoint;
      throw Error(problem);
    }
  });
  engine.store().refresh_copies(engine.compute(),
                                scales ? store::Scales::as_loaded : store::Scales::from_weights);
  if (scales && !engine.activation_state().empty())
    engine.core().activation_scales()->restore(engine.compute());
  engine.store().synchronize(engine.compute());
}

std::vector<TensorSlice> state_slices(Engine& engine) {
  engine.store().synchronize(engine.compute());
  const bool first = engine.job().rank() == 0;
  return engine.store().owned_slices(first ? engine.activation_state() : std::vector<TensorSlice>{});
}

void report_differences(const checkpoint::Checkpoint& checkpoint, const config::Config& config) {
  const std::string hash = json_string(checkpoint.state(), "resume_hash", "", checkpoint.path());
  if (hash == config::resume_hash(config)) return;
  const config::Config saved = saved_config(checkpoint);
  for (const std::string& difference : config::resume_differences(saved, config)) {
    log::warn("since the checkpoint was written, the configuration changed: " + difference,
              log::Importance::training);
  }
  if (hash != config::resume_hash(saved)) {
    log::warn(
        "the checkpoint was written by another version of this program, with other keys: check that the "
        "settings still have the same meaning",
        log::Importance::training);
  }
}

}  // namespace octet::train
