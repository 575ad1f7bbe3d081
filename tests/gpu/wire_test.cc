// Compares wires on the GPU with the CPU: the same bytes, including NaNs. Covers all kinds of blocks, and
// counts and alignments for whole tiles, words and single elements.
#include "octet/ops/wire.h"

#include <algorithm>

#include "gpu/sides.h"
#include "ops/wire_values.h"

namespace octet::ops::wire_test {
namespace {

/// Puts values on a side, `skip` elements after a boundary of 256 bytes.
template <typename T>
T* put_behind(Side& s, std::int64_t skip, const std::vector<T>& values) {
  std::vector<T> behind(static_cast<std::size_t>(skip));
  behind.insert(behind.end(), values.begin(), values.end());
  behind.push_back(T{});  // never empty
  return s.put(behind) + skip;
}
void out_bytes(Side& s, const std::string& name, const void* data, std::size_t bytes) {
  s.out(name, static_cast<const std::uint8_t*>(data), static_cast<std::int64_t>(bytes), DType::u8);
}

/// Values of one of two dtypes.
struct Values {
  std::vector<float> floats;
  std::vector<std::uint16_t> halves;
  Values(DType dtype, std::int64_t count, std::uint64_t seed) {
    if (dtype == DType::bf16) {
      halves = awkward_halves(count, seed);
    } else {
      floats = awkward_floats(count, seed);
    }
  }
  void* put(Side& s, std::int64_t skip) const {
    if (floats.empty()) return put_behind(s, skip, halves);
    return put_behind(s, skip, floats);
  }
};
std::size_t bytes_of(DType dtype, std::int64_t count) {
  return static_cast<std::size_t>(count) * size_of(dtype);
}
/// Puts encoded bytes on a side, aligned to 4 bytes, or to elements for bf16.
std::uint8_t* put_travelling(Side& s, Wire wire, std::int64_t skip, const std::vector<std::uint8_t>& bytes) {
  return put_behind(s, skip * (wire == Wire::bf16 ? 2 : 4), bytes);
}

struct Length {
  std::int64_t count;
  std::int64_t skip;
};
constexpr Length kLengths[] = {{0, 0},    {1, 0},    {127, 0},  {128, 0},  {129, 1},    {511, 0},
                               {512, 0},  {513, 0},  {1023, 3}, {1025, 0}, {5000, 0},   {5000, 1},
                               {5003, 2}, {8192, 0}, {8192, 1}, {8192, 2}, {100003, 0}, {100003, 3}};
constexpr std::int64_t kMany = 3'000'017;

void hold_encode(Wire wire, DType dtype, const Length& at) {
  const Values values(dtype, at.count, 1);
  const std::vector<std::uint16_t> owed = awkward_residual(at.count, 2);
  for (const int residual : {0, 1, 2}) {  // none; added; only updated
    SCOPED_TRACE(std::string(name_of(wire)) + " " + std::string(octet::name_of(dtype)) + " residual " +
                 std::to_string(residual) + " count " + std::to_string(at.count) + " behind " +
                 std::to_string(at.skip));
    both(
        [&](Side& s) {
          const std::vector<std::uint8_t> poison(wire_bytes(wire, at.count) + 16, 0xEE);
          std::uint8_t* to = put_travelling(s, wire, at.skip, poison);
          std::uint16_t* lost = nullptr;
          if (residual > 0) lost = put_behind(s, at.skip, owed);
          encode_values(s, {.wire = wire,
                            .from = values.put(s, at.skip),
                            .dtype = dtype,
                            .count = at.count,
                            .to = to,
                            .residual = lost,
                            .adds_residual = residual == 1});
          out_bytes(s, "encoded and what lies behind", to, poison.size());
          if (residual > 0) out_bytes(s, "residual", lost, bytes_of(DType::bf16, at.count));
        },
        {});
  }
}

TEST(EncodeValues, GivesTheBytesOfTheCpu) {
  for (const Wire wire : kNarrowWires) {
    for (const DType dtype : kComputeTypes) {
      for (const Length& at : kLengths) hold_encode(wire, dtype, at);
      hold_encode(wire, dtype, {kMany, 0});
    }
  }
}

// Factors of every magnitude, and mantissas on both sides of each rounding boundary.
TEST(EncodeValues, QuotientsAreThoseOfADivision) {
  constexpr std::int64_t blocks = 254 * 64;
  std::vector<float> x = random_floats(blocks * kWireBlock, 3);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto block = static_cast<int>(i / static_cast<std::size_t>(kWireBlock));
    auto bits = std::bit_cast<std::uint32_t>(x[i]) & 0x807FFFFFu;
    if (i % 3 == 0) bits = (bits & 0x80780000u) | (i % 2 == 0 ? 0u : 0x7FFFFu);
    if (i % 128 == 7) bits = (bits & 0x80000000u) | static_cast<std::uint32_t>(i * 2654435761u) % 0x800000u;
    // The largest of a block has this exponent; other exponents are up to 16 less. Small values are below
    // 2^-126.
    const int exponent = block / 64 + 1 - (i % 128 == 7 ? 0 : static_cast<int>(i * 7 % 17));
    x[i] = exponent < 1 ? std::bit_cast<float>(bits)
                        : std::bit_cast<float>(bits | (static_cast<std::uint32_t>(exponent) << 23));
  }
  for (const Wire wire : {Wire::fp8, Wire::int8}) {
    both(
        [&](Side& s) {
          const std::size_t bytes = wire_bytes(wire, blocks * kWireBlock);
          auto* to = s.put(std::vector<std::uint8_t>(bytes));
          encode_values(s, {.wire = wire, .from = s.put(x), .count = blocks * kWireBlock, .to = to});
          out_bytes(s, name_of(wire), to, bytes);
        },
        {});
  }
}

TEST(DecodeValues, GivesTheBitsOfTheCpu) {
  for (const Wire wire : kNarrowWires) {
    for (const DType dtype : kComputeTypes) {
      const auto hold = [&](const Length& at) {
        SCOPED_TRACE(std::string(name_of(wire)) + " " + std::string(octet::name_of(dtype)) + " count " +
                     std::to_string(at.count) + " behind " + std::to_string(at.skip));
        const std::vector<std::uint8_t> bytes = travelling(wire, at.count, 4);
        const Values before(dtype, at.count + 3, 5);
        both(
            [&](Side& s) {
              void* to = before.put(s, at.skip);
              decode_values(s, {.wire = wire,
                                .part = put_travelling(s, wire, at.skip, bytes),
                                .count = at.count,
                                .dtype = dtype,
                                .to = to});
              out_bytes(s, "decoded and what lies behind", to, bytes_of(dtype, at.count + 3));
            },
            {});
      };
      for (const Length& at : kLengths) hold(at);
      hold({kMany, 0});
    }
  }
}

// Any bytes may arrive: all codes, and factors with any bits.
TEST(DecodeValues, ReadsAnyBytesAsTheCpuDoes) {
  std::vector<std::uint8_t> bytes(wire_bytes(Wire::fp8, 200'000));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::uint8_t>((i * 0x9E3779B97F4A7C15u) >> 37);
  }
  for (const Wire wire : {Wire::fp8, Wire::int8}) {
    both(
        [&](Side& s) {
          const auto* part = s.put(bytes);
          auto* floats = s.put(std::vector<float>(200'000));
          auto* halves = s.put(std::vector<std::uint16_t>(200'000));
          decode_values(s, {.wire = wire, .part = part, .count = 200'000, .to = floats});
          decode_values(s,
                        {.wire = wire, .part = part, .count = 200'000, .dtype = DType::bf16, .to = halves});
          out_bytes(s, "floats", floats, 800'000);
          out_bytes(s, "halves", halves, 400'000);
        },
        {});
  }
}

void hold_sum(Wire wire, DType dtype, int parts, const Length& at) {
  SCOPED_TRACE(std::string(name_of(wire)) + " to " + std::string(octet::name_of(dtype)) + ", " +
               std::to_string(parts) + " parts of " + std::to_string(at.count) + " behind " +
               std::to_string(at.skip));
  // With many parts, some are equal.
  constexpr std::size_t different = 24;
  std::vector<std::vector<std::uint8_t>> bytes;
  for (std::size_t p = 0; p < std::min(different, static_cast<std::size_t>(parts)); ++p) {
    bytes.push_back(travelling(wire, at.count, p + 6));
  }
  const Values before(dtype, at.count + 3, 5);
  both(
      [&](Side& s) {
        std::vector<const void*> pointers;
        for (const auto& part : bytes) pointers.push_back(put_travelling(s, wire, at.skip, part));
        while (pointers.size() < static_cast<std::size_t>(parts)) {
          pointers.push_back(pointers[pointers.size() - different]);
        }
        void* to = before.put(s, at.skip);
        for (const bool accumulate : {false, true}) {
          sum_parts(s, {.wire = wire,
                        .parts = pointers,
                        .to = to,
                        .to_dtype = dtype,
                        .count = at.count,
                        .accumulate = accumulate});
          out_bytes(s, "sum and what lies behind", to, bytes_of(dtype, at.count + 3));
        }
      },
      {});
}

TEST(SumParts, GivesTheBitsOfTheCpu) {
  for (const Wire wire : kWires) {
    for (const DType dtype : kComputeTypes) {
      for (const int parts : {1, 2, 3, 5, 8}) {
        for (const Length& at : kLengths) hold_sum(wire, dtype, parts, at);
      }
      for (const int parts : {64, 65, 300}) {
        for (const Length& at : {Length{1, 0}, Length{1025, 1}, Length{5003, 0}}) {
          hold_sum(wire, dtype, parts, at);
        }
      }
      hold_sum(wire, dtype, 3, {kMany, 0});
    }
  }
}

TEST(SumParts, AsManyPartsAsThereMayBe) {
  hold_sum(Wire::bf16, DType::f32, static_cast<int>(kMostParts), {513, 0});
}

TEST(SumParts, ThePlaceOfTheSumMayBeAPart) {
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t skip : {0, 1}) {
      both(
          [&](Side& s) {
            std::vector<const void*> parts;
            for (std::uint64_t p = 0; p < 3; ++p) parts.push_back(Values(dtype, 9001, p).put(s, skip));
            void* to = const_cast<void*>(parts[1]);
            for (const bool accumulate : {false, true}) {
              sum_parts(s, {.wire = wire_of_values(Wire::f32, dtype),
                            .parts = parts,
                            .to = to,
                            .to_dtype = dtype,
                            .count = 9001,
                            .accumulate = accumulate});
              out_bytes(s, "sum", to, bytes_of(dtype, 9001));
            }
          },
          {});
    }
  }
}

TEST(SumTree, GivesTheBitsOfTheCpu) {
  const auto hold = [](int addends, const Length& at) {
    constexpr std::size_t different = 30;
    std::vector<std::vector<float>> x;
    for (std::size_t a = 0; a < std::min(different, static_cast<std::size_t>(addends)); ++a) {
      x.push_back(awkward_floats(at.count, a));
    }
    for (const std::vector<int>& merges : merges_of(addends)) {
      SCOPED_TRACE(std::to_string(addends) + " addends of " + std::to_string(at.count) + " behind " +
                   std::to_string(at.skip));
      both(
          [&](Side& s) {
            std::vector<const float*> pointers;
            for (const auto& addend : x) pointers.push_back(put_behind(s, at.skip, addend));
            while (pointers.size() < static_cast<std::size_t>(addends)) {
              pointers.push_back(pointers[pointers.size() - different]);
            }
            auto* last = const_cast<float*>(pointers.back());
            auto* to =
                put_behind(s, at.skip, std::vector<float>(static_cast<std::size_t>(at.count) + 3, 7.0f));
            sum_tree(s, {.addends = pointers, .merges = merges, .to = to, .count = at.count});
            out_bytes(s, "sum and what lies behind", to, bytes_of(DType::f32, at.count + 3));
            sum_tree(s, {.addends = pointers, .merges = merges, .to = last, .count = at.count});
            out_bytes(s, "in place", last, bytes_of(DType::f32, at.count));
          },
          {});
    }
  };
  for (const int addends : {1, 2, 3, 8, 13}) {
    for (const Length& at : kLengths) hold(addends, at);
  }
  // Enough addends that their stacks leave space for fewer threads, and then only for single elements.
  for (const int addends : {16, 64, 65, 128, 300, static_cast<int>(kMostParts)}) {
    for (const Length& at : {Length{1, 0}, Length{1025, 1}, Length{5003, 0}}) hold(addends, at);
  }
  hold(8, {kMany, 0});
}

TEST(CombineParts, GivesTheBitsOfTheCpu) {
  for (const int parts : {1, 2, 3, 64, 65, 300}) {
    for (const std::int64_t count :
         {std::int64_t{0}, std::int64_t{1}, std::int64_t{129}, std::int64_t{5003}}) {
      both(
          [&](Side& s) {
            std::vector<const void*> floats, wholes, doubles;
            for (int p = 0; p < parts; ++p) {
              const auto seed = static_cast<std::uint64_t>(p % 30);
              const std::vector<float> x = awkward_floats(count, seed);
              std::vector<std::int64_t> whole;
              std::vector<double> real(x.begin(), x.end());
              for (std::size_t i = 0; i < x.size(); ++i) {
                whole.push_back(static_cast<std::int64_t>((i + seed + 1) * 0x9E3779B97F4A7C15u));
                real[i] *= 1.0 + static_cast<double>(i + seed) * 0x1p-40;
              }
              floats.push_back(put_behind(s, 1, x));
              wholes.push_back(put_behind(s, 1, whole));
              doubles.push_back(put_behind(s, 1, real));
            }
            auto* most = s.put(std::vector<float>(static_cast<std::size_t>(count) + 1, 3.0f));
            combine_parts(s, {.parts = floats, .to = most, .count = count});
            out_bytes(s, "largest", most, bytes_of(DType::f32, count + 1));
            void* whole = const_cast<void*>(wholes.back());
            combine_parts(s, {.how = Combine::sum_i64, .parts = wholes, .to = whole, .count = count});
            out_bytes(s, "sum of integers", whole, static_cast<std::size_t>(count) * 8);
            auto* real = s.put(std::vector<double>(static_cast<std::size_t>(count) + 1, 3.0));
            combine_parts(s, {.how = Combine::sum_f64, .parts = doubles, .to = real, .count = count});
            out_bytes(s, "sum of doubles", real, static_cast<std::size_t>(count + 1) * 8);
          },
          {});
    }
  }
}

}  // namespace
}  // namespace octet::ops::wire_test
