// Rules for the checks for silent errors.
#include "rules.h"

namespace octet::config {
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

}  // namespace octet::config
