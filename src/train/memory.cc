// Checkpoints in the memory of the hosts: when they are taken, their log lines, and their use at a start.
#include <chrono>
#include <cstdio>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/config/derive.h"
#include "octet/report/progress.h"
#include "octet/runtime/same_model.h"
#include "run.h"
#include "start.h"

namespace octet::train {

void Run::make_memory() {
  if (config_.memory_checkpoint_steps == 0) return;
  const std::string run = report::supervised_run();
  if (run.empty()) {
    if (session_.prints()) {
      log::warn(
          "memory_checkpoint_steps: no checkpoints are kept in memory, since only launch/supervise restarts "
          "a run from them, and it did not start this run");
    }
    return;
  }
  checkpoint::MemoryOptions options{.folder = checkpoint::memory_folder(run), .keeper = "/proc/self/exe"};
  job_.together([&] {
    const Json model = runtime::model_state(architecture_, encoder_->tokenizer());
    options.identity = hash128_hex(run + "\n" + config::resume_hash(config_) + "\n" + model.dump());
  });
  memory_ = std::make_unique<checkpoint::MemoryTier>(job_, options);
}

void Run::open_start() {
  std::optional<checkpoint::MemoryFound> found;
  if (memory_) found = memory_->find();
  std::optional<std::string> disk;
  try {
    disk = find_start(job_, config_);
  } catch (const Error& e) {
    // A valid checkpoint in memory replaces damaged checkpoints on disk.
    if (!found || !e.problem().agreed || e.code() != ExitCode::no_valid_checkpoint) throw;
    if (session_.prints() && !e.problem().what.empty()) log::warn(e.what());
  }
  if (found && disk) {
    std::int64_t step = 0;
    job_.together([&] { step = checkpoint::Checkpoint(*disk).step(); });
    if (step > found->checkpoint.step()) found.reset();
    disk_start_ = {.step = step, .path = *disk};
  }
  if (found) {
    from_ = found->other_host ? "other host's memory" : "memory";
    open_checkpoint(std::move(found->checkpoint));
  } else if (disk) {
    from_ = "disk";
    open_checkpoint(*disk);
  }
}

bool Run::takes_memory(std::int64_t step) const {
  if (!memory_ || step >= total_steps_) return false;
  return memory_interval_ ? memory_interval_->is_due(step) : step % config_.memory_checkpoint_steps == 0;
}

void Run::require_memory_room() {
  if (!memory_) return;
  SnapshotSources places = engine_->state_places();
  for (auto* more : {&places.moving, &places.host})
    places.still.insert(places.still.end(), more->begin(), more->end());
  memory_->require_room(places.still);
}

void Run::take_to_memory() {
  begins("a checkpoint in memory");
  told_of_memory(memory_->wait());
  checkpoint::CheckpointContents contents = checkpoint_contents();
  // The best checkpoint on disk, because this step may not be on disk.
  contents.state->erase("best");
  if (best_.step >= 0) (*contents.state)["best"] = {{"step", best_.step}, {"loss", best_.loss}};
  if (takes_best_ && taken_.step >= 0)
    (*contents.state)["best_under_way"] = {{"step", taken_.step}, {"loss", taken_.loss}};
  contents.slices = state_slices(*engine_);
  memory_->take(contents, setup::saves_beside(config_));
  if (!setup::saves_beside(config_)) told_of_memory(memory_->wait());
}

void Run::look_at_memory() {
  // Only on rank 0, because only log lines and messages to the supervisor depend on it.
  if (memory_ && session_.prints() && memory_->is_ready()) told_of_memory(memory_->wait());
}

void Run::told_of_memory(const std::optional<checkpoint::Taken>& taken) {
  if (!taken || !reporter_) return;
  const std::string step = "step " + with_commas(taken->step);
  if (!taken->whole) {
    log::warn("the checkpoint of " + step + " in memory is damaged; the previous checkpoint is kept\n" +
              taken->wrong);
    return;
  }
  reporter_->in_memory(taken->step);
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.3f s", taken->seconds);
  log::info("the state of " + step + " is copied to memory (" + seconds + ")" +
            (taken->copied ? ", with a copy on another host" : ""));
  if (!taken->wrong.empty())
    log::warn("the checkpoint of " + step + " in memory has no copy on another host\n" + taken->wrong);
}

}  // namespace octet::train
