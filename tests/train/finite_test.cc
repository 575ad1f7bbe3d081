// Master weights that are not finite are detected on their rank, at every stage and in every storage format.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "octet/comm/thread_ranks.h"
#include "octet/config/config.h"
#include "octet/model/shapes.h"
#include "octet/setup/model_options.h"
#include "octet/store/hashes.h"
#include "octet/train/engine.h"

namespace octet::train::finite_test {
namespace {

void put(const TensorSlice& slice, std::int64_t element, float value) {
  if (slice.dtype == DType::f32) {
    static_cast<float*>(slice.data)[element] = value;
  } else {
    static_cast<std::uint16_t*>(slice.data)[element] = to_bf16(value);
  }
}

TEST(FiniteMasters, OneValueOfAnyTensorIsEnough) {
  for (const int ranks : {1, 2}) {
    for (const int stage : {0, 1, 3}) {
      for (const char* storage : {"fp32", "bf16"}) {
        config::Config config;
        config.deterministic = "true";
        config.bf16 = true;
        config.param_dtype = config.grad_dtype = config.optim_dtype = storage;
        config.zero_stage = stage;
        model::Architecture a = model::find_shape("tiny");
        a.layers = 1;
        a.blocks.resize(1);
        comm::run_ranks_as_threads({.ranks = ranks}, [&](comm::Job& job, comm::Collectives& data,
                                                         Device& device) {
          Engine engine(device, job, data, setup::instance_options(config, a, 16, 16, 1));
          engine.initialise(7);
          const auto finite = [&] {
            return job.all_min(store::Hashes::masters_are_finite(engine.store(), engine.compute()) ? 1 : 0) ==
                   1;
          };
          EXPECT_TRUE(finite());
          for (const float wrong : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
            const auto slices = engine.store().owned_slices();
            for (std::size_t i = 0; i < slices.size(); ++i) {
              const TensorSlice& slice = slices[i];
              const bool parameter = slice.name.find('/') == std::string::npos && slice.elements() > 0;
              if (ranks > 1 && (i > 3 || !parameter)) break;  // slices differ by rank; calls must not
              if (!parameter) continue;
              put(slice, slice.count - 1, wrong);
              EXPECT_FALSE(finite()) << slice.name << " at stage " << stage;
              put(slice, slice.count - 1, 0.5f);
              EXPECT_TRUE(finite()) << slice.name;
            }
          }
        });
      }
    }
  }
}

TEST(FiniteMasters, AValueInTheShardOfOneRankStopsAllRanks) {
  for (int stage = 0; stage < 4; ++stage) {
    for (const int wrong_rank : {0, 1}) {
      SCOPED_TRACE("stage " + std::to_string(stage) + ", rank " + std::to_string(wrong_rank));
      config::Config config;
      config.deterministic = "true";
      config.zero_stage = stage;
      model::Architecture a = model::find_shape("tiny");
      a.layers = 1;
      a.blocks.resize(1);
      comm::run_ranks_as_threads({.ranks = 2}, [&](comm::Job& job, comm::Collectives& data, Device& device) {
        Engine engine(device, job, data, setup::instance_options(config, a, 16, 16, 1));
        engine.initialise(7);
        for (const TensorSlice& slice : engine.store().owned_slices()) {
          if (job.rank() != wrong_rank || slice.count == 0) continue;
          put(slice, 0, std::nanf(""));
          break;
        }
        const bool mine = store::Hashes::masters_are_finite(engine.store(), engine.compute());
        EXPECT_EQ(mine, job.rank() != wrong_rank);
        EXPECT_EQ(job.all_min(mine ? 1 : 0), 0);
      });
    }
  }
}

}  // namespace
}  // namespace octet::train::finite_test
