// Drives a store through the real protocol. The gradient of an element is noise that depends on the
// micro-batch's number in the whole step, plus a share of the weight that was read. A late gather, an early
// reuse or a wrong slice therefore changes the masters.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>

#include "octet/base/error.h"
#include "octet/comm/thread_ranks.h"
#include "octet/device/cpu.h"
#include "octet/store/store.h"
#include "store/synthetic_model.h"

namespace octet::store::synthetic {

class Rank;

struct Scenario {
  Options options;
  int steps = 3;
  int micro_batches = 2;  ///< on each rank
  int blocks = 5;
  /// Returns whether a rank has no tokens.
  std::function<bool(int step, int micro_batch, int rank)> idle = [](int, int, int) { return false; };
  /// Factor for all gradients of a step (infinity makes it skip).
  std::function<float(int step)> gradient_scale = [](int) { return 1.0f; };
  /// Selects segments that are frozen in addition to the frozen segment of the model.
  std::function<bool(const model::SegmentSpec&)> frozen = [](const model::SegmentSpec&) { return false; };
  /// Delays ranks: called repeatedly by the enqueuing thread and by the compute stream, with a different
  /// number for each moment of the rank.
  std::function<void(int rank, std::uint64_t moment)> late = {};
  /// Called when the gradients of a step are summed, before they are used.
  std::function<void(Rank&)> before_update = {};
};

/// Returns a recipe. A history, if any, is short enough to wrap within a test.
inline precision::Recipe recipe(precision::RecipeKind kind, DType compute, bool scale_parts = false) {
  return {.kind = kind, .compute = compute, .history_length = 4, .scale_parts = scale_parts};
}

/// Tensors by name, merged from the slices of all ranks.
using State = std::map<std::string, std::vector<float>>;

struct Outcome {
  State state;
  State gradients;  ///< gradient sums of the last step
  std::vector<StepResult> results;
  std::vector<std::int64_t> copies;  ///< per rank: hash of all compute copies as the core reads them
  std::vector<std::int64_t> scales;  ///< per rank: hash of the scales of activations and weights
  std::int64_t optimizer_steps = 0;
};

/// Returns element i of a slice as a number that identifies its bits. Codes of 8-bit moments are numbers from
/// 0 to 255.
inline float element_of(const TensorSlice& s, std::int64_t i) {
  switch (s.dtype) {
    case DType::i64:
      return static_cast<float>(static_cast<const std::int64_t*>(s.data)[i]);
    case DType::bf16:
      return from_bf16(static_cast<const std::uint16_t*>(s.data)[i]);
    case DType::u8:
      return static_cast<float>(static_cast<const std::uint8_t*>(s.data)[i]);
    default:
      return static_cast<const float*>(s.data)[i];
  }
}
inline void set_element(const TensorSlice& s, std::int64_t i, float value) {
  switch (s.dtype) {
    case DType::i64:
      static_cast<std::int64_t*>(s.data)[i] = static_cast<std::int64_t>(value);
      return;
    case DType::bf16:
      static_cast<std::uint16_t*>(s.data)[i] = to_bf16(value);
      return;
    case DType::u8:
      static_cast<std::uint8_t*>(s.data)[i] = static_cast<std::uint8_t>(value);
      return;
    default:
      static_cast<float*>(s.data)[i] = value;
  }
}

/// Merges slices over the ranks; every element must come from exactly one.
inline State merge(comm::Collectives& collectives, const std::vector<TensorSlice>& slices) {
  std::string bytes;
  const auto put = [&](const void* data, std::size_t size) {
    bytes.append(static_cast<const char*>(data), size);
  };
  for (const TensorSlice& s : slices) {
    const std::int64_t numbers[] = {static_cast<std::int64_t>(s.name.size()), element_count(s.shape, s.name),
                                    s.begin, s.count};
    put(numbers, sizeof numbers);
    put(s.name.data(), s.name.size());
    for (std::int64_t i = 0; i < s.count; ++i) {
      const float value = element_of(s, i);
      put(&value, sizeof value);
    }
  }
  State state;
  std::map<std::string, std::vector<int>> seen;
  for (const std::string& rank : collectives.channel().all_gather_bytes(bytes)) {
    for (std::size_t at = 0; at < rank.size();) {
      std::int64_t numbers[4];
      std::memcpy(numbers, rank.data() + at, sizeof numbers);
      at += sizeof numbers;
      const std::string name = rank.substr(at, static_cast<std::size_t>(numbers[0]));
      at += name.size();
      auto& values = state[name];
      values.resize(static_cast<std::size_t>(numbers[1]));
      seen[name].resize(values.size());
      std::memcpy(values.data() + numbers[2], rank.data() + at,
                  static_cast<std::size_t>(numbers[3]) * sizeof(float));
      at += static_cast<std::size_t>(numbers[3]) * sizeof(float);
      for (std::int64_t i = 0; i < numbers[3]; ++i) ++seen[name][static_cast<std::size_t>(numbers[2] + i)];
    }
  }
  for (const auto& [name, counts] : seen) {
    for (const int count : counts) {
      EXPECT_EQ(count, 1) << name << " has an element that not exactly one rank owns";
      if (count != 1) break;
    }
  }
  return state;
}

/// One rank of a run: the store and its driver.
class Rank {
 public:
  Rank(comm::Collectives& collectives, Device& device, Scenario scenario, GroupAxes groups = {})
      : collectives_(collectives), scenario_(std::move(scenario)), arena_(device) {
    compute_ = device.make_stream({.name = "compute"});
    scenario_.options.micro_batches = scenario_.micro_batches;
    loss_ = arena_.reserve_as<double>("loss", static_cast<std::size_t>(losses()));
    if (scenario_.options.recipe.fp8()) {
      activations_ = std::make_unique<precision::ScaleSet>(arena_, "activations", scenario_.options.recipe,
                                                           std::vector{DType::e4m3, DType::e5m2},
                                                           std::vector<std::string>{"input", "gradient"});
    }
    model::ParameterLayout of = layout(scenario_.blocks);
    for (auto& group : of.groups) {
      for (auto& s : group.segments) s.trainable = s.trainable && !scenario_.frozen(s);
    }
    store_ = std::make_unique<ParameterStore>(std::move(of), arena_, collectives, scenario_.options,
                                              ExpertAxis{}, groups);
    arena_.seal();
  }

  static void fill(const std::vector<TensorSlice>& slices) {
    for (const TensorSlice& s : slices) {
      for (std::int64_t i = 0; i < s.count; ++i) {
        static_cast<float*>(s.data)[i] = first_value(s.name, s.begin + i);
      }
    }
  }
  void initialise() { store_->initialise(*compute_, fill); }

  /// Loads a state from any world size and stage. The state must not have frozen segments.
  void load(const State& state) {
    store_->load_fixed(*compute_, fill);
    for (const TensorSlice& s : store_->needed_slices()) {
      const auto found = state.find(s.name);
      ASSERT_NE(found, state.end()) << s.name;
      ASSERT_EQ(static_cast<std::int64_t>(found->second.size()), element_count(s.shape, s.name)) << s.name;
      const float* from = found->second.data() + s.begin;
      for (std::int64_t i = 0; i < s.count; ++i) set_element(s, i, from[i]);
    }
    store_->refresh_copies(*compute_, Scales::as_loaded);
  }

  void step(int step, double learning_rate = 1e-2) {
    Device& device = arena_.device();
    device.zero(*compute_, loss_, static_cast<std::size_t>(losses()) * sizeof(double));
    store_->begin_step(scenario_.micro_batches);
    std::int64_t labels = 0;
    for (int m = 0; m < scenario_.micro_batches; ++m) {
      const int number = scenario_.options.strict ? collectives_.rank() * scenario_.micro_batches + m
                                                  : m * collectives_.size() + collectives_.rank();
      store_->begin_micro_batch(m, *compute_, activations_.get());
      if (scenario_.idle(step, m, collectives_.rank())) {
        store_->contribute_nothing(*compute_);
      } else {
        labels += label_tokens(number);
        forward_and_backward(step, number, loss_ + (losses() > 1 ? m : 0));
      }
      store_->end_micro_batch(*compute_);
    }
    if (scenario_.before_update) {
      store_->synchronize(*compute_);
      collectives_.channel().barrier();
      scenario_.before_update(*this);
      collectives_.channel().barrier();
    }
    store_->finish({.learning_rate = learning_rate, .label_tokens = labels, .loss_sum = loss_}, *compute_);
    compute_->synchronize();
    results_.push_back(store_->collect());
  }
  void steps(int first, int count) {
    for (int s = first; s < first + count; ++s) step(s, 1e-2 / (1 + s));
  }

  Outcome outcome() {
    store_->synchronize(*compute_);
    Outcome o;
    o.state = merge(collectives_, store_->owned_slices());
    o.gradients = merge(collectives_, store_->gradient_slices());
    o.results = results_;
    o.copies = collectives_.channel().all_gather_int(static_cast<std::int64_t>(hash_copies()));
    std::uint64_t hash = 0;
    for (const precision::ScaleSet* set :
         {static_cast<const precision::ScaleSet*>(activations_.get()), store_->weight_scales()}) {
      if (set != nullptr)
        hash ^= hash_bytes(set->scale(0), static_cast<std::size_t>(set->count()) * sizeof(float));
    }
    o.scales = collectives_.channel().all_gather_int(static_cast<std::int64_t>(hash));
    o.optimizer_steps = store_->optimizer_steps();
    return o;
  }

  ParameterStore& store() { return *store_; }
  /// Returns the gradient buffers of the last backward pass as whole tensors, by name. If groups share
  /// buffers, a buffer may already hold the gradients of another group.
  const std::map<std::string, TensorSlice>& left() const { return left_; }
  int number() const { return collectives_.channel().rank(); }
  /// Returns scales and histories of activations and gradients, by name.
  State activation_scales() const {
    State state;
    for (const TensorSlice& s : activations_->state()) {
      for (std::int64_t i = 0; i < s.count; ++i) state[s.name].push_back(element_of(s, i));
    }
    return state;
  }
  Stream& compute() { return *compute_; }
  Arena& arena() { return arena_; }

 private:
  int head() const { return scenario_.blocks + 1; }

  /// Returns element i of a weight. The backward pass reads its transposed copy if there is one.
  static float read(std::span<const ops::Operand> runs, std::int64_t i,
                    model::Pass pass = model::Pass::forward) {
    while (i >= runs.front().rows * runs.front().cols) {
      i -= runs.front().rows * runs.front().cols;
      runs = runs.subspan(1);
    }
    const ops::Operand& w = runs.front();
    switch (w.dtype) {
      case DType::f32:
        return static_cast<const float*>(w.data)[i];
      case DType::bf16:
        return from_bf16(static_cast<const std::uint16_t*>(w.data)[i]);
      default:
        if (w.transposed != nullptr && pass == model::Pass::backward) {
          const std::int64_t at = i % w.cols * w.rows + i / w.cols;
          return from_fp8(static_cast<const std::uint8_t*>(w.transposed)[at], w.dtype) * *w.scale_inv;
        }
        return from_fp8(static_cast<const std::uint8_t*>(w.data)[i], w.dtype) * *w.scale_inv;
    }
  }

  void maybe_late() {
    if (!scenario_.late) return;
    const std::uint64_t moment = moments_;
    moments_ += 2;
    scenario_.late(collectives_.rank(), moment);
    cpu::enqueue(*compute_, [this, moment] { scenario_.late(collectives_.rank(), moment + 1); });
  }

  /// Enqueues: gradient += (or =) noise + share * weight, for the trainable tensors of a group.
  void backward(int step, int number, int group, int part) {
    maybe_late();
    const model::GroupParameters& p = store_->acquire(group, model::Pass::backward, *compute_);
    const model::GroupGradients& g = store_->gradients(group, *compute_);
    const bool overwrite = g.overwrite && part == 0;
    const float scale = scenario_.gradient_scale(step) * (part == 0 ? 1.0f : kTiedShare);
    const auto& segments = store_->layout().groups[static_cast<std::size_t>(group)].segments;
    for (std::size_t s = 0; s < segments.size(); ++s) {
      for (std::size_t t = 0; t < segments[s].tensors.size() && segments[s].trainable; ++t) {
        const model::TensorSpec& spec = segments[s].tensors[t];
        const auto w = p.operands(s, t);
        const ops::Matrix& gradient = g.gradients[s][t];
        const TensorSlice to{.dtype = gradient.dtype, .data = gradient.data};
        left_[spec.name] = {
            .name = spec.name, .dtype = gradient.dtype, .count = spec.count(), .data = gradient.data};
        const bool set = overwrite && spec.gradient_by_gemm;
        cpu::enqueue(*compute_, [=, &spec, name = spec.name] {
          const std::uint64_t seed = seed_of(name, step, number);
          for (std::int64_t i = 0; i < spec.count(); ++i) {
            const float value = scale * (noise(seed, i) + kWeightShare * read(w, i, model::Pass::backward));
            set_element(to, i, set ? value : element_of(to, i) + value);
          }
        });
      }
    }
    store_->release(group, model::Pass::backward, *compute_);
  }

  /// Returns the number of loss sums passed to the store.
  int losses() const { return scenario_.options.strict ? scenario_.micro_batches : 1; }

  void forward_and_backward(int step, int number, double* loss_sum) {
    for (int g = 0; g <= head(); ++g) {
      maybe_late();
      if (g == head()) {
        raise(step, number, 0);
        store_->blocks_done(*compute_);
      }
      const model::GroupParameters& p = store_->acquire(g, model::Pass::forward, *compute_);
      const auto w = p.operands(0, 0);
      cpu::enqueue(*compute_,
                   [this, w] { forward_sum_ += read(w.last(1), w.back().rows * w.back().cols - 1); });
      store_->release(g, model::Pass::forward, *compute_);
    }
    cpu::enqueue(*compute_, [=] { *loss_sum += loss(step, number); });
    backward(step, number, head(), 0);
    backward(step, number, 0, 1);  // the tied head reads the embedding, before the head is given back
    store_->give_back(head(), *compute_);
    for (int g = head() - 1; g >= model::lowest_trained_group(store_->layout()); --g) {
      backward(step, number, g, 0);
      store_->give_back(g, *compute_);
    }
    raise(step, number, 1);
  }

  /// Raises the amax of the input (0) or of the gradient (1).
  void raise(int step, int number, int i) {
    if (activations_ == nullptr) return;
    cpu::enqueue(*compute_, [this, step, number, i] {
      float& amax = *activations_->amax(i);
      amax = std::max(amax, 1.0f + noise(seed_of("amax", step, number), i));
    });
  }

  std::uint64_t hash_copies() {
    std::uint64_t hash = hash_bytes("", 0);
    const auto& groups = store_->layout().groups;
    for (int g = 0; g < static_cast<int>(groups.size()); ++g) {
      const model::GroupParameters& p = store_->acquire(g, model::Pass::forward, *compute_);
      compute_->synchronize();
      for (std::size_t s = 0; s < p.weights.size(); ++s) {
        for (std::size_t t = 0; t < p.weights[s].size(); ++t) {
          for (const ops::Operand& w : p.operands(s, t)) {
            hash = hash_bytes(w.data, static_cast<std::size_t>(w.rows * w.cols) * size_of(w.dtype), hash);
          }
        }
      }
      store_->release(g, model::Pass::forward, *compute_);
    }
    return hash;
  }

  comm::Collectives& collectives_;
  Scenario scenario_;
  Arena arena_;
  std::unique_ptr<Stream> compute_;
  std::unique_ptr<precision::ScaleSet> activations_;
  std::unique_ptr<ParameterStore> store_;
  double* loss_ = nullptr;
  float forward_sum_ = 0;
  std::uint64_t moments_ = 0;
  std::vector<StepResult> results_;
  std::map<std::string, TensorSlice> left_;
};

struct ThreadRun {
  int ranks = 1;
  bool compute_worker = false;
  std::vector<int> node_of = {};
  DeviceKind stands_for = DeviceKind::cpu;
  comm::Carrier carrier = comm::Carrier::messages;
};

/// The collectives of sharding groups, if the options have groups.
class ThreadGroups {
 public:
  ThreadGroups(comm::Job& job, Device& device, const Options& options, comm::Carrier carrier) {
    if (!has_replicas(options, job.size())) return;
    const comm::Mesh mesh = group_mesh(options, job.size());
    shards_ = job.collectives(mesh.group(kShardAxis, job.rank()), device, carrier);
    replicas_ = job.collectives(mesh.group(kReplicaAxis, job.rank()), device, carrier);
  }
  GroupAxes axes() const { return {.shards = shards_.get(), .replicas = replicas_.get()}; }

 private:
  std::unique_ptr<comm::Collectives> shards_, replicas_;
};

/// Runs `drive` on ranks as threads and returns the outcome of rank 0.
inline Outcome on_threads(const ThreadRun& how, const Scenario& scenario,
                          const std::function<void(Rank&)>& drive) {
  Outcome outcome;
  comm::run_ranks_as_threads({.ranks = how.ranks,
                              .compute_worker = how.compute_worker,
                              .node_of = how.node_of,
                              .stands_for = how.stands_for,
                              .carrier = how.carrier},
                             [&](comm::Job& job, comm::Collectives& collectives, Device& device) {
                               const ThreadGroups groups(job, device, scenario.options, how.carrier);
                               Rank rank(collectives, device, scenario, groups.axes());
                               drive(rank);
                               Outcome mine = rank.outcome();
                               if (collectives.rank() == 0) outcome = std::move(mine);
                             });
  return outcome;
}
inline Outcome run(const ThreadRun& how, const Scenario& scenario) {
  return on_threads(how, scenario, [&](Rank& rank) {
    rank.initialise();
    rank.steps(0, scenario.steps);
  });
}

/// Returns a description of the first bitwise difference, or "".
inline std::string difference(const State& a, const State& b) {
  for (const auto& [name, values] : a) {
    const auto found = b.find(name);
    if (found == b.end() || found->second.size() != values.size())
      return name + " is missing or of another size";
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (std::memcmp(&values[i], &found->second[i], sizeof(float)) != 0) {
        return name + "[" + std::to_string(i) + "]: " + std::to_string(values[i]) + " and " +
               std::to_string(found->second[i]);
      }
    }
  }
  return a.size() == b.size() ? "" : "other names";
}

/// Returns the maximum |a - b| over all tensors of `a`.
inline double distance(const State& a, const State& b) {
  double most = 0;
  for (const auto& [name, values] : a) {
    const auto& other = b.at(name);
    for (std::size_t i = 0; i < values.size(); ++i) {
      most = std::max(most, std::abs(static_cast<double>(values[i]) - static_cast<double>(other[i])));
    }
  }
  return most;
}

}  // namespace octet::store::synthetic
