// NF4 against bitsandbytes' results for the same matrices (tests/golden/adapters), byte for byte.
#include "octet/ops/nf4.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <stdexcept>

#include "octet/weights/safetensors.h"
#include "ops/tensor.h"
#include "support/nf4_series.h"

namespace octet::ops::nf4_test {
namespace {

class Nf4 : public testing::Test {
 protected:
  /// Returns a tensor of the reference file as values of type T.
  template <typename T>
  std::vector<T> get(const std::string& name) {
    const auto bytes = golden_.bytes(golden_.at(name));
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  struct Quantized {
    std::vector<std::uint8_t> codes;
    std::vector<float> scales;
    std::vector<std::uint8_t> scale_codes;
    std::vector<float> nested;
    float mean = 0;
    Nf4Scales plain() const { return {.plain = scales.data()}; }
    Nf4Scales twice() const { return {.codes = scale_codes.data(), .nested = nested.data(), .mean = &mean}; }
  };
  template <typename T>
  Quantized quantize(const std::vector<T>& x, DType dtype) {
    const auto count = static_cast<std::int64_t>(x.size());
    Quantized q;
    q.codes.resize(static_cast<std::size_t>(nf4_code_bytes(count)), 0xEE);
    q.scales.resize(static_cast<std::size_t>(nf4_blocks(count)));
    q.scale_codes.resize(q.scales.size());
    q.nested.resize(static_cast<std::size_t>(nf4_scale_blocks(count)));
    nf4_quantize(
        stream_,
        {.x = x.data(), .dtype = dtype, .count = count, .codes = q.codes.data(), .scales = q.scales.data()});
    nf4_quantize_scales(stream_, {.scales = q.scales.data(),
                                  .blocks = nf4_blocks(count),
                                  .codes = q.scale_codes.data(),
                                  .nested = q.nested.data(),
                                  .mean = &q.mean});
    static_cast<Stream&>(stream_).synchronize();
    return q;
  }
  template <typename T>
  std::vector<T> decode(const Quantized& q, const Nf4Scales& scales, std::int64_t begin, std::int64_t count,
                        DType dtype) {
    std::vector<T> out(static_cast<std::size_t>(count) + 1, T{7});
    nf4_decode(stream_, {.codes = q.codes.data(),
                         .scales = scales,
                         .begin = begin,
                         .count = count,
                         .to = out.data(),
                         .dtype = dtype});
    static_cast<Stream&>(stream_).synchronize();
    EXPECT_EQ(out.back(), T{7}) << "nothing is written behind the last element";
    out.pop_back();
    return out;
  }
  /// Compares scales of scales and their codes, with a tolerance for a different order of the mean's sum.
  void expect_scales(const Quantized& q, const std::string& name) {
    EXPECT_NEAR(q.mean, get<float>(name + ".nested_offset")[0], 1e-6 * std::abs(q.mean)) << name;
    const auto nested = get<float>(name + ".nested_absmax");
    ASSERT_EQ(q.nested.size(), nested.size());
    for (std::size_t i = 0; i < nested.size(); ++i) EXPECT_NEAR(q.nested[i], nested[i], 1e-6 * nested[i]);
    EXPECT_EQ(q.scale_codes, get<std::uint8_t>(name + ".absmax")) << name;
  }

  /// Uses the reference's scales of scales, so that values can be compared bit for bit: the last bit of the
  /// mean depends on the order of its sum.
  void take_scales(Quantized& q, const std::string& name) {
    q.scale_codes = get<std::uint8_t>(name + ".absmax");
    q.nested = get<float>(name + ".nested_absmax");
    q.mean = get<float>(name + ".nested_offset")[0];
  }

  weights::SafetensorsFile golden_{OCTET_SOURCE_DIR "/tests/golden/adapters/nf4.safetensors"};
  CpuStream stream_;
};

TEST_F(Nf4, TheValuesAreThoseOfTheReference) {
  EXPECT_EQ(std::vector<float>(nf4_values(), nf4_values() + 16), get<float>("quant_map"));
  const auto map = get<float>("nested_quant_map");
  ASSERT_EQ(map.size(), 256u);
  for (std::size_t i = 0; i < 256; ++i) EXPECT_EQ(nf4_scale_values()[i], map[i]) << i;
}

TEST_F(Nf4, CodesScalesAndValuesAreTheBytesOfTheReference) {
  // "odd" ends with half a byte and a short block. Blocks of "straddling" cross rows. "nested" has two blocks
  // of scales.
  for (const std::string name : {"even", "straddling", "odd", "nested"}) {
    const auto x = get<float>(name + ".f32");
    const auto count = static_cast<std::int64_t>(x.size());
    Quantized q = quantize(x, DType::f32);
    EXPECT_EQ(q.codes, get<std::uint8_t>(name + ".plain.codes")) << name;
    EXPECT_EQ(q.scales, get<float>(name + ".plain.absmax")) << name;
    EXPECT_EQ(decode<float>(q, q.plain(), 0, count, DType::f32), get<float>(name + ".plain.dequantised"))
        << name;
    EXPECT_EQ(q.codes, get<std::uint8_t>(name + ".dq.codes")) << name;
    expect_scales(q, name + ".dq");
    take_scales(q, name + ".dq");
    EXPECT_EQ(decode<float>(q, q.twice(), 0, count, DType::f32), get<float>(name + ".dq.dequantised"))
        << name;
  }
}

TEST_F(Nf4, AModelInBf16IsQuantisedFromBf16AndDecodedToIt) {
  for (const std::string name : {"even", "straddling", "odd"}) {
    std::vector<std::uint16_t> x;
    for (const float value : get<float>(name + ".f32")) x.push_back(to_bf16(value));
    const auto count = static_cast<std::int64_t>(x.size());
    Quantized q = quantize(x, DType::bf16);
    EXPECT_EQ(q.codes, get<std::uint8_t>(name + ".bf16.plain.codes")) << name;
    EXPECT_EQ(q.scales, get<float>(name + ".bf16.plain.absmax")) << name;
    EXPECT_EQ(decode<std::uint16_t>(q, q.plain(), 0, count, DType::bf16),
              get<std::uint16_t>(name + ".bf16.plain.dequantised_bf16"))
        << name;
    expect_scales(q, name + ".bf16.dq");
    take_scales(q, name + ".bf16.dq");
    EXPECT_EQ(decode<std::uint16_t>(q, q.twice(), 0, count, DType::bf16),
              get<std::uint16_t>(name + ".bf16.dq.dequantised_bf16"))
        << name;
  }
}

TEST_F(Nf4, APartIsWhatTheWholeHasThere) {
  const auto x = get<float>("nested.f32");
  const auto count = static_cast<std::int64_t>(x.size());
  const Quantized q = quantize(x, DType::f32);
  const auto whole = decode<float>(q, q.twice(), 0, count, DType::f32);
  for (const auto& [begin, length] :
       {std::pair<std::int64_t, std::int64_t>{64, 1}, {16384, 64}, {16448, 999}, {count - 64, 64}}) {
    const auto part = decode<float>(q, q.twice(), begin, length, DType::f32);
    EXPECT_EQ(part, std::vector<float>(whole.begin() + begin, whole.begin() + begin + length)) << begin;
  }
}

TEST_F(Nf4, BlocksOfZerosAndEqualScalesDecodeToThemselves) {
  const std::vector<float> zeros(130, 0.0f), ones(130, -0.25f);
  for (const auto& x : {zeros, ones}) {
    const Quantized q = quantize(x, DType::f32);
    EXPECT_EQ(decode<float>(q, q.plain(), 0, 130, DType::f32), x);
    EXPECT_EQ(decode<float>(q, q.twice(), 0, 130, DType::f32), x);
  }
}

// One pass gives the bits of three separate steps: decoding to the compute dtype, cast and transpose.
TEST_F(Nf4, CastToFp8ItHasTheBitsOfDecodingAndCasting) {
  for (const auto& [rows, cols] :
       {std::pair<std::int64_t, std::int64_t>{1, 1}, {7, 9}, {33, 130}, {16, 256}}) {
    const std::int64_t count = rows * cols, ld = rows + 5;
    const Tensor x = Tensor::random(DType::f32, 1, count, 11);
    std::vector<float> values;
    for (std::int64_t i = 0; i < count; ++i) values.push_back(static_cast<float>(x.at(0, i)));
    const Quantized q = quantize(values, DType::f32);
    for (const DType through : {DType::f32, DType::bf16}) {
      for (const DType format : {DType::e4m3, DType::e5m2}) {
        for (const Nf4Scales& scales : {q.plain(), q.twice()}) {
          const float scale = 97.0f;
          std::vector<std::uint8_t> row(static_cast<std::size_t>(count), 0xEE);
          std::vector<std::uint8_t> flipped(static_cast<std::size_t>(cols * ld), 0xEE);
          nf4_to_fp8(stream_, {.codes = q.codes.data(),
                               .scales = scales,
                               .rows = rows,
                               .cols = cols,
                               .through = through,
                               .format = format,
                               .scale = &scale,
                               .row = row.data(),
                               .transposed = flipped.data(),
                               .transposed_ld = ld});
          static_cast<Stream&>(stream_).synchronize();
          const auto decoded = decode<float>(q, scales, 0, count, DType::f32);
          for (std::size_t i = 0; i < row.size(); ++i) {
            const float value = through == DType::bf16 ? from_bf16(to_bf16(decoded[i])) : decoded[i];
            ASSERT_EQ(row[i], to_fp8(value * scale, format)) << i;
          }
          for (std::int64_t c = 0; c < cols; ++c) {
            for (std::int64_t r = 0; r < ld; ++r) {
              const std::uint8_t want = r < rows ? row[static_cast<std::size_t>(r * cols + c)] : 0xEE;
              ASSERT_EQ(flipped[static_cast<std::size_t>(c * ld + r)], want) << r << " " << c;
            }
          }
        }
      }
    }
  }
}

TEST_F(Nf4, ASeriesIsItsTensorsOneByOne) {
  constexpr std::int64_t tensors = 3;
  for (const auto& [rows, cols] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {7, 9}, {33, 130}}) {
    const StoredNf4 x(tensors, rows, cols);
    const std::int64_t count = rows * cols, ld = rows + 5;
    const std::vector<float> fp8_scales{61.0f, 0.0f, 7.0f, 0.0f, 91.0f};
    for (const bool twice : {false, true}) {
      const auto scales = [&](std::int64_t t) {
        const std::uint8_t* base = x.data.data() + t * x.bytes;
        return twice ? x.twice(base) : x.plain(base);
      };
      // Gaps between the outputs of tensors stay as they are.
      const Nf4Series series{.tensors = tensors,
                             .bytes = x.bytes,
                             .elements = count + 3,
                             .transposed = cols * ld + 2,
                             .scale = 2};
      const auto room = [&](std::int64_t each) {
        return std::vector<std::uint8_t>(static_cast<std::size_t>(tensors * each), 0xEE);
      };
      std::vector<std::uint8_t> rows_found = room(count + 3), rows_wanted = rows_found;
      std::vector<std::uint8_t> transposed_found = room(cols * ld + 2), transposed_wanted = transposed_found;
      std::vector<float> found(static_cast<std::size_t>(tensors * (count + 3)), 7.0f), wanted = found;
      Nf4ToFp8Args cast{.codes = x.data.data(),
                        .scales = scales(0),
                        .rows = rows,
                        .cols = cols,
                        .scale = fp8_scales.data(),
                        .row = rows_found.data(),
                        .transposed = transposed_found.data(),
                        .transposed_ld = ld,
                        .series = series};
      Nf4DecodeArgs decoded{
          .codes = x.data.data(), .scales = scales(0), .count = count, .to = found.data(), .series = series};
      nf4_to_fp8(stream_, cast);
      nf4_decode(stream_, decoded);
      cast.series = decoded.series = {};
      for (std::int64_t t = 0; t < tensors; ++t) {
        cast.codes = decoded.codes = x.data.data() + t * x.bytes;
        cast.scales = decoded.scales = scales(t);
        cast.scale = fp8_scales.data() + 2 * t;
        cast.row = rows_wanted.data() + t * (count + 3);
        cast.transposed = transposed_wanted.data() + t * (cols * ld + 2);
        decoded.to = wanted.data() + t * (count + 3);
        nf4_to_fp8(stream_, cast);
        nf4_decode(stream_, decoded);
      }
      static_cast<Stream&>(stream_).synchronize();
      EXPECT_EQ(found, wanted);
      EXPECT_EQ(rows_found, rows_wanted);
      EXPECT_EQ(transposed_found, transposed_wanted);
    }
  }
}

TEST_F(Nf4, WhatCannotBeIsRefused) {
  std::uint8_t code = 0;
  float value = 0, scale = 1;
  EXPECT_THROW(
      nf4_quantize(stream_, {.x = &value, .dtype = DType::u8, .count = 1, .codes = &code, .scales = &scale}),
      std::logic_error);
  EXPECT_THROW(
      nf4_decode(stream_,
                 {.codes = &code, .scales = {.plain = &scale}, .begin = 3, .count = 1, .to = &value}),
      std::logic_error);
  EXPECT_THROW(nf4_decode(stream_, {.codes = &code, .scales = {.codes = &code}, .count = 1, .to = &value}),
               std::logic_error);
  Nf4ToFp8Args cast{.codes = &code,
                    .scales = {.plain = &scale},
                    .rows = 2,
                    .cols = 1,
                    .scale = &scale,
                    .transposed = &code,
                    .transposed_ld = 1};
  EXPECT_THROW(nf4_to_fp8(stream_, cast), std::logic_error);  // rows would overlap
  cast.transposed_ld = 2, cast.format = DType::bf16;
  EXPECT_THROW(nf4_to_fp8(stream_, cast), std::logic_error);
}

}  // namespace
}  // namespace octet::ops::nf4_test
