// DeepSpeed JSON: what maps to our keys, what changes nothing here, what is not built, and what DeepSpeed
// itself would ignore in silence or refuse.
#include <algorithm>
#include <string_view>

#include "octet/base/strings.h"
#include "settings.h"

namespace octet::config {
namespace {

enum class Action : std::uint8_t {
  map,      ///< the value of `key`; "auto" means that the YAML decides
  when_on,  ///< true sets `key` to true; false asks for nothing
  note,     ///< accepted without effect; `key` says why
  refuse,   ///< refused unless null, false, 0, "none" or "auto"; `key` says why
  section   ///< holds more keys
};

struct Entry {
  std::string_view path;
  Action action;
  const char* key;
};

constexpr const char* kBuckets = "messages are cut by segment, not by bucket";
constexpr const char* kStage3 = "belongs to stage 3 of DeepSpeed's own engine";
constexpr const char* kMonitor = "this program reports by itself (report_to, trainer_log.jsonl)";
constexpr const char* kFp16 = "fp16 is not built; use bf16";
constexpr const char* kQuantised =
    "say it by this program's own keys: reduce_dtype: int8 or fp8 for gradients, gather_dtype: fp8 for "
    "parameters";
constexpr const char* kParams = "offloading parameters is not built";
constexpr const char* kEngine = "belongs to DeepSpeed's own engine";

constexpr Entry kEntries[] = {
    {"train_batch_size", Action::map, "global_batch_size"},
    {"train_micro_batch_size_per_gpu", Action::map, "per_device_train_batch_size"},
    {"gradient_accumulation_steps", Action::map, "gradient_accumulation_steps"},
    {"gradient_clipping", Action::map, "max_grad_norm"},
    {"steps_per_print", Action::note, kMonitor},
    {"wall_clock_breakdown", Action::note, kMonitor},
    {"memory_breakdown", Action::note, kMonitor},
    {"dump_state", Action::note, kMonitor},
    {"prescale_gradients", Action::note, "gradients are summed in fp32"},
    {"gradient_predivide_factor", Action::note, "gradients are summed in fp32"},
    {"sparse_gradients", Action::refuse, "sparse gradients are not built"},
    {"zero_allow_untested_optimizer", Action::note, kEngine},
    {"zero_force_ds_cpu_optimizer", Action::note, kEngine},
    {"disable_allgather", Action::note, kEngine},
    {"communication_data_type", Action::map, "reduce_dtype"},
    {"seq_parallel_communication_data_type", Action::note, kEngine},
    {"data_types", Action::section, ""},
    {"data_types.grad_accum_dtype", Action::map, "grad_dtype"},
    {"bf16", Action::section, ""},
    {"bf16.enabled", Action::when_on, "bf16"},
    {"bf16.immediate_grad_update", Action::note, kEngine},
    {"bf16.check_grad_overflow", Action::note, "a step whose gradient is not finite is skipped; five in a row end the run"},
    {"bf16.bf16_master_weights_and_grads", Action::when_on, "pure_bf16"},
    {"bf16.bf16_optimizer_states", Action::note, "see optim_dtype"},
    {"fp16", Action::section, ""},
    {"fp16.enabled", Action::refuse, kFp16},
    {"fp16.auto_cast", Action::note, kFp16},
    {"fp16.loss_scale", Action::note, kFp16},
    {"fp16.initial_scale_power", Action::note, kFp16},
    {"fp16.loss_scale_window", Action::note, kFp16},
    {"fp16.hysteresis", Action::note, kFp16},
    {"fp16.consecutive_hysteresis", Action::note, kFp16},
    {"fp16.min_loss_scale", Action::note, kFp16},
    {"amp", Action::refuse, "use bf16"},
    {"zero_optimization", Action::section, ""},
    {"zero_optimization.stage", Action::map, "zero_stage"},
    {"zero_optimization.overlap_comm", Action::map, "overlap_comm"},
    {"zero_optimization.contiguous_gradients", Action::note, "gradients are always contiguous"},
    {"zero_optimization.reduce_scatter", Action::note, "gradients are always reduced by scattering"},
    {"zero_optimization.reduce_bucket_size", Action::note, kBuckets},
    {"zero_optimization.use_multi_rank_bucket_allreduce", Action::note, kBuckets},
    {"zero_optimization.allgather_partitions", Action::note, kBuckets},
    {"zero_optimization.allgather_bucket_size", Action::note, kBuckets},
    {"zero_optimization.load_from_fp32_weights", Action::note, kEngine},
    {"zero_optimization.elastic_checkpoint", Action::note, "checkpoints resume at any world size"},
    {"zero_optimization.round_robin_gradients", Action::note, kBuckets},
    {"zero_optimization.ignore_unused_parameters", Action::note, kEngine},
    {"zero_optimization.sub_group_size", Action::note, kBuckets},
    {"zero_optimization.cpu_offload", Action::when_on, "optim_state_cpu_offload"},
    {"zero_optimization.cpu_offload_param", Action::refuse, kParams},
    {"zero_optimization.cpu_offload_use_pin_memory", Action::note, kEngine},
    {"zero_optimization.offload_optimizer", Action::section, ""},
    {"zero_optimization.offload_optimizer.device", Action::map, "optim_state_cpu_offload"},
    {"zero_optimization.offload_optimizer.nvme_path", Action::note, kEngine},
    {"zero_optimization.offload_optimizer.buffer_count", Action::note, kEngine},
    {"zero_optimization.offload_optimizer.pin_memory", Action::note, kEngine},
    {"zero_optimization.offload_optimizer.pipeline_read", Action::note, kEngine},
    {"zero_optimization.offload_optimizer.pipeline_write", Action::note, kEngine},
    {"zero_optimization.offload_optimizer.fast_init", Action::note, kEngine},
    {"zero_optimization.offload_optimizer.ratio", Action::note, kEngine},
    {"zero_optimization.offload_optimizer.super_offload", Action::note, kEngine},
    {"zero_optimization.offload_param", Action::section, ""},
    {"zero_optimization.offload_param.device", Action::refuse, kParams},
    {"zero_optimization.offload_param.nvme_path", Action::note, kEngine},
    {"zero_optimization.offload_param.buffer_count", Action::note, kEngine},
    {"zero_optimization.offload_param.buffer_size", Action::note, kEngine},
    {"zero_optimization.offload_param.max_in_cpu", Action::note, kEngine},
    {"zero_optimization.offload_param.pin_memory", Action::note, kEngine},
    {"zero_optimization.stage3_prefetch_bucket_size", Action::note, kStage3},
    {"zero_optimization.stage3_param_persistence_threshold", Action::note, kStage3},
    {"zero_optimization.stage3_model_persistence_threshold", Action::note, kStage3},
    {"zero_optimization.stage3_max_live_parameters", Action::note, kStage3},
    {"zero_optimization.stage3_max_reuse_distance", Action::note, kStage3},
    {"zero_optimization.stage3_gather_16bit_weights_on_model_save", Action::note,
     "checkpoints hold all weights"},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save", Action::note,
     "checkpoints hold all weights"},
    {"zero_optimization.stage3_module_granularity_threshold", Action::note, kStage3},
    {"zero_optimization.stage3_use_all_reduce_for_fetch_params", Action::note, kStage3},
    {"zero_optimization.stage3_allgather_sequential", Action::note, kStage3},
    {"zero_optimization.zero_quantized_weights", Action::refuse, kQuantised},
    {"zero_optimization.zero_quantized_nontrainable_weights", Action::refuse, kQuantised},
    {"zero_optimization.zero_quantized_gradients", Action::refuse, kQuantised},
    {"zero_optimization.zero_hpz_partition_size", Action::note, kStage3},
    {"zero_optimization.mics_shard_size", Action::note, kStage3},
    {"zero_optimization.memory_efficient_linear", Action::note, kStage3},
    {"optimizer", Action::section, ""},
    {"optimizer.type", Action::note, "the optimizer is AdamW"},
    {"optimizer.params", Action::section, ""},
    {"optimizer.params.lr", Action::map, "learning_rate"},
    {"optimizer.params.betas", Action::map, "adam_beta1"},
    {"optimizer.params.eps", Action::map, "adam_epsilon"},
    {"optimizer.params.weight_decay", Action::map, "weight_decay"},
    {"optimizer.params.torch_adam", Action::note, "the optimizer is AdamW"},
    {"optimizer.params.adam_w_mode", Action::note, "the optimizer is AdamW"},
    {"scheduler", Action::section, ""},
    {"scheduler.type", Action::map, "lr_scheduler_type"},
    {"scheduler.params", Action::section, ""},
    {"scheduler.params.warmup_min_lr", Action::note, "the rate rises from 0"},
    {"scheduler.params.warmup_max_lr", Action::map, "learning_rate"},
    {"scheduler.params.warmup_num_steps", Action::map, "warmup_steps"},
    {"scheduler.params.warmup_type", Action::note, "the rate rises linearly"},
    {"scheduler.params.total_num_steps", Action::note, "max_steps or num_train_epochs decide"},
    {"activation_checkpointing", Action::note, "see recompute"},
    {"checkpoint", Action::note, "checkpoints resume at any world size"},
    {"comms_logger", Action::note, kMonitor},
    {"flops_profiler", Action::note, kMonitor},
    {"tensorboard", Action::note, kMonitor},
    {"wandb", Action::note, kMonitor},
    {"csv_monitor", Action::note, kMonitor},
    {"aio", Action::note, kEngine},
    {"compression_training", Action::refuse, "compressing the model is not built"},
    {"pipeline", Action::note, kEngine},
    {"tensor_parallel", Action::refuse, "tensor parallelism is not built"},
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
        fp8_section(at);
        continue;
      }
      const auto* entry = std::find_if(std::begin(kEntries), std::end(kEntries),
                                       [&](const Entry& e) { return e.path == full; });
      if (entry == std::end(kEntries)) unknown(full, at);
      apply(*entry, value, at);
    }
  }

  void finish() {
    if (noted_.empty()) return;
    std::string keys;
    for (const auto& key : noted_) keys += (keys.empty() ? "" : ", ") + key;
    sources_.note("DeepSpeed keys that change nothing here: " + keys);
  }

 private:
  [[noreturn]] void unknown(const std::string& path, const Location& at) const {
    Strings known;
    for (const Entry& entry : kEntries) known.emplace_back(entry.path);
    const std::string near = nearest_name(path, known);
    complain({.what = "unknown DeepSpeed key '" + path + "'",
              .where = at.where,
              .fix = near.empty() ? "remove it: DeepSpeed would refuse or ignore it"
                                  : "did you mean '" + near + "'?"});
  }

  void fp8_section(const Location& at) {
    const auto* over = sources_.overrides.find("fp8");
    const auto* yaml = over != nullptr ? over : sources_.yaml.find("fp8");
    if (yaml != nullptr && yaml->value.boolean) {
      sources_.note(at.where +
                    ": DeepSpeed has no 'fp8' section and ignores it; 'fp8: true' of the YAML decides");
      return;
    }
    complain({.what = "DeepSpeed has no 'fp8' section: it ignores this one in silence",
              .where = at.where,
              .fix = "remove the section and set 'fp8: true' in the YAML"});
  }

  void apply(const Entry& entry, const Node& value, const Location& at) {
    switch (entry.action) {
      case Action::section:
        if (value.is_null() || is_word(value, "auto")) return;
        if (value.kind != Node::Kind::map) {
          complain({.what = "'" + at.key + "' must be an object", .found = shown(value), .where = at.where});
        }
        walk(value, at.key);
        return;
      case Action::note:
        noted_.push_back(at.key);
        return;
      case Action::refuse:
        if (asks_for_nothing(value)) return;
        complain({.what = "'" + at.key + "' is not supported",
                  .found = shown(value),
                  .where = at.where,
                  .fix = entry.key});
      case Action::when_on: {
        if (is_word(value, "auto") || asks_for_nothing(value)) return;
        sources_.deepspeed.add(entry.key, value, at);
        return;
      }
      case Action::map:
        if (value.is_null() || is_word(value, "auto")) return;
        map(entry, value, at);
    }
  }

  void map(const Entry& entry, const Node& value, const Location& at) {
    Settings& settings = sources_.deepspeed;
    const std::string key = entry.key;
    if (key == "reduce_dtype") {
      if (!is_word(value, "fp32") && !is_word(value, "bf16")) {
        complain(
            {.what = "'communication_data_type' cannot be used",
             .expected = "fp32 or bf16",
             .found = shown(value),
             .where = at.where,
             .fix = "DeepSpeed knows fp16, bf16 and fp32 only; compressed formats are our key reduce_dtype"});
      }
      if (is_word(value, "fp32")) {
        sources_.note(at.where + ": fp32 messages are twice as large as bf16 ones");
      }
    } else if (key == "optim_state_cpu_offload") {
      if (is_word(value, "none")) return;
      if (!is_word(value, "cpu")) {
        complain({.what = "'" + at.key + "' is not supported",
                  .expected = "none or cpu",
                  .found = shown(value),
                  .where = at.where});
      }
      settings.add(key, scalar("true", value.line), at);
      return;
    } else if (key == "adam_beta1") {
      if (is_word(value, "auto")) return;
      if (value.kind != Node::Kind::list || value.items.size() != 2) {
        complain({.what = "'" + at.key + "' cannot be used",
                  .expected = "a list of two numbers",
                  .found = shown(value),
                  .where = at.where});
      }
      settings.add("adam_beta1", value.items[0], at);
      settings.add("adam_beta2", value.items[1], at);
      return;
    } else if (key == "lr_scheduler_type") {
      const char* type = is_word(value, "WarmupLR")         ? "constant_with_warmup"
                         : is_word(value, "WarmupDecayLR")  ? "linear"
                         : is_word(value, "WarmupCosineLR") ? "cosine"
                                                            : nullptr;
      if (type == nullptr) {
        complain({.what = "'scheduler.type' is not supported",
                  .expected = "WarmupLR, WarmupDecayLR or WarmupCosineLR",
                  .found = shown(value),
                  .where = at.where,
                  .fix = "remove the section and set lr_scheduler_type"});
      }
      settings.add(key, scalar(type, value.line), at);
      return;
    } else if (key == "learning_rate" && settings.has(key)) {
      return;  // optimizer.params.lr and scheduler.params.warmup_max_lr say the same thing
    }
    settings.add(key, value, at);
  }

  std::string name_;
  Sources& sources_;
  Strings noted_;
};

}  // namespace

void translate_deepspeed(const Node& tree, const std::string& name, Sources& sources) {
  if (const Node* optimizer = tree.find("optimizer")) {
    const Node* type = optimizer->find("type");
    if (type != nullptr && !is_word(*type, "AdamW") && !is_word(*type, "Adam") && !is_word(*type, "auto")) {
      complain({.what = "'optimizer.type' is not supported",
                .expected = "AdamW",
                .found = shown(*type),
                .where = name + ": optimizer.type",
                .fix = "remove the section: the optimizer is AdamW"});
    }
  }
  Translator translator(name, sources);
  translator.walk(tree, "");
  translator.finish();
}

}  // namespace octet::config
