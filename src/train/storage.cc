// param_dtype, grad_dtype and optim_dtype, where they are left to the program: what is chosen, and what is
// said.
#include <utility>

#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/config/derive.h"
#include "octet/device/device.h"
#include "octet/train/fit.h"
#include "run.h"

namespace octet::train {
namespace {

std::string keys_of(const config::Config& config) {
  return "param_dtype=" + config.param_dtype + " grad_dtype=" + config.grad_dtype +
         " optim_dtype=" + config.optim_dtype;
}

std::string text(std::size_t bytes) {
  return human_bytes(static_cast<double>(bytes));
}

}  // namespace

void Run::choose_storage(Candidates candidates, std::size_t limit) {
  if (!config::leaves_storage_open(config_)) return;
  const DeviceKind kind = session_.device().stands_for();
  const std::vector<config::Config> all = config::storages(config_);
  std::size_t taken = 0;
  for (; taken + 1 < all.size(); ++taken) {
    resolved_.config = all[taken];
    if (fastest_that_fits(candidates, job_.place(), kind, limit)) break;
  }
  const auto need = [&](std::size_t i) {
    resolved_.config = all[i];
    const plan::Choice least{candidates.micros.front(), candidates.levels.back()};
    return text(plan_memory(candidates.build(least), job_.place(), kind).bytes);
  };
  const std::string wide = need(0), chosen = need(taken);
  if (!session_.prints()) return;
  log::info("states are stored as " + keys_of(config_) + ": each rank holds at least " + chosen +
            (taken > 0 ? " (" + wide + " with fp32)" : "") + " of " + text(limit) +
            (taken > 0 ? "; what is set in the configuration stays as it is set" : ""));
}

void Run::say_storage_of_checkpoint() const {
  if (!open_storage_) return;
  const config::Config wide = config::storages(*open_storage_).front();
  const plan::Choice choice{batch_.micro, level_};
  std::size_t bytes = 0, with_fp32 = 0;
  job_.together([&] {
    const auto need = [&](const config::Config& config) {
      return plan_memory(engine_of(config, choice, sample_shape(), job_.size()), job_.place(),
                         session_.device().stands_for())
          .bytes;
    };
    bytes = need(config_);
    with_fp32 = need(wide);
  });
  if (!session_.prints()) return;
  log::info("states are stored as in the checkpoint, " + keys_of(config_) + ": each rank holds " +
            text(bytes) + (keys_of(wide) == keys_of(config_) ? "" : " (" + text(with_fp32) + " with fp32)"));
}

}  // namespace octet::train
