#include "octet/ops/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "cpu/attention_amx.h"
#include "octet/base/error.h"
#include "octet/device/cpu.h"
#include "support/float64.h"

namespace octet::ops::gemm_test {
namespace {

/// A random operand with its exact values.
struct Values {
  std::vector<std::uint8_t> bytes;
  std::vector<double> exact;
  DType dtype;
};

Values random_values(std::int64_t count, DType dtype, std::mt19937& random) {
  Values x{.bytes = std::vector<std::uint8_t>(static_cast<std::size_t>(count) * size_of(dtype)),
           .exact = std::vector<double>(static_cast<std::size_t>(count)),
           .dtype = dtype};
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < x.exact.size(); ++i) {
    const float value = normal(random);
    if (dtype == DType::f32) {
      std::memcpy(&x.bytes[4 * i], &value, 4);
      x.exact[i] = value;
    } else if (dtype == DType::bf16) {
      const std::uint16_t bits = to_bf16(value);
      std::memcpy(&x.bytes[2 * i], &bits, 2);
      x.exact[i] = from_bf16(bits);
    } else {
      x.bytes[i] = to_fp8(value * 30.0f, dtype);
      x.exact[i] = from_fp8(x.bytes[i], dtype);
    }
  }
  return x;
}

float element(const std::vector<std::uint8_t>& d, DType dtype, std::size_t at) {
  if (dtype == DType::f32) {
    float value = 0;
    std::memcpy(&value, &d[4 * at], 4);
    return value;
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, &d[2 * at], 2);
  return from_bf16(bits);
}

struct Case {
  GemmKind gemm_kind = GemmKind::forward;
  std::int64_t m = 1, n = 1, k = 1;
  DType a = DType::f32, b = DType::f32, d = DType::f32;
  bool accumulate = false, bias = false;
  int threads = 2;
  bool fixed_order = false;
  /// FP8 operands with the inner dimension in columns have only the transposed copy.
  bool transposed = false;
  bool addend = false;
  float factor = 1.0f;
  bool wide = false;  ///< A and B are ranges of columns of wider matrices
  bool stands = false, claims = false;
};

/// Transposes [rows, cols] to [cols, rows].
std::vector<std::uint8_t> flipped(const std::vector<std::uint8_t>& x, std::int64_t rows, std::int64_t cols) {
  std::vector<std::uint8_t> to(x.size());
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    to[static_cast<std::size_t>(i % cols * rows + i / cols)] = x[static_cast<std::size_t>(i)];
  }
  return to;
}

/// Copies an operand into a matrix that is `more` columns wider, starting at column 2.
std::vector<std::uint8_t> inside_wider(const Operand& x, std::int64_t more) {
  const std::size_t element = size_of(x.dtype), row = static_cast<std::size_t>(x.cols) * element;
  const std::size_t pitch = row + static_cast<std::size_t>(more) * element;
  std::vector<std::uint8_t> wide(static_cast<std::size_t>(x.rows) * pitch, 0x7F);
  for (std::size_t r = 0; r < static_cast<std::size_t>(x.rows); ++r) {
    std::copy_n(static_cast<const std::uint8_t*>(x.data) + r * row, row,
                wide.begin() + static_cast<std::ptrdiff_t>(r * pitch + 2 * element));
  }
  return wide;
}

/// Runs one GEMM, checks every element against float64 and returns the bytes of D.
std::vector<std::uint8_t> run(const Case& c) {
  std::mt19937 random(static_cast<unsigned>(c.m * 31 + c.n * 7 + c.k));
  const bool wgrad = c.gemm_kind == GemmKind::wgrad, forward = c.gemm_kind == GemmKind::forward;
  const auto device = make_cpu_device({.threads = c.threads});
  const auto stream = device->make_stream({.name = "compute"});
  stream->set_claims(c.claims);
  const Values a = random_values(c.m * c.k, c.a, random), b = random_values(c.k * c.n, c.b, random);
  const std::int64_t ld = c.n + 3;
  const Values before = random_values(c.m * ld, c.d, random);
  const Values bias = random_values(c.n, DType::f32, random);
  const float a_scale = 0.037f, b_scale = 0.11f;
  std::vector<std::uint8_t> d = before.bytes;

  GemmArgs args{.gemm_kind = c.gemm_kind,
                .accumulate = c.accumulate,
                .b_stands = c.stands,
                .fixed_order = c.fixed_order};
  args.a = {.data = a.bytes.data(), .dtype = c.a, .rows = wgrad ? c.k : c.m, .cols = wgrad ? c.m : c.k};
  args.b = {.data = b.bytes.data(), .dtype = c.b, .rows = forward ? c.n : c.k, .cols = forward ? c.k : c.n};
  if (is_fp8(c.a)) {
    args.a.scale_inv = &a_scale;
    args.b.scale_inv = &b_scale;
  }
  args.d = {.data = d.data(), .dtype = c.d, .rows = c.m, .cols = c.n, .ld = ld};
  std::vector<std::uint8_t> a_transposed, b_transposed;
  const std::vector<std::uint8_t> other(a.bytes.size() + b.bytes.size(), 0x3A);
  if (c.transposed && wgrad) {
    a_transposed = flipped(a.bytes, args.a.rows, args.a.cols);
    args.a.transposed = a_transposed.data(), args.a.data = other.data();
  }
  if (c.transposed && !forward) {
    b_transposed = flipped(b.bytes, args.b.rows, args.b.cols);
    args.b.transposed = b_transposed.data(), args.b.data = other.data();
  }
  if (c.bias) args.bias = reinterpret_cast<const float*>(bias.bytes.data());
  const Values addend = random_values(c.m * ld, c.d, random);
  if (c.addend) args.addend = {addend.bytes.data(), c.d, c.m, c.n, ld};
  args.factor = c.factor;
  std::vector<std::uint8_t> wide_a, wide_b;
  if (c.wide) {
    wide_a = inside_wider(args.a, 5), wide_b = inside_wider(args.b, 3);
    args.a.data = wide_a.data() + 2 * size_of(c.a), args.a_ld = args.a.cols + 5;
    args.b.data = wide_b.data() + 2 * size_of(c.b), args.b_ld = args.b.cols + 3;
  }
  Arena arena(*device);
  args.workspace.bytes = gemm_workspace(*device, args);
  args.workspace.data = arena.reserve("workspace", args.workspace.bytes);
  gemm(*stream, args);
  stream->synchronize();

  const double scale = is_fp8(c.a) ? double{a_scale} * double{b_scale} : std::abs(double{c.factor});
  const double sign = c.factor < 0 ? -1.0 : 1.0;
  for (std::int64_t i = 0; i < c.m; ++i) {
    for (std::int64_t j = 0; j < ld; ++j) {
      const auto at = static_cast<std::size_t>(i * ld + j);
      if (j >= c.n) {  // nothing is written between the rows
        EXPECT_EQ(element(d, c.d, at), static_cast<float>(before.exact[at]));
        continue;
      }
      const test::Dot terms = test::gemm_element(
          c.gemm_kind, c.m, c.n, c.k, i, j,
          [&](std::int64_t l) { return a.exact[static_cast<std::size_t>(l)]; },
          [&](std::int64_t l) { return b.exact[static_cast<std::size_t>(l)]; });
      double want = terms.sum * scale * sign;
      if (c.bias) want += bias.exact[static_cast<std::size_t>(j)];
      const double once = c.addend ? std::abs(want) : 0;  // rounded before the addend is added
      if (c.addend) want += addend.exact[at];
      if (c.accumulate) want += before.exact[at];
      // Each of the k fp32 additions rounds, and the result is rounded once to its dtype.
      const double tolerance = terms.size * scale * 0.6e-7 * (4 + std::sqrt(static_cast<double>(c.k))) +
                               1e-6 + (std::abs(want) + once) * (c.d == DType::bf16 ? 1.0 / 256 : 2e-7);
      EXPECT_NEAR(element(d, c.d, at), want, tolerance)
          << "product " << static_cast<int>(c.gemm_kind) << " [" << c.m << "," << c.n << "," << c.k << "] at "
          << i << "," << j << " operands " << name_of(c.a) << " D " << name_of(c.d);
      if (::testing::Test::HasFailure()) return d;
    }
  }
  return d;
}

constexpr GemmKind gemms[] = {GemmKind::forward, GemmKind::dgrad, GemmKind::wgrad};
struct Sizes {
  std::int64_t m, n, k;
};
constexpr Sizes sizes[] = {{1, 1, 1},     {1, 512, 256},   {127, 129, 33}, {129, 1, 127},
                           {64, 48, 128}, {130, 1003, 17}, {3, 5, 1},      {33, 65, 1003}};

TEST(Gemm, ReadsTheTransposedCopyOfAnFp8OperandWhereAGpuWould) {
  for (const GemmKind gemm_kind : {GemmKind::forward, GemmKind::dgrad, GemmKind::wgrad}) {
    for (const DType d : {DType::f32, DType::bf16}) {
      Case c{gemm_kind, 17, 40, 23, DType::e4m3, DType::e4m3, d};
      if (gemm_kind != GemmKind::forward) c.a = DType::e5m2;
      const std::vector<std::uint8_t> plain = run(c);
      c.transposed = true;
      EXPECT_EQ(run(c), plain);
    }
  }
}

TEST(Gemm, EveryProductOfEveryDtypeAgreesWithFloat64) {
  for (const GemmKind gemm_kind : gemms) {
    for (const auto& s : sizes) {
      for (const DType operands : {DType::f32, DType::bf16}) {
        for (const DType result : {DType::f32, DType::bf16}) {
          for (const bool accumulate : {false, true}) {
            run({.gemm_kind = gemm_kind,
                 .m = s.m,
                 .n = s.n,
                 .k = s.k,
                 .a = operands,
                 .b = operands,
                 .d = result,
                 .accumulate = accumulate,
                 .bias = gemm_kind == GemmKind::forward});
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST(Gemm, AnAddendIsAddedToTheRoundedProduct) {
  for (const GemmKind gemm_kind : gemms) {
    for (const auto& s : {Sizes{1, 1, 1}, Sizes{33, 65, 40}, Sizes{127, 129, 64}, Sizes{3, 5, 0}}) {
      for (const DType operands : {DType::f32, DType::bf16, DType::e4m3}) {
        for (const DType result : {DType::f32, DType::bf16}) {
          Case c{.gemm_kind = gemm_kind,
                 .m = s.m,
                 .n = s.n,
                 .k = s.k,
                 .a = operands,
                 .b = operands,
                 .d = result,
                 .bias = gemm_kind == GemmKind::forward,
                 .addend = true};
          run(c);
          c.fixed_order = true;
          run(c);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(Gemm, WithAnAddendTheBitsAreThoseOfASumMadeAfterwards) {
  constexpr std::int64_t m = 40, n = 72, k = 96;
  std::mt19937 random(5);
  const auto device = make_cpu_device({.threads = 2});
  const auto stream = device->make_stream({.name = "compute"});
  const Values a = random_values(m * k, DType::bf16, random), b = random_values(n * k, DType::bf16, random);
  const Values addend = random_values(m * n, DType::bf16, random);
  std::vector<std::uint8_t> alone(addend.bytes.size()), sum(addend.bytes.size());
  GemmArgs args{.a = {.data = a.bytes.data(), .dtype = DType::bf16, .rows = m, .cols = k},
                .b = {.data = b.bytes.data(), .dtype = DType::bf16, .rows = n, .cols = k},
                .d = {.data = alone.data(), .dtype = DType::bf16, .rows = m, .cols = n, .ld = n}};
  Arena arena(*device);
  args.workspace.bytes = gemm_workspace(*device, args);
  args.workspace.data = arena.reserve("workspace", args.workspace.bytes);
  gemm(*stream, args);
  args.d.data = sum.data();
  args.addend = {addend.bytes.data(), DType::bf16, m, n, n};
  gemm(*stream, args);
  stream->synchronize();
  for (std::size_t i = 0; i < m * n; ++i) {
    const float want = element(alone, DType::bf16, i) + element(addend.bytes, DType::bf16, i);
    ASSERT_EQ(element(sum, DType::bf16, i), from_bf16(to_bf16(want))) << i;
  }
}

// Shapes for which oneDNN changes the sums with the number of threads, and a shape with partial pieces.
TEST(Gemm, InAFixedOrderTheBitsDoNotDependOnTheNumberOfThreads) {
  for (const GemmKind gemm_kind : gemms) {
    for (const auto& s : {Sizes{64, 64, 2048}, Sizes{128, 96, 1024}, Sizes{300, 130, 33}}) {
      for (const DType operands : {DType::f32, DType::bf16, DType::e4m3}) {
        Case c{.gemm_kind = gemm_kind,
               .m = s.m,
               .n = s.n,
               .k = s.k,
               .a = operands,
               .b = operands,
               .d = operands == DType::f32 ? DType::f32 : DType::bf16,
               .accumulate = gemm_kind == GemmKind::wgrad,
               .bias = gemm_kind == GemmKind::forward,
               .threads = 1,
               .fixed_order = true};
        const auto alone = run(c);
        for (const int threads : {2, 3}) {
          c.threads = threads;
          EXPECT_EQ(run(c), alone) << threads << " threads, product " << static_cast<int>(gemm_kind) << " ["
                                   << s.m << "," << s.n << "," << s.k << "] of " << name_of(operands);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(Gemm, Fp8OperandsOfBothFormatsAgreeWithFloat64) {
  for (const GemmKind gemm_kind : gemms) {
    for (const auto& s : sizes) {
      for (const DType a : {DType::e4m3, DType::e5m2}) {
        for (const DType b : {DType::e4m3, DType::e5m2}) {
          if (a == DType::e5m2 && b == DType::e5m2) continue;
          for (const bool accumulate : {false, true}) {
            run({.gemm_kind = gemm_kind,
                 .m = s.m,
                 .n = s.n,
                 .k = s.k,
                 .a = a,
                 .b = b,
                 .d = accumulate ? DType::f32 : DType::bf16,
                 .accumulate = accumulate,
                 .bias = gemm_kind == GemmKind::forward});
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST(Gemm, EveryFp8ValueIsMultipliedExactly) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream({.name = "compute"});
  for (const DType format : {DType::e4m3, DType::e5m2}) {
    std::vector<std::uint8_t> all(256);
    for (int i = 0; i < 256; ++i) all[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(i);
    const std::uint8_t one = to_fp8(1.0f, DType::e4m3);
    std::vector<float> d(256, -1.0f);
    GemmArgs args;
    args.a = {.data = all.data(), .dtype = format, .rows = 256, .cols = 1};
    args.b = {.data = &one, .dtype = DType::e4m3, .rows = 1, .cols = 1};
    args.d = {.data = d.data(), .dtype = DType::f32, .rows = 256, .cols = 1, .ld = 1};
    Arena arena(*device);
    args.workspace.bytes = gemm_workspace(*device, args);
    args.workspace.data = arena.reserve("workspace", args.workspace.bytes);
    gemm(*stream, args);
    stream->synchronize();
    for (std::size_t i = 0; i < 256; ++i) {
      const float want = from_fp8(static_cast<std::uint8_t>(i), format);
      if (std::isnan(want)) {
        EXPECT_TRUE(std::isnan(d[i])) << i;
      } else {
        EXPECT_EQ(d[i], want) << i;
      }
    }
  }
}

TEST(Gemm, ScalesAreReadWhenTheStreamGetsThere) {
  const auto device = make_cpu_device({.threads = 1, .compute_worker = true});
  const auto compute = device->make_stream({.name = "compute"});
  const auto other = device->make_stream({.name = "other", .mode = StreamOptions::Mode::served});
  const auto ready = device->make_event();
  const std::uint8_t two = to_fp8(2.0f, DType::e4m3), three = to_fp8(3.0f, DType::e4m3);
  float a_scale = 100.0f, b_scale = 100.0f, d = 0;
  GemmArgs args;
  args.a = {.data = &two, .dtype = DType::e4m3, .rows = 1, .cols = 1, .scale_inv = &a_scale};
  args.b = {.data = &three, .dtype = DType::e4m3, .rows = 1, .cols = 1, .scale_inv = &b_scale};
  args.d = {.data = &d, .dtype = DType::f32, .rows = 1, .cols = 1, .ld = 1};
  Arena arena(*device);
  args.workspace.bytes = gemm_workspace(*device, args);
  args.workspace.data = arena.reserve("workspace", args.workspace.bytes);
  octet::cpu::enqueue(*other, [&] { a_scale = 0.5f, b_scale = 0.25f; });
  other->record(*ready);
  compute->wait(*ready);
  gemm(*compute, args);
  octet::cpu::serve(*other);
  compute->synchronize();
  EXPECT_EQ(d, 0.75f);
}

TEST(Gemm, WithoutAnInnerDimensionThereAreZerosOrWhatWasThere) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream({.name = "compute"});
  std::vector<float> d = {1, 2, 3, 4, 5, 6}, bias = {10, 20};
  GemmArgs args;
  args.a = {.dtype = DType::f32, .rows = 2, .cols = 0};
  args.b = {.dtype = DType::f32, .rows = 2, .cols = 0};
  args.d = {.data = d.data(), .dtype = DType::f32, .rows = 2, .cols = 2, .ld = 3};
  args.accumulate = true;
  gemm(*stream, args);
  EXPECT_EQ(d, (std::vector<float>{1, 2, 3, 4, 5, 6}));
  args.bias = bias.data();
  gemm(*stream, args);
  EXPECT_EQ(d, (std::vector<float>{11, 22, 3, 14, 25, 6}));
  args.accumulate = false;
  gemm(*stream, args);
  EXPECT_EQ(d, (std::vector<float>{10, 20, 3, 10, 20, 6}));
  args.bias = nullptr;
  gemm(*stream, args);
  EXPECT_EQ(d, (std::vector<float>{0, 0, 3, 0, 0, 6}));
}

TEST(Gemm, NoRowsAreNoWork) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream({.name = "compute"});
  const std::vector<float> w(6, 1.0f);
  GemmArgs args;
  args.a = {.dtype = DType::f32, .rows = 0, .cols = 3};
  args.b = {.data = w.data(), .dtype = DType::f32, .rows = 2, .cols = 3};
  args.d = {.dtype = DType::f32, .rows = 0, .cols = 2, .ld = 2};
  EXPECT_EQ(gemm_workspace(*device, args), 0u);
  gemm(*stream, args);
  stream->synchronize();
}

TEST(Gemm, EqualInputsGiveEqualBits) {
  const Case c{.gemm_kind = GemmKind::wgrad,
               .m = 256,
               .n = 130,
               .k = 1000,
               .a = DType::bf16,
               .b = DType::bf16,
               .d = DType::f32,
               .accumulate = true};
  const auto first = run(c);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run(c), first);
}

TEST(Gemm, WorksWithAnotherThreadCountThanPlanned) {
  auto device = make_cpu_device({.threads = 1});
  const auto stream = device->make_stream({.name = "compute"});
  const std::int64_t n = 300;
  const std::vector<float> a(static_cast<std::size_t>(n * n), 0.5f), b(static_cast<std::size_t>(n * n), 2.0f);
  std::vector<float> d(static_cast<std::size_t>(n * n));
  GemmArgs args{.gemm_kind = GemmKind::wgrad};
  args.a = {.data = a.data(), .dtype = DType::f32, .rows = n, .cols = n};
  args.b = {.data = b.data(), .dtype = DType::f32, .rows = n, .cols = n};
  args.d = {.data = d.data(), .dtype = DType::f32, .rows = n, .cols = n, .ld = n};
  Arena arena(*device);
  args.workspace.bytes = gemm_workspace(*device, args);
  args.workspace.data = arena.reserve("workspace", args.workspace.bytes);
  octet::cpu::set_op_threads(2);
  gemm(*stream, args);
  EXPECT_EQ(d, std::vector<float>(static_cast<std::size_t>(n * n), 300.0f));
}

TEST(Gemm, RefusesWhatDoesNotFit) {
  const auto device = make_cpu_device();
  const auto stream = device->make_stream({.name = "compute"});
  std::vector<float> x(64);
  GemmArgs args;
  args.a = {.data = x.data(), .dtype = DType::f32, .rows = 2, .cols = 3};
  args.b = {.data = x.data(), .dtype = DType::f32, .rows = 4, .cols = 3};
  args.d = {.data = x.data(), .dtype = DType::f32, .rows = 2, .cols = 4, .ld = 4};
  GemmArgs wrong = args;
  wrong.b.cols = 2;
  EXPECT_THROW(gemm(*stream, wrong), std::logic_error);
  wrong = args;
  wrong.b.dtype = DType::bf16;
  EXPECT_THROW(gemm(*stream, wrong), std::logic_error);
  wrong = args;
  wrong.d.ld = 3;
  EXPECT_THROW(gemm(*stream, wrong), std::logic_error);
  wrong = args;
  wrong.a.dtype = wrong.b.dtype = DType::e5m2;
  EXPECT_THROW(gemm(*stream, wrong), std::logic_error);
  wrong = args;
  wrong.a.dtype = wrong.b.dtype = DType::e4m3;  // needs workspace to decode
  gemm(*stream, wrong);
  EXPECT_THROW(stream->synchronize(), std::logic_error);
}

TEST(Gemm, OnADryDeviceItPlansAndDoesNothing) {
  const auto cpu_device = make_cpu_device();
  const auto device = make_dry_device();
  const auto stream = device->make_stream({.name = "compute"});
  GemmArgs args;
  args.a = {.data = device->allocate(1), .dtype = DType::e4m3, .rows = 100, .cols = 64};
  args.b = {.data = device->allocate(1), .dtype = DType::e4m3, .rows = 50, .cols = 64};
  args.d = {.data = device->allocate(1), .dtype = DType::bf16, .rows = 100, .cols = 50, .ld = 50};
  EXPECT_GE(gemm_workspace(*device, args), 150u * 64 * 2);
  EXPECT_EQ(gemm_workspace(*device, args), gemm_workspace(*cpu_device, args));
  gemm(*stream, args);
  stream->synchronize();
}

// GEMMs of adapters: a GEMM times a factor, on the columns of one of several fused weights.
TEST(Gemm, AFactorAndRowsOfAWiderMatrix) {
  for (const GemmKind gemm_kind : {GemmKind::forward, GemmKind::dgrad, GemmKind::wgrad}) {
    for (const auto& [in, out] :
         {std::pair{DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}}) {
      for (const bool accumulate : {false, true}) {
        for (const bool fixed : {false, true}) {
          for (const bool wide : {false, true}) {
            Case c{.gemm_kind = gemm_kind, .m = 70, .n = 8, .k = 33, .a = in, .b = in, .d = out};
            c.accumulate = accumulate, c.fixed_order = fixed, c.wide = wide, c.factor = -1.7f;
            run(c);
            c.m = 5, c.n = 300, c.k = 4, c.factor = 2.0f;
            run(c);
          }
        }
      }
    }
  }
}

// Columns with elements that are not adjacent: a library may ignore the stride of a matrix with one column or
// row.
TEST(Gemm, ColumnsOfWiderMatrices) {
  for (const GemmKind gemm_kind : gemms) {
    for (const auto& s :
         {Sizes{1, 33, 40}, Sizes{33, 1, 40}, Sizes{33, 40, 1}, Sizes{1, 1, 40}, Sizes{1, 1, 1}}) {
      for (const auto& [in, out] :
           {std::pair{DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}}) {
        for (const bool accumulate : {false, true}) {
          for (const float factor : {1.0f, -1.7f}) {
            for (const bool fixed : {false, true}) {
              run({.gemm_kind = gemm_kind,
                   .m = s.m,
                   .n = s.n,
                   .k = s.k,
                   .a = in,
                   .b = in,
                   .d = out,
                   .accumulate = accumulate,
                   .fixed_order = fixed,
                   .factor = factor,
                   .wide = true});
              if (HasFailure()) return;
            }
          }
        }
      }
    }
  }
}

// GEMMs of decoding: every number of rows per tile and of groups of tiles, a number of outputs with a
// remainder, and sums in several pieces.
TEST(Gemm, FewRowsWithAWeightThatStandsAgreeWithFloat64) {
  for (const auto& [in, out] :
       {std::pair{DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}}) {
    Case c{.a = in, .b = in, .d = out, .stands = true, .claims = true};
    for (const std::int64_t m : {1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 32, 64, 65}) {
      for (const auto& [n, k] : {std::pair{1, 32}, {5, 96}, {123, 64}}) {
        c.m = m, c.n = n, c.k = k;
        run(c);
        Case more = c;
        more.bias = more.wide = true, more.factor = -1.7f;
        run(more);
        more = c, more.addend = true;
        run(more);
        more = c, more.accumulate = true;
        run(more);
      }
    }
    for (const std::int64_t m : {1, 7, 20}) {
      for (const auto& [n, k] : {std::pair{131, 1536}, {7, 1568}, {9, 3104}, {40, 33}}) {
        c.m = m, c.n = n, c.k = k, c.bias = n == 7;
        run(c);
      }
      c.bias = false;
    }
    if (HasFailure()) return;
  }
}

// An answer must depend neither on other answers in the batch nor on the number of cores. Processors with AMX
// multiply more than eight rows of bf16 in tiles.
TEST(Gemm, OfFewRowsEachHasItsBitsByItself) {
  constexpr std::int64_t n = 301, k = 1600;
  std::mt19937 random(3);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::int64_t rows = dtype == DType::bf16 && cpu::has_amx_bf16() ? 8 : 64;
    const Values a = random_values(rows * k, dtype, random), b = random_values(n * k, dtype, random);
    const std::size_t row_bytes = static_cast<std::size_t>(k) * size_of(dtype);
    const auto gemm_kind = [&](std::int64_t first, std::int64_t m, int threads) {
      const auto device = make_cpu_device({.threads = threads});
      const auto stream = device->make_stream({.name = "compute"});
      stream->set_claims(true);
      std::vector<float> d(static_cast<std::size_t>(m * n), -1.0f);
      GemmArgs args{.b_stands = true};
      args.a = {.data = a.bytes.data() + static_cast<std::size_t>(first) * row_bytes,
                .dtype = dtype,
                .rows = m,
                .cols = k};
      args.b = {.data = b.bytes.data(), .dtype = dtype, .rows = n, .cols = k};
      args.d = {.data = d.data(), .dtype = DType::f32, .rows = m, .cols = n, .ld = n};
      gemm(*stream, args);
      stream->synchronize();
      return d;
    };
    const std::vector<float> whole = gemm_kind(0, rows, 1);
    for (const auto& [first, m] : {std::pair{0, 1}, {63, 1}, {5, 2}, {1, 7}, {17, 7}, {1, 33}}) {
      if (first + m > rows) continue;
      for (const int threads : {1, 2, 3}) {
        const std::vector<float> some = gemm_kind(first, m, threads);
        EXPECT_TRUE(std::equal(some.begin(), some.end(), whole.begin() + first * n))
            << name_of(dtype) << ", rows " << first << " to " << first + m << ", threads " << threads;
      }
    }
  }
}

// GEMMs by oneDNN share their pieces in this way too.
TEST(Gemm, PiecesThatThreadsClaimAgreeWithFloat64) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::e4m3}) {
    const DType out = dtype == DType::f32 ? DType::f32 : DType::bf16;
    for (const auto& [m, n, k] : {Sizes{600, 130, 65}, Sizes{70, 513, 128}, Sizes{1, 40, 33}}) {
      run({.m = m,
           .n = n,
           .k = k,
           .a = dtype,
           .b = dtype,
           .d = out,
           .threads = 3,
           .stands = true,
           .claims = true});
    }
  }
}

}  // namespace
}  // namespace octet::ops::gemm_test
