// reduce_lr_on_plateau: the learning rate follows evaluations. Its state is stored in checkpoints.
#include <cmath>
#include <limits>
#include <utility>

#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/report/number.h"
#include "run.h"

namespace octet::train {
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

void Run::tell_schedule() {
  optim::Plateau* plateau = schedule_->plateau();
  if (plateau == nullptr) return;
  const double before = plateau->learning_rate();
  if (!plateau->take(evaluated_.loss) || !session_.prints()) return;
  log::info("step " + with_commas(step_) +
            ": the evaluation loss no longer improves: the learning rate falls from " +
            report::python_number(before, 5) + " to " + report::python_number(plateau->learning_rate(), 5));
}

void Run::make_up_for_evaluation() {
  if (!std::exchange(owes_evaluation_, false)) return;
  evaluate(json_number(checkpoint_->state(), "epoch", 0, checkpoint_->path()));
  tell_schedule();
}

void Run::add_plateau(Json& state) const {
  const optim::Plateau* plateau = schedule_->plateau();
  if (plateau == nullptr) return;
  const optim::Plateau::State& now = plateau->state();
  state["plateau"] = {{"mode", now.mode},
                      {"peak", now.peak},
                      {"learning_rate", now.learning_rate},
                      {"best", best_json(now.best)},
                      {"bad", now.bad},
                      {"cooldown", now.cooldown}};
  // A stopped run saves before its evaluation. The next start evaluates.
  if (evaluates_here() && evaluated_.step != step_) state["plateau"]["owes_evaluation"] = true;
}

void Run::take_over_plateau() {
  optim::Plateau* plateau = schedule_->plateau();
  owes_evaluation_ = false;
  if (plateau == nullptr || !checkpoint_) return;
  const Json& state = checkpoint_->state();
  const auto saved = state.find("plateau");
  if (saved == state.end()) return;  // written by a run with another schedule
  const std::string where = checkpoint_->path() + ": plateau";
  optim::Plateau::State from;
  from.mode = json_string(*saved, "mode", "min", where);
  from.peak = json_number(*saved, "peak", 0, where);
  from.learning_rate = json_number(*saved, "learning_rate", 0, where);
  from.best = read_best(*saved, from.mode, where);
  from.bad = json_int(*saved, "bad", 0, 0, kMost, where);
  from.cooldown = json_int(*saved, "cooldown", 0, 0, kMost, where);
  plateau->restore(from);
  owes_evaluation_ = json_bool(*saved, "owes_evaluation", false, where);
}

}  // namespace octet::train
