#include "sizing/sizing.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/device/device.h"
#include "octet/runtime/group_size.h"
#include "octet/setup/model_options.h"
#include "octet/setup/run_options.h"
#include "octet/train/ladder.h"
#include "start.h"

namespace octet::train {
namespace {

std::size_t free_host_memory() {
  return make_cpu_device()->memory().free;
}

std::string keys_of(const config::PrecisionKeys& config) {
  return "param_dtype=" + config.param_dtype + " grad_dtype=" + config.grad_dtype +
         " optim_dtype=" + config.optim_dtype;
}

std::string text(std::size_t bytes) {
  return human_bytes(static_cast<double>(bytes));
}

}  // namespace

void Sizing::adopt_storage(const checkpoint::Checkpoint& checkpoint) {
  if (config::leaves_storage_open(run_.config)) open_storage_ = run_.config;
  if (!open_storage_) return;
  const config::Config stored = config::with_storage_of(saved_config(checkpoint), *open_storage_);
  run_.resolved.config.param_dtype = stored.param_dtype;
  run_.resolved.config.grad_dtype = stored.grad_dtype;
  run_.resolved.config.optim_dtype = stored.optim_dtype;
}

void Sizing::choose() {
  const config::Config& config = run_.config;
  const int world = run_.job.size();
  if (!config.auto_find_batch_size) parts_.batch = batch_of(config, world);
  if (config.auto_find_batch_size) {
    const config::Batch one{.world = world, .global = world};
    choose_sizes(
        feed::make_feed(run_.session, config, setup::is_strict(config), one, *parts_.encoder, parts_.corpus)
            ->shape());
  }
  make_feed();
  parts_.batch = within_epoch(parts_.batch);
  if (!config.auto_find_batch_size) choose_sizes(sample_shape());
}

void Sizing::make_feed() {
  parts_.feed = feed::make_feed(run_.session, run_.config, setup::is_strict(run_.config), parts_.batch,
                                *parts_.encoder, parts_.corpus);
}

runtime::InstanceOptions Sizing::options() const {
  return engine_of(run_.config, {parts_.batch.micro, level_}, sample_shape(), run_.job.size());
}

config::Batch Sizing::batch_of(const config::BatchKeys& config, int world) const {
  return within_epoch(config::resolve_batch(config, world));
}

config::Batch Sizing::within_epoch(const config::Batch& batch) const {
  std::optional<std::int64_t> items;
  if (!run_.config.streaming) items = parts_.corpus.training_items.size();
  if (parts_.feed) items = parts_.feed->items_of_epoch();
  return items ? config::within_epoch(batch, *items) : batch;
}

runtime::InstanceOptions Sizing::engine_of(const config::Config& config, const plan::Choice& choice,
                                           const feed::Feed::Shape& sample, int world) const {
  const std::int64_t eval_batch = config::evaluation_batch(config, choice.micro);
  // Sequences are truncated to a shorter cutoff_len.
  const auto within = [&](std::int64_t tokens) {
    return config.cutoff_len < run_.config.cutoff_len ? std::min(tokens, config.cutoff_len) : tokens;
  };
  const std::int64_t eval_longest =
      within(feed::most_tokens(parts_.corpus.evaluation, parts_.corpus.evaluation_items));
  const std::int64_t context =
      within(feed::longest_context(parts_.corpus.evaluation, parts_.corpus.evaluation_items));
  runtime::InstanceOptions options = setup::instance_options(
      config, parts_.architecture, std::max(choice.micro * sample.tokens, eval_batch * eval_longest),
      std::max(sample.longest, context),
      std::max(choice.micro * sample.documents,
               eval_batch * parts_.corpus.evaluation_items.most_documents()));
  config::BatchKeys chosen = config;
  chosen.per_device_train_batch_size = choice.micro;
  options.max_micro_batches = static_cast<int>(batch_of(chosen, world).passes);
  if (group_ && options.group_size == runtime::kAutomaticGroup) options.group_size = *group_;
  options.snapshot = setup::saves_beside(config);
  options.memory_checkpoints = parts_.memory != nullptr;
  return with_level(std::move(options), choice.level);
}

feed::Feed::Shape Sizing::sample_shape() const {
  const feed::Feed::Shape all = parts_.feed->shape();
  return {.tokens = all.tokens / parts_.batch.micro,
          .longest = all.longest,
          .documents = all.documents / parts_.batch.micro};
}

void Sizing::choose_sizes(const feed::Feed::Shape& sample) {
  const DeviceKind device = kind();
  const std::vector<plan::Level> levels = setup::levels_of(run_.config, device);
  level_ = levels.front();
  choose_group(sample);
  const bool asked = run_.config.auto_find_batch_size || setup::leaves_recompute_open(run_.config);
  if (!asked && levels.size() == 1 && !config::leaves_storage_open(run_.config) &&
      config::says_recompute(run_.config))
    return;
  const std::size_t limit = memory_limit(run_.job, run_.session.device());
  run_.job.together([&] {
    Candidates candidates{.build =
                              [&](const plan::Choice& choice) {
                                return engine_of(run_.config, choice, sample, run_.job.size());
                              },
                          .micros = {parts_.batch.micro},
                          .levels = levels,
                          .length = sample.longest,
                          .must_fit = asked,
                          .advice = [&](std::size_t bytes) { return memory_advice(sample, bytes); }};
    if (run_.config.auto_find_batch_size) {
      candidates.micros =
          buildable(config::possible_micro_batches(run_.config, run_.job.size()), sample.tokens);
    }
    choose_memory(candidates, limit);
    if (!asked && candidates.levels.size() == 1) return;
    const plan::Choice choice = train::choose(candidates, run_.job.place(), device, limit);
    level_ = choice.level;
    config::Config chosen = run_.config;
    chosen.per_device_train_batch_size = choice.micro;
    parts_.batch = batch_of(chosen, run_.job.size());
    const bool recomputes = level_.recompute != levels.front().recompute;
    if (run_.prints() && (asked || recomputes || level_.transposes_at_use)) {
      log::debug("chosen to fit the memory of the device: per_device_train_batch_size=" +
                 std::to_string(choice.micro) + " " + plan::keys_of(level_));
    }
  });
}

// Every choice of the storage and of the recomputation level may follow, so the group is chosen for the
// widest storage with the level that keeps least.
void Sizing::choose_group(const feed::Feed::Shape& sample) {
  group_.reset();
  if (setup::group_size_of(run_.config) != runtime::kAutomaticGroup) return;
  const std::size_t limit = memory_limit(run_.job, run_.session.device());
  std::int64_t size = 0;
  run_.job.together([&] {
    const config::Config wide = config::memory_choices(run_.config).front();
    const plan::Choice least{run_.config.auto_find_batch_size ? 1 : parts_.batch.micro,
                             setup::levels_of(wide, kind()).back()};
    size = fitting_group(engine_of(wide, least, sample, run_.job.size()), run_.job.place(), kind(), limit);
  });
  group_ = run_.job.all_max(size);
  if (run_.prints() && *group_ != 0)
    log::debug("zero_group_size: auto shards the states over groups of " + std::to_string(*group_) + " of " +
               std::to_string(run_.job.size()) + " ranks");
}

void Sizing::choose_memory(Candidates& candidates, std::size_t limit) {
  const std::vector<config::Config> choices = config::memory_choices(run_.config);
  const bool open = config::leaves_storage_open(run_.config);
  if (!open && choices.size() == 1) return;
  const DeviceKind device = kind();
  const config::Config wide = choices.front(), last = config::storages(run_.config).back();
  const std::optional<std::string> recompute = run_.config.recompute_requested;
  const std::vector<plan::Level> levels = candidates.levels;
  const auto take = [&](const config::Config& choice) {
    run_.resolved.config = choice;
    run_.resolved.config.recompute_requested = recompute;
  };
  const auto fits = [&](const config::Config& choice) {
    take(choice);
    candidates.levels = setup::levels_of(choice, device);
    return fastest_that_fits(candidates, run_.job.place(), device, limit).has_value();
  };
  if (std::ranges::none_of(choices, fits)) {
    candidates.levels = levels;
    take(last);
  }
  if (!open) return;
  const std::string taken = keys_of(run_.config);
  const auto need = [&] {
    const plan::Choice least{candidates.micros.front(), candidates.levels.back()};
    return text(plan_memory(candidates.build(least), run_.job.place(), device).bytes);
  };
  const std::string chosen = need();
  const config::Config narrow = run_.config;
  take(wide);
  const bool lower = keys_of(run_.config) != taken;
  const std::string in_fp32 = need();
  take(narrow);
  if (!run_.prints()) return;
  log::debug("states are stored as " + taken + ": each rank holds at least " + chosen +
             (lower ? " (" + in_fp32 + " with fp32)" : "") + " of " + text(limit) +
             (lower ? "; formats that the configuration sets are kept" : ""));
}

std::string Sizing::memory_advice(const feed::Feed::Shape& sample, std::size_t limit) const {
  const auto build = [&](const config::Config& config, const plan::Choice& choice, int world) {
    feed::Feed::Shape shorter = sample;
    shorter.tokens = std::min(sample.tokens, config.cutoff_len);
    shorter.longest = std::min(sample.longest, config.cutoff_len);
    return engine_of(config, choice, shorter, world);
  };
  return ladder_advice(ladder(run_.config, parts_.architecture,
                              {.place = run_.job.place(),
                               .kind = kind(),
                               .limit = limit,
                               .host = free_host_memory(),
                               .outside = {},
                               .build = build}),
                       limit);
}

void Sizing::require_room(const runtime::InstanceOptions& options) const {
  const comm::Place& place = run_.job.place();
  if (run_.config.optim_state_cpu_offload)
    require_host_room(plan_memory(options, place, kind()), place, free_host_memory());
  train::require_room(options, place, run_.session.device(),
                      [&](std::size_t limit) { return memory_advice(sample_shape(), limit); });
}

void Sizing::build_engine(const runtime::InstanceOptions& options) {
  // While an exception is active, a GPU does not free earlier reservations.
  const std::size_t before = run_.session.device().memory().free;
  try {
    parts_.engine = std::make_unique<Engine>(run_.session.device(), run_.job, run_.session.data(), options);
  } catch (const Error& e) {
    if (!is_out_of_memory(e)) throw;
    Problem problem = e.problem();
    const Device& device = run_.session.device();
    // Fewer bytes than the failed request, even if the device reports more.
    const std::size_t asked = plan_memory(options, run_.job.place(), device.stands_for()).bytes;
    const std::size_t libraries = plan::library_bytes(device.kind());
    const std::size_t free =
        (before - std::min(before, libraries)) / ranks_sharing_memory(device, run_.job.place());
    problem.fix = memory_advice(sample_shape(), std::min(free, asked - 1));
    throw Error(std::move(problem));
  }
}

void Sizing::choose_where_to_save() {
  if (!setup::leaves_saves_open(run_.config)) return;
  // A single save at the end needs no reservation.
  if (!setup::saves_before_the_end(run_.resolved, run_.total_steps, parts_.feed->steps_per_epoch())) {
    run_.resolved.config.save_async = "false";
    return;
  }
  const std::size_t limit = memory_limit(run_.job, run_.session.device());
  const std::size_t host_free = free_host_memory();
  bool room = false;
  run_.job.together([&] {
    run_.resolved.config.save_async = "false";
    room = has_room_for_copy(options(), run_.job.place(), kind(), limit, host_free);
  });
  // Hosts may have different memory and numbers of ranks.
  room = run_.job.all_min(room ? 1 : 0) != 0;
  if (room) {
    run_.resolved.config.save_async = "true";
  } else if (run_.prints()) {
    log::debug(
        "training pauses during saves, since host memory has no room for a copy of the state (save_async: "
        "auto)");
  }
}

void Sizing::say_storage_asked() const {
  if (open_storage_ || config::leaves_storage_open(run_.config) || !run_.prints()) return;
  const std::pair<const char*, const std::string&> all[] = {{"param_dtype", run_.config.param_dtype},
                                                            {"grad_dtype", run_.config.grad_dtype},
                                                            {"optim_dtype", run_.config.optim_dtype}};
  std::string where;
  for (const auto& [key, value] : all) {
    const auto origin = run_.resolved.origins.find(key);
    const std::string from = origin == run_.resolved.origins.end() ? "" : origin->second.where;
    if (value != "fp32" && value != "auto" && !from.empty() && where.find(from) == std::string::npos)
      where += (where.empty() ? "" : ", ") + from;
  }
  if (where.empty()) return;
  log::debug("states are stored as " + keys_of(run_.config) + ", as asked (" + where +
             "): less than fp32 rounds updates and moments");
}

void Sizing::say_storage_of_checkpoint() const {
  if (!open_storage_) return;
  const config::Config wide = config::storages(*open_storage_).front();
  const plan::Choice choice{parts_.batch.micro, level_};
  std::size_t bytes = 0, with_fp32 = 0;
  run_.job.together([&] {
    const auto need = [&](const config::Config& config) {
      return plan_memory(engine_of(config, choice, sample_shape(), run_.job.size()), run_.job.place(), kind())
          .bytes;
    };
    bytes = need(run_.config);
    with_fp32 = need(wide);
  });
  if (!run_.prints()) return;
  log::debug("states are stored as in the checkpoint, " + keys_of(run_.config) + ": each rank holds " +
             text(bytes) +
             (keys_of(wide) == keys_of(run_.config) ? "" : " (" + text(with_fp32) + " with fp32)"));
}

}  // namespace octet::train
