// Keys of checks for silent data corruption and for spikes of loss and gradient norm.
#include "table.h"

namespace octet::config {

void add_check_fields(Table& t) {
  t.group("Checks");
  t.used("sdc_steps", &Config::sdc_steps,
         "Steps between checks for silently corrupted bits: hashes of states, replicas and messages. The "
         "differing rank is named. Every checkpoint is checked before it is written. 0: none.")
      .range(0, 1e15);
  t.used("sdc_replay_steps", &Config::sdc_replay_steps,
         "Steps between replays: another rank recomputes a micro-batch, and a third decides. 0: none. Needs "
         "sdc_steps, and ranks on CPUs of one kind or deterministic: strict.")
      .range(0, 1e15);
  t.used("sdc_action", &Config::sdc_action,
         "After a failed check. stop: exit code 75, with the last verified checkpoint named. rollback: "
         "return to it and continue, at most three times in a row.")
      .one_of({"stop", "rollback"});
  t.used("loss_spike_factor", &Config::loss_spike_factor,
         "A step is a spike if its loss is more than this many times the median of the last hundred steps, "
         "from the eleventh step on. 0: off.")
      .at_least(0)
      .decides_numbers();
  t.used("grad_norm_spike_factor", &Config::grad_norm_spike_factor,
         "Like loss_spike_factor, for the gradient norm before clipping.")
      .at_least(0)
      .decides_numbers();
  t.used("spike_action", &Config::spike_action,
         "For spikes and steps that are not finite. skip: skip the update. rollback: return to the last "
         "checkpoint and leave out the data since. stop: end the run.")
      .details("With skip, a step with a finite gradient and an infinite loss is taken, with a warning.")
      .one_of({"skip", "rollback", "stop"});
}

}  // namespace octet::config
