// Chooses param_dtype, grad_dtype, optim_dtype and recompute by the memory of the device if the configuration
// leaves them open, and logs the choice.
#include <algorithm>
#include <optional>

#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/config/derive.h"
#include "octet/device/device.h"
#include "octet/setup/model_options.h"
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

void Run::choose_memory(Candidates& candidates, std::size_t limit) {
  const std::vector<config::Config> choices = config::memory_choices(config_);
  const bool open = config::leaves_storage_open(config_);
  if (!open && choices.size() == 1) return;
  const DeviceKind kind = session_.device().stands_for();
  const config::Config wide = choices.front(), last = config::storages(config_).back();
  const std::optional<std::string> recompute = config_.recompute_requested;
  const std::vector<plan::Level> levels = candidates.levels;
  const auto take = [&](const config::Config& choice) {
    resolved_.config = choice;
    resolved_.config.recompute_requested = recompute;
  };
  const auto fits = [&](const config::Config& choice) {
    take(choice);
    candidates.levels = setup::levels_of(choice, kind);
    return fastest_that_fits(candidates, job_.place(), kind, limit).has_value();
  };
  if (std::ranges::none_of(choices, fits)) {
    candidates.levels = levels;
    take(last);
  }
  if (!open) return;
  const std::string taken = keys_of(config_);
  const auto need = [&] {
    const plan::Choice least{candidates.micros.front(), candidates.levels.back()};
    return text(plan_memory(candidates.build(least), job_.place(), kind).bytes);
  };
  const std::string chosen = need();
  const config::Config narrow = config_;
  take(wide);
  const bool lower = keys_of(config_) != taken;
  const std::string in_fp32 = need();
  take(narrow);
  if (!session_.prints()) return;
  log::debug("states are stored as " + taken + ": each rank holds at least " + chosen +
             (lower ? " (" + in_fp32 + " with fp32)" : "") + " of " + text(limit) +
             (lower ? "; formats that the configuration sets are kept" : ""));
}

void Run::say_storage_asked() const {
  if (open_storage_ || config::leaves_storage_open(config_) || !session_.prints()) return;
  const std::pair<const char*, const std::string&> all[] = {{"param_dtype", config_.param_dtype},
                                                            {"grad_dtype", config_.grad_dtype},
                                                            {"optim_dtype", config_.optim_dtype}};
  std::string where;
  for (const auto& [key, value] : all) {
    const auto origin = resolved_.origins.find(key);
    const std::string from = origin == resolved_.origins.end() ? "" : origin->second.where;
    if (value != "fp32" && value != "auto" && !from.empty() && where.find(from) == std::string::npos)
      where += (where.empty() ? "" : ", ") + from;
  }
  if (where.empty()) return;
  log::debug("states are stored as " + keys_of(config_) + ", as asked (" + where +
             "): less than fp32 rounds updates and moments");
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
  log::debug("states are stored as in the checkpoint, " + keys_of(config_) + ": each rank holds " +
             text(bytes) + (keys_of(wide) == keys_of(config_) ? "" : " (" + text(with_fp32) + " with fp32)"));
}

}  // namespace octet::train
