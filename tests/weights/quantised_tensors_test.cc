// Dequantised reading of tensors in NF4 and fine-grained FP8, and rejection of parts that do not match.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <map>

#include "octet/base/dtype.h"
#include "octet/base/error.h"
#include "octet/weights/safetensors.h"
#include "octet/weights/safetensors_writer.h"
#include "support/scratch.h"

namespace octet::weights::quantised_tensors_test {
namespace {

/// The tensors of a file to write.
struct Tensors {
  struct Tensor {
    DType dtype;
    std::vector<std::int64_t> shape;
    std::string bytes;
  };
  std::map<std::string, Tensor> all;

  template <typename T>
  void put(const std::string& name, DType dtype, std::vector<std::int64_t> shape,
           const std::vector<T>& values) {
    all[name] = {dtype, std::move(shape),
                 std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T))};
  }
  void put_text(const std::string& name, const std::string& text) {
    all[name] = {DType::u8, {static_cast<std::int64_t>(text.size())}, text};
  }
  void write(const std::string& folder) {
    std::vector<TensorSlice> slices;
    for (auto& [name, t] : all) {
      slices.push_back({.name = name,
                        .dtype = t.dtype,
                        .shape = t.shape,
                        .count = static_cast<std::int64_t>(t.bytes.size() / size_of(t.dtype)),
                        .data = t.bytes.data()});
    }
    write_safetensors(folder + "/model.safetensors", slices);
  }
};

class QuantisedTensors : public testing::Test {
 protected:
  template <typename T>
  std::vector<T> get(const std::string& name) {
    const auto bytes = golden_.bytes(golden_.at(name));
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  /// Returns a reference matrix as stored in a bitsandbytes file.
  Tensors saved(const std::string& matrix, const std::vector<std::int64_t>& shape, bool twice) {
    Tensors t;
    const std::string from = matrix + (twice ? ".dq." : ".plain."), name = "w.weight";
    const auto codes = get<std::uint8_t>(from + "codes");
    t.put(name, DType::u8, {std::ssize(codes), 1}, codes);
    t.put(name + ".quant_map", DType::f32, {16}, get<float>("quant_map"));
    std::string state = R"({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [)" +
                        std::to_string(shape[0]) + ", " + std::to_string(shape[1]) + "]";
    if (twice) {
      const auto absmax = get<std::uint8_t>(from + "absmax");
      const auto nested = get<float>(from + "nested_absmax");
      t.put(name + ".absmax", DType::u8, {std::ssize(absmax)}, absmax);
      t.put(name + ".nested_absmax", DType::f32, {std::ssize(nested)}, nested);
      t.put(name + ".nested_quant_map", DType::f32, {256}, get<float>("nested_quant_map"));
      char offset[64];
      std::snprintf(offset, sizeof offset, "%.17g",
                    static_cast<double>(get<float>(from + "nested_offset")[0]));
      state +=
          std::string(R"(, "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": )") + offset;
    } else {
      const auto absmax = get<float>(from + "absmax");
      t.put(name + ".absmax", DType::f32, {std::ssize(absmax)}, absmax);
    }
    t.put_text(name + ".quant_state.bitsandbytes__nf4", state + "}");
    return t;
  }

  std::string refusal(const std::function<void(Tensors&)>& change, bool twice = true) {
    Tensors t = saved("nested", {192, 160}, twice);
    change(t);
    t.write(folder_.path());
    try {
      const WeightFolder folder(folder_.path());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage) << error.what();
      return error.what();
    }
    return "not refused";
  }
  static void replace(Tensors& t, const std::string& from, const std::string& to) {
    auto& state = t.all.at("w.weight.quant_state.bitsandbytes__nf4");
    const auto at = state.bytes.find(from);
    ASSERT_NE(at, std::string::npos);
    state.bytes.replace(at, from.size(), to);
    state.shape = {static_cast<std::int64_t>(state.bytes.size())};
  }

  Scratch folder_;
  SafetensorsFile golden_{OCTET_SOURCE_DIR "/tests/golden/adapters/nf4.safetensors"};
};

TEST_F(QuantisedTensors, ReadAsTheValuesThatTheyStandForInAnyPiece) {
  for (const auto& [matrix, shape] : {std::pair<std::string, std::vector<std::int64_t>>{"even", {64, 128}},
                                      {"straddling", {96, 80}},
                                      {"odd", {37, 53}},
                                      {"nested", {192, 160}}}) {
    for (const bool twice : {false, true}) {
      saved(matrix, shape, twice).write(folder_.path());
      const WeightFolder folder(folder_.path());
      const auto expected = get<float>(matrix + (twice ? ".dq.dequantised" : ".plain.dequantised"));
      const std::int64_t count = shape[0] * shape[1];
      ASSERT_EQ(folder.tensors().size(), 1u) << "what belongs to a tensor is none";
      EXPECT_EQ(folder.tensors()[0].shape, shape);
      EXPECT_EQ(folder.tensors()[0].dtype, DType::bf16);
      for (const auto& [begin, length] : {std::pair<std::int64_t, std::int64_t>{0, count},
                                          {1, 1},
                                          {63, 66},
                                          {64, 64},
                                          {count - 1, 1},
                                          {5, 0}}) {
        std::vector<float> values(static_cast<std::size_t>(length));
        folder.read(
            {.name = "w.weight", .shape = shape, .begin = begin, .count = length, .data = values.data()});
        EXPECT_EQ(values, std::vector<float>(expected.begin() + begin, expected.begin() + begin + length))
            << matrix << " from " << begin;
      }
      std::vector<float> none(1);
      EXPECT_THROW(folder.read({.name = "w.weight", .shape = {1, 2}, .count = 1, .data = none.data()}),
                   Error);
    }
  }
}

TEST_F(QuantisedTensors, ArraysAreReadAsTheyAreStored) {
  saved("nested", {192, 160}, true).write(folder_.path());
  const WeightFolder folder(folder_.path());
  std::vector<std::uint8_t> codes(192 * 160 / 2), absmax(480);
  std::vector<float> nested(2), offset(1);
  const auto read = [&](const std::string& name, DType dtype, auto& to) {
    folder.read_stored({.name = name,
                        .dtype = dtype,
                        .shape = {std::ssize(to)},
                        .count = std::ssize(to),
                        .data = to.data()});
  };
  read("w.weight", DType::u8, codes);
  read("w.weight.absmax", DType::u8, absmax);
  read("w.weight.nested_absmax", DType::f32, nested);
  read("w.weight.nested_offset", DType::f32, offset);
  EXPECT_EQ(codes, get<std::uint8_t>("nested.dq.codes"));
  EXPECT_EQ(absmax, get<std::uint8_t>("nested.dq.absmax"));
  EXPECT_EQ(nested, get<float>("nested.dq.nested_absmax"));
  EXPECT_EQ(offset, get<float>("nested.dq.nested_offset"));
  std::vector<float> plain(480);
  EXPECT_THROW(read("w.weight.absmax", DType::f32, plain), Error) << "another kind of scales than asked for";
  EXPECT_THROW(read("v.weight", DType::u8, codes), Error);
}

TEST_F(QuantisedTensors, WhatDoesNotFitIsRefusedWithItsOwnMessage) {
  const auto expect = [&](const std::string& says, const std::function<void(Tensors&)>& change,
                          bool twice = true) {
    const std::string said = refusal(change, twice);
    EXPECT_NE(said.find(says), std::string::npos) << says << ": " << said;
    EXPECT_NE(said.find("w.weight"), std::string::npos) << said;
  };
  const auto cut = [](const std::string& name, std::int64_t by) {
    return [=](Tensors& t) {
      auto& tensor = t.all.at(name);
      tensor.bytes.resize(tensor.bytes.size() - static_cast<std::size_t>(by));
      tensor.shape = {static_cast<std::int64_t>(tensor.bytes.size() / size_of(tensor.dtype))};
    };
  };
  expect("the codes of a quantised tensor do not fit", cut("w.weight", 1));
  expect("the scales (absmax) of a quantised tensor do not fit", cut("w.weight.absmax", 1));
  expect("the scales (absmax) of a quantised tensor do not fit", cut("w.weight.absmax", 4), false);
  expect("the scales of scales", cut("w.weight.nested_absmax", 4));
  expect("lacks a part", [](Tensors& t) { t.all.erase("w.weight.absmax"); });
  expect("lacks a part", [](Tensors& t) { t.all.erase("w.weight"); });
  expect("the mean of quantised scales is missing",
         [](Tensors& t) { replace(t, "\"nested_offset\"", "\"other_offset\""); });
  expect("blocksize: 64", [](Tensors& t) { replace(t, "\"blocksize\": 64", "\"blocksize\": 32"); });
  expect("nested_blocksize: 256", [](Tensors& t) { replace(t, "_blocksize\": 256", "_blocksize\": 128"); });
  expect("less than 2^63 elements", [](Tensors& t) { replace(t, "[192, 160]", "[4294967296, 4294967296]"); });
  expect("do not fit its shape", [](Tensors& t) { replace(t, "[192, 160]", "[192, 320]"); });
  expect("extents of at least 1", [](Tensors& t) { replace(t, "[192, 160]", "[192, 0]"); });
  expect("cannot be read", [](Tensors& t) { replace(t, "[192, 160]", "[192, -160]"); });
  expect("cannot be read", [](Tensors& t) { replace(t, "\"shape\"", "\"form\""); });
  expect("is not the table of NF4", [](Tensors& t) { t.all.at("w.weight.quant_map").bytes[3] ^= 1; });
  expect("is not the table of scales",
         [](Tensors& t) { t.all.at("w.weight.nested_quant_map").bytes[3] ^= 1; });
  expect("the 4-bit format of a quantised tensor is not supported", [](Tensors& t) {
    auto state = t.all.extract("w.weight.quant_state.bitsandbytes__nf4");
    state.key() = "w.weight.quant_state.bitsandbytes__fp4";
    t.all.insert(std::move(state));
  });
  EXPECT_EQ(refusal([](Tensors&) {}), "not refused");
}

TEST_F(QuantisedTensors, FineGrainedFp8IsDecodedOnTheWayIn) {
  const std::int64_t rows = 130, cols = 300;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales, expected;
  for (int i = 0; i < 2 * 3; ++i) scales.push_back(0.25f + static_cast<float>(i));
  for (std::int64_t i = 0; i < rows * cols; ++i) {
    codes.push_back(static_cast<std::uint8_t>(i * 37 % 126));
    const auto square = static_cast<std::size_t>(i / cols / 128 * 3 + i % cols / 128);
    expected.push_back(from_fp8(codes.back(), DType::e4m3) * scales[square]);
  }
  Tensors t;
  t.put("w.weight", DType::e4m3, {rows, cols}, codes);
  t.put("w.weight_scale_inv", DType::f32, {2, 3}, scales);
  t.write(folder_.path());
  const WeightFolder folder(folder_.path());
  ASSERT_EQ(folder.tensors().size(), 1u);
  for (const auto& [begin, length] : {std::pair<std::int64_t, std::int64_t>{0, rows * cols},
                                      {127, 2},
                                      {cols * 127 + 250, 120},
                                      {rows * cols - 1, 1}}) {
    std::vector<float> values(static_cast<std::size_t>(length));
    folder.read("w.weight", begin, length, values.data());
    EXPECT_EQ(values, std::vector<float>(expected.begin() + begin, expected.begin() + begin + length));
  }
  t.put("w.weight_scale_inv", DType::f32, {3, 2}, scales);
  t.write(folder_.path());
  EXPECT_THROW(WeightFolder{folder_.path()}, Error) << "scales of another shape";
  t.put("w.weight_scale_inv", DType::f32, {2, 3}, scales);
  t.put("w.weight", DType::u8, {rows, cols}, codes);
  t.write(folder_.path());
  EXPECT_THROW(WeightFolder{folder_.path()}, Error) << "beside what is no FP8";
}

}  // namespace
}  // namespace octet::weights::quantised_tensors_test
