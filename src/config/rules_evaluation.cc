// Rules for evaluations, the best model, and runs that end early.
#include <algorithm>
#include <cmath>

#include "octet/config/derive.h"
#include "rules.h"

namespace octet::config {
namespace {

class EvaluationRules : RulesOf {
 public:
  using RulesOf::RulesOf;

  void apply() {
    plateau();
    figure();
    for (const auto& [key, on] :
         {std::pair<const char*, bool>{"early_stopping_steps", c_.early_stopping_steps.has_value()},
          {"eval_on_start", c_.eval_on_start}}) {
      if (on) require_evaluations(key, "remove " + said(key));
    }
    if (c_.save_strategy == "best") require_evaluations("save_strategy", set_to("save_strategy", "steps"));
    if (c_.eval_delay > 0 && c_.eval_strategy == "no")
      note("'" + said("eval_delay") + "' (" + at("eval_delay") +
           ") has no effect without evaluations (eval_strategy: no)");
    best_model();
  }

 private:
  bool evaluates() const { return c_.val_size > 0 || !c_.eval_dataset.empty(); }

  // Throws Error if `key`, which reads evaluations, has none.
  void require_evaluations(const char* key, const std::string& without) const {
    if (c_.eval_strategy != "no") return;
    const Field& field = *find_field(key);
    complain({.what = named(key, value_text(field, c_)) + " needs evaluations, but " +
                      named("eval_strategy", "no") + " makes none",
              .expected = "eval_strategy: steps or epoch",
              .found = said("eval_strategy") + ": no",
              .where = both(key, "eval_strategy"),
              .fix = set_to("eval_strategy", "steps or epoch") +
                     (evaluates() ? "" : " with eval_dataset or val_size") + ", or " + without});
  }

  // Returns an advice for each key that reads metric_for_best_model: how to do without.
  Strings without_figure() const {
    Strings ways;
    if (c_.load_best_model_at_end) ways.push_back(set_to("load_best_model_at_end", "false"));
    if (c_.early_stopping_steps) ways.push_back("remove " + said("early_stopping_steps"));
    if (c_.save_strategy == "best") ways.push_back(set_to("save_strategy", "steps"));
    return ways;
  }

  // Checks metric_for_best_model and greater_is_better.
  void figure() {
    const Strings without = without_figure();
    if (without.empty()) {
      for (const char* key : {"metric_for_best_model", "greater_is_better"}) {
        if (changed(key))
          note("'" + said(key) + "' (" + at(key) +
               ") is read only with load_best_model_at_end, early_stopping_steps or save_strategy: best");
      }
      return;
    }
    const std::string name = best_figure_name(c_);
    const Strings known = evaluation_figures(c_);
    if (std::ranges::find(known, name) == known.end()) {
      const bool answers = name.find("rouge") != std::string::npos ||
                           name.find("bleu") != std::string::npos || name.find("match") != std::string::npos;
      const bool accuracy = name == "accuracy" && (c_.stage == "sft" || c_.stage == "pt");
      std::string fix = set_to("metric_for_best_model", "eval_loss");
      if (without.size() == 1) fix += ", or " + without.front();
      if (accuracy) fix.insert(0, "set compute_accuracy: true, or ");
      if (answers) fix += "; trainer generate CHECKPOINT --file HELD_OUT --rouge-l scores a checkpoint";
      complain({.what = "the best model cannot be found by " +
                        named("metric_for_best_model", *c_.metric_for_best_model),
                .expected = "a figure of the evaluations of this run: " + listed(known),
                .where = at("metric_for_best_model"),
                .fix = fix});
    }
    worst_model(name);
  }

  // The largest loss is refused. The worst value of another figure may be wanted, so it is a warning.
  void worst_model(const std::string& name) {
    EvaluationKeys usual = c_;
    usual.greater_is_better.reset();
    if (greater_is_better(c_) == greater_is_better(usual)) return;
    if (name == "loss") {
      complain({.what = named("greater_is_better", "true") +
                        " asks for the model with the largest evaluation loss",
                .expected = "greater_is_better: false, since a smaller loss is better",
                .found = said("greater_is_better") + ": true",
                .where = at("greater_is_better"),
                .fix = set_to("greater_is_better", "false") + ", or leave it out"});
    }
    const bool greater = greater_is_better(c_);
    warn(named("greater_is_better", greater ? "true" : "false") + " (" + at("greater_is_better") +
         ") takes the model with the " + (greater ? "largest " : "smallest ") + name +
         " as the best; set greater_is_better: " + (greater ? "false" : "true") + ", or leave it out");
  }

  // Checks reduce_lr_on_plateau, which follows the evaluation loss. Its mode is a scheduler argument;
  // greater_is_better does not apply.
  void plateau() {
    if (c_.lr_scheduler_type != kPlateau) return;
    const std::string without = set_to("lr_scheduler_type", "cosine");
    if (best_figure_name(c_) != "loss") {
      complain({.what = "the learning rate cannot follow " +
                        named("metric_for_best_model", *c_.metric_for_best_model),
                .expected = "loss: reduce_lr_on_plateau follows the evaluation loss",
                .where = at("metric_for_best_model"),
                .fix = set_to("metric_for_best_model", "eval_loss") + ", or " + without});
    }
    require_evaluations("lr_scheduler_type", without);
  }

  // Checks load_best_model_at_end. The best model is a kept checkpoint, so it needs evaluated checkpoints.
  void best_model() {
    if (!c_.load_best_model_at_end) return;
    for (const auto& [key, word] :
         {std::pair{"eval_strategy", c_.eval_strategy}, {"save_strategy", c_.save_strategy}}) {
      if (word != "no") continue;
      const std::string& other = std::string(key) == "eval_strategy" ? c_.save_strategy : c_.eval_strategy;
      const bool has_rows = evaluates() || std::string(key) != "eval_strategy";
      const char* held_out = has_rows ? "" : " with eval_dataset or val_size";
      complain({.what = named("load_best_model_at_end", "true") + " needs evaluated checkpoints, but " +
                        named(key, "no") + " makes none",
                .expected = std::string(key) + ": steps or epoch",
                .found = said(key) + ": no",
                .where = both("load_best_model_at_end", key),
                .fix = set_to(key, other == "no" ? "steps" : other) + held_out + ", or " +
                       set_to("load_best_model_at_end", "false")});
    }
    evaluates_what_it_saves();
  }

  // Requires an evaluation at each save, like Hugging Face's TrainingArguments. Otherwise the best logged
  // loss may belong to no checkpoint.
  void evaluates_what_it_saves() {
    if (c_.save_strategy == "best") return;
    const std::string without = set_to("load_best_model_at_end", "false");
    if (c_.eval_strategy != c_.save_strategy) {
      complain({.what = named("load_best_model_at_end", "true") +
                        " needs an evaluation of each checkpoint, but " + said("save_strategy") + " and " +
                        said("eval_strategy") + " differ",
                .found = said("save_strategy") + ": " + c_.save_strategy + ", " + said("eval_strategy") +
                         ": " + c_.eval_strategy,
                .where = both("save_strategy", "eval_strategy"),
                .fix = set_to("eval_strategy", c_.save_strategy) + ", or " + without});
    }
    if (c_.save_strategy != "steps") return;
    if (c_.mtbf_hours && !r_.is_set("save_steps")) {
      complain(
          {.what = named("load_best_model_at_end", "true") +
                   " needs an evaluation of each checkpoint, but mtbf_hours chooses the steps of checkpoints",
           .expected = one_of(said("load_best_model_at_end"), said("mtbf_hours")),
           .found = "both",
           .where = both("load_best_model_at_end", "mtbf_hours"),
           .fix = set_to("save_steps", "a multiple of eval_steps") + ", or " + without});
    }
    const double save = c_.save_steps, evaluate = c_.eval_steps.value_or(c_.logging_steps);
    if (is_multiple(save, evaluate)) return;
    complain({.what = named("load_best_model_at_end", "true") +
                      " needs an evaluation of each checkpoint, but " + said("save_steps") +
                      " is not a multiple of " + said("eval_steps"),
              .found = said("save_steps") + ": " + number_text(save) + ", " + said("eval_steps") + ": " +
                       number_text(evaluate) + (c_.eval_steps ? "" : ", from logging_steps"),
              .where = both("save_steps", c_.eval_steps ? "eval_steps" : "logging_steps"),
              .fix = set_to("eval_steps", number_text(save)) + ", or " + without});
  }

  // Whether one interval is a multiple of another; both are in steps or in shares of the run.
  bool is_multiple(double save, double evaluate) const {
    if (c_.max_steps > 0)
      return interval_steps(save, c_.max_steps) % interval_steps(evaluate, c_.max_steps) == 0;
    if ((save < 1) != (evaluate < 1)) return false;
    constexpr double kParts = 1e6;
    const double scale = save < 1 ? kParts : 1;
    return std::llround(save * scale) % std::max<long long>(1, std::llround(evaluate * scale)) == 0;
  }
};

}  // namespace

void apply_evaluation_rules(Resolved& resolved, const LoadOptions& options) {
  EvaluationRules(resolved, options).apply();
}

}  // namespace octet::config
