// GEMMs of experts in training, against sums in double.
#include "octet/ops/expert_gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "octet/device/cpu.h"
#include "ops/tensor.h"

namespace octet::ops::expert_gemm_test {
namespace {

std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

struct Values {
  Values(std::int64_t r, std::int64_t c, unsigned seed) : rows(r), cols(c) {
    for (const float x : random_floats(r * c, seed)) bits.push_back(Bf16(x));
  }
  double at(std::int64_t r, std::int64_t c) const {
    return static_cast<double>(static_cast<float>(bits[index(r * cols + c)]));
  }
  Operand operand() const { return {.data = bits.data(), .dtype = DType::bf16, .rows = rows, .cols = cols}; }
  std::int64_t rows, cols;
  std::vector<Bf16> bits;
};

/// Rows per expert: none, one, several; all rows at one expert.
const std::vector<std::vector<std::int32_t>> kLoads = {
    {3, 0, 1, 17}, {0, 0, 40}, {1}, {5, 5, 5, 5, 5}, {0, 0}};
constexpr std::int64_t kOut = 7, kIn = 13;

struct Case {
  explicit Case(const std::vector<std::int32_t>& loads)
      : count(static_cast<std::int64_t>(loads.size())), begins(loads.size() + 1) {
    std::partial_sum(loads.begin(), loads.end(), begins.begin() + 1);
  }
  std::int64_t rows() const { return begins.back(); }
  std::int64_t expert_of(std::int64_t row) const {
    std::int64_t e = 0;
    while (begins[index(e + 1)] <= row) ++e;
    return e;
  }
  std::int64_t count;
  std::vector<std::int32_t> begins;
};

void multiply(const ExpertGemmArgs& args) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream({.name = "test"});
  expert_gemm(*stream, args);
  stream->synchronize();
}

TEST(ExpertGemm, RowsMeetTheMatrixOfTheirExpert) {
  for (const auto& loads : kLoads) {
    const Case c(loads);
    const Values weight(c.count * kOut, kIn, 1);
    for (const bool forward : {true, false}) {
      const std::int64_t inner = forward ? kIn : kOut, cols = forward ? kOut : kIn;
      const Values a(c.rows(), inner, 2);
      std::vector<Bf16> d(index(c.rows() * cols) + 1, Bf16(7.0f));
      multiply({.gemm_kind = forward ? GemmKind::forward : GemmKind::dgrad,
                .a = a.operand(),
                .b = weight.operand(),
                .count = c.count,
                .begins = c.begins.data(),
                .d = {d.data(), DType::bf16, c.rows(), cols, cols}});
      for (std::int64_t r = 0; r < c.rows(); ++r) {
        const std::int64_t first = c.expert_of(r) * kOut;
        for (std::int64_t o = 0; o < cols; ++o) {
          double sum = 0, size = 0;
          for (std::int64_t i = 0; i < inner; ++i) {
            const double term = a.at(r, i) * (forward ? weight.at(first + o, i) : weight.at(first + i, o));
            sum += term;
            size += std::abs(term);
          }
          EXPECT_NEAR(static_cast<float>(d[index(r * cols + o)]), sum, size / 256) << r << ", " << o;
        }
      }
      EXPECT_EQ(static_cast<float>(d.back()), 7.0f);
    }
  }
}

TEST(ExpertGemm, GradientsAreSumsOverTheRowsOfEachExpert) {
  for (const auto& loads : kLoads) {
    const Case c(loads);
    const Values d_y(c.rows(), kOut, 3), x(c.rows(), kIn, 4);
    for (const bool accumulate : {false, true}) {
      std::vector<float> d(index(c.count * kOut * kIn), 2.0f);
      multiply({.gemm_kind = GemmKind::wgrad,
                .a = d_y.operand(),
                .b = x.operand(),
                .count = c.count,
                .begins = c.begins.data(),
                .d = {d.data(), DType::f32, c.count * kOut, kIn, kIn},
                .accumulate = accumulate});
      for (std::int64_t e = 0; e < c.count; ++e) {
        for (std::int64_t o = 0; o < kOut; ++o) {
          for (std::int64_t i = 0; i < kIn; ++i) {
            double sum = accumulate ? 2 : 0, size = 2;
            for (std::int64_t r = c.begins[index(e)]; r < c.begins[index(e + 1)]; ++r) {
              sum += d_y.at(r, o) * x.at(r, i);
              size += std::abs(d_y.at(r, o) * x.at(r, i));
            }
            EXPECT_NEAR(d[index((e * kOut + o) * kIn + i)], sum, 1e-6 * size);
          }
        }
      }
    }
  }
}

/// Random FP8 values and their decoded values.
struct Fp8Values {
  Fp8Values(DType t, std::int64_t r, std::int64_t c, unsigned seed) : dtype(t), rows(r), cols(c) {
    for (const float x : random_floats(r * c, seed)) bytes.push_back(to_fp8(4 * x, t));
  }
  double at(std::int64_t r, std::int64_t c) const { return from_fp8(bytes[index(r * cols + c)], dtype); }
  /// With a copy of all rows as transposed one, as a GPU has it.
  Operand operand(const float* scale) const {
    return {.data = bytes.data(),
            .transposed = bytes.data(),
            .dtype = dtype,
            .rows = rows,
            .cols = cols,
            .scale_inv = scale};
  }
  DType dtype;
  std::int64_t rows, cols;
  std::vector<std::uint8_t> bytes;
};

TEST(ExpertGemm, Fp8IsMultipliedByTheScaleOfTheTensorAndOfTheExpert) {
  constexpr std::int64_t step = 4;
  const float a_scale = 0.37f, x_scale = 0.21f;
  for (const auto& loads : kLoads) {
    const Case c(loads);
    const Fp8Values weight(DType::e4m3, c.count * kOut, kIn, 1), x(DType::e4m3, c.rows(), kIn, 2),
        d_y(DType::e5m2, c.rows(), kOut, 3);
    std::vector<float> scales(index(c.count * step), 1e9f);
    for (std::int64_t e = 0; e < c.count; ++e) scales[index(e * step)] = 0.1f * static_cast<float>(e + 1);
    for (const GemmKind gemm_kind : {GemmKind::forward, GemmKind::dgrad, GemmKind::wgrad}) {
      const bool forward = gemm_kind == GemmKind::forward, wgrad = gemm_kind == GemmKind::wgrad;
      const Fp8Values& a = forward ? x : d_y;
      const std::int64_t rows = wgrad ? c.count * kOut : c.rows(), cols = forward ? kOut : kIn;
      std::vector<float> sums(index(rows * cols)), sizes(sums.size());
      for (std::int64_t r = 0; r < c.rows(); ++r) {
        const std::int64_t e = c.expert_of(r);
        for (std::int64_t o = 0; o < kOut; ++o) {
          for (std::int64_t i = 0; i < kIn; ++i) {
            const double w = weight.at(e * kOut + o, i);
            const double term = forward ? x.at(r, i) * w
                                : wgrad ? d_y.at(r, o) * x.at(r, i)
                                        : d_y.at(r, o) * w;
            const double scale = a_scale * (wgrad ? x_scale : scales[index(e * step)]);
            const std::size_t at = index(forward ? r * kOut + o
                                         : wgrad ? (e * kOut + o) * kIn + i
                                                 : r * kIn + i);
            sums[at] += static_cast<float>(scale * term);
            sizes[at] += static_cast<float>(std::abs(scale * term));
          }
        }
      }
      std::vector<float> d_wgrad(sums.size());
      std::vector<Bf16> d(sums.size() + 1);
      multiply({.gemm_kind = gemm_kind,
                .a = a.operand(&a_scale),
                .b = wgrad ? x.operand(&x_scale) : weight.operand(scales.data()),
                .weight_scale_step = step,
                .count = c.count,
                .begins = c.begins.data(),
                .d = wgrad ? Matrix{d_wgrad.data(), DType::f32, rows, cols, cols}
                           : Matrix{d.data(), DType::bf16, rows, cols, cols}});
      for (std::size_t i = 0; i < sums.size(); ++i)
        EXPECT_NEAR(wgrad ? d_wgrad[i] : static_cast<float>(d[i]), sums[i],
                    sizes[i] / (wgrad ? 1e5f : 256.0f));
    }
  }
}

// A plan reserves the memory that a run will use, so it needs the answer of a dry device.
TEST(ExpertGemm, ADryDeviceAnswersForTheDeviceThatItRepresents) {
  const auto gpu = make_dry_device({.stands_for = DeviceKind::cuda});
  const auto cpu = make_dry_device({.stands_for = DeviceKind::cpu});
  struct Row {
    GemmKind gemm_kind;
    DType a, b;
    std::int64_t rows, out, in;
    bool has;
  };
  for (const Row& r : std::vector<Row>{
           {GemmKind::forward, DType::bf16, DType::bf16, 5, 64, 128, true},
           {GemmKind::forward, DType::bf16, DType::bf16, 5, 64, 96, false},  // in is no multiple of 64
           {GemmKind::dgrad, DType::bf16, DType::bf16, 5, 96, 128, false},   // nor out
           {GemmKind::forward, DType::e4m3, DType::e4m3, 5, 48, 96, true},
           {GemmKind::forward, DType::e4m3, DType::e4m3, 5, 48, 90, false},  // in is no multiple of 16
           {GemmKind::dgrad, DType::e5m2, DType::e4m3, 5, 40, 96, false},    // nor out
           {GemmKind::dgrad, DType::e5m2, DType::e4m3, 5, 48, 96, true},
           {GemmKind::wgrad, DType::e5m2, DType::e4m3, 32, 48, 96, true},
           {GemmKind::wgrad, DType::e5m2, DType::e4m3, 5, 48, 96, false},  // nor the rows, over which it sums
           {GemmKind::forward, DType::e4m3, DType::e5m2, 5, 48, 96, false},
           {GemmKind::forward, DType::f32, DType::f32, 5, 64, 64, false}}) {
    constexpr std::int64_t count = 3;
    const bool forward = r.gemm_kind == GemmKind::forward, wgrad = r.gemm_kind == GemmKind::wgrad;
    const std::int64_t d_rows = wgrad ? count * r.out : r.rows, d_cols = forward ? r.out : r.in;
    const ExpertGemmArgs args{.gemm_kind = r.gemm_kind,
                              .a = {.dtype = r.a, .rows = r.rows, .cols = forward ? r.in : r.out},
                              .b = {.dtype = r.b, .rows = wgrad ? r.rows : count * r.out, .cols = r.in},
                              .count = count,
                              .d = {nullptr, DType::bf16, d_rows, d_cols, d_cols}};
    EXPECT_EQ(has_expert_gemm(*gpu, args), r.has) << r.rows << " " << r.out << " " << r.in;
    EXPECT_EQ(has_expert_gemm(*cpu, args), r.a != DType::bf16 && r.a != DType::f32 && r.b == DType::e4m3);
  }
  alignas(16) const std::uint8_t data[16] = {};
  ExpertGemmArgs copies{.gemm_kind = GemmKind::dgrad,
                        .a = {.dtype = DType::e5m2, .rows = 5, .cols = 48},
                        .b = {.data = data, .dtype = DType::e4m3, .rows = 3 * 48, .cols = 96},
                        .count = 3,
                        .d = {nullptr, DType::bf16, 5, 96, 96}};
  EXPECT_FALSE(has_expert_gemm(*gpu, copies)) << "the transposed weight is missing";
  copies.b.transposed = data;
  EXPECT_TRUE(has_expert_gemm(*gpu, copies));
  copies.b.transposed = data + 8;
  EXPECT_FALSE(has_expert_gemm(*gpu, copies)) << "it begins outside of a boundary of 16 bytes";
  copies.b.transposed = data;
  copies.b.scaling = Scaling::squares;
  EXPECT_FALSE(has_expert_gemm(*gpu, copies)) << "scales of blocks";
}

TEST(ExpertGemm, RefusesWhatDoesNotFit) {
  const Case c({2, 1});
  const Values x(3, kIn, 1), weight(2 * kOut, kIn, 2);
  std::vector<Bf16> d(3 * kIn, Bf16(0.0f));
  ExpertGemmArgs args{.a = x.operand(),
                      .b = weight.operand(),
                      .count = 2,
                      .begins = c.begins.data(),
                      .d = {d.data(), DType::bf16, 3, kOut, kOut}};
  EXPECT_NO_THROW(multiply(args));
  for (const auto& spoil : std::vector<void (*)(ExpertGemmArgs&)>{
           [](ExpertGemmArgs& a) { a.count = 0; },          //
           [](ExpertGemmArgs& a) { a.count = 3; },          // rows of the weight cannot be divided
           [](ExpertGemmArgs& a) { a.begins = nullptr; },   //
           [](ExpertGemmArgs& a) { a.d.cols = kOut - 1; },  //
           [](ExpertGemmArgs& a) { a.d.rows = 2; },         //
           [](ExpertGemmArgs& a) { a.accumulate = true; },  //
           [](ExpertGemmArgs& a) { a.b.dtype = DType::e4m3; },
           [](ExpertGemmArgs& a) { a.a.scaling = Scaling::whole_rows; },
           [](ExpertGemmArgs& a) { a.a.scale_inv = reinterpret_cast<const float*>(&a); },
           [](ExpertGemmArgs& a) { a.gemm_kind = GemmKind::dgrad; },
           [](ExpertGemmArgs& a) { a.gemm_kind = GemmKind::wgrad; }}) {
    ExpertGemmArgs wrong = args;
    spoil(wrong);
    EXPECT_THROW(multiply(wrong), std::logic_error);
  }
}

}  // namespace
}  // namespace octet::ops::expert_gemm_test
