// Saves of a run: their times, their contents, and their results.
#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "octet/base/clock.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/checkpoint/folder.h"
#include "octet/checkpoint/save.h"
#include "octet/runtime/same_model.h"
#include "octet/text/template_match.h"
#include "run.h"
#include "saves/disk_room.h"
#include "start.h"

namespace octet::train {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

checkpoint::CheckpointContents Run::checkpoint_contents() const {
  checkpoint::CheckpointContents contents;
  contents.step = step_;
  contents.zero_stage = static_cast<int>(config_.zero_stage);
  contents.direct = true;
  contents.config_yaml = resolved_.to_yaml();
  contents.state = Json{{"step", step_},
                        {"total_steps", total_steps_},
                        {"epoch", feed_->step().epoch},
                        {"samples_seen", samples_seen_},
                        {"seed", config_.seed},
                        {"order_seed", config_.order_seed()},
                        {"global_batch", batch_.global},
                        {"items", feed_->examples()},
                        {"place", feed_->position()},
                        {"data_fingerprint", feed_->fingerprint()},
                        {"model", runtime::model_state(architecture_, encoder_->tokenizer())},
                        {"adapters", adapters_},
                        {"model_config", model_config_},
                        {"resume_hash", config::resume_hash(config_)},
                        {"learning_rate", schedule_->learning_rate(step_)},
                        {"lr_scheduler_type", config_.lr_scheduler_type},
                        {"not_finite_in_a_row", not_finite_}};
  // The configuration has only the file's name, not its contents.
  if (config_.template_name && text::is_template_file(*config_.template_name))
    (*contents.state)["template_words"] = encoder_->chat_template()->words_hash();
  add_checks(*contents.state);
  add_plateau(*contents.state);
  if (is_best()) {
    (*contents.state)["best"] = {{"step", step_}, {"loss", evaluated_.loss}};
  } else if (best_.step >= 0) {
    (*contents.state)["best"] = {{"step", best_.step}, {"loss", best_.loss}};
  }
  if (reporter_) (*contents.state)["trainer_state"] = reporter_->state();
  return contents;
}

RunFiles Run::files() const {
  return files_of_run(config_, architecture_,
                      {.tensors = engine_->checkpoint_tensors(),
                       .config_yaml = resolved_.to_yaml(),
                       .adapters = adapters_,
                       .step = total_steps_,
                       .world = job_.size()});
}

void Run::require_disk() const {
  if (!folder_ || step_ >= total_steps_) return;
  DiskPlace output{.folder = config_.output_dir, .disk = disk_state(config_.output_dir)};
  DiskFacts facts{.files = files(),
                  .first_step = step_,
                  .total_steps = total_steps_,
                  .steps_per_epoch = feed_->steps_per_epoch(),
                  .measured_saves = setup::chooses_save_steps(resolved_),
                  .block = output.disk.block};
  const auto there = checkpoint::list_checkpoints(config_.output_dir);
  if (checkpoint_) {
    facts.checkpoints = static_cast<std::int64_t>(there.size());
  } else if (config_.overwrite_output_dir) {
    for (const auto& [step, path] : there) facts.going_bytes += bytes_of_folder(path);
  }
  std::optional<DiskPlace> other;
  if (const std::string folder = fallback(); !folder.empty())
    other = DiskPlace{.folder = folder, .disk = disk_state_for(folder)};
  const std::string warning = check_disk(disk_need(config_, facts), output, other);
  if (!warning.empty()) log::warn(warning);
}

void Run::save() {
  if (saved_step_ == step_ || taken_.step == step_) return;
  begins("the saving of a checkpoint");
  settle_save();
  const auto start = Clock::now();
  job_.together([&] {
    if (folder_) folder_->require_held();
  });
  if (setup::saves_beside(config_)) {
    begin_save();
    if (reporter_) reporter_->waited(seconds_since(start));
    return;
  }
  checkpoint::CheckpointContents contents = checkpoint_contents();
  contents.slices = state_slices(*engine_);
  if (reporter_) reporter_->sync_log();
  const std::string path = saver_->save(contents);
  if (path.empty()) {
    if (reporter_) reporter_->save_failed(seconds_since(start));
    return;
  }
  const bool best = is_best();
  if (best) saver_->keep(step_);
  saved({.step = step_, .path = path}, best ? evaluated_ : Evaluated(), seconds_since(start));
}

void Run::begin_save() {
  SaveBeside save{.contents = checkpoint_contents(),
                  .wait =
                      [this] {
                        engine_->snapshot().wait();
                        if (reporter_) reporter_->sync_log();
                      },
                  .best = is_best() ? step_ : best_.step};
  save.contents.slices = engine_->take_snapshot();
  taken_ = is_best() ? evaluated_ : Evaluated();
  taken_.step = step_;
  takes_best_ = is_best();
  saver_->begin(std::move(save));
}

void Run::tell_that_it_waits() {
  if (!saver_->in_flight() || saver_->asks_to_settle() || step_ == total_steps_) return;
  if (std::exchange(told_that_it_waits_, true) || !session_.prints()) return;
  log::warn("step " + with_commas(step_) + " waits for the checkpoint of step " + with_commas(taken_.step) +
            " to be written, because saves take longer than the steps between them; raise save_steps");
}

void Run::saved(const Ended& ended, const Evaluated& best, double seconds) {
  last_checkpoint_ = ended.path;
  saved_step_ = ended.step;
  rollbacks_in_a_row_ = 0;
  if (best.step >= 0) {
    second_best_ = std::exchange(best_, best);
    best_.path = last_checkpoint_;
  }
  job_.together([&] {
    if (!reporter_) return;
    reporter_->saved(saved_step_, last_checkpoint_, seconds);
    if (config_.overwrite_output_dir) folder_->remove_set_aside(fallback());
  });
}

void Run::settle_save() {
  const auto start = Clock::now();
  if (saver_->in_flight()) begins("the wait for a checkpoint");
  if (const auto ended = saver_->end(step_)) {
    const Evaluated taken = std::exchange(taken_, Evaluated());
    if (!ended->path.empty()) {
      saved(*ended, takes_best_ ? taken : Evaluated(), seconds_since(start));
      return;
    }
    if (takes_best_) saver_->keep(best_.step);
    if (reporter_) reporter_->save_failed(seconds_since(start));
    return;
  }
  if (saver_->holds()) return;
  if (best_.step >= 0 && best_.step == saved_step_) {
    best_ = second_best_;
    saver_->keep(best_.step);
  }
  saved_step_ = 0;  // that checkpoint is damaged; the next start verifies the older ones
  if (reporter_) reporter_->save_failed(0);
}

std::string Run::fallback() const {
  return config_.save_fallback_dir ? fallback_folder(*config_.save_fallback_dir, config_.output_dir) : "";
}

void Run::make_saver() {
  const std::int64_t interval = setup::saves_when(config_) == setup::When::steps
                                    ? config::interval_steps(config_.save_steps, total_steps_)
                                    : std::max<std::int64_t>(1, feed_->steps_per_epoch());
  SaverOptions options{.folder = config_.output_dir,
                       .keep_last = config_.save_total_limit.value_or(0),
                       .most_failed = config_.max_failed_saves,
                       .retry_steps = std::max<std::int64_t>(1, interval / 10),
                       .reads_back = setup::saves_when(config_) != setup::When::never,
                       .most_seconds = phase_limit()};
  options.fallback = fallback();
  const bool verified = checkpoint_ && checkpoint_->memory() == nullptr;
  job_.together(
      [&] { saver_ = std::make_unique<Saver>(*saves_, options, verified ? last_checkpoint_ : ""); });
}

void Run::save_for_good() {
  constexpr std::chrono::seconds kMoment(2);
  for (const bool last : {false, true}) {
    save();
    if (saved_step_ == step_ || taken_.step == step_) settle_save();
    if (saved_step_ == step_) return;
    if (last) break;
    if (session_.prints()) log::warn("one more attempt to save the checkpoint follows");
    std::this_thread::sleep_for(kMoment);
  }
  job_.together([&] {
    if (!session_.prints()) return;
    throw Error({.what = "the run ends, and all training since its newest checkpoint is lost",
                 .found = std::to_string(saver_->failed_in_a_row()) + " saves in a row that failed",
                 .where = "step " + std::to_string(step_) + ", " + config_.output_dir,
                 .fix = "free space or repair the disk, and start again: the run continues from its newest "
                        "checkpoint; save_fallback_dir sets a second folder",
                 .code = ExitCode::unsaved});
  });
}

}  // namespace octet::train
