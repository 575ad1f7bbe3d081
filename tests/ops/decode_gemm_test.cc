// GEMMs of very few tokens with their fused ops: values against float64, bits against the separate ops.
#include "octet/ops/decode_gemm.h"

#include <array>
#include <cstdlib>
#include <functional>
#include <limits>

#include "octet/base/error.h"
#include "octet/ops/block_quantize.h"
#include "octet/ops/gemm.h"
#include "octet/ops/rms_norm.h"
#include "octet/ops/rope.h"
#include "ops/tensor.h"
#include "support/float64.h"

namespace octet::ops::decode_gemm_test {
namespace {

using End = DecodeGemmArgs::End;

constexpr std::int64_t kIn = 72;
constexpr Heads kHeads{.q_heads = 2, .kv_heads = 1, .head_dim = 16};
constexpr std::int64_t kOut = 64;  // outputs of kHeads' queries, keys and values

std::vector<float> floats(std::int64_t count, std::uint64_t seed) {
  std::vector<float> all(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = normal(seed, RandomUse::data, i);
  return all;
}

/// A weight in bf16 and in E4M3.
struct Weights {
  Weights()
      : values(Tensor::random(DType::bf16, kOut, kIn, 1)),
        dense(static_cast<std::size_t>(kOut * kIn)),
        codes(static_cast<std::size_t>(kOut * kIn)),
        scales(static_cast<std::size_t>(kOut)) {
    for (std::int64_t r = 0; r < kOut; ++r) {
      for (std::int64_t c = 0; c < kIn; ++c) {
        dense[static_cast<std::size_t>(r * kIn + c)] = to_bf16(static_cast<float>(values.at(r, c)));
      }
    }
  }
  Operand operand(Stream& stream, bool fp8) {
    if (!fp8) return {.data = dense.data(), .dtype = DType::bf16, .rows = kOut, .cols = kIn};
    block_quantize(stream, {.x = values.matrix(),
                            .scaling = Scaling::whole_rows,
                            .row = codes.data(),
                            .scale_inv = scales.data()});
    stream.synchronize();
    return {.data = codes.data(),
            .dtype = DType::e4m3,
            .rows = kOut,
            .cols = kIn,
            .scale_inv = scales.data(),
            .scaling = Scaling::whole_rows};
  }
  double at(const Operand& w, std::int64_t r, std::int64_t c) const {
    if (w.dtype == DType::bf16) return values.at(r, c);
    const auto code = codes[static_cast<std::size_t>(r * kIn + c)];
    return double{from_fp8(code, DType::e4m3)} * double{scales[static_cast<std::size_t>(r)]};
  }
  Tensor values;
  std::vector<std::uint16_t> dense;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;
};

struct Case {
  std::int64_t tokens = 1;
  bool fp8 = false, normed = false, one_plus = false, bias = false, addend = false;
  End end = End::plain;
  Activation activation = Activation::silu;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::int64_t tokens : {1, 3, 4}) {
    for (const bool fp8 : {false, true}) {
      for (const bool normed : {false, true}) {
        for (const bool bias : {false, true}) {
          const Case one{.tokens = tokens, .fp8 = fp8, .normed = normed, .one_plus = bias, .bias = bias};
          Case plain = one, added = one, silu = one, gelu = one, rotated = one;
          added.addend = true;
          silu.end = gelu.end = End::gated;
          gelu.activation = Activation::gelu_tanh;
          rotated.end = End::rotated;
          for (const Case& c : {plain, added, silu, gelu, rotated}) all.push_back(c);
        }
      }
    }
  }
  return all;
}

struct Problem {
  explicit Problem(const Case& c)
      : given(c),
        x(Tensor::random(DType::bf16, c.tokens, kIn, 2)),
        addend(Tensor::random(DType::bf16, c.tokens, kOut, 3, 5)),
        norm_weight(floats(kIn, 4)),
        bias(floats(kOut, 5)),
        cosine(floats(8 * kHeads.head_dim / 2, 6)),
        sine(floats(8 * kHeads.head_dim / 2, 7)),
        positions{5, 0, 7, 3},
        y(Tensor::random(DType::bf16, c.tokens, c.end == End::gated ? kOut / 2 : kOut, 8)) {}

  DecodeGemmArgs args(Stream& stream) {
    DecodeGemmArgs a{.weight = weights.operand(stream, given.fp8), .x = x.matrix(), .y = y.matrix()};
    a.end = given.end;
    a.activation = given.activation;
    if (given.normed) a.norm_weight = norm_weight.data();
    a.eps = 0.25f;
    a.one_plus_weight = given.one_plus;
    if (given.bias) a.bias = bias.data();
    if (given.addend) a.addend = addend.matrix();
    if (given.end == End::rotated) {
      a.heads = kHeads;
      a.positions = positions.data();
      a.cosine = cosine.data();
      a.sine = sine.data();
    }
    return a;
  }

  Case given;
  Tensor x, addend;
  Weights weights;
  std::vector<float> norm_weight, bias, cosine, sine;
  std::vector<std::int32_t> positions;
  Tensor y;
};

/// Returns the GEMM's input in float64, with the roundings of the op.
std::vector<double> input_of(const Problem& p, std::int64_t token) {
  std::vector<double> x(static_cast<std::size_t>(kIn));
  double squares = 0, most = 0;
  for (std::int64_t i = 0; i < kIn; ++i) squares += p.x.at(token, i) * p.x.at(token, i);
  const double rstd = 1 / std::sqrt(squares / kIn + 0.25);
  for (std::int64_t i = 0; i < kIn; ++i) {
    auto& to = x[static_cast<std::size_t>(i)];
    to = p.x.at(token, i);
    if (p.given.normed) {
      const double w = double{p.norm_weight[static_cast<std::size_t>(i)]} + (p.given.one_plus ? 1 : 0);
      to = p.x.kept(static_cast<float>(to * rstd * w));
    }
    most = std::max(most, std::abs(to));
  }
  if (!p.given.fp8) return x;
  const double scale = double{block_scale(static_cast<float>(most))};
  for (double& to : x) {
    to = double{from_fp8(to_fp8(static_cast<float>(to * scale), DType::e4m3), DType::e4m3)} / scale;
  }
  return x;
}

/// Returns the expected output in float64, with the roundings in the op's contract.
std::vector<double> expected(const Problem& p, const Operand& w, std::int64_t token) {
  const std::vector<double> x = input_of(p, token);
  std::vector<double> out(static_cast<std::size_t>(kOut));
  for (std::int64_t r = 0; r < kOut; ++r) {
    double sum = p.given.bias ? double{p.bias[static_cast<std::size_t>(r)]} : 0;
    sum += test::dot(
               kIn, [&](std::int64_t i) { return x[static_cast<std::size_t>(i)]; },
               [&](std::int64_t i) { return p.weights.at(w, r, i); })
               .sum;
    if (p.given.addend) sum += p.addend.at(token, r);
    out[static_cast<std::size_t>(r)] = sum;
  }
  if (p.given.end == End::gated) {
    for (std::size_t i = 0; i < kOut / 2; ++i) {
      const double g = out[i];
      const double z = p.given.activation == Activation::silu
                           ? g
                           : 2 * std::sqrt(2 / 3.14159265358979324) * (g + 0.044715 * g * g * g);
      out[i] = g / (1 + std::exp(-z)) * out[i + kOut / 2];
    }
    out.resize(kOut / 2);
  }
  if (p.given.end != End::rotated) return out;
  const std::size_t half = kHeads.head_dim / 2;
  const auto position = static_cast<std::size_t>(p.positions[static_cast<std::size_t>(token)]);
  for (std::size_t head = 0; head < 3; ++head) {  // two query heads and one key head
    for (std::size_t i = 0; i < half; ++i) {
      double &a = out[head * 2 * half + i], &b = out[head * 2 * half + half + i];
      const double c = double{p.cosine[position * half + i]}, s = double{p.sine[position * half + i]};
      const double first = a * c - b * s;
      b = b * c + a * s;
      a = first;
    }
  }
  return out;
}

TEST(DecodeGemm, AgreesWithFloat64) {
  const auto device = make_cpu_device({.threads = 2});
  const auto stream = device->make_stream({.name = "test"});
  int number = 0;
  for (const Case& c : cases()) {
    SCOPED_TRACE("case " + std::to_string(number++));
    Problem p(c);
    const DecodeGemmArgs args = p.args(*stream);
    decode_gemm(*stream, args);
    stream->synchronize();
    for (std::int64_t token = 0; token < c.tokens; ++token) {
      const std::vector<double> want = expected(p, args.weight, token);
      double difference = 0, size = 0;
      for (std::size_t i = 0; i < want.size(); ++i) {
        difference += std::pow(p.y.at(token, static_cast<std::int64_t>(i)) - want[i], 2);
        size += want[i] * want[i];
      }
      // Several roundings to bf16. In E4M3 a normed value can also round to the other neighbour.
      EXPECT_LT(std::sqrt(difference / size), c.fp8 && c.normed ? 0.03 : 0.006) << "token " << token;
    }
    EXPECT_TRUE(p.y.margin_untouched());
  }
}

// On a CPU the op has no gain, so it runs only on request. Arguments without a kernel are refused.
TEST(DecodeGemm, SaysWhatItTakes) {
  const auto device = make_cpu_device({.threads = 1});
  const auto stream = device->make_stream({.name = "test"});
  Problem p({.tokens = 4});
  DecodeGemmArgs args = p.args(*stream);
  EXPECT_FALSE(has_decode_gemm(*device, args));
  ::setenv("OCTETRUN_LONE_GEMM", "never", 1);
  EXPECT_FALSE(has_decode_gemm(*device, args));
  ::setenv("OCTETRUN_LONE_GEMM", "always", 1);
  EXPECT_TRUE(has_decode_gemm(*device, args));
  args.x.rows = 5;
  EXPECT_FALSE(has_decode_gemm(*device, args)) << "five tokens";
  args.x.rows = 0;
  EXPECT_FALSE(has_decode_gemm(*device, args)) << "no token";
  args.x.rows = 4;
  args.x.dtype = DType::f32;
  EXPECT_FALSE(has_decode_gemm(*device, args)) << "tokens in fp32";
  args.x.dtype = DType::bf16;
  args.weight.dtype = DType::e4m3;
  EXPECT_FALSE(has_decode_gemm(*device, args)) << "one scale for all of the weight";
  args.weight.dtype = DType::f32;
  EXPECT_FALSE(has_decode_gemm(*device, args)) << "a weight in fp32";
  ::unsetenv("OCTETRUN_LONE_GEMM");
}

// Each GEMM reads the output of the previous one. On a CPU they run one after the other.
TEST(DecodeGemm, ChainsAreOfGemmsThatFollowEachOther) {
  const auto device = make_cpu_device({.threads = 1});
  const auto stream = device->make_stream({.name = "test"});
  Problem first({.tokens = 1}), second({.tokens = 1}), alone({.tokens = 1});
  ::setenv("OCTETRUN_LONE_GEMM", "always", 1);
  std::array<DecodeGemmArgs, 2> gemms{first.args(*stream), second.args(*stream)};
  const std::span<const DecodeGemmArgs> chain = gemms;
  EXPECT_FALSE(has_decode_chain(*device, chain)) << "the second reads something else";
  // A square weight, so that its outputs are the next GEMM's inputs.
  gemms[1].x = gemms[0].y;
  gemms[1].weight.cols = gemms[0].y.cols;
  gemms[1].norm_weight = nullptr;
  EXPECT_TRUE(has_decode_chain(*device, chain));
  EXPECT_FALSE(has_decode_chain(*device, chain.first(1))) << "one alone";
  EXPECT_FALSE(has_decode_chain(*device, std::vector<DecodeGemmArgs>(5, gemms[0]))) << "five";
  ::setenv("OCTETRUN_LONE_CHAIN", "never", 1);
  EXPECT_FALSE(has_decode_chain(*device, chain));
  ::unsetenv("OCTETRUN_LONE_CHAIN");
  ::unsetenv("OCTETRUN_LONE_GEMM");
}

TEST(DecodeGemm, RefusesWhatMakesNoSense) {
  const auto device = make_cpu_device({.threads = 1});
  const auto stream = device->make_stream({.name = "test"});
  Problem p({.tokens = 2});
  const auto refuses = [&](const std::function<void(DecodeGemmArgs&)>& change) {
    DecodeGemmArgs args = p.args(*stream);
    change(args);
    EXPECT_THROW(decode_gemm(*stream, args), std::logic_error);
  };
  refuses([](DecodeGemmArgs& a) { a.x.cols -= 1; });
  refuses([](DecodeGemmArgs& a) { a.y.cols -= 1; });
  refuses([](DecodeGemmArgs& a) { a.y.rows -= 1; });
  refuses([](DecodeGemmArgs& a) { a.end = End::gated; });    // y is too wide
  refuses([](DecodeGemmArgs& a) { a.end = End::rotated; });  // the tables are missing
  refuses([](DecodeGemmArgs& a) { a.weight.dtype = DType::e4m3; });
  refuses([&](DecodeGemmArgs& a) {
    a.addend = p.addend.matrix();
    a.addend.cols -= 1;
  });
}

}  // namespace
}  // namespace octet::ops::decode_gemm_test
