// Several models in one process: what one is told does not reach the other.
#include "octet/runtime/instance.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "octet/base/error.h"
#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/model/shapes.h"

namespace octet::runtime::instance_test {
namespace {

InstanceOptions tiny() {
  InstanceOptions o;
  o.architecture = model::find_shape("tiny");
  o.architecture.layers = 1;
  o.architecture.blocks.resize(1);
  o.store.recipe.compute = DType::f32;
  o.transformer.max_tokens = 16;
  o.transformer.max_length = 16;
  return o;
}

struct Place {
  std::unique_ptr<Device> device = make_cpu_device({.threads = 1});
  std::unique_ptr<comm::Job> job = comm::make_self_job();
  std::unique_ptr<comm::Collectives> data =
      job->collectives(comm::Mesh(1).group("data", 0), *device, comm::Carrier::automatic);
  std::unique_ptr<Instance> make(const InstanceOptions& options) {
    return std::make_unique<Instance>(*device, *job, *data, options);
  }
};

TEST(Instance, EachHasItsOwnWordOnReproducibleKernels) {
  Place place;
  InstanceOptions options = tiny();
  options.reproducible = false;
  const auto first = place.make(options);
  options.reproducible = true;
  const auto second = place.make(options);
  EXPECT_FALSE(first->compute().reproducible());
  EXPECT_TRUE(second->compute().reproducible());
  options.reproducible.reset();
  EXPECT_TRUE(place.make(options)->compute().reproducible()) << "as a CPU is by itself";
  EXPECT_FALSE(first->compute().reproducible());
}

TEST(Instance, WhatIsLeftOpenFollowsTheDevice) {
  Place gpu{.device = make_dry_device({.stands_for = DeviceKind::cuda})};
  gpu.data = gpu.job->collectives(comm::Mesh(1).group("data", 0), *gpu.device, comm::Carrier::automatic);
  const auto open = gpu.make(tiny());
  EXPECT_FALSE(open->compute().reproducible());
  EXPECT_FALSE(open->options().store.deterministic);
  InstanceOptions asked = tiny();
  asked.reproducible = true;
  const auto told = gpu.make(asked);
  EXPECT_TRUE(told->compute().reproducible());
  EXPECT_TRUE(told->options().store.deterministic);
}

TEST(Instance, MemoryIsAddedUpByTheFirstPartOfItsNames) {
  Place place;
  const auto model = place.make(tiny());
  std::size_t sum = 0;
  std::set<std::string> names;
  std::size_t before = SIZE_MAX;
  for (const MemoryRow& row : model->memory()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_EQ(row.name.find('/'), std::string::npos);
    EXPECT_LE(row.bytes, before);
    before = row.bytes;
    sum += row.bytes;
  }
  EXPECT_EQ(sum, model->arena().bytes());
  EXPECT_TRUE(names.contains("optimizer"));
}

TEST(Instance, WeightsThatAreNotThereAreNamed) {
  Place place;
  InstanceOptions options = tiny();
  const std::string folder = OCTET_SOURCE_DIR "/tests/golden/models/qwen3";
  const auto other = place.make(options);
  EXPECT_THROW(other->load_weights(folder), Error) << "of another shape";
  options.architecture = model::read_architecture(folder);
  const auto same = place.make(options);
  same->load_weights(folder);
  EXPECT_THROW(same->load_weights(folder + "/nothing"), Error);
}

}  // namespace
}  // namespace octet::runtime::instance_test
