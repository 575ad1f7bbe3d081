// The state of a checkpoint, copied during the next step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "octet/base/tensor_slice.h"
#include "octet/comm/thread_ranks.h"
#include "octet/config/config.h"
#include "octet/model/shapes.h"
#include "octet/setup/model_options.h"
#include "octet/train/engine.h"

namespace octet::train::snapshot_test {
namespace {

struct How {
  int ranks = 1;
  int stage = 0;
  bool fp8 = false;  ///< delayed scaling: scales of activations are learned
  bool feedback = false;
  bool worker = false;  ///< streams run concurrently, as on a GPU
};

runtime::InstanceOptions options_of(const How& how) {
  config::Config config;
  config.deterministic = "true";
  config.bf16 = config.fp8 = how.fp8;
  config.fp8_amax_history_len = 4;
  config.zero_stage = how.stage;
  if (how.feedback) config.reduce_dtype = "int8", config.error_feedback = true;
  model::Architecture a = model::find_shape("tiny");
  a.layers = 2;
  a.blocks.resize(2);
  runtime::InstanceOptions options = setup::instance_options(config, a, 64, 64, 3);
  options.snapshot = true;
  return options;
}

void step(Engine& engine, int number) {
  std::vector<std::int32_t> ids;
  for (int i = 0; i < 40; ++i) ids.push_back((i * 37 + 11 * number + i * i + engine.job().rank()) % 1000);
  runtime::HostBatch batch;
  batch.cu_seqlens.push_back(0);
  runtime::add_document(batch, ids, ids);
  engine.begin(1);
  engine.micro_batch(batch);
  engine.finish(1e-2);
}

/// The bytes of slices by name and offset.
std::map<std::string, std::string> bytes_of(const std::vector<TensorSlice>& slices) {
  std::map<std::string, std::string> all;
  for (const TensorSlice& slice : slices) {
    each_run(slice, [&](std::int64_t begin, std::int64_t count, const void* data) {
      all[slice.name + " from " + std::to_string(begin)] =
          std::string(static_cast<const char*>(data), static_cast<std::size_t>(count) * size_of(slice.dtype));
    });
  }
  return all;
}

std::map<std::string, std::string> state_of(Engine& engine) {
  engine.store().synchronize(engine.compute());
  const bool first = engine.job().rank() == 0;
  return bytes_of(
      engine.store().owned_slices(first ? engine.activation_state() : std::vector<TensorSlice>{}));
}

void expect_earlier_state(const How& how) {
  comm::run_ranks_as_threads({.ranks = how.ranks, .compute_worker = how.worker},
                             [&](comm::Job& job, comm::Collectives& data, Device& device) {
                               Engine engine(device, job, data, options_of(how));
                               engine.initialise(7);
                               for (int i = 0; i < 6; ++i) {
                                 step(engine, 3 * i);
                                 const auto then = state_of(engine);
                                 const std::vector<TensorSlice> taken = engine.take_snapshot();
                                 step(engine, 3 * i + 1);
                                 step(engine, 3 * i + 2);
                                 engine.snapshot().wait();
                                 EXPECT_TRUE(bytes_of(taken) == then) << "turn " << i;
                                 EXPECT_FALSE(state_of(engine) == then)
                                     << "a step that changes nothing shows nothing";
                               }
                             });
}

TEST(Snapshot, HoldsTheStateThatLaterStepsChange) {
  for (const bool worker : {false, true}) {
    for (int stage = 0; stage < 4; ++stage) {
      expect_earlier_state({.ranks = 2, .stage = stage, .worker = worker});
      expect_earlier_state({.ranks = 2, .stage = stage, .fp8 = true, .worker = worker});
    }
    expect_earlier_state({.worker = worker});
    expect_earlier_state({.ranks = 2, .stage = 2, .feedback = true, .worker = worker});
  }
}

// State that a step writes before its update must not be left to an overlapping copy.
TEST(Snapshot, WhatABackwardPassWritesIsNotLeftToBeCopiedBesideIt) {
  comm::run_ranks_as_threads({.ranks = 2}, [](comm::Job& job, comm::Collectives& data, Device& device) {
    Engine engine(device, job, data, options_of({.ranks = 2, .stage = 2, .fp8 = true, .feedback = true}));
    const SnapshotSources places = engine.store().owned_places(engine.activation_state());
    const auto has = [](const std::vector<TensorSlice>& slices, const char* prefix) {
      return std::ranges::any_of(slices, [&](const TensorSlice& s) { return s.name.starts_with(prefix); });
    };
    EXPECT_TRUE(has(places.moving, "residuals/"));
    for (const TensorSlice& scales : engine.activation_state())
      EXPECT_TRUE(has(places.moving, scales.name.c_str())) << scales.name;
    EXPECT_FALSE(engine.activation_state().empty());
    EXPECT_FALSE(has(places.still, "residuals/"));
    EXPECT_TRUE(has(places.still, "exp_avg/"));
    EXPECT_EQ(places.host.size(), job.rank() == 0 ? 1u : 0u) << "the count of steps";
  });
}

}  // namespace
}  // namespace octet::train::snapshot_test
