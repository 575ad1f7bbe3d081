// Keys of what a run does about bits and steps that go wrong without an error.
#include "table.h"

namespace octet::config {

void add_check_fields(Table& t) {
  t.group("Checks");
  t.used("sdc_steps", &Config::sdc_steps,
         "Steps between checks for bits that went wrong by themselves: what several ranks hold alike is "
         "compared among them, what must not change from one update to the next with itself, messages with "
         "what was sent; the rank that differs is named. Every checkpoint is checked before it is written. "
         "0: no checks.")
      .range(0, 1e15);
  t.used("sdc_replay_steps", &Config::sdc_replay_steps,
         "Steps between replays: a micro-batch of every rank is computed again by another one, and a third "
         "decides where their gradients differ. 0: none. Needs sdc_steps, and bits that do not depend on the "
         "rank: ranks on CPUs of one kind, or deterministic: strict.")
      .range(0, 1e15);
  t.used("sdc_action", &Config::sdc_action,
         "After a check that did not agree. stop: the run ends with exit code 75 and names the last verified "
         "checkpoint; rollback: it goes back to that and trains on, three times in a row at most.")
      .one_of({"stop", "rollback"});
  t.used("loss_spike_factor", &Config::loss_spike_factor,
         "A step whose loss is more than so many times the median of the last hundred is a spike, from the "
         "eleventh step on. 0: none is.")
      .at_least(0)
      .decides_numbers();
  t.used("grad_norm_spike_factor", &Config::grad_norm_spike_factor,
         "The same of the gradient's norm before clipping.")
      .at_least(0)
      .decides_numbers();
  t.used("spike_action", &Config::spike_action,
         "What becomes of a spike, and of a step whose loss or gradient is not finite. skip: its update is "
         "not made (one with a finite gradient and no finite loss is made, and warned of); rollback: the run "
         "goes back to the last checkpoint and leaves the data out that it took since; stop: it ends.")
      .one_of({"skip", "rollback", "stop"});
}

}  // namespace octet::config
