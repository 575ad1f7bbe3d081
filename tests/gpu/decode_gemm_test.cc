// GEMMs of very few tokens, fused with the ops around them, on the GPU. They have the values of the CPU. In
// E4M3 they have the bits of separate ops on the GPU.
#include "octet/ops/decode_gemm.h"

#include <cstring>

#include "gpu/sides.h"
#include "octet/ops/block_quantize.h"
#include "octet/ops/gemm.h"
#include "octet/ops/rms_norm.h"
#include "octet/ops/rope.h"

namespace octet::ops::decode_gemm_test {
namespace {

using End = DecodeGemmArgs::End;

struct Shape {
  std::int64_t tokens, in;
  Heads heads;  ///< rows of the weight: queries, keys and values
};

struct Case {
  Shape shape;
  bool fp8 = false, normed = false, more = false;
  End end = End::plain;
};

/// The inputs of a case on a side.
struct Inputs {
  Inputs(Side& s, const Case& c) : side(s), given(c) {
    const std::int64_t out = c.shape.heads.qkv_width(), in = c.shape.in, tokens = c.shape.tokens;
    const std::int64_t half = c.shape.heads.head_dim / 2;
    args.x = dense(Tensor::random(DType::bf16, tokens, in, 1));
    const Matrix w = dense(Tensor::random(DType::bf16, out, in, 2, 0.05));
    args.weight = c.fp8 ? codes_of(w) : Operand{w.data, nullptr, DType::bf16, out, in};
    args.y = s.put(Tensor::random(DType::bf16, tokens, c.end == End::gated ? out / 2 : out, 3));
    args.end = c.end;
    args.eps = 1e-5f;
    if (c.normed) args.norm_weight = s.put(random_floats(in, 4));
    if (c.more) {
      args.one_plus_weight = true;
      args.activation = Activation::gelu_tanh;
      args.bias = s.put(random_floats(out, 5));
      if (c.end == End::plain) args.addend = s.put(Tensor::random(DType::bf16, tokens, out, 6));
    }
    if (c.end != End::rotated) return;
    args.heads = c.shape.heads;
    args.positions = s.put(std::vector<std::int32_t>{5, 0, 7, 3});
    args.cosine = s.put(random_floats(8 * half, 7));
    args.sine = s.put(random_floats(8 * half, 8));
  }
  Matrix dense(const Tensor& t) {
    std::vector<std::uint16_t> values;
    for (std::int64_t r = 0; r < t.rows(); ++r) {
      for (std::int64_t c = 0; c < t.cols(); ++c) values.push_back(to_bf16(static_cast<float>(t.at(r, c))));
    }
    return {side.put(values), DType::bf16, t.rows(), t.cols(), t.cols()};
  }
  Operand codes_of(const ConstMatrix& x) {
    const auto count = static_cast<std::size_t>(x.rows * x.cols);
    auto* codes = side.put(std::vector<std::uint8_t>(count, 0xEE));
    auto* scales = side.put(std::vector<float>(static_cast<std::size_t>(x.rows), -7.0f));
    block_quantize(side, {.x = x, .scaling = Scaling::whole_rows, .row = codes, .scale_inv = scales});
    return {.data = codes,
            .dtype = DType::e4m3,
            .rows = x.rows,
            .cols = x.cols,
            .scale_inv = scales,
            .scaling = Scaling::whole_rows};
  }
  /// Runs the separate ops and writes the result to `to`.
  void one_by_one(const Matrix& to) {
    ConstMatrix x = args.x;
    if (given.normed) {
      const Matrix normed = dense(Tensor::zeros(DType::bf16, x.rows, x.cols));
      rms_norm(side, {.residual = x,
                      .weight = args.norm_weight,
                      .eps = args.eps,
                      .one_plus_weight = args.one_plus_weight,
                      .out = normed});
      x = normed;
    }
    const bool gated = given.end == End::gated;
    const Matrix made = gated ? dense(Tensor::zeros(DType::bf16, x.rows, args.weight.rows)) : to;
    GemmArgs gemm_kind{
        .a = codes_of(x), .b = args.weight, .d = made, .addend = args.addend, .bias = args.bias};
    gemm_kind.workspace = side.workspace(gemm_workspace(side.device(), gemm_kind));
    gemm(side, gemm_kind);
    if (gated) gated_activation(side, {.gate_up = made, .activation = args.activation, .out = to});
    if (given.end != End::rotated) return;
    rope(side, {.qkv = to,
                .heads = args.heads,
                .positions = args.positions,
                .cosine = args.cosine,
                .sine = args.sine});
  }

  Side& side;
  Case given;
  DecodeGemmArgs args;
};

std::vector<Case> cases() {
  const Shape shapes[] = {{1, 4096, {.q_heads = 4, .kv_heads = 1, .head_dim = 128}},
                          {2, 1024, {.q_heads = 2, .kv_heads = 2, .head_dim = 16}},
                          {3, 5120, {.q_heads = 3, .kv_heads = 1, .head_dim = 96}},
                          {4, 2112, {.q_heads = 64, .kv_heads = 32, .head_dim = 64}},
                          {1, 14336, {.q_heads = 1, .kv_heads = 1, .head_dim = 32}},
                          {4, 8192, {.q_heads = 1, .kv_heads = 1, .head_dim = 32}},
                          {1, 1024, {.q_heads = 160, .kv_heads = 8, .head_dim = 64}}};
  std::vector<Case> all;
  for (const Shape& shape : shapes) {
    for (const bool fp8 : {false, true}) {
      for (const bool normed : {false, true}) {
        for (const bool more : {false, true}) {
          for (const End end : {End::plain, End::gated, End::rotated}) {
            all.push_back({.shape = shape, .fp8 = fp8, .normed = normed, .more = more, .end = end});
          }
        }
      }
    }
  }
  return all;
}

std::string name_of(const Case& c) {
  return std::to_string(c.shape.tokens) + " x " + std::to_string(c.shape.in) + (c.fp8 ? " e4m3" : " bf16") +
         (c.normed ? " normed" : "") + (c.more ? " more" : "") + " end " +
         std::to_string(static_cast<int>(c.end));
}

/// True if the kernel can run the case.
bool taken(Side& s, const Case& c, const DecodeGemmArgs& args) {
  const bool too_wide = c.normed && c.shape.in > 8192;
  const bool too_many = c.fp8 && c.shape.tokens > 2;
  if (s.gpu()) {
    EXPECT_EQ(has_decode_gemm(s.device(), args), !too_wide && !too_many);
  }
  return !too_wide;  // more tokens are supported but slower
}

TEST(GpuDecodeGemm, HasTheValuesOfTheCpu) {
  for (const Case& c : cases()) {
    SCOPED_TRACE(name_of(c));
    both(
        [&](Side& s) {
          Inputs in(s, c);
          if (taken(s, c, in.args)) decode_gemm(s, in.args);
          s.out("y", in.args.y);
        },
        // A norm value that rounds to the other neighbour differs by a sixteenth in E4M3.
        {.relative = c.fp8 && c.normed ? 1e-2 : 1e-5,
         .absolute = c.fp8 && c.normed ? 0.5 : 4e-2,
         .bf16_steps = 2.01});
    if (HasFatalFailure()) return;
  }
}

TEST(GpuDecodeGemm, InE4m3HasTheBitsOfTheOpsThatItPutsTogether) {
  const auto device = make_cuda_device();
  for (const Case& c : cases()) {
    if (!c.fp8) continue;
    SCOPED_TRACE(name_of(c));
    Side s(*device);
    Inputs in(s, c);
    if (!taken(s, c, in.args)) continue;
    // Dense, because the kernel of few tokens requires it.
    const Tensor before = Tensor::random(DType::bf16, in.args.y.rows, in.args.y.cols, 3);
    in.args.y = in.dense(before);
    if (c.more && c.end == End::plain) in.args.addend = in.dense(before);
    decode_gemm(s, in.args);
    s.out("", in.args.y);
    const Side::Output together = s.take();
    const Matrix other = in.dense(before);
    in.one_by_one(other);
    s.out("", other);
    const Side::Output apart = s.take();
    EXPECT_EQ(together.bytes, apart.bytes);
  }
}

}  // namespace
}  // namespace octet::ops::decode_gemm_test
