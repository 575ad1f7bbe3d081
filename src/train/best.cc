// load_best_model_at_end: tracks the checkpoint with the best evaluation.
#include <cmath>
#include <filesystem>
#include <utility>

#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/checkpoint/folder.h"
#include "run.h"

namespace octet::train {

bool Run::is_best() const {
  // Equal losses keep the earlier one; a loss that is not a number is never the best.
  return config_.load_best_model_at_end && evaluated_.step == step_ && std::isfinite(evaluated_.loss) &&
         (best_.step < 0 || evaluated_.loss < best_.loss);
}

void Run::restore_best() {
  if (!config_.load_best_model_at_end) return;
  const bool on_disk = checkpoint_->memory() == nullptr;
  const std::filesystem::path folder = on_disk ? std::filesystem::path(checkpoint_->path()).parent_path()
                                               : std::filesystem::path(config_.output_dir);
  std::string gone;
  // A checkpoint in memory may be older than a checkpoint on disk that was being written at that time.
  for (const char* name : {"best_under_way", "best"}) {
    const auto saved = checkpoint_->state().find(name);
    if (saved == checkpoint_->state().end()) continue;
    const std::string where = checkpoint_->path() + ": " + name;
    const std::int64_t step = json_int(*saved, "step", -1, -1, INT64_C(1) << 60, where);
    const std::string path = (folder / checkpoint::folder_name(step)).string();
    if (!job_.all_min(path_exists(path) ? 1 : 0)) {
      gone = path;
      continue;
    }
    best_ = {.step = step, .loss = json_number(*saved, "loss", 0, where), .path = path};
    saver_->keep(step);
    return;
  }
  if (!gone.empty() && session_.prints())
    log::warn("the best checkpoint so far no longer exists, so only later checkpoints are compared: " + gone);
}

}  // namespace octet::train
