#include "evaluations.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "logs/step_report.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/base/timing.h"
#include "octet/config/derive.h"
#include "octet/report/number.h"
#include "octet/setup/run_options.h"

namespace octet::train {

bool is_turn(const Turn& turn, std::int64_t step, std::int64_t total, bool ends_epoch) {
  if (turn.when == setup::When::steps) return step % config::interval_steps(turn.interval, total) == 0;
  return turn.when == setup::When::epoch && ends_epoch;
}

bool is_planned(const Turn& turn, std::int64_t step, std::int64_t total, std::int64_t epoch) {
  return is_turn(turn, step, total, epoch > 0 && step % epoch == 0);
}

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr std::int64_t kMost = INT64_C(1) << 60;

// JSON has no infinities, and the initial best value is infinite.
Json best_json(double best) {
  if (std::isfinite(best)) return best;
  return best > 0 ? "inf" : "-inf";
}

double read_best(const Json& saved, const std::string& mode, const std::string& where) {
  const auto found = saved.find("best");
  if (found == saved.end() || !found->is_string())
    return json_number(saved, "best", mode == "max" ? -kInfinity : kInfinity, where);
  return *found == "-inf" ? -kInfinity : kInfinity;
}

}  // namespace

Json plateau_json(const optim::Plateau::State& state) {
  return {{"mode", state.mode},
          {"peak", state.peak},
          {"learning_rate", state.learning_rate},
          {"best", best_json(state.best)},
          {"bad", state.bad},
          {"cooldown", state.cooldown}};
}

optim::Plateau::State read_plateau(const Json& saved, const std::string& where) {
  optim::Plateau::State from;
  from.mode = json_string(saved, "mode", "min", where);
  from.peak = json_number(saved, "peak", 0, where);
  from.learning_rate = json_number(saved, "learning_rate", 0, where);
  from.best = read_best(saved, from.mode, where);
  from.bad = json_int(saved, "bad", 0, 0, kMost, where);
  from.cooldown = json_int(saved, "cooldown", 0, 0, kMost, where);
  return from;
}

void Evaluations::evaluate(double epoch) {
  run_.begins("an evaluation");
  const auto start = Clock::now();
  comm::Job& job = run_.job;
  const feed::Corpus& corpus = parts_.corpus;
  const std::int64_t micro = config::evaluation_batch(run_.config, parts_.batch.micro);
  const std::int64_t items = corpus.evaluation_items.size();
  const std::int64_t each = micro * job.size();
  model::Transformer& core = parts_.engine->core();
  core.take_expert_loads(model::LoadOf::evaluation);  // of other passes without training
  std::vector<double> losses;                         // of each batch of this rank
  std::int64_t terms = 0;
  EvaluationSums sums;
  const auto batch_of = [&](std::int64_t number) {
    std::vector<std::int64_t> which;
    for (std::int64_t i = 0; i < micro; ++i) {
      const std::int64_t item = number * each + job.rank() * micro + i;
      which.push_back(item < items ? item : -1);
    }
    runtime::HostBatch batch = feed::make_batch(corpus.evaluation, corpus.evaluation_items, which);
    if (parts_.teacher) parts_.teacher->add_to(batch);
    return batch;
  };
  const std::int64_t rounds = (items + each - 1) / each;
  if (setup::trains_judged(run_.config))
    parts_.engine->set_reference_point(rounds, [&](std::int64_t i) { return batch_of(i).mismatched; });
  for (std::int64_t i = 0; i < rounds; ++i)
    parts_.engine->evaluate(batch_of(i), &losses.emplace_back(0.0), &terms, &sums);
  const auto batches = static_cast<std::int64_t>(losses.size());
  const auto of_ranks = job.all_gather_bytes(
      std::string(reinterpret_cast<const char*>(losses.data()), losses.size() * sizeof(double)));
  // Summed in batch order, so that the result is equal on every rank and for any world size.
  double total = 0;
  for (std::size_t batch = 0; batch < losses.size(); ++batch) {
    for (const std::string& bytes : of_ranks) {
      double part = 0;
      std::memcpy(&part, bytes.data() + batch * sizeof part, sizeof part);
      total += part;
    }
  }
  terms = job.all_sum(terms);
  latest_loss_ = total / static_cast<double>(std::max<std::int64_t>(1, terms));
  JsonMember experts;
  if (parts_.architecture.experts.count > 0)
    experts = expert_fields(loads_of_all(job, core.take_expert_loads(model::LoadOf::evaluation)));
  std::vector<std::pair<std::string, double>> extra;
  if (run_.config.compute_accuracy) {
    const std::int64_t labels = job.all_sum(sums.labels);
    const double hits = sum_of_ranks(job, {sums.hits}).front();
    extra.emplace_back("accuracy", hits / static_cast<double>(std::max<std::int64_t>(1, labels)));
  }
  if (setup::trains_pairs(run_.config)) {
    sums.figures.resize(ops::kPreferenceFigures);
    extra =
        preference_fields(sum_of_ranks(job, sums.figures), setup::preference_of(run_.config, run_.config));
  }
  if (setup::trains_judged(run_.config)) {
    sums.figures.resize(ops::kPreferenceFigures);
    extra = judgement_fields(sum_of_ranks(job, sums.figures), parts_.engine->reference_point());
  }
  if (setup::has_teacher(run_.config)) {
    sums.figures.resize(ops::kPreferenceFigures);
    extra = teacher_fields(sum_of_ranks(job, sums.figures), static_cast<double>(terms));
  }
  const double value = figure().value_in(latest_loss_, extra);
  latest_ = {.step = run_.step, .figure = value};
  const auto before =
      best_evaluation_.step < 0 ? std::nullopt : std::optional<double>(best_evaluation_.figure);
  if (figure().improves(value, before)) best_evaluation_ = latest_;
  if (!parts_.reporter) return;
  parts_.reporter->evaluation({.step = run_.step,
                               .epoch = epoch,
                               .loss = latest_loss_,
                               .seconds = seconds_since(start),
                               .samples = items,
                               .batches = batches,
                               .perplexity = setup::is_pretraining(run_.config),
                               .experts = experts,
                               .extra = std::move(extra)});
}

Turn Evaluations::turn() const {
  return {.when = setup::evaluates_when(run_.config),
          .interval = setup::evaluation_interval(run_.config, run_.config)};
}

// eval_delay counts steps or epochs, as in transformers.
bool Evaluations::is_due() const {
  const feed::Feed::Step step = parts_.feed->step();
  if (!is_turn(turn(), run_.step, run_.total_steps, step.ends_epoch)) return false;
  const bool epochs = turn().when == setup::When::epoch;
  return run_.config.eval_delay <= (epochs ? step.epoch : static_cast<double>(run_.step));
}

bool Evaluations::plans(std::int64_t step) const {
  return is_planned(turn(), step, run_.total_steps, parts_.feed->steps_per_epoch());
}

void Evaluations::evaluate_in_turn() {
  if (parts_.corpus.evaluation.documents() == 0) return;
  const bool last = run_.step == run_.total_steps && setup::evaluates_when(run_.config) != setup::When::never;
  if (!last && !is_due()) return;
  evaluate(parts_.feed->step().epoch);
  // The evaluation at the end of the run does not count, because a longer run would not have it.
  if (is_due()) tell();
}

void Evaluations::make_up() {
  if (run_.step == 0 && run_.config.eval_on_start && latest_.step != 0) evaluate(0);
  if (!std::exchange(owed_, false)) return;
  evaluate(json_number(parts_.checkpoint->state(), "epoch", 0, parts_.checkpoint->path()));
  tell();
}

void Evaluations::tell() {
  tell_schedule();
  best_.take(latest_.figure, run_.step);
  if (!best_.ends_run() || !run_.prints()) return;
  const std::string best = best_.best() ? " (" + report::python_number(*best_.best(), 6) + ")" : "";
  log::info("step " + with_commas(run_.step) + ": " + std::to_string(best_.stale()) +
            (best_.stale() == 1 ? " evaluation is" : " evaluations in a row are") +
            " not better than the best evaluation " + figure().name + best +
            ": the run ends early (early_stopping_steps)");
}

void Evaluations::tell_schedule() {
  optim::Plateau* plateau = parts_.schedule->plateau();
  if (plateau == nullptr) return;
  const double before = plateau->learning_rate();
  if (!plateau->take(latest_loss_) || !run_.prints()) return;
  log::info("step " + with_commas(run_.step) +
            ": the evaluation loss no longer improves: the learning rate falls from " +
            report::python_number(before, 5) + " to " + report::python_number(plateau->learning_rate(), 5));
}

bool Evaluations::keeps_figure() const {
  return run_.config.early_stopping_steps || setup::saves_when(run_.config) == setup::When::best;
}

void Evaluations::add_to(Json& state) const {
  const optim::Plateau* plateau = parts_.schedule->plateau();
  if (plateau != nullptr) state["plateau"] = plateau_json(plateau->state());
  if (keeps_figure()) state["best_figure"] = best_.json();
  // A stopped run saves before its evaluation. The next start evaluates.
  if (!is_due() || latest_.step == run_.step) return;
  if (plateau != nullptr) state["plateau"]["owes_evaluation"] = true;
  if (keeps_figure()) state["best_figure"]["owes_evaluation"] = true;
}

void Evaluations::take_over() {
  owed_ = false;
  if (!parts_.checkpoint) return;
  const Json& state = parts_.checkpoint->state();
  optim::Plateau* plateau = parts_.schedule->plateau();
  // Another run may have written the checkpoint, without these states.
  if (const auto saved = state.find("plateau"); plateau != nullptr && saved != state.end()) {
    const std::string where = parts_.checkpoint->path() + ": plateau";
    plateau->restore(read_plateau(*saved, where));
    owed_ = json_bool(*saved, "owes_evaluation", false, where);
  }
  if (const auto saved = state.find("best_figure"); keeps_figure() && saved != state.end()) {
    const std::string where = parts_.checkpoint->path() + ": best_figure";
    best_.restore(*saved, where);
    owed_ = owed_ || json_bool(*saved, "owes_evaluation", false, where);
  }
}

}  // namespace octet::train
