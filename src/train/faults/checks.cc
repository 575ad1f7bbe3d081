// Reactions of a run to bit errors, spikes and values that are not finite.
#include <algorithm>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/comm/collectives.h"
#include "octet/report/number.h"
#include "octet/setup/fault_options.h"
#include "run.h"
#include "start.h"

namespace octet::train {
namespace {

/// Most rollbacks without a checkpoint in between.
constexpr int kMostRollbacks = 3;

std::string text_of(const std::vector<Fault>& faults) {
  std::string text;
  for (const Fault& fault : faults) text += (text.empty() ? "" : "; ") + fault.what;
  return text;
}

}  // namespace

void Run::make_checks() {
  spikes_.emplace(setup::spike_options(config_));
  if (checkpoint_) take_over_checks();
  if (config_.sdc_steps == 0) return;
  faults_ =
      std::make_unique<SilentFaults>(*engine_, job_, session_.data(),
                                     SilentFaultOptions{.steps = config_.sdc_steps,
                                                        .replay_steps = config_.sdc_replay_steps,
                                                        .seed = static_cast<std::uint64_t>(config_.seed)},
                                     setup::is_strict(config_));
}

void Run::take_over_checks() {
  const Json& state = checkpoint_->state();
  spikes_->restore(state.value("spikes", Json()), checkpoint_->path());
  rollbacks_ =
      std::max(rollbacks_, json_int(state, "rollbacks", 0, 0, INT64_C(1) << 40, checkpoint_->path()));
}

void Run::add_checks(Json& state) const {
  if (const Json window = spikes_->state(); !window.is_null()) state["spikes"] = window;
  if (rollbacks_ > 0) state["rollbacks"] = rollbacks_;
  if (faults_) state["verified"] = true;
}

std::vector<std::pair<std::string, std::int64_t>> Run::check_counts() const {
  std::vector<std::pair<std::string, std::int64_t>> counts;
  if (spikes_->found() > 0) counts.emplace_back("spikes", spikes_->found());
  if (rollbacks_ > 0) counts.emplace_back("rollbacks", rollbacks_);
  if (faults_) {
    counts.emplace_back("sdc_checks", faults_->agreed());
    if (config_.sdc_replay_steps > 0) counts.emplace_back("sdc_replays", faults_->replays());
  }
  return counts;
}

bool Run::plans_save(std::int64_t step) const {
  if (step == total_steps_ || takes_memory(step)) return true;
  if (interval_) return interval_->is_due(step);
  if (setup::saves_when(config_) == setup::When::steps)
    return step % config::interval_steps(config_.save_steps, total_steps_) == 0;
  const std::int64_t epoch = feed_->steps_per_epoch();
  return setup::saves_when(config_) == setup::When::epoch && epoch > 0 && step % epoch == 0;
}

std::string Run::back_to() const {
  return last_checkpoint_.empty()
             ? "there is no verified checkpoint yet: start again without the host of that rank"
             : "the last verified checkpoint is " + last_checkpoint_ +
                   ": start again without the host of that rank, and the run resumes from this checkpoint";
}

bool Run::agreed(const std::vector<Fault>& faults, std::int64_t step) {
  if (faults.empty()) return true;
  std::vector<std::string> hosts;
  for (const std::string& host : job_.all_gather_bytes(job_.place().host)) hosts.push_back(host);
  std::vector<int> ranks;
  for (const Fault& fault : faults) ranks.insert(ranks.end(), fault.ranks.begin(), fault.ranks.end());
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::string who;
  for (const int rank : ranks) {
    who += (who.empty() ? "rank " : " or rank ") + std::to_string(rank) + " (" +
           hosts[static_cast<std::size_t>(rank)] + ")";
  }
  const std::string what = "corrupted bits on " + who;
  const bool stops = setup::fault_action(config_) == setup::FaultAction::stop;
  if (stops) settle_save();  // so that the message names the newest checkpoint
  job_.together([&] {
    if (!stops || job_.rank() != ranks.front()) return;
    throw Error({.what = what + ": training since the last verified checkpoint is discarded",
                 .found = text_of(faults),
                 .where = "step " + std::to_string(step),
                 .fix = back_to(),
                 .code = ExitCode::hang});
  });
  if (session_.prints()) log::warn("step " + std::to_string(step) + ": " + what + ": " + text_of(faults));
  back_ = Back::same_data;
  return false;
}

bool Run::may_be_saved() {
  if (saved_step_ == step_) return true;
  begins("a check before a checkpoint");
  if (faults_ && !agreed(faults_->before_save(), step_)) return false;
  return weights_are_finite();
}

std::vector<runtime::HostBatch> Run::batches_ahead(double* waited) {
  std::vector<runtime::HostBatch> own;
  if (!faults_) return own;
  for (std::int64_t i = 0; faults_->replayed_in(step_ + 1) >= 0 && i < batch_.passes; ++i)
    own.push_back(feed_->next(i == 0, waited));
  faults_->begin(step_ + 1, own);
  return own;
}

void Run::stands_out(const std::string& what, bool was_used) {
  const std::string step = "step " + std::to_string(step_);
  const setup::SpikeAction action = spikes_->action();
  if (session_.prints()) {
    log::warn(step + ": " + what +
              (action == setup::SpikeAction::skip   ? was_used ? "" : "; the step was skipped"
               : action == setup::SpikeAction::stop ? "; the run stops"
                                                    : "; the run returns to the last checkpoint"));
  }
  if (action == setup::SpikeAction::rollback) back_ = Back::other_data;
  const bool lost = action == setup::SpikeAction::skip && spikes_->in_a_row() >= kMostNotFinite;
  if (action != setup::SpikeAction::stop && !lost) return;
  settle_save();
  job_.together([&] {
    throw Error(
        {.what = lost ? "spikes in " + std::to_string(kMostNotFinite) + " steps in a row"
                      : std::string("the run stops at a spike (spike_action: stop)"),
         .found = what,
         .where = step,
         .fix = lost
                    ? std::string("lower learning_rate, or raise loss_spike_factor or grad_norm_spike_factor")
                    : (last_checkpoint_.empty() ? "there is no checkpoint"
                                                : "the last checkpoint is " + last_checkpoint_) +
                          "; spike_action: rollback skips such data"});
  });
}

bool Run::goes_back() {
  if (back_ == Back::no) return false;
  const Back how = std::exchange(back_, Back::no);
  begins("the return to a checkpoint", 8);
  settle_save();
  // Memory may hold a newer checkpoint than the checkpoint of the rollback.
  if (memory_) memory_->forget();
  ++rollbacks_;
  const bool too_often = ++rollbacks_in_a_row_ > kMostRollbacks;
  std::string path = find_newest(job_, config_).path;
  if (path.empty() && checkpoint_ && checkpoint_->memory() == nullptr) path = checkpoint_->path();
  job_.together([&] {
    if (!too_often && !path.empty()) return;
    throw Error({.what = too_often ? "the run has returned to a checkpoint " +
                                         std::to_string(kMostRollbacks) + " times without a new checkpoint"
                                   : std::string("there is no checkpoint to return to"),
                 .expected = "a new checkpoint after each return",
                 .found = too_often ? "none since the first return" : "no checkpoint in output_dir",
                 .where = "step " + std::to_string(step_) + ", " + config_.output_dir,
                 .fix = too_often ? "remove the hosts that the messages above name; if the messages name "
                                    "spikes, lower learning_rate"
                                  : std::string("start again with a smaller save_steps"),
                 .code = how == Back::same_data ? ExitCode::hang : ExitCode::failure});
  });
  const std::int64_t from = step_;
  const Json place = feed_->position();
  job_.together([&] { checkpoint_.emplace(path); });
  const std::string wrong = read_checkpoint();
  job_.together([&] {
    if (wrong.empty() || !session_.prints()) return;
    throw Error({.what = "the checkpoint to return to is damaged",
                 .found = wrong,
                 .where = path,
                 .fix = "start again: the run uses the previous checkpoint",
                 .code = ExitCode::hang});
  });
  stand_at_checkpoint();
  Json state = checkpoint_->state();
  if (how == Back::other_data) state["place"] = place;
  feed_ = feed::make_feed(session_, config_, batch_, *encoder_, corpus_);
  job_.together([&] {
    feed_->go_on(step_, state, path);
    prepare_schedule();
  });
  start_steps();
  evaluated_ = {};
  own_loss_ = {};
  began_ = std::chrono::steady_clock::now();
  job_.together([&] {
    if (!reporter_) return;
    reporter_.reset();
    start_reporter();
    reporter_->start();
    log::warn("returned from step " + with_commas(from) + " to " + path +
              (how == Back::other_data ? "; the data since this checkpoint are skipped" : ""));
  });
  return true;
}

}  // namespace octet::train
