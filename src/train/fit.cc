#include "octet/train/fit.h"

#include <algorithm>

#include "octet/base/error.h"
#include "octet/base/strings.h"

namespace octet::train {

plan::Memory plan_memory(const EngineOptions& options, const comm::Place& place, DeviceKind kind) {
  const std::unique_ptr<Device> device = make_dry_device({.stands_for = kind});
  const std::unique_ptr<comm::Communicator> communicator = comm::make_dry_communicator(*device, place);
  Engine engine(*device, *communicator, options);
  return plan::memory_of(engine.arena());
}

plan::Work work_of(const EngineOptions& options, const plan::Memory& memory, std::int64_t length,
                   std::int64_t micro_batches) {
  return {.architecture = options.architecture,
          .recipe = options.store.recipe,
          .recompute = options.transformer.recompute,
          .tokens = options.transformer.max_tokens,
          .length = length,
          .micro_batches = micro_batches,
          .optimizer_bytes = static_cast<double>(memory.of_update())};
}

plan::Choice choose(const Candidates& candidates, const comm::Place& place, DeviceKind kind,
                    std::size_t limit) {
  const auto memory_with = [&](const plan::Choice& choice) {
    return plan_memory(candidates.build(choice), place, kind);
  };
  const auto fitting =
      plan::largest_that_fit(candidates.micros, candidates.levels, limit,
                             [&](const plan::Choice& choice) { return memory_with(choice).bytes; });
  const auto best = plan::fastest(fitting, [&](const plan::Choice& choice) {
    // The optimizer runs once a step whatever the micro-batch is.
    const plan::Work work = work_of(candidates.build(choice), {}, candidates.length, 1);
    return plan::time_of(work).seconds / static_cast<double>(choice.micro);
  });
  if (best) return *best;
  const plan::Choice least{candidates.micros.front(), candidates.levels.back()};
  throw Error({.what = "the run does not fit the memory of its device",
               .expected = "at most " + human_bytes(static_cast<double>(limit)) + " a rank",
               .found = human_bytes(static_cast<double>(memory_with(least).bytes)) +
                        " with micro-batches of " + std::to_string(least.micro) +
                        " and recompute: " + plan::name_of(least.recompute),
               .fix = "lower cutoff_len, raise zero_stage or the number of ranks; trainer plan shows what "
                      "takes the memory",
               .code = ExitCode::usage});
}

EngineOptions with_level(EngineOptions options, const config::Config& config,
                         comm::Communicator& communicator, Device& device) {
  if (config.recompute() != "auto") return options;
  const std::size_t limit = memory_limit(communicator, device);
  const Candidates candidates{.build =
                                  [&](const plan::Choice& choice) {
                                    EngineOptions with = options;
                                    with.transformer.recompute = choice.recompute;
                                    return with;
                                  },
                              .micros = {1},
                              .levels = {std::begin(plan::kLevels), std::end(plan::kLevels)},
                              .length = options.transformer.max_length};
  communicator.together([&] {
    options.transformer.recompute = choose(candidates, communicator.place(), device.kind(), limit).recompute;
  });
  return options;
}

std::size_t memory_limit(comm::Communicator& communicator, Device& device) {
  std::size_t free = device.memory().free;
  const std::size_t libraries = plan::library_bytes(device.kind());
  free -= std::min(free, libraries);
  if (device.host_reaches_memory()) {
    // Of a machine's memory others want a little too.
    free = free / 20 * 19 / static_cast<std::size_t>(std::max(1, communicator.place().local_size));
  }
  return static_cast<std::size_t>(communicator.all_min(static_cast<std::int64_t>(free)));
}

}  // namespace octet::train
