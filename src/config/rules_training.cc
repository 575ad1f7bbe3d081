// Rules for schedules, and for the checks for silent errors.
#include <algorithm>
#include <cmath>

#include "octet/base/strings.h"
#include "rules.h"
#include "settings.h"

namespace octet::config {

// Rules for the checks for silent errors.

namespace {

class CheckRules : RulesOf {
 public:
  using RulesOf::RulesOf;

  void apply() {
    factor("loss_spike_factor", c_.loss_spike_factor);
    factor("grad_norm_spike_factor", c_.grad_norm_spike_factor);
    replays();
    goes_back("sdc_action", c_.sdc_action);
    goes_back("spike_action", c_.spike_action);
    if (c_.sdc_steps == 0 && changed("sdc_action"))
      note("'sdc_action' (" + at("sdc_action") + ") is read only with sdc_steps");
  }

 private:
  void factor(const char* key, double value) const {
    if (value == 0 || value > 1) return;
    complain({.what = std::string("value of '") + key + "' cannot be used",
              .expected = "a number above 1, or 0 to switch the check off",
              .found = number_text(value),
              .where = at(key),
              .fix = std::string("set ") + key + ": 5, or leave it out"});
  }

  void replays() const {
    if (c_.sdc_replay_steps == 0) return;
    if (c_.sdc_steps == 0) {
      complain({.what = "'sdc_replay_steps' needs 'sdc_steps'",
                .expected = "a number of steps between checks; replays are reported with them",
                .found = "sdc_steps: 0",
                .where = both("sdc_replay_steps", "sdc_steps"),
                .fix = "set sdc_steps: 100, or remove sdc_replay_steps"});
    }
    const bool on_gpu = c_.device == "cuda" && c_.deterministic == "auto";
    if (c_.deterministic == "false" || on_gpu) {
      complain({.what = "'sdc_replay_steps' and " + named("deterministic", c_.deterministic) +
                        (on_gpu ? " with 'device: cuda'" : "") + " exclude each other",
                .expected = "the same bits on every rank",
                .where = both("sdc_replay_steps", "deterministic"),
                .fix = "set deterministic: strict, or remove sdc_replay_steps"});
    }
  }

  void goes_back(const char* key, const std::string& action) const {
    if (action != "rollback" || c_.save_strategy != "no") return;
    complain({.what = std::string("'") + key + ": rollback' and " + named("save_strategy", "no") +
                      " exclude each other",
              .expected = "checkpoints, to which the run can return",
              .where = both(key, "save_strategy"),
              .fix = set_to("save_strategy", "steps") + ", or " + key + ": stop"});
  }
};

}  // namespace

void apply_check_rules(Resolved& resolved, const LoadOptions& options) {
  CheckRules(resolved, options).apply();
}

// The schedules, their arguments, and the allowed values.

namespace {

struct Known {
  const char* type;
  Strings names;
};

// All schedules in documentation order, with their arguments.
const Known kKnown[] = {
    {"linear", {}},
    {"cosine", {"num_cycles"}},
    {"cosine_with_restarts", {"num_cycles"}},
    {"polynomial", {"lr_end", "power"}},
    {"constant", {}},
    {"constant_with_warmup", {}},
    {"inverse_sqrt", {"timescale"}},
    {"cosine_with_min_lr", {"min_lr", "min_lr_rate", "num_cycles"}},
    {"cosine_warmup_with_min_lr", {"min_lr", "min_lr_rate", "num_cycles", "warmup_lr_rate"}},
    {"warmup_stable_decay",
     {"num_stable_steps", "num_decay_steps", "min_lr_ratio", "num_cycles", "decay_type", "warmup_type"}},
    {kPlateau, {"mode", "factor", "patience", "threshold", "threshold_mode", "cooldown", "min_lr", "eps"}},
    {"deepspeed_warmup", {"warmup_type", "warmup_min_lr"}},
    {"deepspeed_warmup_decay", {"warmup_type", "warmup_min_lr", "total_num_steps"}},
    {"deepspeed_warmup_cosine", {"warmup_type", "warmup_min_ratio", "cos_min_ratio", "total_num_steps"}},
};

std::string listed(const Strings& names) {
  std::string list;
  for (const auto& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

void check_name(const std::string& name, const std::string& type, const std::string& where) {
  Strings names;
  for (const Known& known : kKnown) {
    if (type == known.type) names = known.names;
  }
  if (std::ranges::find(names, name) != names.end()) return;
  const std::string near = nearest_name(name, names);
  complain({.what = "unknown argument '" + name + "' of '" + type + "'",
            .expected = names.empty() ? "no arguments" : listed(names),
            .where = where,
            .fix = near.empty() ? (names.empty() ? "remove it" : "give one of these, or remove it")
                                : "did you mean '" + near + "'?"});
}

// Returns the words that an argument accepts; empty for numbers.
Strings words_of(const std::string& name, const std::string& type) {
  if (name == "mode") return {"min", "max"};
  if (name == "threshold_mode") return {"rel", "abs"};
  if (name != "decay_type" && name != "warmup_type") return {};
  return type.starts_with("deepspeed_") ? Strings{"log", "linear"} : Strings{"linear", "cosine", "1-sqrt"};
}

void check_argument(const std::string& name, const std::variant<double, std::string>& value,
                    const std::string& type, const std::string& where) {
  const Strings words = words_of(name, type);
  const bool counts = name == "patience" || name == "cooldown", share = name == "factor";
  const auto* text = std::get_if<std::string>(&value);
  const auto* number = std::get_if<double>(&value);
  const bool fits = !words.empty() ? text != nullptr && std::ranges::find(words, *text) != words.end()
                                   : number != nullptr && *number >= 0 && !(share && *number >= 1) &&
                                         !(counts && *number != std::floor(*number));
  if (fits) return;
  complain({.what = "argument '" + name + "' of the schedule cannot be used",
            .expected = !words.empty() ? listed(words)
                        : counts       ? "a whole number of at least 0"
                        : share        ? "a number of at least 0 and below 1"
                                       : "a number of at least 0",
            .found = text != nullptr ? "'" + *text + "'" : number_text(*number),
            .where = where,
            .fix = such_a_value("lr_scheduler_kwargs")});
}

}  // namespace

Strings schedule_types() {
  Strings types;
  for (const Known& known : kKnown) types.emplace_back(known.type);
  return types;
}

void check_schedule_arguments(const Config& config, const std::string& type_at,
                              const std::string& arguments_at) {
  const std::string& type = config.lr_scheduler_type;
  const Arguments& arguments = config.lr_scheduler_kwargs;
  for (const auto& [name, value] : arguments) {
    check_name(name, type, arguments_at);
    check_argument(name, value, type, arguments_at);
  }
  const bool floor = arguments.contains("min_lr"), rate = arguments.contains("min_lr_rate");
  if (type.ends_with("with_min_lr") && floor == rate) {
    complain({.what = type + " needs one of min_lr and min_lr_rate",
              .found = floor ? "both" : "neither",
              .where = floor ? arguments_at : type_at,
              .fix = "lr_scheduler_kwargs: {min_lr_rate: 0.1}"});
  }
}

}  // namespace octet::config
