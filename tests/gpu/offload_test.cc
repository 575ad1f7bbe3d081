// Optimizer state in pinned host memory: copies, clears and kernels can access it, updates give the same bits
// as in device memory, and saves include it.
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/device/device.h"
#include "octet/device/host_copies.h"
#include "octet/model/shapes.h"
#include "octet/ops/elementwise.h"
#include "octet/plan/memory.h"
#include "octet/store/hashes.h"
#include "octet/train/engine.h"
#include "octet/train/fit.h"

namespace octet::offload_test {
namespace {

constexpr std::size_t kMany = (std::size_t{96} << 20) + 512;  // mapped here; the driver allocates less

TEST(PinnedMemory, IsCopiedClearedAndReadByKernelsLikeTheDevices) {
  const auto device = make_cuda_device(0);
  const auto stream = device->make_stream({.name = "test"});
  for (const std::size_t bytes : {std::size_t{8192}, kMany}) {
    Arena arena(*device);
    auto* there = arena.reserve_as<float>("there", bytes / 4);
    auto* pinned = arena.reserve_as<float>("pinned", bytes / 4, MemoryKind::pinned);
    auto* other = arena.reserve_as<float>("other", bytes / 4, MemoryKind::pinned);
    const auto n = static_cast<std::int64_t>(bytes / 4);
    EXPECT_TRUE(device->host_reaches(pinned) && device->host_reaches(pinned + n - 1));
    EXPECT_FALSE(device->host_reaches(there));
    // Kernels and clears.
    ops::fill(*stream, pinned, 3.0f, n);
    stream->synchronize();
    EXPECT_TRUE(pinned[0] == 3.0f && pinned[n - 1] == 3.0f);
    device->zero(*stream, pinned + 1, bytes - 8);
    stream->synchronize();
    EXPECT_TRUE(pinned[0] == 3.0f && pinned[1] == 0 && pinned[n - 2] == 0 && pinned[n - 1] == 3.0f);
    // Every direction of copies, in the order of the stream.
    ops::fill(*stream, pinned, 5.0f, n);
    device->copy(*stream, there, pinned, bytes);
    ops::fill(*stream, pinned, 6.0f, n);
    device->copy_to_host(*stream, other, pinned, bytes);
    device->copy(*stream, pinned, there, bytes);
    std::vector<float> seen(static_cast<std::size_t>(n), 0.0f), more(static_cast<std::size_t>(n), 7.0f);
    device->copy_to_host(*stream, seen.data(), pinned, bytes);
    stream->synchronize();
    EXPECT_TRUE(other[0] == 6.0f && other[n - 1] == 6.0f);
    EXPECT_TRUE(seen.front() == 5.0f && seen.back() == 5.0f);
    device->copy_to_device(*stream, pinned, more.data(), bytes);
    device->copy_to_host(*stream, seen.data(), pinned, bytes);
    stream->synchronize();
    EXPECT_TRUE(seen.front() == 7.0f && seen.back() == 7.0f);
    HostMirror mirror(*device);
    const TensorSlice slice{
        .name = "x", .dtype = DType::f32, .shape = {n}, .begin = 0, .count = n, .data = pinned};
    EXPECT_EQ(mirror.fetch({slice})[0].data, pinned);
    EXPECT_EQ(HostMirror::bytes_for({slice}, *device), 0u);
  }
}

struct Case {
  const char* name;
  precision::RecipeKind kind;
  DType compute;
  store::Storage storage;
};
const Case kCases[] = {
    {"fp32", precision::RecipeKind::none, DType::f32, {}},
    {"bf16", precision::RecipeKind::none, DType::bf16, {}},
    {"FP8, delayed", precision::RecipeKind::delayed, DType::bf16, {}},
    {"FP8, current", precision::RecipeKind::current, DType::bf16, {}},
    {"8-bit moments", precision::RecipeKind::delayed, DType::bf16, {DType::f32, DType::f32, DType::u8}},
    {"all bf16", precision::RecipeKind::none, DType::bf16, {DType::bf16, DType::bf16, DType::bf16}}};

runtime::InstanceOptions options_of(const Case& c, store::Home home) {
  runtime::InstanceOptions o;
  o.architecture = model::find_shape("llama-3.2-1b");
  o.architecture.layers = 2;
  o.architecture.blocks.resize(2);
  o.architecture.vocabulary = 4096;
  // The fp32 matrices of a block exceed the size up to which the driver allocates pinned memory.
  o.architecture.hidden = 1024, o.architecture.intermediate = 5120;
  o.architecture.heads = {.q_heads = 16, .kv_heads = 4, .head_dim = 64};
  o.reproducible = true;
  o.store.recipe = {.kind = c.kind, .compute = c.compute};
  o.store.storage = c.storage;
  o.store.state_home = home;
  o.transformer.gradient_dtype = c.storage.gradients;
  o.transformer.max_tokens = o.transformer.max_length = 128;
  o.snapshot = true;
  return o;
}

/// A model in training on the GPU.
struct Training {
  explicit Training(const Case& c, store::Home home)
      : engine(*device, *job, *data, options_of(c, home)), hashes(engine.store(), more) {}
  void steps(int first, int count) {
    for (int s = first; s < first + count; ++s) {
      runtime::HostBatch batch;
      batch.cu_seqlens.push_back(0);
      std::vector<std::int32_t> ids(128);
      std::iota(ids.begin(), ids.end(), 17 * s);
      runtime::add_document(batch, ids, ids);
      engine.begin(1);
      engine.micro_batch(batch);
      losses.push_back(engine.finish(1e-3).loss_sum);
    }
  }
  std::vector<TensorSlice> owned() {
    engine.store().synchronize(engine.compute());
    return engine.store().owned_slices();
  }

  std::unique_ptr<Device> device = make_cuda_device(0);
  std::unique_ptr<comm::Job> job = comm::make_self_job();
  std::unique_ptr<comm::Collectives> data =
      job->collectives(comm::Mesh(1).group("data", 0), *device, comm::Carrier::automatic);
  train::Engine engine;
  Arena more{*device};
  store::Hashes hashes;
  std::vector<double> losses;
};

using State = std::map<std::string, std::string>;

State bytes_of(const std::vector<TensorSlice>& slices) {
  State state;
  for (const TensorSlice& s : slices)
    state[s.name] += std::string(static_cast<const char*>(s.data),
                                 static_cast<std::size_t>(s.elements()) * size_of(s.dtype));
  return state;
}

/// Compares all entries of `a`. A snapshot also has scales of activations.
void expect_same(const State& a, const State& b, const std::string& what) {
  EXPECT_LE(a.size(), b.size()) << what;
  for (const auto& [name, bytes] : a)
    EXPECT_TRUE(b.contains(name) && b.at(name) == bytes) << what << ": " << name;
}

TEST(StateInHostMemory, TrainsWithTheSameBitsAndIsSavedAndHashedAlike) {
  for (const Case& c : kCases) {
    Training off(c, store::Home::device), on(c, store::Home::pinned);
    EXPECT_GT(plan::memory_of(on.engine.arena()).state_of_host(), std::size_t{1} << 20) << c.name;
    std::size_t under_way = 0;
    for (const Reservation& r : on.engine.arena().reservations()) {
      if (r.name == "state under way") under_way += r.bytes;
    }
    EXPECT_EQ(off.engine.arena().bytes() - on.engine.arena().bytes() + under_way,
              plan::memory_of(on.engine.arena()).state_of_host())
        << c.name;
    for (Training* t : {&off, &on}) {
      t->engine.initialise(3);
      t->steps(0, 4);
    }
    EXPECT_EQ(off.losses, on.losses) << c.name;
    const State whole = bytes_of(off.owned());
    expect_same(whole, bytes_of(on.owned()), c.name);
    // A copy that runs concurrently with the next step holds the state before this step.
    const std::vector<TensorSlice> copied = on.engine.take_snapshot();
    on.steps(4, 1);
    on.engine.snapshot().wait();
    expect_same(whole, bytes_of(copied), std::string(c.name) + ", copied beside a step");
    off.steps(4, 1);
    EXPECT_TRUE(off.hashes.state(off.engine.compute()) == on.hashes.state(on.engine.compute())) << c.name;
  }
}

}  // namespace
}  // namespace octet::offload_test
