// Keys of precision, memory, optimizer and communication, seen in the numbers of a small engine, the bytes
// its ranks send and the memory they hold.
#include <cmath>

#include "cli/effects.h"
#include "cli/task.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/comm/thread_ranks.h"
#include "octet/config/config.h"
#include "octet/feed/loader.h"
#include "octet/model/shapes.h"
#include "octet/optim/schedule.h"
#include "octet/setup/model_options.h"
#include "octet/setup/run_options.h"
#include "octet/setup/setup.h"
#include "octet/train/engine.h"
#include "octet/train/fit.h"

namespace octet::test {
namespace {

std::string exactly(double x) {
  char text[40];
  std::snprintf(text, sizeof text, "%a ", x);
  return text;
}

model::Architecture make_architecture() {
  const TemporaryFolder folder("shape");
  spill(folder / "config.json", Json{{"architectures", {"LlamaForCausalLM"}},
                                     {"model_type", "llama"},
                                     {"vocab_size", 256},
                                     {"hidden_size", 64},
                                     {"intermediate_size", 128},
                                     {"num_hidden_layers", 3},
                                     {"num_attention_heads", 2},
                                     {"num_key_value_heads", 1},
                                     {"head_dim", 32},
                                     {"hidden_act", "silu"},
                                     {"max_position_embeddings", 512},
                                     {"rms_norm_eps", 1e-5},
                                     {"rope_theta", 10000.0},
                                     {"tie_word_embeddings", false}}
                                    .dump());
  return model::find_shape(folder / "config.json");
}

/// Three blocks with matrices large enough for narrow formats in messages.
const model::Architecture& architecture() {
  static const model::Architecture made = make_architecture();
  return made;
}

runtime::HostBatch batch_of(int step, int micro_batch, int rank, const config::Config& config) {
  runtime::HostBatch batch;
  batch.cu_seqlens.push_back(0);
  for (const int length : {9, 14}) {
    std::vector<std::int32_t> ids;
    for (int i = 0; i < length; ++i) {
      ids.push_back((i * 37 + length + 101 * step + 53 * micro_batch + 29 * rank) % 256);
    }
    runtime::add_document(batch, ids, ids);
  }
  if (setup::trains_preferences(config)) batch.references = {-45, -73};
  if (setup::trains_pairs(config)) batch.pairs = 1;
  if (setup::trains_judged(config)) batch.judged = 2, batch.desirable = {1, 0};
  if (setup::has_teacher(config)) {
    for (std::size_t row = 0; row < batch.targets.size(); ++row) {
      float rest = 1;
      for (std::int64_t k = 0; k < config.kd_topk; ++k) {
        const auto probability = 1.0f / static_cast<float>((k + 2) * (k + 2));
        batch.teacher_ids.push_back(
            static_cast<std::int32_t>((37 * static_cast<std::int64_t>(row) + 3 * k) % 256));
        batch.teacher_logprobs.push_back(std::log(probability));
        rest -= probability;
      }
      batch.teacher_rest.push_back(rest);
    }
  }
  return batch;
}

/// Observations of ranks that train together.
struct Shown {
  std::string numbers;  ///< exact losses and norms of five steps, and the loss after them
  std::string traffic;  ///< bytes of rank 0, by kind
  std::string memory;   ///< memory of rank 0, by part
};

/// The same blocks with mixtures of four experts.
model::Architecture mixture() {
  model::Architecture a = architecture();
  a.blocks.assign(static_cast<std::size_t>(a.layers), {.mixes_experts = true});
  a.experts = {.count = 4, .taken = 2, .width = 64, .normalised = true};
  return a;
}

runtime::InstanceOptions options_of(const config::Config& config,
                                    const model::Architecture& model = architecture()) {
  runtime::InstanceOptions options = setup::instance_options(config, model, 32, 16, 2);
  options.max_micro_batches = 2;
  return options;
}

/// Trains some steps. Four ranks are placed on two nodes.
Shown train_steps(const config::Resolved& r, int ranks = 1,
                  const model::Architecture& model = architecture()) {
  Shown shown;
  constexpr int kSteps = 5;
  comm::ThreadRanksOptions threads{.ranks = ranks};
  if (ranks == 4) threads.node_of = {0, 0, 1, 1};
  comm::run_ranks_as_threads(threads, [&](comm::Job& job, comm::Collectives& data, Device& device) {
    train::Engine engine(device, job, data, options_of(r.config, model));
    engine.initialise(static_cast<std::uint64_t>(r.config.seed));
    const optim::Schedule schedule(setup::schedule_options(r.config, kSteps));
    if (setup::trains_judged(r.config)) engine.set_reference_point(0, {});
    std::string numbers;
    for (int step = 0; step < kSteps; ++step) {
      engine.begin(2);
      for (int m = 0; m < 2; ++m) engine.micro_batch(batch_of(step, m, job.rank(), r.config));
      const store::StepResult result = engine.finish(schedule.learning_rate(step));
      numbers += exactly(result.loss_sum) + exactly(result.grad_norm);
    }
    double loss = 0;
    std::int64_t labels = 0;
    engine.evaluate(batch_of(99, 0, 0, r.config), &loss, &labels);
    engine.store().synchronize(engine.compute());  // messages to other ranks may still be in flight
    if (job.rank() != 0) return;
    shown.numbers = numbers + exactly(loss);
    for (const comm::Traffic& kind : data.take_traffic()) {
      shown.traffic += kind.kind + " " + std::to_string(kind.calls) + " " + std::to_string(kind.bytes_sent) +
                       " " + std::to_string(kind.bytes_between_nodes) + "\n";
    }
    for (const runtime::MemoryRow& row : engine.instance().memory())
      shown.memory += row.name + " " + std::to_string(row.bytes) + "\n";
  });
  return shown;
}

std::string numbers(const config::Resolved& r) {
  return train_steps(r).numbers;
}
std::string numbers_of_experts(const config::Resolved& r) {
  return train_steps(r, 1, mixture()).numbers;
}
std::string numbers_of_two(const config::Resolved& r) {
  return train_steps(r, 2).numbers;
}
std::string memory(const config::Resolved& r) {
  return train_steps(r).memory;
}
std::string memory_of_two(const config::Resolved& r) {
  return train_steps(r, 2).memory;
}
std::string traffic_of_two(const config::Resolved& r) {
  return train_steps(r, 2).traffic;
}
std::string memory_of_nodes(const config::Resolved& r) {
  return train_steps(r, 4).memory;
}
std::string traffic_of_nodes(const config::Resolved& r) {
  return train_steps(r, 4).traffic;
}

// Returns the planned memory on a CPU: with the given options, and at each level that a run may choose.
std::string planned_on_cpu(const config::Resolved& r) {
  constexpr DeviceKind kind = DeviceKind::cpu;
  std::vector<runtime::InstanceOptions> all{options_of(r.config)};
  for (const plan::Level& level : setup::levels_of(r.config, kind))
    all.push_back(train::with_level(all.front(), level));
  std::string text;
  for (const runtime::InstanceOptions& options : all) {
    for (const auto& row : train::plan_memory(options, {}, kind).by_part())
      text += row.name + " " + std::to_string(row.bytes) + ", ";
    text += "\n";
  }
  return text;
}

// Returns how a GPU stores transposed FP8 weights: with the given options, and at each level that a run may
// choose.
std::string transposed_on_gpu(const config::Resolved& r) {
  const auto word = [](bool at_use) { return std::string(at_use ? " at use" : " kept"); };
  std::string text =
      "asked for" + word(options_of(r.config).store.transposed == store::TransposedWeights::at_use);
  text += ", levels";
  for (const plan::Level& level : setup::levels_of(r.config, DeviceKind::cuda))
    text += word(level.transposes_at_use);
  return text;
}

// Returns where a GPU run stores the optimizer's state.
std::string state_beside_gpu(const config::Resolved& r) {
  const plan::Memory memory = train::plan_memory(options_of(r.config), {}, DeviceKind::cuda);
  return memory.state_of_host() > 0 ? "in the host's memory" : "on the device";
}

// Runs a step in which the second of two ranks falls back to a decoded GEMM.
std::string after_a_fallback(const config::Resolved& r) {
  std::string text;
  comm::run_ranks_as_threads({.ranks = 2}, [&](comm::Job& job, comm::Collectives& data, Device& device) {
    train::Engine engine(device, job, data, options_of(r.config));
    engine.audit().count({}, ops::GemmKind::forward, {.way = ops::GemmWay::emulated, .calls = 1});
    if (job.rank() == 1)
      engine.audit().count({}, ops::GemmKind::dgrad, {.way = ops::GemmWay::decoded, .calls = 1});
    std::string found = "the run goes on";
    try {
      engine.instance().check_gemms();
    } catch (const Error& e) {
      found = "the run ends with " + std::to_string(static_cast<int>(e.code()));
    }
    if (job.rank() == 0) text = found;
  });
  return text;
}

const Keys kBf16{{"bf16", "true"}};
const Keys kFp8{{"bf16", "true"}, {"fp8", "true"}, {"learning_rate", "0.05"}};
Keys with(Keys keys, const Keys& more) {
  for (const auto& [key, value] : more) keys[key] = value;
  return keys;
}

std::vector<KeyRow> precision_rows() {
  const Keys current = with(kFp8, {{"fp8_recipe", "current"}});
  return {
      {"bf16", {}, {{"true"}}, numbers},
      {"pure_bf16", {}, {{"true"}}, memory},
      {"fp8", kBf16, {{"true"}}, numbers},
      {"fp8_backend",
       kFp8,
       {{"te", "effects.yaml:6: 'fp8_backend: te' means this program's own FP8 core\n"},
        {"torchao",
         "effects.yaml:6: 'fp8_backend: torchao' names a library that is not used: this program computes FP8 "
         "itself. LLaMA-Factory may silently train in bf16 with this value; to do: set fp8_backend: te or "
         "native, or remove it\n"}},
       notes_of},
      {"fp8_recipe", kFp8, {{"current"}, {"block"}}, numbers},
      {"fp8_format", kFp8, {{"e4m3"}}, numbers},
      {"fp8_amax_history_len", kFp8, {{"1"}, {"2"}}, numbers},
      {"fp8_amax_compute_algo", kFp8, {{"most_recent"}}, numbers},
      {"fp8_margin", kFp8, {{"3"}, {"6"}}, numbers},
      {"fp8_scale_granularity", current, {{"fused"}}, numbers},
      // A CPU always accumulates in fp32, so the test observes the option of the core.
      {"fp8_fast_accumulation",
       kFp8,
       {{"all", "gradients too"}},
       [](const config::Resolved& r) {
         return std::string(options_of(r.config).store.recipe.fast_gradients ? "gradients too" : "forward");
       },
       "forward"},
      {"fp8_fallback", kFp8, {{"error", "the run ends with 64"}}, after_a_fallback, "the run goes on"},
      {"param_dtype", kBf16, {{"bf16"}}, memory},
      {"grad_dtype", {{"bf16", "true"}, {"param_dtype", "bf16"}}, {{"bf16"}}, memory},
      {"optim_dtype", {}, {{"bf16"}, {"int8"}}, memory},
      {"optim", {}, {{"paged_adamw_8bit"}}, memory},
  };
}

/// The planned memory of one of two ranks with a mixture of experts.
std::string memory_of_experts(const config::Resolved& r) {
  const model::Architecture a = mixture();
  const comm::Place place{.size = 2, .local_size = 2, .node_of = {0, 0}};
  std::string text;
  for (const auto& row :
       train::plan_memory(setup::instance_options(r.config, a, 32, 16, 2), place, DeviceKind::cpu).by_part())
    text += row.name + " " + std::to_string(row.bytes) + ", ";
  return text;
}

/// The planned bytes that one of two ranks sends for experts of the other rank.
std::string rows_of_experts(const config::Resolved& r) {
  const comm::Place place{.size = 2, .local_size = 2, .node_of = {0, 0}};
  const auto options = setup::instance_options(r.config, mixture(), 32, 16, 2);
  return std::to_string(train::plan_messages(options, place, DeviceKind::cpu, 1)[0].exchanged.bytes);
}

std::vector<KeyRow> sharing_rows() {
  const Keys stage1{{"zero_stage", "1"}}, fp8_wire{{"reduce_dtype", "fp8"}, {"zero_stage", "1"}};
  return {
      {"zero_stage", {}, {{"1"}, {"2"}, {"3"}}, memory_of_two},
      {"zero_group_size", stage1, {{"node"}, {"1"}}, memory_of_nodes},
      {"expert_parallel_size", {}, {{"2"}}, memory_of_experts},
      // It does not change the bits, and other tests measure its time.
      {"overlap_comm",
       {},
       {{"false", "waits"}},
       [](const config::Resolved& r) {
         return std::string(options_of(r.config).store.overlap ? "beside" : "waits");
       },
       "beside"},
      {"reduce_dtype", stage1, {{"bf16"}, {"fp8"}, {"int8"}}, numbers_of_two},
      {"error_feedback", fp8_wire, {{"true"}}, numbers_of_two},
      {"exchange_rows_factor", {{"expert_parallel_size", "2"}}, {{"1"}, {"1.2"}}, memory_of_experts},
      {"exchange_dtype", {{"expert_parallel_size", "2"}}, {{"bf16"}, {"fp8"}}, rows_of_experts},
      {"gather_dtype", stage1, {{"bf16"}, {"fp8"}}, traffic_of_two},
      {"hierarchical_comm", stage1, {{"true"}, {"false"}}, traffic_of_nodes},
      {"deterministic", {}, {{"false"}, {"strict"}}, memory_of_two},
      {"full_determinism",
       {},
       {{"true", "true"}},
       [](const config::Resolved& r) {
         const auto same_bits = options_of(r.config).reproducible;
         return std::string(!same_bits ? "as the device does" : *same_bits ? "true" : "false");
       },
       "as the device does"},
      {"deepspeed",
       {},
       {{"{zero_optimization: {stage: 1}}"}, {"{zero_optimization: {stage: 3}}"}},
       memory_of_two},
      {"gpu_transport",
       {},
       {{"peer", "peer"}, {"nccl", "nccl"}, {"host", "host"}},
       [](const config::Resolved& r) {
         constexpr const char* names[] = {"", "auto", "peer", "nccl", "host"};
         return std::string(names[static_cast<int>(setup::session_wish(r.config).carrying.carrier)]);
       },
       "auto"},
      {"gpu_sums",
       {{"deterministic", "false"}},
       {{"ordered", "ordered"}, {"nccl", "nccl"}},
       [](const config::Resolved& r) {
         constexpr const char* names[] = {"ordered", "auto", "nccl"};
         return std::string(names[static_cast<int>(setup::session_wish(r.config).carrying.sums)]);
       },
       "auto"},
      {"device",
       {{"device", "unset"}},
       {{"cpu", "cpu"}, {"cuda", "cuda"}},
       [](const config::Resolved& r) { return std::string(name_of(setup::session_wish(r.config).device)); },
       "auto"},
      {"use_cpu",
       {{"device", "unset"}},
       {{"true", "cpu"}},
       [](const config::Resolved& r) { return std::string(name_of(setup::session_wish(r.config).device)); },
       "auto"},
      {"ddp_timeout",
       {},
       {{"77", "77.000000"}},
       [](const config::Resolved& r) {
         return std::to_string(setup::watch_options(r.config, r.config.output_dir).timeout_seconds);
       },
       "1800.000000"},
  };
}

std::vector<KeyRow> memory_rows() {
  return {
      {"recompute", {}, {{"norms"}, {"qkv"}, {"full"}, {"auto"}}, planned_on_cpu},
      {"gradient_checkpointing", {}, {{"true"}}, memory},
      {"disable_gradient_checkpointing", {{"gradient_checkpointing", "true"}}, {{"true"}}, memory},
      {"fp8_transposed_weights",
       kFp8,
       {{"keep", "asked for kept, levels kept"}, {"at_use", "asked for at use, levels at use"}},
       transposed_on_gpu,
       "asked for kept, levels kept at use"},
      {"optim_state_cpu_offload", {}, {{"true", "in the host's memory"}}, state_beside_gpu, "on the device"},
  };
}

std::vector<KeyRow> optimizer_rows() {
  return {
      {"learning_rate", {}, {{"1.0e-3"}}, numbers},
      {"weight_decay", {}, {{"0.5"}}, numbers},
      {"adam_beta1", {}, {{"0.5"}}, numbers},
      {"adam_beta2", {}, {{"0.9"}}, numbers},
      {"adam_epsilon", {}, {{"0.01"}}, numbers},
      {"max_grad_norm", {}, {{"0.01"}, {"0"}}, numbers},
      {"moe_capacity_factor", {}, {{"0.25"}, {"0.5"}}, numbers_of_experts},
      {"moe_routing_file",
       {},
       {{"experts.jsonl", "given"}},
       [](const config::Resolved& r) {
         return std::string(options_of(r.config, mixture()).transformer.given_experts ? "given" : "chosen");
       },
       "chosen"},
      {"router_z_loss_coef", {}, {{"0.01"}, {"0.1"}}, numbers_of_experts},
      {"seed", {}, {{"7"}}, numbers},
      {"lr_scheduler_type", {}, {{"cosine"}, {"constant"}, {"deepspeed_warmup_decay"}}, numbers},
      {"lr_scheduler_kwargs",
       {{"lr_scheduler_type", "polynomial"}},
       {{"{power: 3}"}, {"{lr_end: 1.0e-3}"}},
       numbers},
      {"warmup_steps", {}, {{"2"}, {"0.8"}}, numbers},
      {"warmup_ratio", {}, {{"0.4"}}, numbers},
  };
}

std::vector<KeyRow> loss_rows() {
  const Keys pairs{{"stage", "dpo"}}, judged{{"stage", "kto"}};
  const Keys taught{{"stage", "kd"}, {"teacher_logprobs", "scores.h5"}};
  return {
      {"label_smoothing_factor", {}, {{"0.1"}, {"0.5"}}, numbers},
      {"use_dft_loss", {}, {{"true"}}, numbers},
      {"use_eaft_loss", {}, {{"true"}}, numbers},
      {"eaft_alpha", {{"use_eaft_loss", "true"}}, {{"0.5"}, {"2"}}, numbers},
      {"neftune_noise_alpha", {}, {{"5"}, {"15"}}, numbers},
      {"pref_loss", pairs, {{"hinge"}, {"ipo"}, {"kto_pair"}, {"orpo"}, {"simpo"}}, numbers},
      {"pref_beta", pairs, {{"0.05"}, {"0.5"}}, numbers},
      {"pref_ftx", pairs, {{"0.5"}, {"1"}}, numbers},
      {"dpo_label_smoothing", pairs, {{"0.1"}, {"0.4"}}, numbers},
      {"simpo_gamma", with(pairs, {{"pref_loss", "simpo"}}), {{"0"}, {"2"}}, numbers},
      {"ld_alpha", pairs, {{"0"}, {"0.5"}}, numbers},
      {"kto_chosen_weight", judged, {{"0"}, {"1.5"}}, numbers},
      {"kto_rejected_weight", judged, {{"0"}, {"1.5"}}, numbers},
      {"teacher_logprobs", {{"stage", "kd"}}, {{"scores.h5"}}, numbers},
      {"kd_ratio", taught, {{"0"}, {"1"}}, numbers},
      {"kd_temperature", taught, {{"0.5"}, {"2"}}, numbers},
      {"kd_beta", taught, {{"0.5"}, {"1"}}, numbers},
      {"kd_topk", taught, {{"8"}, {"1"}}, numbers},
      {"kd_rest", taught, {{"renormalise"}, {"zero"}}, numbers},
  };
}

TEST(Effects, OfPrecision) {
  expect_effects(precision_rows());
}
TEST(Effects, OfSharingAndCommunication) {
  expect_effects(sharing_rows());
}
TEST(Effects, OfMemory) {
  expect_effects(memory_rows());
}
TEST(Effects, OfTheOptimizer) {
  expect_effects(optimizer_rows());
}
TEST(Effects, OfTheLoss) {
  expect_effects(loss_rows());
}

}  // namespace

std::vector<KeyRow> engine_rows() {
  std::vector<KeyRow> all;
  for (const auto& rows : {precision_rows(), sharing_rows(), memory_rows(), optimizer_rows(), loss_rows()})
    all.insert(all.end(), rows.begin(), rows.end());
  return all;
}

}  // namespace octet::test
