#include "octet/train/rehearsal.h"

#include <algorithm>
#include <vector>

#include "octet/ops/gemm.h"

namespace octet::train {

void rehearse(comm::Channel& channel, const Rehearsal& rehearsal) {
  const std::vector<std::string> kinds = channel.all_gather_bytes(rehearsal.kind);
  const auto leader = static_cast<int>(std::ranges::find(kinds, rehearsal.kind) - kinds.begin());
  const bool leads = rehearsal.kind.empty() || leader == channel.rank();
  channel.together([&] {
    if (leads) rehearsal.run();
  });
  const bool chose = leads && !rehearsal.kind.empty();
  const std::vector<std::string> choices =
      channel.all_gather_bytes(chose ? rehearsal.choices() : std::string());
  channel.together([&] {
    if (leads) return;
    rehearsal.learn(choices[static_cast<std::size_t>(leader)]);
    rehearsal.run();
  });
  rehearsal.close();
}

void rehearse(comm::Job& job, Device& device, Engine& engine) {
  if (job.size() == 1 || !device.traits().autotunes_gemms) return;
  // Random tokens may bring more rows to a rank than data do, so bounded buffers could refuse a run that
  // fits.
  if (engine.options().expert_size > 1 && engine.options().transformer.exchange_room > 0)
    return engine.choose_in_first_step();
  engine.instance().gather_parameters();
  std::string kind;
  job.together([&] {
    // Ranks that exchange tokens run at once.
    if (!engine.compute().reproducible() && engine.options().expert_size == 1)
      kind = ops::gemm_machine(device);
  });
  rehearse(job, {.kind = kind,
                 .run = [&] { engine.rehearse(); },
                 .choices = [&] { return ops::autotuned_gemms(device); },
                 .learn = [&](const std::string& text) { ops::learn_autotuned_gemms(device, text); },
                 .close = [&] { ops::set_gemm_choosing(device, false); }});
}

}  // namespace octet::train
