// Mostly frozen models: backward ends at the lowest trained tensor, its work is the work that the layers
// state, and its gradients have the bits of training everything.
#include <algorithm>

#include "octet/device/profile.h"
#include "octet/model/work.h"
#include "support.h"

namespace octet::model::testing::frozen_test {
namespace {

using precision::Recipe;
using precision::RecipeKind;

constexpr Recompute kLevels[] = {Recompute::none, Recompute::norms, Recompute::qkv, Recompute::full};

HostBatch golden_batch(const std::string& name) {
  const weights::SafetensorsFile file(golden_folder(name) + "/golden.safetensors");
  return read_batch(file, "packed.");
}

/// A way to train a part of a model with two blocks, and the lowest group with a trained parameter.
struct Part {
  const char* title;
  Tuning tuning;
  int lowest;
};

Tuning only(std::set<std::string> modules) {
  return {.only = std::move(modules)};
}

Tuning adapters(const std::vector<std::string>& modules) {
  Tuning tuning{.adapters = true};
  for (const std::string& module : modules) tuning.modules["model." + module] = {.rank = 3, .factor = 2};
  return tuning;
}

std::vector<Part> parts() {
  return {{"everything", {}, 0},
          {"the last block", only({"model.layers.1"}), 2},
          {"the first block", only({"model.layers.0"}), 1},
          {"the MLP of the last block", only({"model.layers.1.mlp"}), 2},
          {"attention of the last block", only({"model.layers.1.self_attn"}), 2},
          {"the first norm of the last block", only({"model.layers.1.input_layernorm"}), 2},
          {"the last norm", only({"model.norm"}), 3},
          {"the table", only({"model.embed_tokens"}), 0},
          {"adapters of v in the last block", adapters({"layers.1.self_attn.v_proj"}), 2},
          {"adapters of down in the last block", adapters({"layers.1.mlp.down_proj"}), 2},
          {"adapters of o in the first block and of up in the last one",
           adapters({"layers.0.self_attn.o_proj", "layers.1.mlp.up_proj"}), 1}};
}

/// Returns the model with a trained part, with random weights that matter everywhere.
Architecture model_of(const std::string& name, const Tuning& tuning) {
  Architecture a = read_architecture(golden_folder(name));
  a.layers = 2;
  a.blocks.resize(2);
  a.tuning = tuning;
  return a;
}

TEST(Frozen, BackwardDoesWhatTheLayersState) {
  for (const char* name : {"llama3", "qwen3", "gemma3"}) {
    const HostBatch batch = golden_batch(name);
    for (const Part& part : parts()) {
      const Architecture a = model_of(name, part.tuning);
      EXPECT_EQ(lowest_trained_group(build_layout(a)), part.lowest) << part.title;
      for (const Recompute level : kLevels) {
        SCOPED_TRACE(std::string(name) + ", " + part.title + ", level " +
                     std::to_string(static_cast<int>(level)));
        Machine machine(a, batch, {.recompute = level});
        machine.source.initialise(3);
        machine.source.start_step();
        const MicroBatch uploaded = machine.upload_batch(batch);
        Profile profile(*machine.stream);
        machine.core.train(machine.source, *machine.stream, uploaded, machine.loss);
        machine.stream->synchronize();
        EXPECT_TRUE(machine.source.at_rest());
        const auto seen = profile.collect();
        const auto stated = operations(a, batch.tokens(), batch.max_length);
        const auto count = [&](auto&& counts) {
          std::int64_t sum = 0;
          for (const Operation& o : stated)
            sum += counts(o) ? 1 + o.again[static_cast<std::size_t>(level)] : 0;
          return sum;
        };
        const auto calls = [&seen](const std::string& op) {
          std::int64_t sum = 0;
          for (const auto& [label, row] : seen) {
            sum += label == op || label.ends_with("/" + op) ? row.calls : 0;
          }
          return sum;
        };
        const auto same = [&](OperationKind kind, const char* forward, const char* backward) {
          EXPECT_EQ(count([&](const Operation& o) { return o.kind == kind && !o.backward; }), calls(forward));
          EXPECT_EQ(count([&](const Operation& o) { return o.kind == kind && o.backward; }), calls(backward));
        };
        same(OperationKind::attention, "attention", "attention_backward");
        same(OperationKind::norm, "rms_norm", "rms_norm_backward");
        same(OperationKind::activation, "gated_activation", "gated_activation_backward");
        same(OperationKind::embedding, "embedding", "embedding_backward");
        EXPECT_EQ(count([](const Operation& o) { return o.kind == OperationKind::rotary; }),
                  calls("rope") + calls("normed_rope") + calls("normed_rope_backward"));
        for (const ops::GemmKind gemm_kind :
             {ops::GemmKind::forward, ops::GemmKind::dgrad, ops::GemmKind::wgrad}) {
          EXPECT_EQ(count([&](const Operation& o) {
                      return o.kind == OperationKind::gemm && o.gemm_kind == gemm_kind;
                    }),
                    machine.audit.counted(gemm_kind, DType::f32))
              << static_cast<int>(gemm_kind);
        }
        // Groups that backward does not reach are not acquired.
        std::set<int> expected;
        for (int g = std::max(1, part.lowest); g <= 2; ++g) expected.insert(g);
        EXPECT_EQ(machine.source.acquired_backward, expected);
      }
    }
  }
}

TEST(Frozen, WhatIsTrainedHasTheGradientsThatItHasWhenEverythingIs) {
  const Recipe recipes[] = {
      {},
      {.compute = DType::bf16},
      {.kind = RecipeKind::delayed, .compute = DType::bf16},
      {.kind = RecipeKind::current, .compute = DType::bf16, .scale_parts = true},
      {.kind = RecipeKind::block, .compute = DType::bf16, .gradient_format = DType::e4m3}};
  for (const char* name : {"llama3", "gemma3"}) {
    const HostBatch batch = golden_batch(name);
    for (const Recipe& recipe : recipes) {
      Machine whole(model_of(name, {}), batch, {.recipe = recipe});
      whole.source.initialise(3);
      const RunResult all = whole.run(batch, true);
      for (const Part& part : parts()) {
        if (!part.tuning.only) continue;
        for (const Recompute level : kLevels) {
          SCOPED_TRACE(std::string(name) + ", " + part.title);
          Machine machine(model_of(name, part.tuning), batch, {.recipe = recipe, .recompute = level});
          machine.source.initialise(3);
          const RunResult some = machine.run(batch, true);
          EXPECT_EQ(some.loss_sum, all.loss_sum);
          EXPECT_EQ(some.logits, all.logits);
          EXPECT_FALSE(some.gradients.empty());
          for (const auto& [tensor, gradient] : some.gradients) {
            EXPECT_TRUE(part.tuning.trains(tensor)) << tensor;
            EXPECT_EQ(gradient, all.gradients.at(tensor)) << tensor;
          }
          for (const auto& [tensor, gradient] : all.gradients) {
            EXPECT_EQ(part.tuning.trains(tensor), some.gradients.contains(tensor)) << tensor;
          }
        }
      }
    }
  }
}

// A new adapter changes nothing, so the lower adapters can be left out.
TEST(Frozen, AdaptersInTheUpperBlocksHaveTheGradientsThatTheyHaveBesideLowerOnes) {
  const HostBatch batch = golden_batch("llama3");
  const auto gradients = [&](const Tuning& tuning) {
    Machine machine(model_of("llama3", tuning), batch, {});
    machine.source.initialise(3);
    return machine.run(batch, true).gradients;
  };
  const auto all = gradients(adapters({"layers.0.self_attn.q_proj", "layers.1.mlp.gate_proj"}));
  const auto upper = gradients(adapters({"layers.1.mlp.gate_proj"}));
  EXPECT_EQ(upper.size(), 2u);
  for (const auto& [name, gradient] : upper) EXPECT_EQ(gradient, all.at(name)) << name;
}

TEST(Frozen, BlocksBelowTheLowestTrainedOneKeepNothingForBackward) {
  const auto bytes = [&](const Tuning& tuning, const std::string& name) {
    Architecture a = read_architecture(golden_folder("llama3"));
    a.layers = 4;
    a.blocks.resize(4);
    a.tuning = tuning;
    const std::unique_ptr<Device> dry = make_dry_device();
    Arena arena(*dry);
    const Transformer core(a, {}, arena, {.max_tokens = 256, .max_length = 256});
    std::size_t sum = 0;
    for (const Reservation& r : arena.reservations()) sum += r.name == name ? r.bytes : 0;
    return sum;
  };
  for (const char* name : {"activations/gate and up", "activations/block inputs", "activations/qkv"}) {
    const std::size_t all = bytes({}, name);
    // One trained block, and one buffer for the three blocks below it.
    EXPECT_EQ(bytes(only({"model.layers.3"}), name), all / 4 * 2) << name;
    EXPECT_EQ(bytes(only({"model.layers.1"}), name), all) << name;
    EXPECT_EQ(bytes(adapters({"layers.2.mlp.up_proj"}), name), all / 4 * 3) << name;
  }
}

// Only the gradient of a weight reads an input's FP8 copy in backward, and transposed copies.
TEST(Frozen, NoFp8CopiesAreKeptForTheGradientsOfFrozenWeights) {
  const auto bytes = [&](const Tuning& tuning, DeviceKind kind, RecipeKind recipe, const std::string& name) {
    Architecture a = read_architecture(golden_folder("llama3"));
    a.layers = 2;
    a.blocks.resize(2);
    a.tuning = tuning;
    const std::unique_ptr<Device> dry = make_dry_device({.stands_for = kind});
    Arena arena(*dry);
    Recipe r{.kind = recipe, .compute = DType::bf16};
    if (recipe == RecipeKind::block) r.gradient_format = DType::e4m3;
    const Transformer core(a, r, arena, {.max_tokens = 256, .max_length = 256});
    std::size_t sum = 0;
    for (const Reservation& reservation : arena.reservations())
      sum += reservation.name == name ? reservation.bytes : 0;
    return sum;
  };
  const Tuning lora = adapters({"layers.0.self_attn.q_proj", "layers.1.mlp.up_proj"});
  for (const DeviceKind kind : {DeviceKind::cpu, DeviceKind::cuda}) {
    for (const RecipeKind recipe : {RecipeKind::delayed, RecipeKind::current, RecipeKind::block}) {
      EXPECT_GT(bytes({}, kind, recipe, "activations/FP8 inputs"), 0u);
      EXPECT_EQ(bytes(lora, kind, recipe, "activations/FP8 inputs"), 0u);
      // The widest input is that of down, and the widest gradient that of gate and up, in bytes. With block
      // scales, their scales are added.
      const auto scales = [&](std::int64_t cols) {
        const bool block = recipe == RecipeKind::block;
        return block ? static_cast<std::size_t>(ops::scale_count(ops::Scaling::rows, 256, cols)) * 4 : 0u;
      };
      const std::int64_t width = read_architecture(golden_folder("llama3")).intermediate;
      EXPECT_EQ(bytes(lora, kind, recipe, "activations/FP8 scratch"),
                256 * static_cast<std::size_t>(width) + scales(width));
      EXPECT_EQ(bytes(lora, kind, recipe, "activations/FP8 gradients"),
                256 * static_cast<std::size_t>(2 * width) + scales(2 * width));
      const bool flipped = kind == DeviceKind::cuda || recipe == RecipeKind::block;
      EXPECT_EQ(bytes({}, kind, recipe, "activations/FP8 gradients") >
                    bytes(lora, kind, recipe, "activations/FP8 gradients"),
                flipped);
    }
  }
}

TEST(Frozen, OperationsOfATokenCountWhatIsTrainedWhatIsPassedThroughAndWhatIsOnlyRead) {
  Architecture a;
  a.vocabulary = 1000;
  a.hidden = 64;
  a.intermediate = 96;
  a.layers = 3;
  a.heads = {.q_heads = 4, .kv_heads = 2, .head_dim = 16};
  a.ropes = {{}};
  a.blocks.resize(3);
  const double block = 64 * 128 + 64 * 64 + 3 * 64 * 96 + 2 * 64, head = 64 * 1000 + 64;
  const double scores = 64.0 * 50;
  EXPECT_EQ(flops_per_token(a, 50), 6 * (3 * block + head) + 3 * 6 * scores);
  const double rank = 4 * (64 + 96);
  a.tuning = {.adapters = true, .modules = {{"model.layers.0.mlp.up_proj", {.rank = 4}}}};
  EXPECT_EQ(flops_per_token(a, 50), 4 * (3 * block + head) + 6 * rank + 3 * 6 * scores);
  EXPECT_EQ(trained_parameters(build_layout(a)), static_cast<std::int64_t>(rank));
  // No gradient passes through the blocks below the last one.
  a.tuning.modules = {{"model.layers.2.mlp.up_proj", {.rank = 4}}};
  EXPECT_EQ(flops_per_token(a, 50), 4 * (block + head) + 2 * 2 * block + 6 * rank + (6 + 2 * 2) * scores);
  a.tuning = only({"model.layers.2"});
  EXPECT_EQ(flops_per_token(a, 50), 6 * block + 4 * head + 2 * 2 * block + (6 + 2 * 2) * scores);
  EXPECT_EQ(trained_parameters(build_layout(a)), static_cast<std::int64_t>(block));
}

}  // namespace
}  // namespace octet::model::testing::frozen_test
