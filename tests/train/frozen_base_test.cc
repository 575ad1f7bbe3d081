// A frozen base with adapters in the training engine. The base is stored once and is not saved. Every stage
// trains the adapters to the same bits.
#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "octet/base/files.h"
#include "octet/comm/thread_ranks.h"
#include "octet/feed/loader.h"
#include "octet/model/layout.h"
#include "octet/model/shapes.h"
#include "octet/plan/memory.h"
#include "octet/train/engine.h"

namespace octet::train::frozen_base_test {
namespace {

struct Found {
  std::map<std::pair<std::string, std::int64_t>, std::string> state;  ///< bytes by tensor and first element
  double loss = 0, norm = 0;
  std::size_t fixed = 0;
};

/// Shape of the adapters, and the number of blocks with adapters, counted from the last of three.
struct Variant {
  model::AdapterShape shape{.rank = 4, .factor = 2.0};
  int blocks = 3;
};

runtime::InstanceOptions options_of(int stage, precision::RecipeKind kind, const Variant& variant = {}) {
  runtime::InstanceOptions o;
  o.architecture = model::find_shape("tiny");
  o.architecture.layers = 3;
  o.architecture.blocks.resize(3);
  o.architecture.tuning.adapters = true;
  for (const char* module : {"self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj"}) {
    for (int layer = 3 - variant.blocks; layer < 3; ++layer) {
      const std::string name = "model.layers." + std::to_string(layer) + "." + module;
      o.architecture.tuning.modules[name] = variant.shape;
    }
  }
  o.store.stage = stage;
  o.store.recipe.kind = kind;
  o.store.recipe.compute = DType::bf16;
  o.transformer.max_tokens = o.transformer.max_length = 48;
  return o;
}

/// Runs two steps on each rank.
Found train(int ranks, const runtime::InstanceOptions& options) {
  std::mutex mutex;
  Found all;
  comm::run_ranks_as_threads({.ranks = ranks}, [&](comm::Job& job, comm::Collectives& data, Device& device) {
    Engine engine(device, job, data, options);
    engine.initialise(3);
    store::StepResult result;
    for (int step = 0; step < 2; ++step) {
      runtime::HostBatch batch;
      batch.cu_seqlens.push_back(0);
      std::vector<std::int32_t> ids;
      for (int i = 0; i < 48; ++i) ids.push_back((i * 37 + 11 * job.rank() + step) % 900);
      runtime::add_document(batch, ids, ids);
      engine.begin(1);
      engine.micro_batch(batch);
      result = engine.finish(1e-2);
    }
    engine.store().synchronize(engine.compute());
    const auto slices = engine.store().owned_slices();
    const std::lock_guard lock(mutex);
    for (const TensorSlice& s : slices) {
      for (std::int64_t i = 0; i < s.count; ++i) {
        const auto width = size_of(s.dtype);
        all.state[{s.name, s.begin + i}] = {
            static_cast<const char*>(s.data) + static_cast<std::size_t>(i) * width, width};
      }
    }
    all.loss = result.loss_sum, all.norm = result.grad_norm;
    for (const Reservation& r : engine.arena().reservations()) {
      if (r.name == "parameters/fixed" && job.rank() == 0) all.fixed += r.bytes;
    }
  });
  return all;
}

TEST(FrozenBase, EveryStageTrainsTheAdaptersToTheSameBits) {
  using precision::RecipeKind;
  for (const RecipeKind kind : {RecipeKind::none, RecipeKind::delayed}) {
    for (const int ranks : {1, 2, 3}) {
      if (kind != RecipeKind::none && ranks != 2) continue;
      const Found reference = train(ranks, options_of(0, kind));
      EXPECT_GT(reference.norm, 0.0);
      bool moved = false;
      for (const auto& [element, bytes] : reference.state) {
        const std::string& name = element.first;
        EXPECT_TRUE(name.find(".lora_") != std::string::npos || name == "optimizer/step") << name;
        if (name.find("/") == std::string::npos && name.find("lora_B") != std::string::npos) {
          moved = moved || bytes != std::string(bytes.size(), '\0');
        }
      }
      EXPECT_TRUE(moved);
      for (const int stage : {1, 2, 3}) {
        const Found found = train(ranks, options_of(stage, kind));
        EXPECT_TRUE(found.state == reference.state) << ranks << " ranks, stage " << stage;
        EXPECT_EQ(found.loss, reference.loss) << ranks << " ranks, stage " << stage;
        EXPECT_EQ(found.norm, reference.norm) << ranks << " ranks, stage " << stage;
        const bool cut = stage == 3 && ranks > 1;
        EXPECT_EQ(found.fixed < reference.fixed, cut) << ranks << " ranks, stage " << stage;
      }
    }
  }
}

// Dropout, magnitudes, and blocks that backward does not reach.
TEST(FrozenBase, EveryKindOfAdapterHasTheSameBitsAtEveryStage) {
  const model::AdapterShape dropped{.rank = 4, .factor = 2.0, .dropout = 0.1};
  const model::AdapterShape dora{.rank = 4, .factor = 2.0, .dora = true};
  const model::AdapterShape plain{.rank = 4, .factor = 2.0};
  std::vector<std::map<std::pair<std::string, std::int64_t>, std::string>> states;
  for (const Variant& variant : {Variant{plain}, Variant{dropped}, Variant{dora}, Variant{plain, 1}}) {
    const auto kind = precision::RecipeKind::none;
    const Found reference = train(2, options_of(0, kind, variant));
    EXPECT_GT(reference.norm, 0.0);
    for (const auto& other : states) EXPECT_NE(reference.state, other);
    states.push_back(reference.state);
    for (const int stage : {1, 2, 3}) {
      for (const bool overlap : {true, false}) {
        runtime::InstanceOptions options = options_of(stage, kind, variant);
        options.store.overlap = overlap;
        if (stage == 2) options.transformer.recompute = model::Recompute::full;
        const Found found = train(2, options);
        EXPECT_TRUE(found.state == reference.state) << "stage " << stage;
        EXPECT_EQ(found.loss, reference.loss) << "stage " << stage;
      }
    }
  }
}

}  // namespace
}  // namespace octet::train::frozen_base_test
