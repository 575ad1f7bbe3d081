#include "octet/train/ladder.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "octet/base/strings.h"
#include "octet/config/derive.h"
#include "octet/setup/model_options.h"
#include "octet/setup/run_options.h"
#include "octet/train/fit.h"

namespace octet::train {
namespace {

constexpr std::int64_t kShortest = 256;  // tokens; shorter sequences are not suggested
constexpr int kMostRanks = 1024;

class Ladder {
 public:
  Ladder(config::Config config, const model::Architecture& architecture, LadderOptions options)
      : config_(std::move(config)), architecture_(architecture), options_(std::move(options)) {}

  std::vector<Rung> climb() {
    least_ = memory().bytes;
    const auto done = [this] { return !rungs_.empty() && rungs_.back().bytes <= options_.limit; };
    smaller_batch(2);
    if (!done()) shorter();
    if (!done()) offload();
    if (!done()) smaller_batch(config_.per_device_train_batch_size);
    if (!done()) recompute();
    if (!done() && config_.zero_stage < 3 && options_.place.size > 1) share_out();
    if (!done() && config_.zero_group_size) one_group();
    if (!done()) more_ranks();
    return std::move(rungs_);
  }

 private:
  plan::Memory memory() const {
    const plan::Choice choice{micro(), setup::levels_of(config_, options_.kind).back()};
    const int world = options_.place.size;
    const runtime::InstanceOptions how = options_.build
                                             ? options_.build(config_, choice, world)
                                             : worst_options(config_, architecture_, choice, world);
    plan::Memory memory = plan_memory(how, options_.place, options_.kind);
    if (options_.outside) memory.bytes += options_.outside(options_.place);
    return memory;
  }

  // Reverts a change that saves no memory.
  bool add(const std::string& keys, config::Config before) {
    const std::size_t now = memory().bytes;
    if (now >= least_) {
      config_ = std::move(before);
      return false;
    }
    least_ = now;
    rungs_.push_back({.keys = keys, .bytes = now});
    return true;
  }

  // Divides the micro-batch, so the samples of a step stay the same.
  void smaller_batch(std::int64_t parts) {
    const std::int64_t whole = config_.per_device_train_batch_size;
    if (config_.auto_find_batch_size || whole < 2 || parts < 2) return;
    config::Config before = config_;
    while (whole % parts != 0) ++parts;
    config_.per_device_train_batch_size = whole / parts;
    std::string keys = "per_device_train_batch_size=" + std::to_string(whole / parts);
    if (!config_.global_batch_size || config_.gradient_accumulation_steps) {
      config_.gradient_accumulation_steps =
          config::resolve_batch(before, options_.place.size).accumulation * parts;
      keys += " gradient_accumulation_steps=" + std::to_string(*config_.gradient_accumulation_steps);
    }
    if (config_.per_device_eval_batch_size.value_or(0) > whole / parts) {
      config_.per_device_eval_batch_size = whole / parts;
      keys += " per_device_eval_batch_size=" + std::to_string(whole / parts);
    }
    add(keys, std::move(before));
  }

  void shorter() {
    if (config_.cutoff_len < 2 * kShortest) return;
    config::Config before = config_;
    config_.cutoff_len /= 2;
    add("cutoff_len=" + std::to_string(config_.cutoff_len), std::move(before));
  }

  // Suggests host memory only if it has room.
  void offload() {
    if (!traits_of(options_.kind).has_host_link || config_.optim_state_cpu_offload) return;
    config::Config before = config_;
    config_.optim_state_cpu_offload = true;
    const auto ranks = static_cast<std::size_t>(std::max(1, options_.place.local_size));
    const plan::Memory with = memory();
    if (options_.host > 0 && with.pinned_bytes() > options_.host / ranks) {
      config_ = std::move(before);
      return;
    }
    if (!add("optim_state_cpu_offload=true", std::move(before))) return;
    rungs_.back().moved = with.state_of_host();
    rungs_.back().moved_host = ranks * with.state_of_host();
  }

  void recompute() {
    if (setup::leaves_recompute_open(config_) || config_.recompute() == "full") return;
    config::Config before = config_;
    config_.recompute_requested = "full";
    config_.disable_gradient_checkpointing = false;
    add("recompute=full", std::move(before));
  }

  void share_out() {
    config::Config before = config_;
    config_.zero_stage = 3;
    add("zero_stage=3", std::move(before));
  }

  void one_group() {
    config::Config before = config_;
    config_.zero_group_size.reset();
    add("zero_group_size=null", std::move(before));
  }

  // Doubles the ranks until the run fits, else keeps the number of ranks with least memory per rank.
  void more_ranks() {
    const std::size_t rungs = rungs_.size();
    config_.zero_stage = 3;
    while (options_.place.size < kMostRanks && least_ > options_.limit) {
      config::Config before = config_;
      double_ranks();
      if (!add("zero_stage=3 on " + std::to_string(options_.place.size) + " ranks", std::move(before)))
        return;
      if (rungs_.size() > rungs + 1) rungs_.erase(rungs_.end() - 2);
    }
  }

  void double_ranks() {
    comm::Place& place = options_.place;
    const int each = std::max(place.local_size, 8);
    place.size *= 2;
    place.node_of.clear();
    for (int r = 0; r < place.size; ++r) place.node_of.push_back(r / each);
    place.nodes = place.node_of.back() + 1;
    place.local_size = std::min(each, place.size);
    if (!config_.global_batch_size) return;
    // If the batch is not divisible by the ranks, a step gets more samples.
    config_.gradient_accumulation_steps.reset();
    if (*config_.global_batch_size % (place.size * micro()) != 0)
      config_.global_batch_size = place.size * micro();
  }

  std::int64_t micro() const {
    return config_.auto_find_batch_size ? 1 : config_.per_device_train_batch_size;
  }

  config::Config config_;
  const model::Architecture& architecture_;
  LadderOptions options_;
  std::vector<Rung> rungs_;
  std::size_t least_ = 0;  ///< bytes after the last change
};

}  // namespace

runtime::InstanceOptions worst_options(const config::Config& config, const model::Architecture& architecture,
                                       const plan::Choice& choice, int world) {
  const bool evaluates = config.val_size > 0 || !config.eval_dataset.empty();
  const std::int64_t rows =
      evaluates ? std::max(choice.micro, config::evaluation_batch(config, choice.micro)) : choice.micro;
  // A pair has two documents of cutoff_len.
  const std::int64_t each = setup::trains_pairs(config) ? 2 : 1;
  const std::int64_t tokens = each * rows * config.cutoff_len;
  // Only the data determine the documents of a packed row. They need one number each.
  const std::int64_t documents =
      config.packing || config.neat_packing ? tokens / 16 + each * rows : each * rows;
  runtime::InstanceOptions options =
      setup::instance_options(config, architecture, tokens, config.cutoff_len, documents);
  config::Config chosen = config;
  chosen.per_device_train_batch_size = choice.micro;
  options.max_micro_batches = static_cast<int>(config::resolve_batch(chosen, world).accumulation);
  options.snapshot = setup::saves_beside(config);
  options.memory_checkpoints = config.memory_checkpoint_steps != 0;
  return with_level(std::move(options), choice.level);
}

std::vector<Rung> ladder(const config::Config& config, const model::Architecture& architecture,
                         const LadderOptions& options) {
  return Ladder(config, architecture, options).climb();
}

std::vector<std::string> ladder_lines(const std::vector<Rung>& rungs, std::size_t limit) {
  std::vector<std::string> lines;
  for (const Rung& rung : rungs) {
    std::string& line = lines.emplace_back(rung.keys + ": " + human_bytes(static_cast<double>(rung.bytes)) +
                                           " per rank" + (rung.bytes <= limit ? ", which fits" : ""));
    if (rung.moved == 0) continue;
    line += "; " + human_bytes(static_cast<double>(rung.moved)) + " are moved to host memory";
    if (rung.moved_host > rung.moved)
      line += ", " + human_bytes(static_cast<double>(rung.moved_host)) + " for all ranks of a host";
  }
  return lines;
}

std::string ladder_advice(const std::vector<Rung>& rungs, std::size_t limit) {
  std::string text;
  for (const std::string& line : ladder_lines(rungs, limit))
    text += (text.empty() ? "change one after another, and keep the earlier changes:\n            "
                          : "\n            ") +
            line;
  return text + (text.empty() ? "" : "\n            ") +
         "or store parameters or moments in fewer bytes (param_dtype, optim_dtype); trainer plan shows what "
         "takes the memory";
}

}  // namespace octet::train
