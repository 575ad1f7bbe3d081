// Several models in one process: settings of one do not affect the other.
#include "octet/runtime/instance.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/model/shapes.h"
#include "support/program.h"

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

/// Writes `value` over an element of a tensor in FOLDER/model.safetensors.
void poison(const std::string& folder, const std::string& tensor, float value) {
  std::string file = test::slurp(folder + "/model.safetensors");
  std::uint64_t header = 0;
  std::memcpy(&header, file.data(), sizeof header);
  const Json names = parse_json(file.substr(8, header), "header");
  ASSERT_EQ(names.at(tensor).at("dtype"), "F32");
  const auto begin = names.at(tensor).at("data_offsets").at(0).get<std::size_t>();
  std::memcpy(file.data() + 8 + header + begin + 5 * sizeof value, &value, sizeof value);
  test::spill(folder + "/model.safetensors", file);
}

// FP8 and NF4 would clip the value, and the run would train another model without a word.
TEST(Instance, AFrozenWeightThatIsNotFiniteIsNamed) {
  using precision::RecipeKind;
  struct Row {
    const char* name;
    RecipeKind kind;
    std::optional<store::Format> format;
    float value;
    bool refused;
  };
  const float infinity = INFINITY;
  const std::string tensor = "model.layers.1.mlp.down_proj.weight";
  for (const Row& row : {Row{"delayed", RecipeKind::delayed, {}, infinity, true},
                         {"delayed, NaN", RecipeKind::delayed, {}, NAN, true},
                         {"current", RecipeKind::current, {}, -infinity, true},
                         {"block", RecipeKind::block, {}, infinity, true},
                         {"NF4", RecipeKind::none, store::Format::nf4, infinity, true},
                         {"NF4 and FP8", RecipeKind::delayed, store::Format::nf4, infinity, true},
                         {"NF4 and blocks", RecipeKind::block, store::Format::nf4, NAN, true},
                         {"finite", RecipeKind::delayed, {}, 3e38f, false},
                         {"finite, NF4", RecipeKind::none, store::Format::nf4, 3e38f, false}}) {
    SCOPED_TRACE(row.name);
    const test::TemporaryFolder folder("frozen");
    const std::string model = folder / "model";
    std::filesystem::copy(OCTET_SOURCE_DIR "/tests/golden/models/qwen3", model);
    poison(model, tensor, row.value);
    InstanceOptions options = tiny();
    options.architecture = model::read_architecture(model);
    options.architecture.tuning.adapters = true;
    options.architecture.tuning.modules["model.layers.0.self_attn.q_proj"] = {.rank = 2, .factor = 1.0};
    options.store.recipe.kind = row.kind;
    options.store.recipe.compute = DType::bf16;
    if (row.kind == RecipeKind::block) options.store.recipe.gradient_format = DType::e4m3;
    options.store.fixed.format = row.format;
    Place place;
    std::string said;
    try {
      place.make(options)->load_weights(model);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      said = error.what();
    }
    EXPECT_EQ(said.find("a frozen weight is not finite") != std::string::npos, row.refused) << said;
    EXPECT_EQ(said.find("tensor '" + tensor + "' of " + model) != std::string::npos, row.refused) << said;
  }
}

}  // namespace
}  // namespace octet::runtime::instance_test
