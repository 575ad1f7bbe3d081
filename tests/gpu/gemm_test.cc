// Compares GEMMs on the GPU with float64, and, bit for bit where sums permit it, with each other.
#include "octet/ops/gemm.h"

#include <algorithm>

#include "gpu/device_arrays.h"
#include "octet/device/cuda.h"
#include "support/float64.h"

namespace octet::ops::gemm_test {
namespace {

struct Case {
  GemmKind gemm_kind = GemmKind::forward;
  std::int64_t m = 1, n = 1, k = 1;
  DType a = DType::f32, b = DType::f32, d = DType::f32;
  bool accumulate = false, bias = false;
  std::int64_t gap = 0;       ///< padding elements between the rows of D
  bool own_boundary = false;  ///< scales are aligned to 16 bytes
  bool addend = false;        ///< passes Inputs::before as a separate addend
  bool fast = false;          ///< fast_accumulation
  std::int64_t wide = 0;      ///< extra columns of the wider matrices that contain the operands
  bool stands = false;        ///< b_stands
  bool fixed_order = false;
  float factor = 1.0f;
  std::string name() const {
    const char* names[] = {"forward", "dgrad", "wgrad"};
    return std::string(names[static_cast<int>(gemm_kind)]) + " [" + std::to_string(m) + "," +
           std::to_string(n) + "," + std::to_string(k) + "] " + std::string(name_of(a)) + " x " +
           std::string(name_of(b)) + " -> " + std::string(name_of(d)) + (accumulate ? " accumulated" : "") +
           (addend ? " with an addend" : "") + (bias ? " with bias" : "") + (fast ? " fast" : "") + " gap " +
           std::to_string(gap) + (wide > 0 ? " wide " + std::to_string(wide) : "") +
           (stands ? " of a standing weight" : "") + (factor != 1.0f ? " with a factor" : "");
  }
};

struct Outcome {
  HostArray d;
  bool fp8 = false;
};

struct Inputs {
  explicit Inputs(const Case& c)
      : a(c.m * c.k, c.a), b(c.k * c.n, c.b), before(c.m * (c.n + c.gap), c.d), bias(c.n, DType::f32) {
    std::mt19937 random(static_cast<unsigned>(c.m * 31 + c.n * 7 + c.k));
    a.fill(random, is_fp8(c.a) ? 20.0f : 1.0f);
    b.fill(random, is_fp8(c.b) ? 20.0f : 1.0f);
    before.fill(random, 1.0f);
    bias.fill(random, 1.0f);
  }
  HostArray a, b, before, bias;
};

std::vector<std::uint8_t> transposed(const HostArray& x, std::int64_t rows, std::int64_t cols) {
  std::vector<std::uint8_t> t(x.bytes.size());
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      t[static_cast<std::size_t>(c * rows + r)] = x.bytes[static_cast<std::size_t>(r * cols + c)];
    }
  }
  return t;
}

/// Returns the values [rows, cols] inside rows with `wide` more columns, half of them in front.
std::vector<std::uint8_t> inside_wider(const HostArray& x, const Operand& of, std::int64_t wide) {
  const std::size_t element = size_of(of.dtype), row = static_cast<std::size_t>(of.cols) * element;
  const std::size_t pitch = row + static_cast<std::size_t>(wide) * element;
  std::vector<std::uint8_t> all(static_cast<std::size_t>(of.rows) * pitch, 0x7F);
  for (std::size_t r = 0; r < static_cast<std::size_t>(of.rows); ++r) {
    std::copy_n(
        x.bytes.begin() + static_cast<std::ptrdiff_t>(r * row), row,
        all.begin() + static_cast<std::ptrdiff_t>(r * pitch + static_cast<std::size_t>(wide / 2) * element));
  }
  return all;
}

constexpr float a_scale = 0.037f, b_scale = 0.011f;

Outcome run(Bench& bench, const Case& c, const Inputs& in) {
  const bool wgrad = c.gemm_kind == GemmKind::wgrad, forward = c.gemm_kind == GemmKind::forward;
  GemmArgs args{.gemm_kind = c.gemm_kind,
                .accumulate = c.accumulate,
                .factor = c.factor,
                .b_stands = c.stands,
                .fixed_order = c.fixed_order,
                .fast_accumulation = c.fast};
  args.a = {.data = bench.put(in.a), .dtype = c.a, .rows = wgrad ? c.k : c.m, .cols = wgrad ? c.m : c.k};
  args.b = {.data = bench.put(in.b), .dtype = c.b, .rows = forward ? c.n : c.k, .cols = forward ? c.k : c.n};
  if (is_fp8(c.a)) {
    std::vector<float> scales(8, NAN);  // the second scale is unaligned, unless own_boundary
    scales[0] = a_scale;
    const std::size_t second = c.own_boundary ? 4 : 1;
    scales[second] = b_scale;
    const float* at = bench.put(scales);
    args.a.scale_inv = at;
    args.b.scale_inv = at + second;
    args.a.transposed = bench.put(transposed(in.a, args.a.rows, args.a.cols));
    args.b.transposed = bench.put(transposed(in.b, args.b.rows, args.b.cols));
  }
  if (c.wide > 0) {
    const auto skipped = static_cast<std::size_t>(c.wide / 2) * size_of(c.a);
    args.a.data = static_cast<std::uint8_t*>(bench.put(inside_wider(in.a, args.a, c.wide))) + skipped;
    args.b.data = static_cast<std::uint8_t*>(bench.put(inside_wider(in.b, args.b, c.wide))) + skipped;
    args.a_ld = args.a.cols + c.wide, args.b_ld = args.b.cols + c.wide;
  }
  const std::int64_t ld = c.n + c.gap;
  void* d = bench.put(in.before);
  if (c.addend) args.addend = {bench.put(in.before), c.d, c.m, c.n, ld};
  args.d = {.data = d, .dtype = c.d, .rows = c.m, .cols = c.n, .ld = ld};
  if (c.bias) args.bias = static_cast<const float*>(bench.put(in.bias));
  args.workspace.bytes = gemm_workspace(bench.device(), args);
  args.workspace.data = bench.room(args.workspace.bytes);
  const GemmOutcome outcome = gemm(bench.stream(), args);
  EXPECT_EQ(outcome.way, gemm_outcome(bench.device(), args).way) << c.name();
  Outcome result{.d = HostArray(c.m * ld, c.d), .fp8 = multiplies_fp8(outcome.way)};
  bench.get(result.d, d);
  return result;
}

/// Returns element [i, j] of the GEMM in float64, without scales and addends.
test::Dot element_of(const Case& c, const Inputs& in, std::int64_t i, std::int64_t j) {
  return test::gemm_element(
      c.gemm_kind, c.m, c.n, c.k, i, j, [&](std::int64_t at) { return in.a[at]; },
      [&](std::int64_t at) { return in.b[at]; });
}

/// Compares each element with float64. FP8 with fast accumulation sums in about 14 bits.
void expect_gemm(const Case& c, const Inputs& in, const Outcome& got) {
  const double scale = is_fp8(c.a) ? double{a_scale} * double{b_scale} : double{c.factor};
  const double unit = got.fp8 ? (c.fast ? 0x1p-10 : 0x1p-12) : 2.4e-7;
  double worst = 0;
  std::string where;
  for (std::int64_t i = 0; i < c.m; ++i) {
    for (std::int64_t j = 0; j < c.n + c.gap; ++j) {
      const std::int64_t at = i * (c.n + c.gap) + j;
      if (j >= c.n) {
        ASSERT_EQ(got.d[at], in.before[at]) << c.name() << ": written between the rows of D";
        continue;
      }
      const test::Dot terms = element_of(c, in, i, j);
      double want = terms.sum * scale;
      if (c.bias) want += in.bias[j];
      const bool adds = c.accumulate || c.addend;
      if (adds) want += in.before[at];
      const double rounded = c.d == DType::bf16 ? 1.0 / 256 : 3e-7;
      // cuBLASLt rounds the product to bf16 before it adds a bias or the old D, and then rounds the sum.
      const bool twice = c.d == DType::bf16 && (c.bias || adds);
      const double parts = std::abs(terms.sum * scale) + (c.bias ? std::abs(in.bias[j]) : 0.0) +
                           (adds ? std::abs(in.before[at]) : 0.0);
      const double bias = twice ? parts / 200 : 0;
      const double tolerance =
          std::sqrt(terms.squares) * scale * unit * (6 + std::sqrt(static_cast<double>(c.k))) + 1e-6 + bias +
          std::abs(want) * rounded;
      const double error = std::isfinite(got.d[at]) ? std::abs(got.d[at] - want) / tolerance : INFINITY;
      if (error > worst) {
        worst = error;
        where = std::to_string(i) + "," + std::to_string(j) + ": " + std::to_string(got.d[at]) + ", not " +
                std::to_string(want);
      }
    }
  }
  EXPECT_LE(worst, 1.0) << c.name() << " at " << where << (got.fp8 ? " in FP8" : "");
}

void check_case(const Case& c) {
  SCOPED_TRACE(c.name());
  const Inputs in(c);
  Bench bench(make_cuda_device());
  try {
    expect_gemm(c, in, run(bench, c, in));
  } catch (const std::exception& e) {
    ADD_FAILURE() << c.name() << ": " << e.what();
  }
}

constexpr GemmKind gemms[] = {GemmKind::forward, GemmKind::dgrad, GemmKind::wgrad};
struct Sizes {
  std::int64_t m, n, k;
};
constexpr Sizes sizes[] = {{1, 1, 1},      {1, 512, 256}, {127, 129, 33},  {129, 1, 127}, {64, 48, 128},
                           {130, 203, 17}, {3, 5, 1},     {128, 256, 127}, {129, 64, 80}, {256, 128, 512}};

TEST(GpuGemm, EveryProductOfWideDtypesAgreesWithFloat64) {
  for (const GemmKind gemm_kind : gemms) {
    for (const auto& s : sizes) {
      for (const DType operands : {DType::f32, DType::bf16}) {
        for (const DType d : {DType::f32, DType::bf16}) {
          if (operands == DType::f32 && d == DType::bf16) continue;  // not supported
          for (const bool accumulate : {false, true}) {
            check_case({.gemm_kind = gemm_kind,
                        .m = s.m,
                        .n = s.n,
                        .k = s.k,
                        .a = operands,
                        .b = operands,
                        .d = d,
                        .accumulate = accumulate,
                        .bias = gemm_kind == GemmKind::forward,
                        .gap = accumulate ? 0 : 3});
          }
        }
      }
    }
  }
}

TEST(GpuGemm, FewTokensAgreeWithFloat64) {
  for (const std::int64_t m : {1, 5, 8, 9, 16, 17}) {
    for (const auto& [n, k] : {std::pair{1, 32}, {16, 96}, {33, 1056}, {512, 4096}, {200, 14336}}) {
      for (const DType d : {DType::f32, DType::bf16}) {
        for (const int adds : {0, 1, 2}) {
          check_case({.m = m,
                      .n = n,
                      .k = k,
                      .a = DType::bf16,
                      .b = DType::bf16,
                      .d = d,
                      .accumulate = adds == 1,
                      .bias = adds != 1,
                      .gap = adds == 2 ? 5 : 0,
                      .addend = adds == 2});
        }
      }
    }
  }
}

// The weight is streamed for 9 to 32 tokens. Cases: fewer and more runs than blocks, tiles that several
// blocks sum, and partial tiles and runs. The GEMMs run repeatedly on one stream, to check that each run
// clears the exchange buffer.
TEST(GpuGemm, StandingWeightsInBf16AgreeWithFloat64) {
  Bench bench(make_cuda_device());
  for (const std::int64_t tokens : {8, 9, 16, 17, 32, 33}) {
    for (const auto& [k, n] :
         {std::pair<std::int64_t, std::int64_t>{2048, 512}, {6400, 144}, {8, 9}, {104, 9008}, {200, 80}}) {
      Case c{.m = tokens, .n = n, .k = k, .a = DType::bf16, .b = DType::bf16, .d = DType::bf16};
      c.stands = true;
      c.bias = k != 200;
      c.addend = k != 6400;
      c.gap = k == 8 ? 3 : 0;
      c.factor = n == 144 ? 0.25f : 1.0f;
      expect_gemm(c, Inputs(c), run(bench, c, Inputs(c)));
      c.d = DType::f32;
      expect_gemm(c, Inputs(c), run(bench, c, Inputs(c)));
    }
  }
}

// A later GEMM on the stream would add such sums.
TEST(GpuGemm, StreamedWeightsLeaveNoPartialSumsBehind) {
  Bench bench(make_cuda_device());
  Case c{.m = 32, .n = 4224, .k = 1024, .a = DType::bf16, .b = DType::bf16, .d = DType::f32};
  c.stands = true;
  run(bench, c, Inputs(c));
  std::vector<unsigned> words(static_cast<std::size_t>(octet::cuda::kExchangeWords));
  bench.device().copy_to_host(bench.stream(), words.data(), octet::cuda::exchange(bench.stream()),
                              words.size() * sizeof(unsigned));
  bench.stream().synchronize();
  EXPECT_EQ(std::count(words.begin(), words.end(), ~0u), octet::cuda::kExchangeWords);
}

TEST(GpuGemm, AFixedOrderIsNotOneOfStreamedWeights) {
  Bench bench(make_cuda_device());
  Case c{.m = 24, .n = 512, .k = 2048, .a = DType::bf16, .b = DType::bf16, .d = DType::f32};
  c.fixed_order = true;
  const Inputs in(c);
  const Outcome fixed = run(bench, c, in);
  c.stands = true;
  EXPECT_EQ(run(bench, c, in).d.bytes, fixed.d.bytes);
  c.fixed_order = false;
  EXPECT_NE(run(bench, c, in).d.bytes, fixed.d.bytes) << "both are sums of the library";
}

TEST(GpuGemm, WhereChoosingIsOverOtherNumbersOfTokensAreMultipliedAllTheSame) {
  Bench bench(make_cuda_device());
  const auto multiplies = [&](GemmKind gemm_kind, std::int64_t tokens) {
    Case c{.gemm_kind = gemm_kind, .m = tokens, .n = 336, .k = 208, .a = DType::bf16, .b = DType::bf16};
    if (gemm_kind == GemmKind::wgrad) std::swap(c.m, c.k);
    c.d = DType::bf16;
    const Inputs in(c);
    expect_gemm(c, in, run(bench, c, in));
  };
  for (const GemmKind gemm_kind : gemms) multiplies(gemm_kind, 512);
  const std::string chosen = autotuned_gemms(bench.device());
  EXPECT_NE(chosen, "");
  set_gemm_choosing(bench.device(), false);
  for (const GemmKind gemm_kind : gemms) {
    for (const std::int64_t tokens : {2048, 104, 7}) multiplies(gemm_kind, tokens);
  }
  EXPECT_EQ(autotuned_gemms(bench.device()), chosen) << "nothing was timed";
  set_gemm_choosing(bench.device(), true);
  multiplies(GemmKind::forward, 2048);
  EXPECT_NE(autotuned_gemms(bench.device()), chosen);
}

TEST(GpuGemm, Fp8OfEveryShapeAgreesWithFloat64) {
  const std::pair<DType, DType> formats[] = {
      {DType::e4m3, DType::e4m3}, {DType::e5m2, DType::e4m3}, {DType::e4m3, DType::e5m2}};
  for (const GemmKind gemm_kind : gemms) {
    for (const auto& s : sizes) {
      for (const auto& [a, b] : formats) {
        for (const bool accumulate : {false, true}) {
          for (const bool fast : {false, true}) {
            check_case({.gemm_kind = gemm_kind,
                        .m = s.m,
                        .n = s.n,
                        .k = s.k,
                        .a = a,
                        .b = b,
                        .d = accumulate ? DType::f32 : DType::bf16,
                        .accumulate = accumulate,
                        .bias = gemm_kind == GemmKind::forward,
                        .own_boundary = a == b,
                        .fast = fast});
          }
        }
      }
    }
  }
}

TEST(GpuGemm, AnAddendIsAddedToEveryKindOfProduct) {
  for (const GemmKind gemm_kind : gemms) {
    for (const auto& s : sizes) {
      for (const DType operands : {DType::f32, DType::bf16, DType::e4m3}) {
        for (const DType d : {DType::f32, DType::bf16}) {
          if (operands == DType::f32 && d == DType::bf16) continue;  // not supported
          check_case({.gemm_kind = gemm_kind,
                      .m = s.m,
                      .n = s.n,
                      .k = s.k,
                      .a = operands,
                      .b = operands,
                      .d = d,
                      .bias = gemm_kind == GemmKind::forward,
                      .gap = s.n % 16 == 0 ? 0 : 3,
                      .addend = true,
                      .fast = gemm_kind == GemmKind::forward});
        }
      }
    }
  }
  check_case({.m = 5, .n = 7, .k = 0, .a = DType::bf16, .b = DType::bf16, .bias = true, .addend = true});
}

TEST(GpuGemm, OperandsMayBeColumnsOfWiderMatrices) {
  for (const GemmKind gemm_kind : gemms) {
    for (const auto& s : sizes) {
      for (const DType operands : {DType::f32, DType::bf16}) {
        for (const std::int64_t wide : {2, 16, 64}) {
          check_case({.gemm_kind = gemm_kind,
                      .m = s.m,
                      .n = s.n,
                      .k = s.k,
                      .a = operands,
                      .b = operands,
                      .d = operands,
                      .accumulate = gemm_kind == GemmKind::wgrad,
                      .gap = wide,
                      .wide = wide});
        }
      }
    }
  }
}

TEST(GpuGemm, Fp8IsMultipliedAsFp8WhereTheShapesOfModelsAllow) {
  Bench bench(make_cuda_device());
  const auto runs = [&](GemmKind gemm_kind, std::int64_t m, std::int64_t n, std::int64_t k) {
    const Case c{
        .gemm_kind = gemm_kind, .m = m, .n = n, .k = k, .a = DType::e4m3, .b = DType::e4m3, .d = DType::bf16};
    return run(bench, c, Inputs(c)).fp8;
  };
  for (const std::int64_t tokens : {1, 127, 128, 129}) {
    EXPECT_TRUE(runs(GemmKind::forward, tokens, 64, 128)) << tokens;
    EXPECT_TRUE(runs(GemmKind::dgrad, tokens, 64, 128)) << tokens;
    EXPECT_TRUE(runs(GemmKind::wgrad, 64, 128, tokens)) << tokens;
  }
  EXPECT_FALSE(runs(GemmKind::forward, 128, 100, 128));  // a row of D is no multiple of 16 bytes
}

// The precision of partial sums depends on fast_accumulation, not on the kind of GEMM.
TEST(GpuGemm, PartialSumsOfFp8KeepFewerBitsOnlyWhereAsked) {
  for (const GemmKind gemm_kind : gemms) {
    Case c{.gemm_kind = gemm_kind, .m = 128, .n = 128, .k = 2048, .a = DType::e5m2, .b = DType::e4m3};
    SCOPED_TRACE(c.name());
    const Inputs in(c);
    std::vector<double> want;
    for (std::int64_t i = 0; i < c.m; ++i) {
      for (std::int64_t j = 0; j < c.n; ++j)
        want.push_back(element_of(c, in, i, j).sum * double{a_scale} * double{b_scale});
    }
    const auto error = [&](bool fast) {
      c.fast = fast;
      Bench bench(make_cuda_device());
      const Outcome got = run(bench, c, in);
      EXPECT_TRUE(got.fp8);
      return relative_distance([&](std::int64_t i) { return got.d[i]; },
                               [&](std::int64_t i) { return want[static_cast<std::size_t>(i)]; }, c.m * c.n);
    };
    const double promoted = error(false), fast = error(true);
    EXPECT_LT(promoted, 3e-4);
    EXPECT_GT(fast, promoted);
    EXPECT_LT(fast, 2e-3);
  }
}

TEST(GpuGemm, CopiesLargerThanTheirScratchAreMultipliedInPieces) {
  // 2 * (4112 + 4096) * 8197 bytes of decoded operands, which exceed the scratch of 64 MiB.
  const Case c{
      .gemm_kind = GemmKind::wgrad, .m = 4112, .n = 4090, .k = 8197, .a = DType::e4m3, .b = DType::e4m3};
  const Inputs in(c);
  Bench gpu(make_cuda_device());
  const Outcome got = run(gpu, c, in);
  EXPECT_FALSE(got.fp8);
  std::mt19937 random(3);
  for (int sample = 0; sample < 400; ++sample) {
    const auto i = static_cast<std::int64_t>(random() % static_cast<unsigned>(c.m));
    const auto j = static_cast<std::int64_t>(random() % static_cast<unsigned>(c.n));
    double want = 0, size = 0;
    for (std::int64_t l = 0; l < c.k; ++l) {
      const double term = in.a[l * c.m + i] * in.b[l * c.n + j] * double{a_scale} * double{b_scale};
      want += term;
      size += std::abs(term);
    }
    EXPECT_NEAR(got.d[i * c.n + j], want, size * 1e-6) << i << " " << j;
  }
}

TEST(GpuGemm, EqualInputsGiveEqualBits) {
  for (const DType operands : {DType::bf16, DType::e4m3}) {
    for (const bool fast : {false, true}) {
      const Case c{.gemm_kind = GemmKind::wgrad,
                   .m = 256,
                   .n = 512,
                   .k = 4096,
                   .a = operands,
                   .b = operands,
                   .fast = fast};
      SCOPED_TRACE(c.name());
      const Inputs in(c);
      Bench bench(make_cuda_device());
      const Outcome first = run(bench, c, in);
      for (int again = 0; again < 3; ++again) EXPECT_EQ(run(bench, c, in).d.bytes, first.d.bytes);
    }
  }
}

// Large GEMMs choose among more algorithms by timing. Each choice gives the result of the library's first
// proposal, also with an addition to D.
TEST(GpuGemm, TimedAlgorithmsOfHeavyProductsGiveTheSameProduct) {
  const auto check = [](const Case& c) {
    SCOPED_TRACE(c.name());
    const Inputs in(c);
    Bench bench(make_cuda_device());
    bench.stream().set_reproducible(true);
    const Outcome want = run(bench, c, in);
    bench.stream().set_reproducible(false);
    const Outcome got = run(bench, c, in);
    for (std::int64_t row = 0; row < c.m; ++row) {
      const double distance = relative_distance([&](std::int64_t i) { return got.d[row * c.n + i]; },
                                                [&](std::int64_t i) { return want.d[row * c.n + i]; }, c.n);
      ASSERT_LE(distance, 4e-3) << "row " << row;
    }
  };
  for (const GemmKind gemm_kind : gemms) {
    const bool forward = gemm_kind == GemmKind::forward;
    for (const DType operands : {DType::bf16, DType::e4m3}) {
      for (const char* added : {"nothing", "what is there", "an addend"}) {
        Case c{.gemm_kind = gemm_kind,
               .m = 4096,
               .n = 4352,
               .k = 4096,
               .a = operands,
               .b = operands,
               .d = DType::bf16,
               .accumulate = added == std::string("what is there"),
               .own_boundary = true,
               .addend = added == std::string("an addend"),
               .fast = forward};
        // Timing takes seconds, so only cases of models are tested. Forward uses fast sums and an addend.
        // Gradients have no addend and use both kinds of sums.
        if (c.addend && !forward) continue;
        check(c);
        c.fast = true;
        if (!forward && is_fp8(operands)) check(c);
      }
    }
  }
}

TEST(GpuGemm, NothingToSumGivesZerosAndTheBias) {
  for (const bool accumulate : {false, true}) {
    check_case(
        {.m = 5, .n = 7, .k = 0, .a = DType::bf16, .b = DType::bf16, .accumulate = accumulate, .bias = true});
    check_case({.m = 5, .n = 7, .k = 0, .a = DType::bf16, .b = DType::bf16, .accumulate = accumulate});
  }
}

TEST(GpuGemm, EveryFp8ValueIsMultipliedExactly) {
  Bench bench(make_cuda_device());
  for (const DType format : {DType::e4m3, DType::e5m2}) {
    for (const std::int64_t n : {1, 16}) {  // decoded, and padded
      std::vector<std::uint8_t> all(256), ones(static_cast<std::size_t>(n), to_fp8(1.0f, DType::e4m3));
      for (std::size_t i = 0; i < 256; ++i) all[i] = static_cast<std::uint8_t>(i);
      GemmArgs args{.fast_accumulation = true};  // sums of one term are exact
      args.a = {.data = bench.put(all), .dtype = format, .rows = 256, .cols = 1};
      args.b = {.data = bench.put(ones), .dtype = DType::e4m3, .rows = n, .cols = 1};
      HostArray d(256 * n, DType::f32);
      args.d = {.data = bench.put(d), .dtype = DType::f32, .rows = 256, .cols = n, .ld = n};
      args.workspace.bytes = gemm_workspace(bench.device(), args);
      args.workspace.data = bench.room(args.workspace.bytes);
      gemm(bench.stream(), args);
      bench.get(d, args.d.data);
      for (std::int64_t i = 0; i < 256; ++i) {
        const auto want = static_cast<double>(from_fp8(static_cast<std::uint8_t>(i), format));
        if (std::isnan(want)) {
          EXPECT_TRUE(std::isnan(d[i * n])) << name_of(format) << " " << i;
        } else {
          EXPECT_EQ(d[i * n], want) << name_of(format) << " " << i << " n " << n;
        }
      }
    }
  }
}

}  // namespace
}  // namespace octet::ops::gemm_test
