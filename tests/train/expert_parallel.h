// A small mixture of experts that trains on ranks in threads, with and without split experts.
#pragma once

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

struct How {
  int ranks = 4;
  int split = 1;  ///< expert_parallel_size
  int stage = 0;
  int experts = 4, taken = 2;
  bool worker = false;  ///< streams run concurrently, as on a GPU
  bool deterministic = true;
  const char* recompute = "none";
  const char* moments = "fp32";
  const char* fp8 = nullptr;     ///< recipe
  bool frozen = false;           ///< experts are frozen
  bool nf4 = false;              ///< frozen weights are stored in NF4
  int empty = -1;                ///< this rank has no tokens
  int shared = 0;                ///< width of a shared expert
  bool biases = false;           ///< router and experts have biases
  double capacity = 0;           ///< moe_capacity_factor; 0: no limit
  bool equal = false;            ///< all ranks have the same number of tokens, and nothing is evaluated
  bool strict = false;           ///< strict, with the same micro-batches on any number of ranks
  int micro = 2;                 ///< micro-batches of a rank in a step
  const char* wire = "compute";  ///< exchange_dtype
  double room = 0;               ///< exchange_rows_factor, or a smaller number; 0: room for every case
  const char* adapters = "";     ///< of experts: "lora", "dora", "dropout", or "joined" of gate and up
};

/// Returns adapters of all experts of both blocks, and of attention.
inline model::Tuning adapters_of(const How& how) {
  model::AdapterShape shape{.rank = 4, .factor = 2.0};
  shape.dora = how.adapters == std::string("dora");
  if (how.adapters == std::string("dropout")) shape.dropout = 0.2;
  model::Tuning tuning{.adapters = true, .modules = {}, .output_rate = 1.5};
  const bool joined = how.adapters == std::string("joined");
  for (int layer = 0; layer < 2; ++layer) {
    const std::string block = "model.layers." + std::to_string(layer) + ".";
    tuning.modules[block + "self_attn.q_proj"] = {.rank = 2, .factor = 2.0};
    for (int e = 0; e < how.experts; ++e) {
      const std::string expert = block + "mlp.experts." + std::to_string(e) + ".";
      if (joined) {
        tuning.modules[expert + "gate_up_proj"] = shape;
      } else {
        tuning.modules[expert + "gate_proj"] = tuning.modules[expert + "up_proj"] = shape;
      }
      tuning.modules[expert + "down_proj"] = shape;
    }
  }
  return tuning;
}

inline runtime::InstanceOptions options_of(const How& how) {
  config::Config config;
  config.deterministic = how.strict ? "strict" : how.deterministic ? "true" : "false";
  config.bf16 = config.fp8 = how.fp8 != nullptr;
  if (how.fp8 != nullptr) config.fp8_recipe = how.fp8;
  config.fp8_amax_history_len = 4;
  config.zero_stage = how.stage;
  config.optim_dtype = how.moments;
  config.expert_parallel_size = how.split;
  config.exchange_dtype = how.wire;
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
  if (how.adapters[0] != 0) a.tuning = adapters_of(how);
  if (how.frozen) a.tuning.only = {"model.layers.0.self_attn", "model.layers.1.mlp.gate", "lm_head"};
  runtime::InstanceOptions options = setup::instance_options(config, a, 64, 64, 3);
  options.max_micro_batches = how.micro;
  options.transformer.exchange_room = how.room;
  if (how.nf4) options.store.fixed.format = store::Format::nf4;
  if (how.frozen || how.adapters[0] != 0) options.architecture.tuning = a.tuning;
  if (how.recompute == std::string("norms")) options.transformer.recompute = model::Recompute::norms;
  if (how.recompute == std::string("full")) options.transformer.recompute = model::Recompute::full;
  return options;
}

/// The micro-batch `number` of a rank. Ranks have different lengths.
inline runtime::HostBatch batch_of(const How& how, int rank, int number) {
  runtime::HostBatch batch;
  if (how.strict) {
    const int step = number / how.micro, micro = number % how.micro;
    number = (step * how.ranks + rank) * how.micro + micro;
    rank = 0;
  }
  batch.cu_seqlens.push_back(0);
  if (rank == how.empty) return batch;
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 40 - (how.equal ? 0 : 3 * rank); ++i)
    ids.push_back((i * 37 + 11 * number + i * i + 5 * rank) % 128);
  runtime::add_document(batch, ids, ids, static_cast<std::uint64_t>(100 * number + rank));
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
  std::int64_t reduced = 0;          ///< bytes of gradients of experts
  std::int64_t gradient_gemms = 0;   ///< GEMMs for gradients of experts' weights, on the last rank
};

/// Trains steps [first, last) from the state of a checkpoint, or from new weights.
inline Result train(const How& how, int first = 0, int last = 3, const Tensors* from = nullptr) {
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
          engine.begin(how.micro);
          for (int micro = 0; micro < how.micro; ++micro)
            engine.micro_batch(batch_of(how, job.rank(), how.micro * step + micro));
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
          if (traffic.kind == "reduce_scatter") result.reduced += traffic.bytes_sent;
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

inline double distance(const Tensor& a, const Tensor& b) {
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

inline void expect_near(const Result& found, const Result& expected, double bound = 1e-5) {
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

inline double mean_distance(const Tensors& found, const Tensors& expected) {
  double sum = 0;
  for (const auto& [name, tensor] : expected) sum += distance(found.at(name), tensor);
  return sum / static_cast<double>(expected.size());
}

/// Expects equal bits of all results.
inline void expect_same(const Result& found, const Result& expected) {
  EXPECT_EQ(found.losses, expected.losses);
  EXPECT_EQ(found.norms, expected.norms);
  EXPECT_EQ(found.gradients, expected.gradients);
  EXPECT_EQ(found.state, expected.state);
}

}  // namespace octet::train::expert_parallel_test
