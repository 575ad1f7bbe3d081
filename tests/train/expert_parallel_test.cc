// Experts that are split among ranks: gradients, steps and checkpoints are as with all experts on every rank.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/tensor_slice.h"
#include "octet/comm/thread_ranks.h"
#include "octet/config/config.h"
#include "octet/model/shapes.h"
#include "octet/setup/model_options.h"
#include "octet/train/engine.h"
#include "octet/train/fit.h"

namespace octet::train::expert_parallel_test {
namespace {

struct How {
  int ranks = 4;
  int split = 1;  ///< expert_parallel_size
  int stage = 0;
  int experts = 4, taken = 2;
  bool worker = false;  ///< streams run concurrently, as on a GPU
  bool deterministic = true;
  const char* recompute = "none";
  const char* moments = "fp32";
  const char* fp8 = nullptr;  ///< recipe
  bool frozen = false;        ///< experts are frozen
  bool nf4 = false;           ///< frozen weights are stored in NF4
  int empty = -1;             ///< this rank has no tokens
  int shared = 0;             ///< width of a shared expert
  bool biases = false;        ///< router and experts have biases
  double capacity = 0;        ///< moe_capacity_factor; 0: no limit
  bool equal = false;         ///< all ranks have the same number of tokens, and nothing is evaluated
};

runtime::InstanceOptions options_of(const How& how) {
  config::Config config;
  config.deterministic = how.deterministic ? "true" : "false";
  config.bf16 = config.fp8 = how.fp8 != nullptr;
  if (how.fp8 != nullptr) config.fp8_recipe = how.fp8;
  config.fp8_amax_history_len = 4;
  config.zero_stage = how.stage;
  config.optim_dtype = how.moments;
  config.expert_parallel_size = how.split;
  if (how.capacity > 0) config.moe_capacity_factor = how.capacity;
  model::Architecture a = model::find_shape("tiny");
  a.layers = 2;
  a.vocabulary = 128;
  a.hidden = 32;
  a.heads = {.q_heads = 2, .kv_heads = 1, .head_dim = 16};
  a.blocks.assign(2, {.mixes_experts = true});
  a.experts = {.count = how.experts,
               .taken = how.taken,
               .width = 32,
               .normalised = true,
               .balance = 0.02,
               .shared = how.shared,
               .biases = how.biases};
  if (how.frozen) a.tuning.only = {"model.layers.0.self_attn", "model.layers.1.mlp.gate", "lm_head"};
  runtime::InstanceOptions options = setup::instance_options(config, a, 64, 64, 3);
  options.max_micro_batches = 2;
  if (how.nf4) options.store.fixed.format = store::Format::nf4;
  if (how.frozen) options.architecture.tuning = a.tuning;
  if (how.recompute == std::string("norms")) options.transformer.recompute = model::Recompute::norms;
  if (how.recompute == std::string("full")) options.transformer.recompute = model::Recompute::full;
  return options;
}

/// The micro-batch `number` of a rank. Ranks have different lengths.
runtime::HostBatch batch_of(const How& how, int rank, int number) {
  runtime::HostBatch batch;
  batch.cu_seqlens.push_back(0);
  if (rank == how.empty) return batch;
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 40 - (how.equal ? 0 : 3 * rank); ++i)
    ids.push_back((i * 37 + 11 * number + i * i + 5 * rank) % 128);
  runtime::add_document(batch, ids, ids);
  return batch;
}

struct Tensor {
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::string bytes;
  bool operator==(const Tensor&) const = default;
};
using Tensors = std::map<std::string, Tensor>;

/// Collects slices of all ranks as whole tensors. Every element belongs to one rank.
class Collector {
 public:
  void add(const std::vector<TensorSlice>& slices) {
    const std::scoped_lock lock(mutex_);
    for (const TensorSlice& slice : slices) {
      std::int64_t count = 1;
      for (const std::int64_t extent : slice.shape) count *= extent;
      const std::size_t size = size_of(slice.dtype);
      Tensor& whole = all_[slice.name];
      if (whole.bytes.empty()) whole = {slice.dtype, slice.shape, std::string(count * size, '\xff')};
      EXPECT_EQ(whole.shape, slice.shape) << slice.name;
      each_run(slice, [&](std::int64_t begin, std::int64_t n, const void* data) {
        ASSERT_LE((begin + n) * size, whole.bytes.size()) << slice.name;
        std::memcpy(whole.bytes.data() + begin * size, data, n * size);
        written_[slice.name] += n;
      });
    }
  }
  Tensors take() {
    for (const auto& [name, tensor] : all_)
      EXPECT_EQ(written_[name] * size_of(tensor.dtype), tensor.bytes.size()) << name;
    return std::move(all_);
  }

 private:
  std::mutex mutex_;
  Tensors all_;
  std::map<std::string, std::size_t> written_;
};

struct Result {
  std::vector<double> losses, norms;
  Tensors gradients, state;
  std::vector<std::string> tensors;  ///< of a checkpoint
  std::int64_t exchanged = 0;        ///< bytes of messages between two ranks
  std::int64_t gradient_gemms = 0;   ///< GEMMs for gradients of experts' weights, on the last rank
};

/// Trains steps [first, last) from the state of a checkpoint, or from new weights.
Result train(const How& how, int first = 0, int last = 3, const Tensors* from = nullptr) {
  Result result;
  Collector gradients, state;
  std::mutex mutex;
  comm::run_ranks_as_threads(
      {.ranks = how.ranks, .compute_worker = how.worker},
      [&](comm::Job& job, comm::Collectives& data, Device& device) {
        Engine engine(device, job, data, options_of(how));
        engine.initialise(7);
        if (from != nullptr) {
          for (const TensorSlice& slice : engine.store().needed_slices(engine.activation_state())) {
            const Tensor& whole = from->at(slice.name);
            EXPECT_EQ(whole.shape, slice.shape) << slice.name;
            const std::size_t size = size_of(slice.dtype);
            each_run(slice, [&](std::int64_t begin, std::int64_t n, void* to) {
              std::memcpy(to, whole.bytes.data() + begin * size, n * size);
            });
          }
          engine.store().refresh_copies(engine.compute(), store::Scales::as_loaded);
        }
        for (int step = first; step < last; ++step) {
          engine.begin(2);
          for (int micro = 0; micro < 2; ++micro)
            engine.micro_batch(batch_of(how, job.rank(), 2 * step + micro));
          const store::StepResult done = engine.finish(1e-2);
          if (step == first) gradients.add(engine.store().gradient_slices());
          const std::scoped_lock lock(mutex);
          if (job.rank() != 0) continue;
          result.losses.push_back(done.loss_sum / static_cast<double>(done.label_tokens));
          result.norms.push_back(done.grad_norm);
        }
        double loss = 0;
        std::int64_t labels = 0;
        if (!how.equal) engine.evaluate(batch_of(how, job.rank(), 99), &loss, &labels);
        engine.store().synchronize(engine.compute());
        state.add(engine.store().owned_slices(job.rank() == 0 ? engine.activation_state()
                                                              : std::vector<TensorSlice>{}));
        const auto headers = engine.checkpoint_tensors();
        const std::scoped_lock lock(mutex);
        for (const comm::Traffic& traffic : engine.instance().take_traffic()) {
          if (traffic.kind == "send" || traffic.kind == "receive") result.exchanged += traffic.bytes_sent;
        }
        if (job.rank() != how.ranks - 1) return;
        for (const precision::AuditCount& c : engine.audit().counts()) {
          const auto& row = engine.audit().rows()[static_cast<std::size_t>(c.row)];
          if (row.name.starts_with("experts'") && c.gemm_kind == ops::GemmKind::wgrad)
            result.gradient_gemms += c.gemms;
        }
        for (const auto& header : headers) {
          result.tensors.push_back(header.name);
          for (const std::int64_t extent : header.shape)
            result.tensors.back() += " " + std::to_string(extent);
        }
      });
  result.gradients = gradients.take();
  result.state = state.take();
  return result;
}

double distance(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.shape, b.shape);
  EXPECT_EQ(a.dtype, DType::f32);
  double difference = 0, size = 0;
  for (std::size_t at = 0; at < a.bytes.size(); at += sizeof(float)) {
    float x = 0, y = 0;
    std::memcpy(&x, &a.bytes[at], sizeof x);
    std::memcpy(&y, &b.bytes[at], sizeof y);
    difference += (double(x) - y) * (double(x) - y), size += double(y) * y;
  }
  return size == 0 ? difference : std::sqrt(difference / size);
}

void expect_near(const Result& found, const Result& expected, double bound = 1e-5) {
  EXPECT_EQ(found.tensors, expected.tensors);
  ASSERT_EQ(found.gradients.size(), expected.gradients.size());
  for (const auto& [name, tensor] : expected.gradients)
    EXPECT_LE(distance(found.gradients.at(name), tensor), bound) << name;
  for (std::size_t i = 0; i < expected.losses.size(); ++i) {
    EXPECT_NEAR(found.losses.at(i), expected.losses[i], bound * expected.losses[i]) << "step " << i;
    EXPECT_NEAR(found.norms.at(i), expected.norms[i], 10 * bound * expected.norms[i]) << "step " << i;
  }
  ASSERT_EQ(found.state.size(), expected.state.size());
}

TEST(ExpertParallel, HasTheGradientsOfRanksWithAllExperts) {
  const Result whole = train({});
  EXPECT_EQ(whole.exchanged, 0);
  for (const int split : {2, 4}) {
    SCOPED_TRACE("split " + std::to_string(split));
    const Result found = train({.split = split});
    expect_near(found, whole);
    EXPECT_GT(found.exchanged, 0);
  }
}

TEST(ExpertParallel, TrainsWithRanksWithoutTokensAndOtherLayers) {
  const std::vector<std::pair<const char*, How>> cases = {
      {"a rank without tokens", {.ranks = 2, .stage = 1, .empty = 1}},
      {"one expert per token, and fewer than ranks use", {.ranks = 2, .stage = 3, .taken = 1}},
      {"more experts per token than a rank has", {.ranks = 4, .experts = 4, .taken = 3}},
      {"inputs made again", {.ranks = 2, .stage = 2, .recompute = "norms"}},
      {"blocks made again", {.ranks = 2, .worker = true, .recompute = "full"}},
      {"a shared expert", {.ranks = 2, .shared = 32}},
      {"biases", {.ranks = 2, .biases = true}},
      {"a capacity", {.ranks = 2, .stage = 1, .capacity = 0.75}},
      {"a capacity, and a rank without tokens",
       {.ranks = 4, .stage = 3, .recompute = "full", .empty = 2, .capacity = 0.5}},
      {"sums once per step", {.ranks = 2, .stage = 1, .deterministic = false}},
      {"frozen experts", {.ranks = 4, .stage = 3, .frozen = true}},
      {"frozen experts in NF4", {.ranks = 4, .stage = 3, .frozen = true, .nf4 = true}},
      {"frozen experts in NF4, half of them",
       {.ranks = 4, .split = 2, .stage = 3, .frozen = true, .nf4 = true}},
  };
  for (const auto& [name, how] : cases) {
    SCOPED_TRACE(name);
    How without = how, with = how;
    without.split = 1;
    if (how.split == 1) with.split = how.ranks;
    expect_near(train(with, 0, 2), train(without, 0, 2));
  }
}

double mean_distance(const Tensors& found, const Tensors& expected) {
  double sum = 0;
  for (const auto& [name, tensor] : expected) sum += distance(found.at(name), tensor);
  return sum / static_cast<double>(expected.size());
}

TEST(ExpertParallel, TrainsInFp8) {
  for (const char* recipe : {"delayed", "block"}) {
    for (const int stage : {0, 3}) {
      SCOPED_TRACE(std::string(recipe) + ", stage " + std::to_string(stage));
      const int empty = stage == 3 ? 1 : -1;
      const Result whole = train({.ranks = 2, .stage = stage, .fp8 = recipe, .empty = empty}, 0, 2);
      const How split{.ranks = 2, .split = 2, .stage = stage, .fp8 = recipe, .empty = empty};
      expect_near(train(split, 0, 2), whole, 5e-3);
    }
  }
  // The rows of an expert have one scale, so rows of more ranks are cast otherwise.
  const Result exact = train({.ranks = 2}, 0, 1);
  const Result whole = train({.ranks = 2, .stage = 1, .fp8 = "current"}, 0, 1);
  const Result found = train({.ranks = 2, .split = 2, .stage = 1, .fp8 = "current"}, 0, 1);
  EXPECT_LE(mean_distance(found.gradients, exact.gradients),
            1.3 * mean_distance(whole.gradients, exact.gradients));
}

// The number of received rows is often no multiple of 16, as the kernel of all experts needs it on Hopper.
TEST(ExpertParallel, PadsRowsForTheKernelOfAllExpertsInFp8) {
  for (const char* recipe : {"delayed", "current"}) {
    const How how{.ranks = 2, .split = 2, .stage = 1, .fp8 = recipe};
    const Result whole = train(how, 0, 2);
    ::setenv("OCTETRUN_GROUPED_GEMM", "hopper", 1);
    const Result padded = train(how, 0, 2);
    ::unsetenv("OCTETRUN_GROUPED_GEMM");
    EXPECT_EQ(padded.losses, whole.losses);
    EXPECT_EQ(padded.norms, whole.norms);
    EXPECT_EQ(padded.gradients, whole.gradients);
    EXPECT_EQ(padded.state, whole.state);
    EXPECT_EQ(padded.gradient_gemms, 2 * 2 * 2 * 2)
        << "two matrices, two blocks, two micro-batches, two steps";
    EXPECT_EQ(whole.gradient_gemms, padded.gradient_gemms);
  }
}

TEST(ExpertParallel, HasTheSameBitsAtEveryStage) {
  for (const int split : {2, 4}) {
    const Result reference = train({.split = split});
    for (const int stage : {1, 2, 3}) {
      SCOPED_TRACE("split " + std::to_string(split) + ", stage " + std::to_string(stage));
      const Result found = train({.split = split, .stage = stage, .worker = stage == 3});
      EXPECT_EQ(found.losses, reference.losses);
      EXPECT_EQ(found.norms, reference.norms);
      EXPECT_EQ(found.gradients, reference.gradients);
      EXPECT_EQ(found.state, reference.state);
    }
  }
}

TEST(ExpertParallel, ContinuesFromACheckpointOfAnotherSplit) {
  for (const char* fp8 : {static_cast<const char*>(nullptr), "delayed"}) {
    const How how{.ranks = 4, .moments = "int8", .fp8 = fp8};
    const Result whole = train(how, 0, 3);
    How before = how, after = how;
    before.split = 2, before.stage = 1;
    after.split = 4, after.stage = 3;
    const Tensors state = train(before, 0, 2).state;
    for (const How& next : {after, How{.ranks = 2, .split = 1, .stage = 2, .moments = "int8", .fp8 = fp8}}) {
      SCOPED_TRACE("split " + std::to_string(next.split) + (fp8 == nullptr ? "" : ", FP8"));
      const Result found = train(next, 2, 3, &state);
      EXPECT_EQ(found.state.size(), whole.state.size());
      if (next.ranks != 4) continue;
      EXPECT_NEAR(found.losses.front(), whole.losses.back(), 0.01);
    }
    // Loading and saving changes no bit.
    EXPECT_EQ(train(after, 2, 2, &state).state, state);
  }
}

// If every token takes every expert, every rank gets the same number of rows.
TEST(ExpertParallel, SendsTheBytesOfThePlan) {
  for (const char* recompute : {"none", "full"}) {
    for (const bool frozen : {false, true}) {
      How how{.ranks = 4, .split = 2, .experts = 4, .taken = 4, .recompute = recompute, .frozen = frozen};
      how.equal = true;
      const Result found = train(how, 0, 1);
      const comm::Place place{.size = 4, .local_size = 4, .node_of = {0, 0, 0, 0}};
      runtime::InstanceOptions options = options_of(how);
      options.transformer.max_tokens = options.transformer.max_length = 40;
      const auto planned = plan_messages(options, place, DeviceKind::cpu, 2);
      EXPECT_EQ(found.exchanged, 4 * planned[0].exchanged.bytes) << recompute << ", frozen " << frozen;
      EXPECT_EQ(planned[0].bytes(),
                planned[0].reduced.bytes + planned[0].gathered.bytes + planned[0].exchanged.bytes);
    }
  }
}

TEST(ExpertParallel, HoldsFewerExpertsAndMoreRows) {
  const auto bytes = [](int split, const char* part) {
    const comm::Place place{.size = 4, .local_size = 4, .node_of = {0, 0, 0, 0}};
    std::size_t sum = 0;
    const plan::Memory memory = plan_memory(options_of({.split = split}), place, DeviceKind::cpu);
    for (const auto& row : memory.by_part()) sum += row.name == part ? row.bytes : 0;
    return sum;
  };
  EXPECT_LT(bytes(4, "optimizer"), bytes(2, "optimizer"));
  EXPECT_LT(bytes(2, "optimizer"), bytes(1, "optimizer"));
  EXPECT_GT(bytes(2, "activations"), bytes(1, "activations"));
}

TEST(ExpertParallel, RefusesSplitsThatDoNotFit) {
  const auto refusal = [](const How& how, const std::function<void(model::Architecture&)>& change = {}) {
    std::mutex mutex;
    std::vector<std::string> said;
    comm::run_ranks_as_threads({.ranks = how.ranks},
                               [&](comm::Job& job, comm::Collectives& data, Device& device) {
                                 runtime::InstanceOptions options = options_of(how);
                                 if (change) change(options.architecture);
                                 try {
                                   Engine engine(device, job, data, options);
                                 } catch (const Error& error) {
                                   EXPECT_EQ(error.code(), ExitCode::usage);
                                   if (error.problem().what.empty()) return;
                                   const std::scoped_lock lock(mutex);
                                   said.push_back(error.problem().expected);
                                 }
                               });
    EXPECT_EQ(said.size(), 1U) << "one message";
    return said.empty() ? "" : said.front();
  };
  EXPECT_EQ(refusal({.ranks = 2, .split = 2}, [](model::Architecture& a) { a = model::find_shape("tiny"); }),
            "1 for a model without experts");
  EXPECT_EQ(refusal({.ranks = 3, .split = 3}), "a divisor of the 4 experts of a block");
  EXPECT_EQ(refusal({.ranks = 3, .split = 2}), "a divisor of the number of ranks, 3");
  const auto adapt = [](model::Architecture& a) {
    a.tuning = {.adapters = true, .modules = {{"model.layers.0.mlp.experts.1.up_proj", {.rank = 2}}}};
  };
  EXPECT_EQ(refusal({.ranks = 2, .split = 2}, adapt), "adapters on other modules, such as q_proj,v_proj");
}

}  // namespace
}  // namespace octet::train::expert_parallel_test
