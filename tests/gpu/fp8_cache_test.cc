// Compares decoding on the GPU from an E4M3 cache with the CPU side: the output and the cache.
#include <algorithm>

#include "gpu/device_arrays.h"
#include "octet/ops/attention.h"

namespace octet::ops::fp8_cache_test {
namespace {

constexpr DType dtypes[] = {DType::f32, DType::bf16};

struct Case {
  Heads heads;
  DType dtype = DType::bf16;
  std::int64_t capacity = 400;
  float soft_cap = 0.0f;
  std::int64_t window = 0;
  std::int64_t ld_margin = 0;
  bool workspace = true;
  std::string name() const {
    return "heads " + std::to_string(heads.q_heads) + "/" + std::to_string(heads.kv_heads) + " of " +
           std::to_string(heads.head_dim) + ", capacity " + std::to_string(capacity) + ", window " +
           std::to_string(window) + ", margin " + std::to_string(ld_margin) + ", " +
           std::string(name_of(dtype));
  }
};

/// The number of new tokens of each of four slots in one call.
struct Pass {
  std::vector<std::int32_t> tokens;
  bool alone = false;
};

struct Left {
  HostArray out{0, DType::f32};
  std::vector<std::uint8_t> caches;  ///< codes and scales, compared bit by bit
};

Left decode(std::unique_ptr<Device> device, const Case& c, const std::vector<Pass>& passes) {
  Bench bench(std::move(device));
  constexpr std::int64_t slots = 4;
  const std::int64_t width = c.heads.q_heads * c.heads.head_dim, ld = c.heads.qkv_width() + c.ld_margin;
  const auto rows = static_cast<std::size_t>(slots * c.capacity * c.heads.kv_heads);
  const std::size_t codes = rows * static_cast<std::size_t>(c.heads.head_dim);
  void *keys = bench.room(codes), *values = bench.room(codes);
  auto* key_scales = static_cast<float*>(bench.room(rows * sizeof(float)));
  auto* value_scales = static_cast<float*>(bench.room(rows * sizeof(float)));
  std::mt19937 random(11);
  Left left{.out = HostArray(0, c.dtype), .caches = {}};
  std::int32_t next[slots] = {};
  for (const Pass& pass : passes) {
    std::vector<std::int32_t> slot_of, position;
    for (std::int32_t slot = 0; slot < slots; ++slot) {
      for (std::int32_t i = 0; i < pass.tokens[static_cast<std::size_t>(slot)]; ++i) {
        slot_of.push_back(slot);
        position.push_back(next[slot]++);
      }
    }
    const auto tokens = static_cast<std::int64_t>(slot_of.size());
    HostArray qkv(tokens * ld, c.dtype), out(tokens * width, c.dtype);
    qkv.fill(random, 1.5f);
    Workspace workspace;
    if (c.workspace) {
      workspace.bytes = cached_attention_workspace(bench.device(), c.heads, tokens, c.capacity);
      if (workspace.bytes > 0) workspace.data = bench.room(workspace.bytes);
    }
    void* to = bench.put(out);
    cached_attention(bench.stream(),
                     {.qkv = ConstMatrix(bench.put(qkv), c.dtype, tokens, c.heads.qkv_width(), ld),
                      .heads = c.heads,
                      .slots = bench.put(slot_of),
                      .positions = bench.put(position),
                      .k_cache = keys,
                      .v_cache = values,
                      .k_scale_inv = key_scales,
                      .v_scale_inv = value_scales,
                      .capacity = c.capacity,
                      .scale = 0.1f,
                      .soft_cap = c.soft_cap,
                      .window = c.window,
                      .out = Matrix{to, c.dtype, tokens, width, width},
                      .alone = pass.alone ? tokens : 0,
                      .workspace = workspace});
    bench.get(out, to);
    left.out.bytes.insert(left.out.bytes.end(), out.bytes.begin(), out.bytes.end());
  }
  const auto add = [&](const void* from, std::size_t bytes) {
    std::vector<std::uint8_t> here(bytes);
    bench.get(here.data(), from, bytes);
    left.caches.insert(left.caches.end(), here.begin(), here.end());
  };
  add(keys, codes);
  add(values, codes);
  add(key_scales, rows * sizeof(float));
  add(value_scales, rows * sizeof(float));
  return left;
}

void check_case(const Case& c, const std::vector<Pass>& passes) {
  const Left there = decode(make_cuda_device(), c, passes), here = decode(make_cpu_device(), c, passes);
  EXPECT_EQ(there.caches, here.caches) << c.name();
  const std::int64_t a_token = c.heads.q_heads * c.heads.head_dim;
  for (std::int64_t t = 0; t < here.out.count(); t += a_token) {
    const double far = relative_distance([&](std::int64_t i) { return there.out[t + i]; },
                                         [&](std::int64_t i) { return here.out[t + i]; }, a_token);
    ASSERT_LT(far, c.dtype == DType::bf16 ? 1e-2 : 1e-5) << c.name() << ", token " << t / a_token;
  }
  EXPECT_EQ(decode(make_cuda_device(), c, passes).out.bytes, there.out.bytes) << c.name() << ": two runs";
}

const std::vector<Pass> kPasses{{{129, 0, 70, 1}, false},
                                {{1, 0, 1, 1}, true},
                                {{1, 0, 1, 0}, true},
                                {{100, 1, 64, 33}, false},
                                {{1, 1, 1, 1}, true}};

TEST(GpuFp8Cache, AgreesWithTheCpuForEveryHead) {
  for (const DType dtype : dtypes) {
    for (const std::int64_t head_dim : {1, 33, 64, 72, 80, 96, 128, 256}) {
      for (const std::int64_t group : {1, 4, 7}) check_case({{2 * group, 2, head_dim}, dtype}, kPasses);
      check_case({.heads = {8, 2, head_dim}, .dtype = dtype, .soft_cap = 20.0f, .window = 50}, kPasses);
      if (testing::Test::HasFatalFailure()) return;
    }
    check_case({.heads = {40, 2, 64}, .dtype = dtype}, kPasses);
    check_case({.heads = {8, 2, 64}, .dtype = dtype, .ld_margin = 3}, kPasses);
  }
}

// With enough KV heads, a cache is split into two pieces or not at all, and the kernel has other block sizes.
TEST(GpuFp8Cache, ManyLoneTokensAgreeWithTheCpu) {
  const std::vector<Pass> passes{{{1400, 300, 700, 5}, false}, {{1, 1, 1, 1}, true}};
  for (const std::int64_t heads : {32, 64, 140}) {
    check_case({.heads = {heads, heads, 64}, .capacity = 1500}, passes);
    check_case({.heads = {heads, heads, 128}, .capacity = 1500, .window = 1000}, passes);
  }
  check_case({.heads = {140, 140, 256}, .capacity = 1500}, passes);
}

TEST(GpuFp8Cache, LongCachesAreReadInPieces) {
  const std::vector<Pass> passes{{{2900, 300, 0, 0}, false}, {{1, 1, 0, 0}, true}, {{1, 1, 0, 0}, true}};
  for (const DType dtype : dtypes) {
    for (const bool workspace : {true, false}) {
      check_case({.heads = {8, 2, 128}, .dtype = dtype, .capacity = 3000, .workspace = workspace}, passes);
    }
  }
}

}  // namespace
}  // namespace octet::ops::fp8_cache_test
