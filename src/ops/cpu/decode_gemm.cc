// A GEMM of very few tokens as a sequence of the ops that it fuses.
#include "octet/ops/decode_gemm.h"

#include <vector>

#include "cpu/bf16_values.h"
#include "kernels.h"
#include "octet/ops/block_quantize.h"
#include "octet/ops/gemm.h"
#include "octet/ops/rms_norm.h"
#include "octet/ops/rope.h"

namespace octet::ops::cpu {

void decode_gemm(const DecodeGemmArgs& args);
void gemm(const GemmArgs& args);
std::size_t gemm_workspace(const GemmArgs& args);

namespace {

void multiply(const DecodeGemmArgs& a, const ConstMatrix& x, const Matrix& y) {
  GemmArgs gemm_args{.b = a.weight, .d = y, .addend = a.addend, .bias = a.bias, .b_stands = true};
  gemm_args.a = {.data = x.data, .dtype = DType::bf16, .rows = x.rows, .cols = x.cols};
  gemm_args.a_ld = x.ld == x.cols ? 0 : x.ld;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
  if (a.weight.dtype == DType::e4m3) {
    codes.resize(static_cast<std::size_t>(x.rows * x.cols));
    scales.resize(static_cast<std::size_t>(x.rows));
    block_quantize({.x = x, .scaling = Scaling::whole_rows, .row = codes.data(), .scale_inv = scales.data()});
    gemm_args.a = {.data = codes.data(),
                   .dtype = DType::e4m3,
                   .rows = x.rows,
                   .cols = x.cols,
                   .scale_inv = scales.data(),
                   .scaling = Scaling::whole_rows};
    gemm_args.a_ld = 0;
  }
  std::vector<std::uint8_t> room(gemm_workspace(gemm_args) + 64);
  gemm_args.workspace = {room.data(), room.size()};
  gemm(gemm_args);
}

}  // namespace

void decode_gemm(const DecodeGemmArgs& a) {
  const std::int64_t tokens = a.x.rows;
  Bf16Values normed(a.norm_weight == nullptr ? 0 : tokens, a.x.cols);
  if (a.norm_weight != nullptr) {
    rms_norm({.residual = a.x,
              .weight = a.norm_weight,
              .eps = a.eps,
              .one_plus_weight = a.one_plus_weight,
              .out = normed.matrix});
  }
  const ConstMatrix x = a.norm_weight == nullptr ? a.x : ConstMatrix(normed.matrix);
  if (a.end == DecodeGemmArgs::End::gated) {
    const Bf16Values both(tokens, a.weight.rows);
    multiply(a, x, both.matrix);
    return gated_activation({.gate_up = both.matrix, .activation = a.activation, .out = a.y});
  }
  multiply(a, x, a.y);
  if (a.end == DecodeGemmArgs::End::rotated) {
    rope({.qkv = a.y, .heads = a.heads, .positions = a.positions, .cosine = a.cosine, .sine = a.sine});
  }
}

}  // namespace octet::ops::cpu
