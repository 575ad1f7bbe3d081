#include "octet/setup/model_options.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "octet/config/derive.h"
#include "octet/model/layout.h"
#include "octet/runtime/group_size.h"
#include "octet/setup/adapters.h"
#include "octet/setup/run_options.h"
#include "octet/setup/setup.h"
#include "octet/store/placement.h"

namespace octet::setup {
namespace {

// Whether weights are stored as FP8. With block scales, they are quantised when a GEMM reads them, in any
// layout.
bool has_fp8_weights(const config::PrecisionKeys& config) {
  return config.fp8 && config.fp8_recipe != "block";
}

// The configuration has checked the name. For auto, the caller that knows the memory decides.
model::Recompute recompute_of(const std::string& level) {
  if (level == "norms") return model::Recompute::norms;
  if (level == "qkv") return model::Recompute::qkv;
  return level == "full" ? model::Recompute::full : model::Recompute::none;
}

// As above: auto keeps them until the memory is known.
store::TransposedWeights transposed_of(const config::PrecisionKeys& config) {
  const bool at_use = has_fp8_weights(config) && config.fp8_transposed_weights == "at_use";
  return at_use ? store::TransposedWeights::at_use : store::TransposedWeights::kept;
}

// The configuration has checked the name.
comm::Wire wire_of(const std::string& dtype) {
  if (dtype == "bf16") return comm::Wire::bf16;
  if (dtype == "fp8") return comm::Wire::fp8;
  return dtype == "int8" ? comm::Wire::int8 : comm::Wire::f32;
}

/// The storage of frozen weights: the 4 bits of the folder, or quantised when they are loaded.
store::FixedWeights fixed_weights(const config::TuningKeys& config, const model::StoredWeights& stored) {
  if (!trains_adapters(config)) return {};
  if (stored.format == model::StoredWeights::Format::nf4) {
    return {.format = store::Format::nf4,
            .nf4 = {.double_quantization = stored.double_quantization,
                    .stored = true,
                    .unquantised = stored.unquantised}};
  }
  if (!config.quantization_bit) return {};
  return {.format = store::Format::nf4, .nf4 = {.double_quantization = config.double_quantization}};
}

}  // namespace

precision::Recipe recipe_of(const config::PrecisionKeys& config) {
  precision::Recipe recipe;
  recipe.compute = config::computes_in_bf16(config) ? DType::bf16 : DType::f32;
  if (!config.fp8) return recipe;
  recipe.kind = config.fp8_recipe == "current" ? precision::RecipeKind::current
                : config.fp8_recipe == "block" ? precision::RecipeKind::block
                                               : precision::RecipeKind::delayed;
  if (config.fp8_format == "e4m3" || recipe.blocks()) recipe.gradient_format = DType::e4m3;
  recipe.history_length = config.fp8_amax_history_len;
  recipe.most_recent = config.fp8_amax_compute_algo == "most_recent";
  recipe.margin = static_cast<int>(config.fp8_margin);
  // Delayed scaling is the fast recipe: producers write FP8 themselves, with one scale.
  recipe.scale_parts =
      (config.fp8_scale_granularity == "tensor" && !recipe.blocks()) ||
      (config.fp8_scale_granularity == "auto" && recipe.kind == precision::RecipeKind::current);
  recipe.fast_gradients = config.fp8_fast_accumulation == "all" && !recipe.blocks();
  return recipe;
}

model::Architecture model_of_stage(const config::TemplateKeys& stage, model::Architecture architecture,
                                   const std::string& where) {
  if (trains_rewards(stage)) return model::as_reward_model(std::move(architecture), where);
  require_writes_text(architecture, where);
  return architecture;
}

void require_writes_text(const model::Architecture& architecture, const std::string& where) {
  if (!architecture.scores) return;
  throw Error({.what = "a reward model gives scores and writes no text",
               .expected = "a model that writes text",
               .found = model::reward_class(architecture),
               .where = where,
               .fix =
                   "train it with stage: rm, score rows with trainer generate MODEL --reward --file ROWS, or "
                   "name another model",
               .code = ExitCode::usage});
}

std::int64_t group_size_of(const config::ShardingKeys& config) {
  if (!config.zero_group_size || config.zero_stage == 0) return runtime::kGroupOfAll;
  if (*config.zero_group_size == "auto") return runtime::kAutomaticGroup;
  if (*config.zero_group_size == "node") return runtime::kGroupOfNode;
  return std::stoll(*config.zero_group_size);  // checked by the rules of config
}

runtime::InstanceOptions instance_options(const config::Config& config,
                                          const model::Architecture& architecture, std::int64_t max_tokens,
                                          std::int64_t max_length, std::int64_t max_documents) {
  runtime::InstanceOptions options;
  options.architecture =
      tuned(config, architecture.layers > 0 ? model_of_stage(config, architecture, config.model_name_or_path)
                                            : architecture);
  const GivenAdapters given = given_adapters(config);
  if (architecture.layers > 0) options.added = added_adapters(given.added, options.architecture);
  options.adapter = given.continued.value_or("");
  options.expert_size = config.expert_parallel_size;
  options.group_size = group_size_of(config);
  options.carrying = session_wish(config).carrying;
  options.store.stage = static_cast<int>(config.zero_stage);
  options.store.deterministic = config.deterministic != "false";
  options.store.strict = is_strict(config);
  if (config.deterministic != "auto") options.reproducible = config.deterministic != "false";
  options.store.overlap = config.overlap_comm;
  options.store.wire = wire_of(config.reduce_dtype);
  options.store.error_feedback = config.error_feedback;
  options.store.gather_wire = wire_of(config.gather_dtype);  // compute: as stored
  options.transformer.exchange_wire = wire_of(config.exchange_dtype);
  options.transformer.exchange_room = config.exchange_rows_factor.value_or(0);
  options.store.hierarchical = config.hierarchical_comm == "auto"   ? store::Hierarchical::automatic
                               : config.hierarchical_comm == "true" ? store::Hierarchical::on
                                                                    : store::Hierarchical::off;
  options.store.transposed = transposed_of(config);
  options.store.recipe = recipe_of(config);
  options.store.adamw = {.beta1 = config.adam_beta1,
                         .beta2 = config.adam_beta2,
                         .epsilon = config.adam_epsilon,
                         .weight_decay = config.weight_decay,
                         .seed = static_cast<std::uint64_t>(config.seed)};
  options.store.storage = storage_of(config);
  options.store.state_home = config.optim_state_cpu_offload ? store::Home::pinned : store::Home::device;
  options.store.max_grad_norm = config.max_grad_norm;
  options.store.fixed = fixed_weights(config, architecture.stored);
  options.transformer.max_tokens = max_tokens;
  options.transformer.max_length = max_length;
  options.transformer.router_z_loss = config.router_z_loss_coef;
  options.transformer.expert_capacity = config.moe_capacity_factor.value_or(0);
  options.transformer.given_experts = config.moe_routing_file.has_value();
  if (trains_pairs(config)) {
    options.transformer.preference = preference_of(config, config);
  } else if (trains_judged(config)) {
    options.transformer.judgement = judgement_of(config);
  } else if (has_teacher(config)) {
    options.transformer.teacher_loss = teacher_loss_of(config);
  } else {
    options.transformer.token_loss = token_loss_of(config);
    options.transformer.counts_hits = config.compute_accuracy;
  }
  options.adapters_off_reference = switches_adapters_off(config, config, config);
  options.transformer.embedding_noise = config.neftune_noise_alpha.value_or(0);
  options.transformer.gradient_dtype = options.store.storage.gradients;
  options.transformer.recompute = recompute_of(config.recompute());
  options.max_documents = max_documents;
  options.fp8_fallback_ends = config.fp8_fallback == "error";
  return options;
}

std::vector<plan::Level> levels_of(const config::ComputeKeys& config, DeviceKind kind) {
  std::vector<model::Recompute> recompute(std::begin(plan::kRecompute), std::end(plan::kRecompute));
  if (!leaves_recompute_open(config)) recompute = {recompute_of(config.recompute())};
  const bool transposed = has_fp8_weights(config) && traits_of(kind).needs_transposed_fp8;
  const std::string& when = config.fp8_transposed_weights;
  std::vector<plan::Level> all;
  for (const model::Recompute level : recompute) {
    if (!transposed || when != "at_use") all.push_back({level, false});
    if (transposed && when != "keep") all.push_back({level, true});
  }
  return all;
}

namespace {

/// Names of modules as people write them.
struct Modules {
  std::set<std::string> of_blocks;  ///< "self_attn", "input_layernorm"
  std::set<std::string> others;     ///< "embed_tokens", "norm"
};

std::string first_word(const std::string& name) {
  return name.substr(0, name.find('.'));
}

Modules modules_of(const model::Architecture& architecture) {
  model::Architecture plain = architecture;
  plain.tuning = {};
  const std::string blocks = architecture.tensor_prefix + "layers.";
  Modules modules;
  for (const std::string& name : model::tensor_names(model::build_layout(plain))) {
    if (name.starts_with(blocks)) {
      const std::string in_block = name.substr(name.find('.', blocks.size()) + 1);
      modules.of_blocks.insert(first_word(in_block));
    } else {
      const std::string module = name.substr(0, name.rfind('.'));
      modules.others.insert(module.substr(module.rfind('.') + 1));
    }
  }
  return modules;
}

void require_known(const std::string& key, const std::string& module, const std::set<std::string>& known) {
  if (known.contains(module)) return;
  std::string all;
  for (const std::string& name : known) all += (all.empty() ? "" : ", ") + name;
  const std::string near = nearest_name(module, {known.begin(), known.end()});
  throw Error({.what = "the model has no module for " + key + " with the name '" + module + "'",
               .expected = all,
               .found = module,
               .where = "configuration key " + key,
               .fix = near.empty() ? "give one of these" : "did you mean '" + near + "'?",
               .code = ExitCode::usage});
}

}  // namespace

bool trains_parts(const config::TuningKeys& config) {
  return config.finetuning_type == "freeze";
}

model::Tuning freeze_tuning(const config::TuningKeys& config, const model::Architecture& architecture) {
  const Modules modules = modules_of(architecture);
  const std::int64_t layers = architecture.layers, wanted = config.freeze_trainable_layers;
  const std::int64_t first = wanted > 0 ? std::max<std::int64_t>(0, layers - wanted) : 0;
  const std::int64_t last = wanted > 0 ? layers : std::min(-wanted, layers);
  std::set<std::string> trained;
  for (const std::string& module : config.freeze_trainable_modules) {
    if (module != "all") require_known("freeze_trainable_modules", module, modules.of_blocks);
    for (std::int64_t i = first; i < last; ++i) {
      const std::string block = architecture.tensor_prefix + "layers." + std::to_string(i);
      trained.insert(module == "all" ? block : block + "." + module);
    }
  }
  const std::string head = architecture.head_name.substr(0, architecture.head_name.rfind('.'));
  for (const std::string& module : config.freeze_extra_modules) {
    require_known("freeze_extra_modules", module, modules.others);
    trained.insert(module == "lm_head" ? head : architecture.tensor_prefix + module);
  }
  if (trained.empty()) {
    throw Error(
        {.what = "nothing would be trained",
         .expected = "blocks with freeze_trainable_layers, or modules with freeze_extra_modules",
         .found = "freeze_trainable_layers: " + std::to_string(wanted),
         .where =
             "configuration keys freeze_trainable_layers, freeze_trainable_modules, freeze_extra_modules",
         .fix = "raise freeze_trainable_layers, or name modules in freeze_extra_modules",
         .code = ExitCode::usage});
  }
  // A reward model begins with a random head.
  if (architecture.scores) trained.insert(head);
  model::Tuning tuning;
  tuning.only = std::move(trained);
  return tuning;
}

}  // namespace octet::setup
