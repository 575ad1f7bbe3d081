#include "faults/step_guard.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "faults/finite_weights.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/timing.h"
#include "octet/report/number.h"
#include "octet/setup/run_options.h"
#include "start.h"

namespace octet::train {

bool was_skipped(const store::StepResult& result) {
  return result.skipped && result.label_tokens > 0;
}

bool NotFiniteSteps::add(const store::StepResult& result, bool spike) {
  const bool finite = spike || (!was_skipped(result) && std::isfinite(result.loss_sum));
  in_a_row_ = finite ? 0 : in_a_row_ + 1;
  return finite;
}

void NotFiniteSteps::restore(const Json& state, const std::string& where) {
  in_a_row_ = static_cast<int>(json_int(state, "not_finite_in_a_row", 0, 0, kMost - 1, where));
}

Back Rollbacks::take() {
  return std::exchange(requested_, Back::no);
}

bool Rollbacks::begin(std::int64_t completed) {
  ++count_;
  if (std::exchange(completed_, completed) != completed) in_a_row_ = 0;
  return ++in_a_row_ > kMost;
}

void Rollbacks::restore(std::int64_t count) {
  count_ = std::max(count_, count);
}

namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

double limit(const std::deque<double>& values, double factor) {
  if (factor == 0 || values.size() < Spikes::kLeast) return kNone;
  return factor * lower_median({values.begin(), values.end()});
}

void take_in(std::deque<double>& values, double value) {
  if (!std::isfinite(value)) return;
  values.push_back(value);
  if (values.size() > Spikes::kMost) values.pop_front();
}

std::string above(const char* name, double value, double most, double factor) {
  return std::string("its ") + name + " of " + report::python_number(value, 6) + " is more than " +
         report::python_number(factor, 6) + " times the median of the last steps, " +
         report::python_number(most / factor, 6);
}

void read(const Json& state, const char* key, std::deque<double>& values, const std::string& where) {
  const auto found = state.find(key);
  const bool usable = found != state.end() && found->is_array() && found->size() <= Spikes::kMost &&
                      std::ranges::all_of(*found, [](const Json& x) { return x.is_number(); });
  if (!usable) {
    throw Error(
        {.what = "the checkpoint's window of spikes cannot be used",
         .expected = std::string("'") + key + "', at most " + std::to_string(Spikes::kMost) + " numbers",
         .where = where,
         .fix = "take another checkpoint"});
  }
  values.assign(found->begin(), found->end());
}

}  // namespace

double mean_loss(const store::StepResult& result) {
  return result.loss_sum / static_cast<double>(std::max<std::int64_t>(1, result.label_tokens));
}

ops::StepLimits Spikes::limits() const {
  return {.loss = limit(losses_, options_.loss_factor), .grad_norm = limit(norms_, options_.norm_factor)};
}

ops::StepLimits Spikes::limits_of_update() const {
  return options_.action == setup::SpikeAction::skip ? limits() : ops::StepLimits{};
}

std::string Spikes::look(const store::StepResult& result) {
  if (result.label_tokens == 0) return "";
  const ops::StepLimits most = limits();
  const double loss = mean_loss(result);
  std::string what;
  if (loss > most.loss) {
    what = above("loss", loss, most.loss, options_.loss_factor);
  } else if (result.grad_norm > most.grad_norm) {
    what = above("gradient norm", result.grad_norm, most.grad_norm, options_.norm_factor);
  }
  take_in(losses_, loss);
  take_in(norms_, result.grad_norm);
  in_a_row_ = what.empty() ? 0 : in_a_row_ + 1;
  found_ += what.empty() ? 0 : 1;
  return what;
}

Json Spikes::state() const {
  if (options_.loss_factor == 0 && options_.norm_factor == 0) return nullptr;
  return {{"found", found_}, {"in_a_row", in_a_row_}, {"losses", losses_}, {"grad_norms", norms_}};
}

void Spikes::restore(const Json& state, const std::string& where) {
  *this = Spikes(options_);
  if (state.is_null()) return;
  const std::string place = where + ", its window of spikes";
  read(state, "losses", losses_, place);
  read(state, "grad_norms", norms_, place);
  found_ = json_int(state, "found", 0, 0, INT64_C(1) << 60, place);
  in_a_row_ = static_cast<int>(json_int(state, "in_a_row", 0, 0, 1000, place));
}

namespace {

std::string text_of(const std::vector<Fault>& faults) {
  std::string text;
  for (const Fault& fault : faults) text += (text.empty() ? "" : "; ") + fault.what;
  return text;
}

}  // namespace

void StepGuard::make() {
  spikes_.emplace(setup::spike_options(run_.config));
  if (parts_.checkpoint) restore_checks();
  if (run_.config.sdc_steps == 0) return;
  faults_ =
      std::make_unique<SilentFaults>(*parts_.engine, run_.job, run_.session.data(),
                                     SilentFaultOptions{.steps = run_.config.sdc_steps,
                                                        .replay_steps = run_.config.sdc_replay_steps,
                                                        .seed = static_cast<std::uint64_t>(run_.config.seed)},
                                     setup::is_strict(run_.config));
}

void StepGuard::stand_at_checkpoint() {
  not_finite_.restore(parts_.checkpoint->state(), parts_.checkpoint->path());
  if (spikes_) restore_checks();
}

void StepGuard::restore_checks() {
  const Json& state = parts_.checkpoint->state();
  spikes_->restore(state.value("spikes", Json()), parts_.checkpoint->path());
  rollbacks_.restore(json_int(state, "rollbacks", 0, 0, INT64_C(1) << 40, parts_.checkpoint->path()));
}

void StepGuard::add_to(Json& state) const {
  if (const Json window = spikes_->state(); !window.is_null()) state["spikes"] = window;
  if (rollbacks_.count() > 0) state["rollbacks"] = rollbacks_.count();
  if (faults_) state["verified"] = true;
}

std::vector<std::pair<std::string, std::int64_t>> StepGuard::counts() const {
  std::vector<std::pair<std::string, std::int64_t>> counts;
  if (spikes_->found() > 0) counts.emplace_back("spikes", spikes_->found());
  if (rollbacks_.count() > 0) counts.emplace_back("rollbacks", rollbacks_.count());
  if (faults_) {
    counts.emplace_back("sdc_checks", faults_->agreed());
    if (run_.config.sdc_replay_steps > 0) counts.emplace_back("sdc_replays", faults_->replays());
  }
  return counts;
}

std::string StepGuard::back_to() const {
  return saves_.last_checkpoint().empty()
             ? "there is no verified checkpoint yet: start again without the host of that rank"
             : "the last verified checkpoint is " + saves_.last_checkpoint() +
                   ": start again without the host of that rank, and the run resumes from this checkpoint";
}

bool StepGuard::agreed(const std::vector<Fault>& faults, std::int64_t step) {
  if (faults.empty()) return true;
  std::vector<std::string> hosts;
  for (const std::string& host : run_.job.all_gather_bytes(run_.job.place().host)) hosts.push_back(host);
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
  const bool stops = setup::fault_action(run_.config) == setup::FaultAction::stop;
  if (stops) saves_.settle();  // so that the message names the newest checkpoint
  run_.job.together([&] {
    if (!stops || run_.job.rank() != ranks.front()) return;
    throw Error({.what = what + ": training since the last verified checkpoint is discarded",
                 .found = text_of(faults),
                 .where = "step " + std::to_string(step),
                 .fix = back_to(),
                 .code = ExitCode::hang});
  });
  if (run_.prints()) log::warn("step " + std::to_string(step) + ": " + what + ": " + text_of(faults));
  rollbacks_.request(Back::same_data);
  return false;
}

bool StepGuard::may_be_saved() {
  if (saves_.saved_step() == run_.step) return true;
  run_.begins("a check before a checkpoint");
  if (faults_ && !agreed(faults_->before_save(), run_.step)) return false;
  return weights_are_finite();
}

std::vector<runtime::HostBatch> StepGuard::batches_ahead(double* waited) {
  std::vector<runtime::HostBatch> own;
  if (!faults_) return own;
  for (std::int64_t i = 0; faults_->replayed_in(run_.step + 1) >= 0 && i < parts_.batch.passes; ++i)
    own.push_back(next_batch(parts_, i == 0, waited));
  faults_->begin(run_.step + 1, own);
  return own;
}

std::function<bool()> StepGuard::check_of_update() {
  if (!faults_) return {};
  return [this] { return agreed(faults_->before_update(), run_.step + 1); };
}

void StepGuard::updated(bool saves_next) {
  if (faults_) faults_->updated(run_.step, saves_next);
}

void StepGuard::loaded(bool saves_next) {
  if (faults_) faults_->loaded(run_.step, saves_next);
}

void StepGuard::judge(const store::StepResult& result, const std::string& spike) {
  const bool finite = not_finite_.add(result, !spike.empty());
  if (!spike.empty()) return stands_out(spike, !result.skipped);
  if (finite) return;
  look_at_base();
  const std::string figures = "loss " + report::python_number(mean_loss(result), 6) + ", gradient norm " +
                              report::python_number(result.grad_norm, 6);
  if (spikes_->action() != setup::SpikeAction::skip)
    return stands_out("its loss or its gradient is not finite (" + figures + ")", !result.skipped);
  if (run_.prints()) {
    log::warn("step " + std::to_string(run_.step) +
              (result.skipped ? ": the gradient is not finite; the step was skipped"
                              : ": the loss is not finite; its gradient is, and was used") +
              " (" + figures + ")");
  }
  if (!not_finite_.too_many()) return;
  run_.job.together([&] {
    throw Error({.what = "the loss or the gradient was not finite in " +
                         std::to_string(NotFiniteSteps::kMost) + " steps in a row",
                 .found = figures + (base_wrong_.empty() ? "" : "; not finite in the base: " + base_wrong_),
                 .where = "step " + std::to_string(run_.step),
                 .fix = base_wrong_.empty() ? "lower learning_rate, or resume from an earlier checkpoint"
                                            : "fetch the weights again, or name a base with finite weights",
                 .code = base_wrong_.empty() ? ExitCode::failure : ExitCode::usage});
  });
}

void StepGuard::stands_out(const std::string& what, bool was_used) {
  const std::string step = "step " + std::to_string(run_.step);
  const setup::SpikeAction action = spikes_->action();
  if (run_.prints()) {
    log::warn(step + ": " + what +
              (action == setup::SpikeAction::skip   ? was_used ? "" : "; the step was skipped"
               : action == setup::SpikeAction::stop ? "; the run stops"
                                                    : "; the run returns to the last checkpoint"));
  }
  if (action == setup::SpikeAction::rollback) rollbacks_.request(Back::other_data);
  const bool lost = action == setup::SpikeAction::skip && spikes_->in_a_row() >= NotFiniteSteps::kMost;
  if (action != setup::SpikeAction::stop && !lost) return;
  saves_.settle();
  run_.job.together([&] {
    throw Error(
        {.what = lost ? "spikes in " + std::to_string(NotFiniteSteps::kMost) + " steps in a row"
                      : std::string("the run stops at a spike (spike_action: stop)"),
         .found = what,
         .where = step,
         .fix =
             lost
                 ? std::string("lower learning_rate, or raise loss_spike_factor or grad_norm_spike_factor")
                 : (saves_.last_checkpoint().empty() ? "there is no checkpoint"
                                                     : "the last checkpoint is " + saves_.last_checkpoint()) +
                       "; spike_action: rollback skips such data"});
  });
}

void StepGuard::look_at_base() {
  if (std::exchange(looked_at_base_, true)) return;
  base_wrong_ = base_not_finite(run_, parts_);
  run_.begins("a step");
  if (base_wrong_.empty() || !run_.prints()) return;
  log::warn("step " + std::to_string(run_.step) + ": the base has values that are not finite, first in " +
            base_wrong_);
}

bool StepGuard::weights_are_finite() {
  const std::string wrong = weight_not_finite(*parts_.engine);
  if (wrong.empty()) return true;
  const std::string what = "the weights are not finite: tensor '" + wrong + "' is the first";
  if (spikes_->action() == setup::SpikeAction::rollback) {
    stands_out(what, true);
    return false;
  }
  saves_.settle();
  run_.job.together([&] {
    throw Error(
        {.what = "the weights are not finite, so no checkpoint is written",
         .found = "tensor '" + wrong + "'",
         .where = "step " + std::to_string(run_.step),
         .fix = "lower learning_rate; " + (saves_.last_checkpoint().empty()
                                               ? "there is no checkpoint"
                                               : "the last checkpoint is " + saves_.last_checkpoint())});
  });
  return false;
}

void StepGuard::require_updates() {
  if (parts_.engine->store().optimizer_steps() > 0) return;
  run_.job.together([&] {
    throw Error({.what = "the run has made no update: all of its steps were skipped",
                 .expected = "at least one step with a finite gradient",
                 .found = base_wrong_.empty() ? "" : "values that are not finite in " + base_wrong_,
                 .where = "step " + std::to_string(run_.step) + ", " + run_.config.output_dir,
                 .fix = base_wrong_.empty() ? "lower learning_rate, and check the data and the precision"
                                            : "fetch the weights again, or name a base with finite weights",
                 .code = base_wrong_.empty() ? ExitCode::failure : ExitCode::usage});
  });
}

std::string StepGuard::checkpoint_to_return_to(Back how) {
  const bool too_often = rollbacks_.begin(saves_.completed());
  std::string path = find_newest(run_.job, run_.config).path;
  if (path.empty() && parts_.checkpoint && parts_.checkpoint->memory() == nullptr)
    path = parts_.checkpoint->path();
  run_.job.together([&] {
    if (!too_often && !path.empty()) return;
    throw Error({.what = too_often ? "the run has returned to a checkpoint " +
                                         std::to_string(Rollbacks::kMost) + " times without a new checkpoint"
                                   : std::string("there is no checkpoint to return to"),
                 .expected = "a new checkpoint after each return",
                 .found = too_often ? "none since the first return" : "no checkpoint in output_dir",
                 .where = "step " + std::to_string(run_.step) + ", " + run_.config.output_dir,
                 .fix = too_often ? "remove the hosts that the messages above name; if the messages name "
                                    "spikes, lower learning_rate"
                                  : std::string("start again with a smaller save_steps"),
                 .code = how == Back::same_data ? ExitCode::hang : ExitCode::failure});
  });
  return path;
}

}  // namespace octet::train
