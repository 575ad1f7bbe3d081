#include "saves/saves.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/base/timing.h"
#include "octet/checkpoint/folder.h"
#include "octet/report/number.h"
#include "octet/setup/adapters.h"
#include "octet/setup/model_options.h"
#include "octet/setup/run_options.h"
#include "octet/train/disk.h"
#include "octet/train/run_exports.h"
#include "start.h"

namespace octet::train {

bool BestCheckpoint::is_beaten_by(const Evaluated& latest, std::int64_t step) const {
  if (!wanted_ || latest.step != step) return false;
  // Equal figures keep the earlier checkpoint.
  return choice_.improves(latest.figure, best_.step < 0 ? std::nullopt : std::optional<double>(best_.figure));
}

void BestCheckpoint::replace(const EvaluatedCheckpoint& best) {
  second_best_ = std::exchange(best_, best);
}

bool BestCheckpoint::drop(std::int64_t step) {
  if (best_.step < 0 || best_.step != step) return false;
  best_ = second_best_;
  return true;
}

void BestCheckpoint::add_to(Json& state) const {
  if (best_.step >= 0) state["best"] = best_entry(best_.step, best_.figure, choice_);
}

// Checkpoints had only the key "loss" before other figures existed.
Json best_entry(std::int64_t step, double figure, const FigureChoice& choice) {
  if (choice.name == "loss" && !choice.greater) return {{"step", step}, {"loss", figure}};
  return {{"step", step}, {"figure", choice.name}, {"greater", choice.greater}, {"value", figure}};
}

namespace {

/// Returns the figure of an entry, or nothing if it is another figure than `choice`.
std::optional<double> figure_of(const Json& entry, const FigureChoice& choice, const std::string& where) {
  if (json_string(entry, "figure", "loss", where) != choice.name ||
      json_bool(entry, "greater", false, where) != choice.greater)
    return std::nullopt;
  return json_number(entry, entry.contains("value") ? "value" : "loss", 0, where);
}

}  // namespace

Saves::Saves(RunContext& run, RunParts& parts, const Evaluations& evaluations, Contents contents)
    : run_(run),
      parts_(parts),
      evaluations_(evaluations),
      contents_(std::move(contents)),
      best_(setup::keeps_best(run.config), evaluations.figure()) {}

void Saves::open() {
  channel_ = run_.job.channel("checkpoint");
  run_.job.together([&] {
    if (!run_.prints()) return;
    run_.folder = std::make_unique<OutputFolder>(run_.config.output_dir, run_.config.model_name_or_path);
    if (run_.config.save_fallback_dir) require_fallback(*run_.config.save_fallback_dir);
  });
}

void Saves::require_disk() const {
  if (!run_.folder || run_.step >= run_.total_steps) return;
  const config::Config& config = run_.config;
  DiskPlace output{.folder = config.output_dir, .disk = disk_state(config.output_dir)};
  DiskFacts facts{.files = files_of_run(config, parts_.architecture,
                                        {.tensors = parts_.engine->checkpoint_tensors(),
                                         .config_yaml = run_.resolved.to_yaml(),
                                         .adapters = parts_.adapters,
                                         .step = run_.total_steps,
                                         .world = run_.job.size()}),
                  .first_step = run_.step,
                  .total_steps = run_.total_steps,
                  .steps_per_epoch = parts_.feed->steps_per_epoch(),
                  .between_evaluations = setup::steps_between_evaluations(config, config, run_.total_steps,
                                                                          parts_.feed->steps_per_epoch()),
                  .measured_saves = setup::chooses_save_steps(run_.resolved),
                  .block = output.disk.block};
  const auto there = checkpoint::list_checkpoints(config.output_dir);
  if (parts_.checkpoint) {
    facts.checkpoints = static_cast<std::int64_t>(there.size());
  } else if (config.overwrite_output_dir) {
    for (const auto& [step, path] : there) facts.going_bytes += bytes_of_folder(path);
  }
  std::optional<DiskPlace> other;
  if (const std::string folder = fallback(); !folder.empty())
    other = DiskPlace{.folder = folder, .disk = disk_state_for(folder)};
  const std::string warning = check_disk(disk_need(config, facts), output, other);
  if (!warning.empty()) log::warn(warning);
}

void Saves::set_aside_earlier() const {
  if (!parts_.checkpoint && run_.config.overwrite_output_dir) run_.folder->set_checkpoints_aside(fallback());
}

void Saves::stand_at_checkpoint(const OnDisk& disk) {
  const bool on_disk = parts_.checkpoint->memory() == nullptr;
  last_checkpoint_ = on_disk ? parts_.checkpoint->path() : disk.path;
  saved_step_ = on_disk || disk.step == run_.step ? run_.step : -1;
}

void Saves::make_interval() {
  if (!setup::chooses_save_steps(run_.resolved)) return;
  interval_ = std::make_unique<SaveInterval>(run_.job, "checkpoints", *run_.config.mtbf_hours, run_.step,
                                             run_.total_steps);
}

void Saves::begin() {
  const config::Config& config = run_.config;
  // Retries follow after a part of the steps between saves.
  const std::int64_t epoch = std::max<std::int64_t>(1, parts_.feed->steps_per_epoch());
  std::int64_t interval = epoch;
  if (setup::saves_when(config) == setup::When::steps)
    interval = config::interval_steps(config.save_steps, run_.total_steps);
  if (setup::saves_when(config) == setup::When::best)
    interval = setup::steps_between_evaluations(config, config, run_.total_steps, epoch);
  SaverOptions options{.folder = config.output_dir,
                       .keep_last = config.save_total_limit.value_or(0),
                       .most_failed = config.max_failed_saves,
                       .retry_steps = std::max<std::int64_t>(1, interval / 10),
                       .reads_back = setup::saves_when(config) != setup::When::never,
                       .most_seconds = run_.phase_limit()};
  options.fallback = fallback();
  const bool verified = parts_.checkpoint && parts_.checkpoint->memory() == nullptr;
  run_.job.together(
      [&] { saver_ = std::make_unique<Saver>(*channel_, options, verified ? last_checkpoint_ : ""); });
  if (parts_.checkpoint) restore_best();
}

void Saves::restore_best() {
  if (!setup::keeps_best(run_.config)) return;
  const checkpoint::Checkpoint& from = *parts_.checkpoint;
  const bool on_disk = from.memory() == nullptr;
  const std::filesystem::path folder = on_disk ? std::filesystem::path(from.path()).parent_path()
                                               : std::filesystem::path(run_.config.output_dir);
  std::string gone;
  // A checkpoint in memory may be older than a checkpoint on disk that was being written at that time.
  for (const char* name : {"best_under_way", "best"}) {
    const auto saved = from.state().find(name);
    if (saved == from.state().end()) continue;
    const std::string where = from.path() + ": " + name;
    const auto figure = figure_of(*saved, evaluations_.figure(), where);
    if (!figure) {
      if (run_.prints())
        log::warn(
            "the best checkpoint so far was found by another metric_for_best_model, so only later "
            "checkpoints "
            "are compared");
      return;
    }
    const std::int64_t step = json_int(*saved, "step", -1, -1, INT64_C(1) << 60, where);
    const std::string path = (folder / checkpoint::folder_name(step)).string();
    if (!run_.job.all_min(path_exists(path) ? 1 : 0)) {
      gone = path;
      continue;
    }
    best_.replace({.step = step, .figure = *figure, .path = path});
    saver_->keep(step);
    return;
  }
  if (!gone.empty() && run_.prints())
    log::warn("the best checkpoint so far no longer exists, so only later checkpoints are compared: " + gone);
}

void Saves::stepped(double seconds) {
  if (interval_) interval_->stepped(seconds);
}

Turn Saves::turn() const {
  return {.when = setup::saves_when(run_.config), .interval = run_.config.save_steps};
}

bool Saves::is_due() const {
  if (setup::saves_when(run_.config) == setup::When::best) return evaluations_.improved();
  return interval_ ? interval_->is_due(run_.step)
                   : is_turn(turn(), run_.step, run_.total_steps, parts_.feed->step().ends_epoch);
}

bool Saves::plans(std::int64_t step) const {
  if (setup::saves_when(run_.config) == setup::When::best) return evaluations_.plans(step);
  return interval_ ? interval_->is_due(step)
                   : is_planned(turn(), step, run_.total_steps, parts_.feed->steps_per_epoch());
}

void Saves::tell_that_it_waits() {
  if (!saver_->in_flight() || saver_->asks_to_settle() || run_.step == run_.total_steps) return;
  if (std::exchange(told_that_it_waits_, true) || !run_.prints()) return;
  log::warn("step " + with_commas(run_.step) + " waits for the checkpoint of step " +
            with_commas(taken_.step) +
            " to be written, because saves take longer than the steps between them; raise save_steps");
}

void Saves::save() {
  if (has_this_step()) return;
  run_.begins("the saving of a checkpoint");
  settle();
  const auto start = Clock::now();
  run_.job.together([&] {
    if (run_.folder) run_.folder->require_held();
  });
  const auto& reporter = parts_.reporter;
  if (setup::saves_beside(run_.config)) {
    begin_save();
    if (reporter) reporter->waited(seconds_since(start));
    return;
  }
  checkpoint::CheckpointContents contents = contents_();
  contents.slices = state_slices(*parts_.engine);
  if (reporter) reporter->sync_log();
  const std::string path = saver_->save(contents);
  if (path.empty()) {
    if (reporter) reporter->save_failed(seconds_since(start));
    return;
  }
  EvaluatedCheckpoint best;
  if (is_best()) {
    saver_->keep(run_.step);
    best = {.step = run_.step, .figure = evaluations_.latest().figure};
  }
  saved({.step = run_.step, .path = path}, best, seconds_since(start));
}

void Saves::begin_save() {
  takes_best_ = is_best();
  SaveBeside save{.contents = contents_(),
                  .wait =
                      [this] {
                        parts_.engine->snapshot().wait();
                        if (parts_.reporter) parts_.reporter->sync_log();
                      },
                  .best = takes_best_ ? run_.step : best_.step()};
  save.contents.slices = parts_.engine->take_snapshot();
  taken_ = {.step = run_.step, .figure = takes_best_ ? evaluations_.latest().figure : 0};
  saver_->begin(std::move(save));
}

void Saves::save_and_measure() {
  const auto start = Clock::now();
  save();
  if (!interval_) return;
  // For a concurrent save, the cost is the time that steps wait for it.
  if (has_this_step()) {
    interval_->saved(run_.step, seconds_since(start));
  } else {
    interval_->failed(run_.step);
  }
}

void Saves::saved(const Ended& ended, const EvaluatedCheckpoint& best, double seconds) {
  last_checkpoint_ = ended.path;
  saved_step_ = ended.step;
  ++completed_;
  if (best.step >= 0) best_.replace({.step = best.step, .figure = best.figure, .path = last_checkpoint_});
  run_.job.together([&] {
    if (!parts_.reporter) return;
    parts_.reporter->saved(saved_step_, last_checkpoint_, seconds);
    if (run_.config.overwrite_output_dir) run_.folder->remove_set_aside(fallback());
  });
}

void Saves::settle() {
  const auto start = Clock::now();
  const auto& reporter = parts_.reporter;
  if (saver_->in_flight()) run_.begins("the wait for a checkpoint");
  if (const auto ended = saver_->end(run_.step)) {
    const EvaluatedCheckpoint taken = std::exchange(taken_, {});
    if (!ended->path.empty()) {
      saved(*ended, takes_best_ ? taken : EvaluatedCheckpoint(), seconds_since(start));
      return;
    }
    if (takes_best_) saver_->keep(best_.step());
    if (reporter) reporter->save_failed(seconds_since(start));
    return;
  }
  if (saver_->holds()) return;
  if (best_.drop(saved_step_)) saver_->keep(best_.step());
  saved_step_ = 0;  // that checkpoint is damaged; the next start verifies the older ones
  if (reporter) reporter->save_failed(0);
}

void Saves::save_for_good() {
  constexpr std::chrono::seconds kMoment(2);
  for (const bool last : {false, true}) {
    save();
    if (has_this_step()) settle();
    if (saved_step_ == run_.step) return;
    if (last) break;
    if (run_.prints()) log::warn("one more attempt to save the checkpoint follows");
    std::this_thread::sleep_for(kMoment);
  }
  run_.job.together([&] {
    if (!run_.prints()) return;
    throw Error({.what = "the run ends, and all training since its newest checkpoint is lost",
                 .found = std::to_string(saver_->failed_in_a_row()) + " saves in a row that failed",
                 .where = "step " + std::to_string(run_.step) + ", " + run_.config.output_dir,
                 .fix = "free space or repair the disk, and start again: the run continues from its newest "
                        "checkpoint; save_fallback_dir sets a second folder",
                 .code = ExitCode::unsaved});
  });
}

void Saves::add_best_to(Json& state) const {
  if (is_best()) {
    state["best"] = best_entry(run_.step, evaluations_.latest().figure, evaluations_.figure());
  } else {
    best_.add_to(state);
  }
}

void Saves::add_best_on_disk_to(Json& state) const {
  best_.add_to(state);
  if (takes_best_ && taken_.step >= 0)
    state["best_under_way"] = best_entry(taken_.step, taken_.figure, evaluations_.figure());
}

std::string Saves::fallback() const {
  const config::Config& config = run_.config;
  return config.save_fallback_dir ? fallback_folder(*config.save_fallback_dir, config.output_dir) : "";
}

void Saves::write_final_model() const {
  const config::Config& config = run_.config;
  const EvaluatedCheckpoint best = config.load_best_model_at_end ? best_.best() : EvaluatedCheckpoint();
  const Evaluated& other = evaluations_.best();
  const FigureChoice& figure = evaluations_.figure();
  if (best.step >= 0) {
    log::info("the final model is the checkpoint of step " + with_commas(best.step) + ": its evaluation " +
              figure.name + " " + report::python_number(best.figure, 6) + " is the " +
              (figure.greater ? "largest" : "smallest") + " of all checkpoints" +
              (other.step >= 0 && figure.improves(other.figure, best.figure)
                   ? "; the " + figure.name + " of step " + with_commas(other.step) +
                         ", which has no checkpoint, was " + report::python_number(other.figure, 6)
                   : ""));
  }
  const std::string& from = best.step >= 0 ? best.path : last_checkpoint_;
  const data::TemplateEncoder* encoder = parts_.encoder.get();
  if (setup::trains_adapters(config)) {
    export_adapter({.folder = config.output_dir, .checkpoint = from, .overwrite = true, .encoder = encoder},
                   config);
    return;
  }
  export_model({.checkpoint = from,
                .model = config.model_name_or_path,
                .folder = config.output_dir,
                .dtype = setup::export_dtype(config),
                .shard_bytes = setup::export_bytes(config),
                .overwrite = true,
                .part = setup::trains_parts(config),
                .fresh = config.train_from_scratch},
               encoder);
}

}  // namespace octet::train
