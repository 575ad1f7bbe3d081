// The CPU side of encodings for transfer, bit for bit against references that compute in double and round
// once.
#include "octet/ops/wire.h"

#include <numeric>

#include "ops/wire_values.h"

namespace octet::ops::wire_test {
namespace {

constexpr std::int64_t kCounts[] = {0, 1, 127, 128, 129, 1023, 1025, 5000};
constexpr std::uint32_t kNan = 0x7FC00000u;

// Each function computes one float32 operation in double. The result in double is exact, or so close that the
// second rounding has no effect.
float rounded(double x) {
  return std::isnan(x) ? std::bit_cast<float>(kNan) : static_cast<float>(x);
}
float sum_of(float a, float b) {
  return rounded(static_cast<double>(a) + static_cast<double>(b));
}
std::uint16_t half_of(float x) {
  return std::isnan(x) ? std::uint16_t{0x7FC0} : to_bf16(x);
}
std::uint32_t bits_of(float x) {
  return std::bit_cast<std::uint32_t>(std::isnan(x) ? std::bit_cast<float>(kNan) : x);
}

// The transferred bytes, and the values that they decode to.
struct Encoded {
  std::vector<std::uint8_t> bytes;
  std::vector<float> values;
};
Encoded encoded(Wire wire, const std::vector<float>& x) {
  Encoded e;
  e.bytes.resize(wire_bytes(wire, static_cast<std::int64_t>(x.size())));
  if (wire == Wire::bf16) {
    for (std::size_t i = 0; i < x.size(); ++i) {
      const std::uint16_t half = half_of(x[i]);
      std::memcpy(&e.bytes[2 * i], &half, 2);
      e.values.push_back(from_bf16(half));
    }
    return e;
  }
  const std::size_t blocks = (x.size() + 127) / 128;
  for (std::size_t block = 0; block < blocks; ++block) {
    const std::size_t begin = block * 128, end = std::min(x.size(), begin + 128);
    double largest = 0;
    bool finite = true;
    for (std::size_t i = begin; i < end; ++i) {
      finite = finite && std::isfinite(x[i]);
      largest = std::max(largest, std::abs(static_cast<double>(x[i])));
    }
    const float scale = finite ? rounded(largest / (wire == Wire::fp8 ? 448 : 127)) : rounded(NAN);
    std::memcpy(&e.bytes[4 * block], &scale, 4);
    for (std::size_t i = begin; i < end; ++i) {
      const float y =
          finite && scale > 0 ? rounded(static_cast<double>(x[i]) / static_cast<double>(scale)) : 1;
      double says = 0;
      if (wire == Wire::fp8) {
        e.bytes[4 * blocks + i] = to_fp8(y, DType::e4m3);
        says = static_cast<double>(from_fp8(to_fp8(y, DType::e4m3), DType::e4m3));
      } else {
        says = std::clamp(std::nearbyint(static_cast<double>(y)), -127.0, 127.0);
        e.bytes[4 * blocks + i] = static_cast<std::uint8_t>(static_cast<int>(says));
        says += 0.0;  // no zero is negative
      }
      e.values.push_back(rounded(says * static_cast<double>(scale)));
    }
  }
  return e;
}

struct Source {
  std::vector<float> floats;
  std::vector<std::uint16_t> halves;
  const void* data(DType dtype) const {
    return dtype == DType::bf16 ? static_cast<const void*>(halves.data()) : floats.data();
  }
  float at(std::size_t i, DType dtype) const {
    return dtype == DType::bf16 ? from_bf16(halves[i]) : floats[i];
  }
};
Source source_of(std::int64_t count, std::uint64_t seed) {
  return {awkward_floats(count, seed), awkward_halves(count, seed + 100)};
}

TEST(Wire, TakesTheBytesThatItsFormatSays) {
  EXPECT_EQ(wire_bytes(Wire::f32, 130), 520u);
  EXPECT_EQ(wire_bytes(Wire::bf16, 130), 260u);
  EXPECT_EQ(wire_bytes(Wire::fp8, 130), 138u);
  EXPECT_EQ(wire_bytes(Wire::int8, 128), 132u);
  EXPECT_EQ(wire_bytes(Wire::int8, 0), 0u);
}

TEST(EncodeValues, GivesTheCodesOfTheQuotients) {
  for (const Wire wire : kNarrowWires) {
    for (const DType dtype : kComputeTypes) {
      for (const std::int64_t count : kCounts) {
        SCOPED_TRACE(std::string(name_of(wire)) + " " + std::string(octet::name_of(dtype)) + " " +
                     std::to_string(count));
        const Source x = source_of(count, 3);
        std::vector<float> values;
        for (std::size_t i = 0; i < x.floats.size(); ++i) values.push_back(x.at(i, dtype));
        const Encoded want = encoded(wire, values);
        const auto check = [&](auto run) {
          std::vector<std::uint8_t> got(want.bytes.size() + 3, 0xEE);
          const EncodeArgs args{
              .wire = wire, .from = x.data(dtype), .dtype = dtype, .count = count, .to = got.data()};
          run(args);
          EXPECT_EQ(got.back(), 0xEE);
          got.resize(want.bytes.size());
          EXPECT_EQ(got, want.bytes);
        };
        check([](const EncodeArgs& a) { encode_values(a); });
        CpuStream one(1), three(3);
        check([&](const EncodeArgs& a) { encode_values(one, a); });
        check([&](const EncodeArgs& a) { encode_values(three, a); });
      }
    }
  }
}

TEST(EncodeValues, KeepsWhatItLosesInTheResidual) {
  for (const Wire wire : kNarrowWires) {
    for (const DType dtype : kComputeTypes) {
      for (const bool adds : {true, false}) {
        for (const std::int64_t count : kCounts) {
          SCOPED_TRACE(std::string(name_of(wire)) + " " + std::string(octet::name_of(dtype)) +
                       (adds ? " adds " : " keeps ") + std::to_string(count));
          const Source x = source_of(count, 4);
          const std::vector<std::uint16_t> before = awkward_residual(count, 5);
          std::vector<float> values;
          for (std::size_t i = 0; i < before.size(); ++i) {
            values.push_back(adds ? sum_of(x.at(i, dtype), from_bf16(before[i])) : x.at(i, dtype));
          }
          const Encoded want = encoded(wire, values);
          std::vector<std::uint16_t> lost;
          for (std::size_t i = 0; i < before.size(); ++i) {
            float loss = rounded(static_cast<double>(values[i]) - static_cast<double>(want.values[i]));
            if (!std::isfinite(loss)) loss = 0;
            lost.push_back(half_of(adds ? loss : sum_of(loss, from_bf16(before[i]))));
          }
          const auto check = [&](auto run) {
            std::vector<std::uint8_t> got(want.bytes.size());
            std::vector<std::uint16_t> residual = before;
            run(EncodeArgs{.wire = wire,
                           .from = x.data(dtype),
                           .dtype = dtype,
                           .count = count,
                           .to = got.data(),
                           .residual = residual.data(),
                           .adds_residual = adds});
            EXPECT_EQ(got, want.bytes);
            EXPECT_EQ(residual, lost);
          };
          check([](const EncodeArgs& a) { encode_values(a); });
          CpuStream three(3);
          check([&](const EncodeArgs& a) { encode_values(three, a); });
        }
      }
    }
  }
}

// Over many steps the decoded values equal the sent values, except for the remaining residual.
TEST(EncodeValues, OwesNoMoreThanOneRounding) {
  const std::vector<float> x = random_floats(1000, 6, 0.01);
  for (const Wire wire : kNarrowWires) {
    std::vector<std::uint16_t> residual(x.size());
    std::vector<std::uint8_t> bytes(wire_bytes(wire, 1000));
    std::vector<float> arrived(x.size());
    std::vector<double> sum(x.size());
    for (int step = 0; step < 50; ++step) {
      encode_values(
          {.wire = wire, .from = x.data(), .count = 1000, .to = bytes.data(), .residual = residual.data()});
      decode_values({.wire = wire, .part = bytes.data(), .count = 1000, .to = arrived.data()});
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(arrived[i]);
    }
    for (std::size_t i = 0; i < sum.size(); ++i) {
      EXPECT_NEAR(sum[i] + static_cast<double>(from_bf16(residual[i])), 50.0 * static_cast<double>(x[i]),
                  2e-4);
    }
  }
}

TEST(DecodeValues, GivesCodesTimesFactors) {
  for (const Wire wire : kNarrowWires) {
    for (const std::int64_t count : kCounts) {
      SCOPED_TRACE(std::string(name_of(wire)) + " " + std::to_string(count));
      const Encoded e = encoded(wire, awkward_floats(count, 7));
      const auto check = [&](auto run) {
        std::vector<float> floats(e.values.size() + 1, 5.0f);
        std::vector<std::uint16_t> halves(e.values.size() + 1, 0x1234);
        run(DecodeArgs{.wire = wire, .part = e.bytes.data(), .count = count, .to = floats.data()});
        run(DecodeArgs{
            .wire = wire, .part = e.bytes.data(), .count = count, .dtype = DType::bf16, .to = halves.data()});
        for (std::size_t i = 0; i < e.values.size(); ++i) {
          ASSERT_EQ(std::bit_cast<std::uint32_t>(floats[i]), bits_of(e.values[i])) << i;
          ASSERT_EQ(halves[i], half_of(e.values[i])) << i;
        }
        EXPECT_EQ(floats.back(), 5.0f);
        EXPECT_EQ(halves.back(), 0x1234);
      };
      check([](const DecodeArgs& a) { decode_values(a); });
      CpuStream three(3);
      check([&](const DecodeArgs& a) { decode_values(three, a); });
    }
  }
}

// All codes, because other senders may use each of them.
TEST(DecodeValues, KnowsEveryCode) {
  std::vector<std::uint8_t> bytes(wire_bytes(Wire::fp8, 256));
  const float scales[] = {0.37f, 3.0f};
  std::memcpy(bytes.data(), scales, sizeof(scales));
  std::iota(bytes.begin() + 8, bytes.end(), std::uint8_t{0});
  std::vector<float> fp8(256), int8(256);
  decode_values({.wire = Wire::fp8, .part = bytes.data(), .count = 256, .to = fp8.data()});
  decode_values({.wire = Wire::int8, .part = bytes.data(), .count = 256, .to = int8.data()});
  for (std::size_t i = 0; i < 256; ++i) {
    const auto code = static_cast<std::uint8_t>(i);
    const float scale = scales[i / 128];
    EXPECT_EQ(std::bit_cast<std::uint32_t>(fp8[i]), bits_of(from_fp8(code, DType::e4m3) * scale)) << i;
    EXPECT_EQ(int8[i], static_cast<float>(static_cast<std::int8_t>(code)) * scale) << i;
  }
}

TEST(SumParts, RanksAreAddedInTheirOrder) {
  for (const Wire wire : kWires) {
    for (const int parts : {1, 2, 3, 65}) {
      for (const std::int64_t count : kCounts) {
        SCOPED_TRACE(std::string(name_of(wire)) + " " + std::to_string(parts) + " parts of " +
                     std::to_string(count));
        const auto n = static_cast<std::size_t>(count);
        std::vector<std::vector<std::uint8_t>> bytes;
        std::vector<const void*> pointers;
        std::vector<float> sum;
        for (int p = 0; p < parts; ++p) {
          const auto seed = static_cast<std::uint64_t>(p) + 10;
          const std::vector<float> x = awkward_floats(count, seed);
          bytes.push_back(travelling(wire, count, seed));
          const std::vector<float> arrived = wire == Wire::f32 ? x : encoded(wire, x).values;
          for (std::size_t i = 0; i < n; ++i) {
            if (p == 0) {
              sum.push_back(arrived[i]);
            } else {
              sum[i] = sum_of(sum[i], arrived[i]);
            }
          }
        }
        for (const auto& b : bytes) pointers.push_back(b.data());
        for (const bool accumulate : {false, true}) {
          const std::vector<float> floats = awkward_floats(count, 9);
          const std::vector<std::uint16_t> halves = awkward_halves(count, 8);
          const auto check = [&](auto run) {
            std::vector<float> to = floats;
            std::vector<std::uint16_t> narrow = halves;
            SumPartsArgs args{
                .wire = wire, .parts = pointers, .to = to.data(), .count = count, .accumulate = accumulate};
            run(args);
            args.to = narrow.data();
            args.to_dtype = DType::bf16;
            run(args);
            for (std::size_t i = 0; i < n; ++i) {
              ASSERT_EQ(std::bit_cast<std::uint32_t>(to[i]),
                        bits_of(accumulate ? sum_of(floats[i], sum[i]) : sum[i]))
                  << i;
              ASSERT_EQ(narrow[i], half_of(accumulate ? sum_of(from_bf16(halves[i]), sum[i]) : sum[i])) << i;
            }
          };
          check([](const SumPartsArgs& a) { sum_parts(a); });
          CpuStream three(3);
          check([&](const SumPartsArgs& a) { sum_parts(three, a); });
        }
      }
    }
  }
}

TEST(SumParts, ThePlaceOfTheSumMayBeAPart) {
  for (const DType dtype : kComputeTypes) {
    const Wire wire = wire_of_values(Wire::f32, dtype);
    for (const bool accumulate : {false, true}) {
      std::vector<std::vector<std::uint8_t>> bytes;
      for (std::uint64_t p = 0; p < 3; ++p) bytes.push_back(travelling(wire, 5000, p));
      const std::vector<const void*> parts = {bytes[0].data(), bytes[1].data(), bytes[2].data()};
      std::vector<std::uint8_t> apart = bytes[1];
      SumPartsArgs args{.wire = wire,
                        .parts = parts,
                        .to = apart.data(),
                        .to_dtype = dtype,
                        .count = 5000,
                        .accumulate = accumulate};
      sum_parts(args);
      args.to = bytes[1].data();
      sum_parts(args);
      EXPECT_EQ(bytes[1], apart);
    }
  }
}

TEST(SumParts, Bf16PartsAreSummedInFp32) {
  const std::vector<std::uint16_t> a(1000, to_bf16(256.0f)), b(1000, to_bf16(1.0f)),
      c(1000, to_bf16(0.0078125f));
  std::vector<float> to(1000);
  const void* parts[] = {a.data(), b.data(), c.data()};
  CpuStream stream;
  sum_parts(stream, {.wire = Wire::bf16, .parts = parts, .to = to.data(), .count = 1000});
  EXPECT_EQ(to, std::vector<float>(1000, 257.0078125f));
}

TEST(SumParts, TheListOfPartsMayGoBeforeTheWorkIsDone) {
  const auto device = make_cpu_device({});
  const auto stream = device->make_stream({.name = "worker", .mode = StreamOptions::Mode::worker});
  const std::vector<float> x(100000, 1.0f);
  std::vector<float> to(x.size()), tree(x.size());
  {
    std::vector<const void*> parts(7, x.data());
    std::vector<const float*> addends(7, x.data());
    std::vector<int> merges = merges_of(7)[1];
    for (int repeat = 0; repeat < 20; ++repeat) {
      sum_parts(*stream, {.parts = parts, .to = to.data(), .count = 100000, .accumulate = repeat > 0});
      sum_tree(*stream, {.addends = addends, .merges = merges, .to = tree.data(), .count = 100000});
    }
    for (const void*& part : parts) part = nullptr;
    for (const float*& addend : addends) addend = nullptr;
    for (int& merge : merges) merge = 1000;
  }
  stream->synchronize();
  EXPECT_EQ(to, std::vector<float>(x.size(), 140.0f));
  EXPECT_EQ(tree, std::vector<float>(x.size(), 7.0f));
}

TEST(SumTree, AddsWhatTheMergesSay) {
  for (const int addends : {1, 2, 3, 65}) {
    for (const std::vector<int>& merges : merges_of(addends)) {
      for (const std::int64_t count : kCounts) {
        const auto n = static_cast<std::size_t>(count);
        std::vector<std::vector<float>> x;
        for (int a = 0; a < addends; ++a) x.push_back(awkward_floats(count, static_cast<std::uint64_t>(a)));
        std::vector<float> want;
        for (std::size_t i = 0; i < n; ++i) {
          std::vector<float> stack;
          for (std::size_t a = 0; a < x.size(); ++a) {
            stack.push_back(x[a][i]);
            for (int merge = 0; merge < merges[a]; ++merge) {
              const float top = stack.back();
              stack.pop_back();
              stack.back() = sum_of(stack.back(), top);
            }
          }
          ASSERT_EQ(stack.size(), 1u);
          want.push_back(stack[0]);
        }
        std::vector<const float*> pointers;
        for (const auto& addend : x) pointers.push_back(addend.data());
        const auto check = [&](std::vector<float>& to, auto run) {
          run(SumTreeArgs{.addends = pointers, .merges = merges, .to = to.data(), .count = count});
          for (std::size_t i = 0; i < n; ++i) {
            ASSERT_EQ(std::bit_cast<std::uint32_t>(to[i]), bits_of(want[i])) << addends << " of " << i;
          }
        };
        std::vector<float> to(n);
        check(to, [](const SumTreeArgs& a) { sum_tree(a); });
        CpuStream three(3);
        check(to, [&](const SumTreeArgs& a) { sum_tree(three, a); });
        check(x.back(), [](const SumTreeArgs& a) { sum_tree(a); });
      }
    }
  }
}

TEST(CombineParts, TheLargestWinsAndNanAboveAll) {
  for (const int parts : {1, 2, 3, 65}) {
    for (const std::int64_t count : kCounts) {
      std::vector<std::vector<float>> x;
      std::vector<const void*> pointers;
      for (int p = 0; p < parts; ++p) x.push_back(awkward_floats(count, static_cast<std::uint64_t>(p)));
      for (const auto& part : x) pointers.push_back(part.data());
      std::vector<float> want;
      for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
        float most = -INFINITY;
        for (const auto& part : x) {
          most = std::isnan(most) || std::isnan(part[i]) ? NAN : std::max(most, part[i]);
        }
        want.push_back(most);
      }
      CpuStream stream;
      const auto hold = [&](const float* got) {
        for (std::size_t i = 0; i < want.size(); ++i) {
          // The sign of a zero result depends on the order of the parts.
          if (want[i] == 0) {
            ASSERT_EQ(got[i], 0);
          } else {
            ASSERT_EQ(std::bit_cast<std::uint32_t>(got[i]), bits_of(want[i])) << i;
          }
        }
      };
      std::vector<float> to(want.size());
      combine_parts(stream, {.parts = pointers, .to = to.data(), .count = count});
      hold(to.data());
      combine_parts({.parts = pointers, .to = x[0].data(), .count = count});
      hold(x[0].data());
    }
  }
}

TEST(CombineParts, SumsIntegersAndDoublesInTheirOrder) {
  constexpr std::int64_t count = 1025;
  std::vector<std::vector<std::int64_t>> whole(3);
  std::vector<std::vector<double>> real(3);
  std::vector<std::int64_t> whole_sum;
  std::vector<double> real_sum;
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    std::uint64_t total = 0;
    for (std::size_t p = 0; p < 3; ++p) {
      const std::uint64_t value = (i + 1) * 0x9E3779B97F4A7C15u * (p + 1);
      total += value;
      whole[p].push_back(static_cast<std::int64_t>(value));
      real[p].push_back(std::ldexp(static_cast<double>(value), -static_cast<int>(20 * p)));
    }
    if (i % 50 == 3) real[1][i] = -NAN;
    whole_sum.push_back(static_cast<std::int64_t>(total));
    real_sum.push_back((real[0][i] + real[1][i]) + real[2][i]);
  }
  const void* wholes[] = {whole[0].data(), whole[1].data(), whole[2].data()};
  const void* reals[] = {real[0].data(), real[1].data(), real[2].data()};
  CpuStream stream;
  std::vector<double> to(real_sum.size());
  combine_parts(stream, {.how = Combine::sum_f64, .parts = reals, .to = to.data(), .count = count});
  combine_parts({.how = Combine::sum_i64, .parts = wholes, .to = whole[1].data(), .count = count});
  EXPECT_EQ(whole[1], whole_sum);
  for (std::size_t i = 0; i < to.size(); ++i) {
    const auto bits = std::bit_cast<std::uint64_t>(to[i]);
    ASSERT_EQ(bits,
              std::isnan(real_sum[i]) ? 0x7FF8000000000000u : std::bit_cast<std::uint64_t>(real_sum[i]));
  }
}

TEST(Wire, WrongArgumentsAreRefused) {
  CpuStream stream;
  alignas(16) float x[8] = {};
  EXPECT_THROW(encode_values({.wire = Wire::f32, .from = x, .count = 1, .to = x}), std::logic_error);
  EXPECT_THROW(encode_values({.from = x, .dtype = DType::f16, .count = 1, .to = x}), std::logic_error);
  EXPECT_THROW(encode_values({.from = x, .count = 1}), std::logic_error);
  EXPECT_THROW(
      encode_values({.wire = Wire::fp8, .from = x, .count = 1, .to = reinterpret_cast<std::byte*>(x) + 2}),
      std::logic_error);
  EXPECT_THROW(decode_values({.wire = Wire::f32, .part = x, .count = 1, .to = x}), std::logic_error);
  EXPECT_THROW(decode_values({.part = x, .count = 1, .dtype = DType::e4m3, .to = x}), std::logic_error);
  EXPECT_THROW(sum_parts(stream, {.to = x, .count = 1}), std::logic_error);
  const std::vector<const void*> many(kMostParts + 1, x), one = {x};
  EXPECT_THROW(sum_parts(stream, {.parts = many, .to = x + 4, .count = 1}), std::logic_error);
  sum_parts({.parts = many, .to = x + 4, .count = 1});
  EXPECT_THROW(sum_parts({.wire = Wire::bf16, .parts = one, .to = x, .count = 1}), std::logic_error);
  EXPECT_THROW(combine_parts({.to = x, .count = 1}), std::logic_error);
  const float* addends[] = {x, x};
  for (const std::vector<int>& merges : {std::vector<int>{0}, {0, 0}, {0, 2}, {1, 0}, {-1, 3}}) {
    EXPECT_THROW(sum_tree({.addends = addends, .merges = merges, .to = x, .count = 1}), std::logic_error);
  }
}

}  // namespace
}  // namespace octet::ops::wire_test
