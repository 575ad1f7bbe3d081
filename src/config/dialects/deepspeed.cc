// Translates DeepSpeed JSON. Its keys map to ours, have no effect here, or are not supported. Keys that
// DeepSpeed itself ignores silently or refuses are reported.
#include <algorithm>
#include <map>
#include <string_view>

#include "octet/base/strings.h"
#include "settings.h"

namespace octet::config {
namespace {

enum class DeepSpeedAction : std::uint8_t {
  map,      ///< sets `key` to the value; "auto" leaves it to the YAML
  when_on,  ///< true sets `key` to true; false has no effect
  bf16_on,  ///< true sets the keys in `key`, separated by blanks, to bf16; false has no effect
  group,    ///< more than one rank sets `key` to the number; other numbers mean that there are no groups
  note,     ///< accepted without effect; `key` says why
  refuse,   ///< refused unless null, false, 0, "none" or "auto"; `key` says why
  section   ///< contains more keys
};

struct DeepSpeedEntry {
  std::string_view path;
  DeepSpeedAction action;
  const char* key;
  /// refuse: our key that replaces the value, if a stronger source sets it.
  const char* instead = "";
};

constexpr const char* kBuckets = "messages are cut by layer, not by bucket";
constexpr const char* kPrefetch = "the parameters of a layer are gathered while another layer computes";
constexpr const char* kPersistent = "at stage 3 all parameters are cut, small ones too";
constexpr const char* kMonitor = "trainer_log.jsonl always has rate, loss, times and messages";
constexpr const char* kFp16 = "fp16 is not built; use bf16";
constexpr const char* kFp16Detail = "read only with fp16.enabled";
constexpr const char* kOffloadDetail =
    "an offloaded state of the optimizer is stored in pinned host memory, and copied through the GPU at each "
    "update";
constexpr const char* kParamsDetail = "read only when parameters are offloaded";
constexpr const char* kQuantisedWire =
    "use these keys instead: reduce_dtype: int8 or fp8 for gradients, gather_dtype: fp8 for parameters";
constexpr const char* kParams =
    "parameters stay on the device; offload_optimizer moves the optimizer's state and the masters";
constexpr const char* kOwnOptimizer = "the optimizer is AdamW at every stage";

constexpr DeepSpeedEntry kEntries[] = {
    {"train_batch_size", DeepSpeedAction::map, "global_batch_size"},
    {"train_micro_batch_size_per_gpu", DeepSpeedAction::map, "per_device_train_batch_size"},
    {"gradient_accumulation_steps", DeepSpeedAction::map, "gradient_accumulation_steps"},
    {"gradient_clipping", DeepSpeedAction::map, "max_grad_norm"},
    {"steps_per_print", DeepSpeedAction::note, "logging_steps says when a line is logged"},
    {"wall_clock_breakdown", DeepSpeedAction::note, kMonitor},
    {"memory_breakdown", DeepSpeedAction::note, "the start always lists the use of memory"},
    {"dump_state", DeepSpeedAction::note, "config.resolved.yaml holds the whole configuration"},
    {"prescale_gradients", DeepSpeedAction::note, "gradients are summed in fp32"},
    {"gradient_predivide_factor", DeepSpeedAction::note, "gradients are summed in fp32"},
    {"sparse_gradients", DeepSpeedAction::refuse, "sparse gradients are not built"},
    {"zero_allow_untested_optimizer", DeepSpeedAction::note, kOwnOptimizer},
    {"zero_force_ds_cpu_optimizer", DeepSpeedAction::note, kOwnOptimizer},
    {"disable_allgather", DeepSpeedAction::note, "parameters are always gathered in the same way"},
    {"communication_data_type", DeepSpeedAction::map, "reduce_dtype"},
    {"seq_parallel_communication_data_type", DeepSpeedAction::note, "sequences are not split over ranks"},
    {"data_types", DeepSpeedAction::section, ""},
    {"data_types.grad_accum_dtype", DeepSpeedAction::map, "grad_dtype"},
    {"bf16", DeepSpeedAction::section, ""},
    {"bf16.enabled", DeepSpeedAction::when_on, "bf16"},
    {"bf16.immediate_grad_update", DeepSpeedAction::note,
     "gradients are summed as soon as a layer's backward pass ends"},
    {"bf16.check_grad_overflow", DeepSpeedAction::note,
     "a step with a gradient that is not finite is always skipped; five in a row end the run"},
    {"bf16.bf16_master_weights_and_grads", DeepSpeedAction::bf16_on, "param_dtype grad_dtype"},
    {"bf16.bf16_optimizer_states", DeepSpeedAction::bf16_on, "optim_dtype"},
    {"fp16", DeepSpeedAction::section, ""},
    {"fp16.enabled", DeepSpeedAction::refuse, kFp16, "bf16"},
    {"fp16.auto_cast", DeepSpeedAction::note, kFp16Detail},
    {"fp16.loss_scale", DeepSpeedAction::note, kFp16Detail},
    {"fp16.initial_scale_power", DeepSpeedAction::note, kFp16Detail},
    {"fp16.loss_scale_window", DeepSpeedAction::note, kFp16Detail},
    {"fp16.hysteresis", DeepSpeedAction::note, kFp16Detail},
    {"fp16.consecutive_hysteresis", DeepSpeedAction::note, kFp16Detail},
    {"fp16.min_loss_scale", DeepSpeedAction::note, kFp16Detail},
    {"amp", DeepSpeedAction::refuse, "use bf16", "bf16"},
    {"zero_optimization", DeepSpeedAction::section, ""},
    {"zero_optimization.stage", DeepSpeedAction::map, "zero_stage"},
    {"zero_optimization.overlap_comm", DeepSpeedAction::map, "overlap_comm"},
    {"zero_optimization.contiguous_gradients", DeepSpeedAction::note, "gradients are always contiguous"},
    {"zero_optimization.reduce_scatter", DeepSpeedAction::note, "gradients are always reduce-scattered"},
    {"zero_optimization.reduce_bucket_size", DeepSpeedAction::note, kBuckets},
    {"zero_optimization.use_multi_rank_bucket_allreduce", DeepSpeedAction::note, kBuckets},
    {"zero_optimization.allgather_partitions", DeepSpeedAction::note, kBuckets},
    {"zero_optimization.allgather_bucket_size", DeepSpeedAction::note, kBuckets},
    {"zero_optimization.load_from_fp32_weights", DeepSpeedAction::note,
     "checkpoints hold masters as param_dtype says"},
    {"zero_optimization.elastic_checkpoint", DeepSpeedAction::note, "checkpoints resume at any world size"},
    {"zero_optimization.round_robin_gradients", DeepSpeedAction::note, kBuckets},
    {"zero_optimization.ignore_unused_parameters", DeepSpeedAction::note,
     "every parameter is used in every step"},
    {"zero_optimization.sub_group_size", DeepSpeedAction::note, kBuckets},
    {"zero_optimization.cpu_offload", DeepSpeedAction::when_on, "optim_state_cpu_offload"},
    {"zero_optimization.cpu_offload_param", DeepSpeedAction::refuse, kParams},
    {"zero_optimization.cpu_offload_use_pin_memory", DeepSpeedAction::note, kOffloadDetail},
    {"zero_optimization.offload_optimizer", DeepSpeedAction::section, ""},
    {"zero_optimization.offload_optimizer.device", DeepSpeedAction::map, "optim_state_cpu_offload"},
    {"zero_optimization.offload_optimizer.nvme_path", DeepSpeedAction::note, kOffloadDetail},
    {"zero_optimization.offload_optimizer.buffer_count", DeepSpeedAction::note, kOffloadDetail},
    {"zero_optimization.offload_optimizer.pin_memory", DeepSpeedAction::note, kOffloadDetail},
    {"zero_optimization.offload_optimizer.pipeline_read", DeepSpeedAction::note, kOffloadDetail},
    {"zero_optimization.offload_optimizer.pipeline_write", DeepSpeedAction::note, kOffloadDetail},
    {"zero_optimization.offload_optimizer.fast_init", DeepSpeedAction::note, kOffloadDetail},
    {"zero_optimization.offload_optimizer.ratio", DeepSpeedAction::note, kOffloadDetail},
    {"zero_optimization.offload_optimizer.super_offload", DeepSpeedAction::note, kOffloadDetail},
    {"zero_optimization.offload_param", DeepSpeedAction::section, ""},
    {"zero_optimization.offload_param.device", DeepSpeedAction::refuse, kParams},
    {"zero_optimization.offload_param.nvme_path", DeepSpeedAction::note, kParamsDetail},
    {"zero_optimization.offload_param.buffer_count", DeepSpeedAction::note, kParamsDetail},
    {"zero_optimization.offload_param.buffer_size", DeepSpeedAction::note, kParamsDetail},
    {"zero_optimization.offload_param.max_in_cpu", DeepSpeedAction::note, kParamsDetail},
    {"zero_optimization.offload_param.pin_memory", DeepSpeedAction::note, kParamsDetail},
    {"zero_optimization.stage3_prefetch_bucket_size", DeepSpeedAction::note, kPrefetch},
    {"zero_optimization.stage3_param_persistence_threshold", DeepSpeedAction::note, kPersistent},
    {"zero_optimization.stage3_model_persistence_threshold", DeepSpeedAction::note, kPersistent},
    {"zero_optimization.stage3_max_live_parameters", DeepSpeedAction::note, kPrefetch},
    {"zero_optimization.stage3_max_reuse_distance", DeepSpeedAction::note, kPrefetch},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", DeepSpeedAction::note,
     "checkpoints hold all weights"},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save", DeepSpeedAction::note,
     "checkpoints hold all weights"},
    {"zero_optimization.stage3_module_granularity_threshold", DeepSpeedAction::note,
     "parameters are gathered by layer"},
    {"zero_optimization.stage3_use_all_reduce_for_fetch_params", DeepSpeedAction::note,
     "parameters are always gathered in the same way"},
    {"zero_optimization.stage3_allgather_sequential", DeepSpeedAction::note,
     "parameters are gathered in the order of the layers"},
    {"zero_optimization.zero_quantized_weights", DeepSpeedAction::refuse, kQuantisedWire, "gather_dtype"},
    {"zero_optimization.zero_quantized_nontrainable_weights", DeepSpeedAction::refuse, kQuantisedWire,
     "gather_dtype"},
    {"zero_optimization.zero_quantized_gradients", DeepSpeedAction::refuse, kQuantisedWire, "reduce_dtype"},
    {"zero_optimization.zero_hpz_partition_size", DeepSpeedAction::group, "zero_group_size"},
    {"zero_optimization.mics_shard_size", DeepSpeedAction::group, "zero_group_size"},
    {"zero_optimization.mics_hierarchical_params_gather", DeepSpeedAction::note,
     "hierarchical_comm says how parameters are gathered"},
    {"zero_optimization.memory_efficient_linear", DeepSpeedAction::note,
     "recompute sets the values that are kept for backward"},
    {"activation_checkpointing", DeepSpeedAction::note,
     "it sets up functions of DeepSpeed that a model must call; recompute sets the recomputed values"},
    {"checkpoint", DeepSpeedAction::note, "checkpoints resume at any world size"},
    {"comms_logger", DeepSpeedAction::note, kMonitor},
    {"flops_profiler", DeepSpeedAction::note, kMonitor},
    {"tensorboard", DeepSpeedAction::note, "report_to: tensorboard asks for event files"},
    {"wandb", DeepSpeedAction::note, "nothing is uploaded; trainer_log.jsonl has every figure"},
    {"csv_monitor", DeepSpeedAction::note, kMonitor},
    {"aio", DeepSpeedAction::note, "nothing is offloaded to disks"},
    {"compression_training", DeepSpeedAction::refuse, "compressing the model is not built"},
    {"pipeline", DeepSpeedAction::note, "layers are split over ranks by trainer generate alone"},
    {"tensor_parallel", DeepSpeedAction::refuse, "layers are split over ranks by trainer generate alone"},
};

bool is_word(const Node& node, std::string_view word) {
  return node.kind == Node::Kind::scalar && node.text == word;
}

Node scalar(std::string text, int line) {
  Node node;
  node.kind = Node::Kind::scalar;
  node.text = std::move(text);
  node.line = line;
  return node;
}

bool asks_for_nothing(const Node& node) {
  if (node.is_null() || is_word(node, "none") || is_word(node, "auto")) return true;
  if (node.kind == Node::Kind::map) {
    const Node* enabled = node.find("enabled");
    return node.members.empty() || (enabled != nullptr && asks_for_nothing(*enabled));
  }
  if (node.kind != Node::Kind::scalar) return false;
  const auto flag = read_bool(node.text);
  const auto number = read_number(node.text);
  return (flag && !*flag) || (number && *number == 0);
}

class Translator {
 public:
  Translator(std::string name, Sources& sources) : name_(std::move(name)), sources_(sources) {}

  void walk(const Node& node, const std::string& path) {
    for (const auto& [key, value] : node.members) {
      const std::string full = path.empty() ? key : path + "." + key;
      const Location at{name_ + (value.line > 0 ? ":" + std::to_string(value.line) : "") + ": " + full, full};
      if (full == "fp8") {
        fp8_section(value, at);
        continue;
      }
      const auto* entry = std::find_if(std::begin(kEntries), std::end(kEntries),
                                       [&](const DeepSpeedEntry& e) { return e.path == full; });
      if (entry == std::end(kEntries)) unknown(full, at);
      apply(*entry, value, at);
    }
  }

  // Keys with the same reason share a line.
  void finish() {
    for (const auto& [reason, keys] : noted_) {
      std::string list;
      for (const auto& key : keys) list += (list.empty() ? "" : ", ") + key;
      sources_.note("of DeepSpeed's configuration " + list + (keys.size() > 1 ? " change" : " changes") +
                    " nothing here: " + reason);
    }
  }

 private:
  [[noreturn]] void unknown(const std::string& path, const Location& at) const {
    Strings known;
    for (const DeepSpeedEntry& entry : kEntries) known.emplace_back(entry.path);
    known.insert(known.end(), {"optimizer", "scheduler"});
    const std::string near = nearest_name(path, known);
    complain({.what = "unknown DeepSpeed key '" + path + "'",
              .where = at.where,
              .fix = near.empty() ? "remove it: DeepSpeed would refuse or ignore it"
                                  : "did you mean '" + near + "'?"});
  }

  // DeepSpeed does not read this section, so it never had an effect.
  void fp8_section(const Node& value, const Location& at) {
    const Setting* own = own_setting("fp8");
    const bool on = own != nullptr && own->value.given && own->value.boolean;
    if (on || asks_for_nothing(value)) {
      sources_.warnings.push_back(
          at.where + ": DeepSpeed has no 'fp8' section and silently ignores this one; " +
          (on ? "'fp8: true' (" + own->at.where + ") decides" : "fp8 decides, and is false") +
          "; to do: remove the section");
      return;
    }
    complain({.what = "DeepSpeed has no 'fp8' section: it silently ignores this one",
              .expected = "'fp8: true' in the YAML",
              .found = "a section 'fp8' in DeepSpeed's JSON",
              .where = at.where,
              .fix = "remove the section and set 'fp8: true' in the YAML"});
  }

  // Returns our key's value in the configuration itself, not in DeepSpeed's JSON.
  const Setting* own_setting(const char* key) const {
    for (const Settings* settings : {&sources_.overrides, &sources_.yaml, &sources_.environment}) {
      if (const Setting* found = settings->find(key)) return found;
    }
    return nullptr;
  }

  // Notes that "auto", a guide's fix for communication_data_type: fp32, has no effect by itself.
  void open_wire(const Location& at) {
    const Setting* bits = own_setting("deterministic");
    if (own_setting("reduce_dtype") != nullptr || (bits != nullptr && bits->value.text == "strict")) return;
    sources_.note(
        at.where +
        ": auto leaves the format of gradient messages to reduce_dtype, which is not set. They are sent in "
        "fp32, twice as long as in bf16; to do: set reduce_dtype: bf16 (or fp8) in the YAML");
  }

  void apply(const DeepSpeedEntry& entry, const Node& value, const Location& at) {
    switch (entry.action) {
      case DeepSpeedAction::section:
        if (value.is_null() || is_word(value, "auto")) return;
        if (value.kind != Node::Kind::map) {
          complain({.what = "'" + at.key + "' must be an object",
                    .found = shown(value),
                    .where = at.where,
                    .fix = "write {...} there, or remove it"});
        }
        walk(value, at.key);
        return;
      case DeepSpeedAction::note:
        noted_[entry.key].push_back(at.key);
        return;
      case DeepSpeedAction::refuse:
        if (!asks_for_nothing(value)) refuse(entry, value, at);
        return;
      case DeepSpeedAction::when_on: {
        if (is_word(value, "auto") || asks_for_nothing(value)) return;
        sources_.deepspeed.add(entry.key, value, at);
        return;
      }
      case DeepSpeedAction::bf16_on:
        if (is_word(value, "auto") || asks_for_nothing(value)) return;
        check_value(*find_field("bf16"), value, at);
        for (const auto& key : split(entry.key, ' '))
          sources_.deepspeed.add(key, scalar("bf16", value.line), at);
        return;
      case DeepSpeedAction::group:
        group(entry, value, at);
        return;
      case DeepSpeedAction::map:
        if (at.key == "communication_data_type" && is_word(value, "auto")) open_wire(at);
        if (value.is_null() || is_word(value, "auto")) return;
        map(entry, value, at);
    }
  }

  // DeepSpeed's hpZ keeps a second copy of the parameters in each group, and shards the states over all
  // ranks.
  void group(const DeepSpeedEntry& entry, const Node& value, const Location& at) {
    const auto number = value.kind == Node::Kind::scalar ? read_number(value.text) : std::nullopt;
    if (value.is_null() || is_word(value, "auto") || (number && *number <= 1)) return;
    sources_.deepspeed.add(entry.key, value, at);
    if (at.key.ends_with("hpz_partition_size"))
      sources_.note(at.where +
                    ": zero_group_size shards all states inside a group, not only a second copy of the "
                    "parameters; trainer plan shows the memory");
  }

  // Refuses a value. If our key `instead` exists, a stronger source may still replace the value.
  void refuse(const DeepSpeedEntry& entry, const Node& value, const Location& at) {
    Problem why{.what = "'" + at.key + "' is not supported",
                .found = shown(value),
                .where = at.where,
                .fix = removal(entry.key)};
    if (*entry.instead == '\0') complain(std::move(why));
    sources_.deepspeed.refuse(entry.instead, value, at, std::move(why));
  }

  void map(const DeepSpeedEntry& entry, const Node& value, const Location& at) {
    Settings& settings = sources_.deepspeed;
    const std::string key = entry.key;
    if (key == "reduce_dtype") {
      if (!is_word(value, "fp32") && !is_word(value, "bf16")) {
        return settings.refuse(
            key, value, at,
            {.what = "'communication_data_type' cannot be used",
             .expected = "fp32 or bf16",
             .found = shown(value),
             .where = at.where,
             .fix = "DeepSpeed has only fp16, bf16 and fp32; for compressed formats, set reduce_dtype"});
      }
    } else if (key == "optim_state_cpu_offload") {
      if (is_word(value, "none")) return;
      if (!is_word(value, "cpu")) {
        return settings.refuse(key, value, at,
                               {.what = "'" + at.key + "' is not supported",
                                .expected = "none or cpu",
                                .found = shown(value),
                                .where = at.where,
                                .fix = "write cpu, which keeps the optimizer's state in host memory; disks "
                                       "are used only for checkpoints"});
      }
      settings.add(key, scalar("true", value.line), at);
      return;
    }
    settings.add(key, value, at);
  }

  std::string name_;
  Sources& sources_;
  std::map<std::string, Strings> noted_;  ///< by reason
};

}  // namespace

std::vector<ForeignKey> deepspeed_keys() {
  std::vector<ForeignKey> keys;
  for (const DeepSpeedEntry& entry : kEntries) {
    if (entry.action == DeepSpeedAction::section) continue;
    const bool maps = entry.action == DeepSpeedAction::map || entry.action == DeepSpeedAction::when_on ||
                      entry.action == DeepSpeedAction::bf16_on || entry.action == DeepSpeedAction::group;
    keys.push_back({.path = std::string(entry.path),
                    .becomes = maps ? entry.key : "",
                    .reason = maps ? "" : entry.key,
                    .trainer = "DeepSpeed"});
  }
  return keys;
}

bool is_inline_deepspeed(const std::string& key, std::string_view text) {
  return key == "deepspeed" && trim(text).starts_with('{');
}

void translate_deepspeed(const Node& tree, const std::string& name, Sources& sources) {
  Translator translator(name, sources);
  Node rest = tree;
  std::erase_if(rest.members, [](const auto& member) {
    return member.first == "optimizer" || member.first == "scheduler";
  });
  translator.walk(rest, "");
  translator.finish();
  // The scheduler is translated after the optimizer, because its peak overrides the optimizer's learning
  // rate.
  if (const Node* optimizer = tree.find("optimizer"))
    translate_deepspeed_optimizer(*optimizer, name, sources);
  if (const Node* scheduler = tree.find("scheduler"))
    translate_deepspeed_scheduler(*scheduler, name, sources);
}

}  // namespace octet::config
