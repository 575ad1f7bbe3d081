// Compares a chain of GEMMs of one token in one kernel with the same GEMMs in sequence. Each GEMM reads the
// input that the chain computed, so only the order of sums differs.
#include "octet/ops/decode_gemm.h"

#include <array>
#include <cmath>
#include <cstring>

#include "gpu/sides.h"

namespace octet::ops::decode_chain_test {
namespace {

using End = DecodeGemmArgs::End;

struct Size {
  std::int64_t hidden, wide;
  Heads heads;
  bool more = false;  ///< biases, the other activation, norms with 1 + w
};

std::vector<std::uint8_t> random_codes(std::int64_t count, std::uint64_t seed) {
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(count));
  std::uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (std::uint8_t& code : codes) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    // Both signs, magnitudes from 1/4 to 3.75.
    code = static_cast<std::uint8_t>((state & 0x80) | (0x28 + (state >> 8) % 0x20));
  }
  return codes;
}

/// The GEMMs from the attention output of a block to the queries, keys and values of the next block.
struct Block {
  Block(Side& s, const Size& size)
      : side(s),
        heads_out(row(size.hidden, 1)),
        stream(row(size.hidden, 2)),
        after(row(size.hidden, 3)),
        mlp(row(size.wide, 4)),
        next(row(size.hidden, 5)),
        qkv(row(size.heads.qkv_width(), 6)) {
    const float* norm = s.put(random_floats(size.hidden, 7));
    gemms[0] = {.weight = weight(size.hidden, size.hidden, 11), .x = heads_out, .addend = stream, .y = after};
    gemms[1] = {.weight = weight(2 * size.wide, size.hidden, 12),
                .x = after,
                .norm_weight = norm,
                .eps = 1e-5f,
                .end = End::gated,
                .y = mlp};
    gemms[2] = {.weight = weight(size.hidden, size.wide, 13), .x = mlp, .addend = after, .y = next};
    gemms[3] = {.weight = weight(size.heads.qkv_width(), size.hidden, 14),
                .x = next,
                .norm_weight = norm,
                .eps = 1e-5f,
                .end = End::rotated,
                .heads = size.heads,
                .positions = s.put(std::vector<std::int32_t>{5}),
                .cosine = s.put(random_floats(8 * size.heads.head_dim / 2, 8)),
                .sine = s.put(random_floats(8 * size.heads.head_dim / 2, 9)),
                .y = qkv};
    if (!size.more) return;
    for (DecodeGemmArgs& a : gemms) {
      a.bias = s.put(random_floats(a.weight.rows, 10));
      a.one_plus_weight = true;
      a.activation = Activation::gelu_tanh;
    }
  }
  Matrix row(std::int64_t count, unsigned seed) {
    std::vector<std::uint16_t> values;
    for (const float x : random_floats(count, seed)) values.push_back(to_bf16(x));
    return {side.put(values), DType::bf16, 1, count, count};
  }
  Operand weight(std::int64_t out, std::int64_t in, unsigned seed) {
    std::vector<float> scales = random_floats(out, seed);
    for (float& scale : scales) scale = 0.02f * (1.5f + 0.5f * scale);
    return {.data = side.put(random_codes(out * in, seed)),
            .dtype = DType::e4m3,
            .rows = out,
            .cols = in,
            .scale_inv = side.put(scales),
            .scaling = Scaling::whole_rows};
  }
  std::span<const DecodeGemmArgs> first(std::size_t count) const { return {gemms.data(), count}; }
  Side::Output of(const Matrix& m) {
    side.out("", m);
    return side.take();
  }

  Side& side;
  Matrix heads_out, stream, after, mlp, next, qkv;
  std::array<DecodeGemmArgs, kDecodeChain> gemms;
};

/// Returns the number of values that differ by more than the rounding of sums explains: 1 % of a value, or 2
/// % of the root mean square of all values.
int apart(const Side::Output& got, const Side::Output& want) {
  double squares = 0;
  for (std::int64_t c = 0; c < want.cols; ++c) squares += want.at(0, c) * want.at(0, c);
  const double size = std::sqrt(squares / static_cast<double>(want.cols));
  int count = size > 0 ? 0 : 1;
  for (std::int64_t c = 0; c < want.cols; ++c) {
    if (!(std::abs(got.at(0, c) - want.at(0, c)) <= 0.01 * std::abs(want.at(0, c)) + 0.02 * size)) ++count;
  }
  return count;
}

std::vector<Size> sizes() {
  return {{4096, 14336, {.q_heads = 32, .kv_heads = 8, .head_dim = 128}},
          {2560, 9728, {.q_heads = 32, .kv_heads = 8, .head_dim = 128}, true},
          {2048, 5632, {.q_heads = 32, .kv_heads = 4, .head_dim = 64}},
          {5120, 8192, {.q_heads = 40, .kv_heads = 8, .head_dim = 128}, true},
          {8192, 7168, {.q_heads = 64, .kv_heads = 8, .head_dim = 128}},
          {5120, 27648, {.q_heads = 40, .kv_heads = 8, .head_dim = 128}}};
}

TEST(GpuDecodeChain, HasTheValuesOfItsGemmsOneByOne) {
  const auto device = make_cuda_device();
  int taken = 0;
  for (const Size& size : sizes()) {
    SCOPED_TRACE(size.hidden);
    Side s(*device);
    Block block(s, size);
    for (std::size_t count = 2; count <= kDecodeChain; ++count) {
      if (!has_decode_chain(*device, block.first(count))) continue;
      ++taken;
      decode_chain(s, block.first(count));
      for (std::size_t g = 0; g < count; ++g) {
        DecodeGemmArgs alone = block.gemms[g];
        alone.y = block.row(alone.y.cols, 77);
        decode_gemm(s, alone);
        EXPECT_EQ(apart(block.of(block.gemms[g].y), block.of(alone.y)), 0) << count << ", " << g;
      }
    }
  }
  // On Hopper, all chains are supported.
  EXPECT_TRUE(taken == 0 || taken == 3 * static_cast<int>(sizes().size())) << taken;
}

// Exchange words are reset after each chain, for any sequence of chains, and sums have a fixed order.
TEST(GpuDecodeChain, HasTheSameBitsEachTime) {
  const auto device = make_cuda_device();
  for (const Size& size : {sizes()[0], sizes()[2]}) {
    Side s(*device);
    Block block(s, size);
    if (!has_decode_chain(*device, block.first(2)))
      GTEST_SKIP() << "chains are for GPUs of the Hopper generation";
    std::vector<std::byte> once[kDecodeChain + 1];
    for (int turn = 0; turn < 60; ++turn) {
      const std::size_t count =
          std::array<std::size_t, 7>{4, 2, 3, 3, 4, 4, 2}[static_cast<std::size_t>(turn) % 7];
      decode_chain(s, block.first(count));
      const std::vector<std::byte> now = block.of(block.gemms[count - 1].y).bytes;
      if (once[count].empty()) once[count] = now;
      ASSERT_EQ(now, once[count]) << turn << ", " << count;
    }
    // The stream is overwritten as in the model. The same token is processed repeatedly, without a pause.
    block.gemms[2].y = block.stream;
    block.gemms[3].x = block.stream;
    const Side::Output stream = block.of(block.stream);
    std::vector<std::byte> first;
    for (int turn = 0; turn < 3; ++turn) {
      device->copy_to_device(s, block.stream.data, stream.bytes.data(), stream.bytes.size());
      for (int i = 0; i < 50; ++i) decode_chain(s, block.first(4));
      const std::vector<std::byte> now = block.of(block.qkv).bytes;
      if (first.empty()) first = now;
      ASSERT_EQ(now, first) << turn;
    }
  }
}

TEST(GpuDecodeChain, TakesWhatFitsItsTilesAlone) {
  const auto device = make_cuda_device();
  Side s(*device);
  Block block(s, sizes()[2]);
  if (!has_decode_chain(*device, block.first(4)))
    GTEST_SKIP() << "chains are for GPUs of the Hopper generation";
  EXPECT_FALSE(has_decode_chain(*device, block.first(1)));
  // Unsupported: an input that is not the previous output, an addend from other threads, and a bf16 weight.
  Block other(s, sizes()[2]);
  const DecodeGemmArgs strange[] = {block.gemms[0], other.gemms[1]};
  EXPECT_FALSE(has_decode_chain(*device, strange));
  DecodeGemmArgs adds[] = {block.gemms[1], block.gemms[2]};
  EXPECT_TRUE(has_decode_chain(*device, adds));
  adds[1].addend = {block.mlp.data, DType::bf16, 1, 2048, 2048};
  EXPECT_FALSE(has_decode_chain(*device, adds));
  // Queries, keys and values before another GEMM.
  DecodeGemmArgs rotated[] = {block.gemms[3], block.gemms[0]};
  rotated[1].weight = block.weight(2048, 2560, 15);
  rotated[1].x = block.qkv;
  EXPECT_EQ(block.qkv.cols, 2560);
  EXPECT_FALSE(has_decode_chain(*device, rotated));
  DecodeGemmArgs bf16[] = {block.gemms[0], block.gemms[1]};
  bf16[1].weight.dtype = DType::bf16;
  EXPECT_FALSE(has_decode_chain(*device, bf16));
  ::setenv("OCTETRUN_LONE_CHAIN", "never", 1);
  EXPECT_FALSE(has_decode_chain(*device, block.first(4)));
  ::unsetenv("OCTETRUN_LONE_CHAIN");
}

}  // namespace
}  // namespace octet::ops::decode_chain_test
