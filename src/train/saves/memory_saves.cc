#include "saves/memory_saves.h"

#include <cstdio>
#include <string>
#include <utility>

#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/base/timing.h"
#include "octet/report/progress.h"
#include "octet/runtime/same_model.h"
#include "octet/setup/run_options.h"
#include "start.h"

namespace octet::train {

void MemorySaves::open() {
  if (run_.config.memory_checkpoint_steps == 0) return;
  const std::string run = report::supervised_run();
  if (run.empty()) {
    if (run_.prints()) {
      log::warn(
          "memory_checkpoint_steps: no checkpoints are kept in memory, since only launch/supervise restarts "
          "a run from them, and it did not start this run");
    }
    return;
  }
  memory_tier::MemoryOptions options{.folder = memory_tier::memory_folder(run), .keeper = "/proc/self/exe"};
  run_.job.together([&] {
    const Json model = runtime::model_state(parts_.architecture, parts_.encoder->tokenizer());
    options.identity = hash128_hex(run + "\n" + config::resume_hash(run_.config) + "\n" + model.dump());
  });
  parts_.memory = std::make_unique<memory_tier::MemoryTier>(run_.job, options);
}

void MemorySaves::require_room() {
  if (!parts_.memory) return;
  SnapshotSources places = parts_.engine->state_places();
  for (auto* more : {&places.moving, &places.host})
    places.still.insert(places.still.end(), more->begin(), more->end());
  parts_.memory->require_room(places.still);
}

void MemorySaves::make_interval() {
  if (!parts_.memory || !setup::chooses_memory_steps(run_.config)) return;
  interval_ = std::make_unique<SaveInterval>(run_.job, "checkpoints in memory", *run_.config.mtbf_hours,
                                             run_.step, run_.total_steps);
}

void MemorySaves::stepped(double seconds) {
  if (interval_) interval_->stepped(seconds);
}

bool MemorySaves::takes(std::int64_t step) const {
  if (!parts_.memory || step >= run_.total_steps) return false;
  return interval_ ? interval_->is_due(step) : step % run_.config.memory_checkpoint_steps == 0;
}

void MemorySaves::take() {
  const auto start = Clock::now();
  run_.begins("a checkpoint in memory");
  tell(parts_.memory->wait());
  checkpoint::CheckpointContents contents = contents_();
  contents.state->erase("best");
  saves_.add_best_on_disk_to(*contents.state);
  contents.slices = state_slices(*parts_.engine);
  const bool beside = setup::saves_beside(run_.config);
  parts_.memory->take(contents, beside);
  if (!beside) tell(parts_.memory->wait());
  if (interval_) interval_->saved(run_.step, seconds_since(start));
}

void MemorySaves::look() {
  // Only on rank 0, because only log lines and messages to the supervisor depend on it.
  if (parts_.memory && run_.prints() && parts_.memory->is_ready()) tell(parts_.memory->wait());
}

void MemorySaves::forget() {
  if (parts_.memory) parts_.memory->forget();
}

void MemorySaves::remove() {
  if (parts_.memory) parts_.memory->remove();
}

void MemorySaves::tell(const std::optional<memory_tier::Taken>& taken) {
  if (!taken || !parts_.reporter) return;
  const std::string step = "step " + with_commas(taken->step);
  if (!taken->whole) {
    log::warn("the checkpoint of " + step + " in memory is damaged; the previous checkpoint is kept\n" +
              taken->wrong);
    return;
  }
  parts_.reporter->in_memory(taken->step);
  char seconds[32];
  std::snprintf(seconds, sizeof seconds, "%.3f s", taken->seconds);
  log::info("the state of " + step + " is copied to memory (" + seconds + ")" +
            (taken->copied ? ", with a copy on another host" : ""));
  if (!taken->wrong.empty())
    log::warn("the checkpoint of " + step + " in memory has no copy on another host\n" + taken->wrong);
}

}  // namespace octet::train
