// Stacked experts: read in all forms, refused if they do not fit, and stacked again.
#include "octet/weights/expert_stacks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>

#include "octet/base/dtype.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/tensor_slice.h"
#include "octet/weights/safetensors.h"
#include "octet/weights/safetensors_writer.h"
#include "support/scratch.h"

namespace octet::weights::expert_stacks_test {
namespace {

constexpr std::int64_t kExperts = 3, kHidden = 64, kWidth = 96;
const std::string kFront = "model.layers.1.mlp.experts.";

struct Tensor {
  DType dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
};
using Tensors = std::map<std::string, Tensor>;

std::int64_t count_of(const std::vector<std::int64_t>& shape) {
  return element_count(shape, "test");
}

/// Returns different values that bf16 holds.
float value(std::int64_t i) {
  return static_cast<float>(i % 251 - 125) * 0.03125f;
}

Tensor floats(DType dtype, const std::vector<std::int64_t>& shape, std::int64_t first) {
  std::string bytes;
  for (std::int64_t i = 0; i < count_of(shape); ++i) {
    const float x = value(first + 7 * i);
    const std::uint16_t half = to_bf16(x);
    dtype == DType::f32 ? bytes.append(reinterpret_cast<const char*>(&x), 4)
                        : bytes.append(reinterpret_cast<const char*>(&half), 2);
  }
  return {dtype, shape, bytes};
}

Tensor codes(const std::vector<std::int64_t>& shape, std::int64_t first, int low, int high) {
  std::string bytes;
  for (std::int64_t i = 0; i < count_of(shape); ++i)
    bytes.push_back(static_cast<char>(low + (first + i * 37 + i / 16 * 11) % (high - low)));
  return {DType::u8, shape, bytes};
}

Tensors in_floats(DType dtype) {
  return {{kFront + "gate_up_proj", floats(dtype, {kExperts, kHidden, 2 * kWidth}, 1)},
          {kFront + "gate_up_proj_bias", floats(dtype, {kExperts, 2 * kWidth}, 2)},
          {kFront + "down_proj", floats(dtype, {kExperts, kWidth, kHidden}, 3)},
          {kFront + "down_proj_bias", floats(dtype, {kExperts, kHidden}, 4)}};
}

Tensors in_mxfp4() {
  Tensors all = in_floats(DType::bf16);
  all.erase(kFront + "gate_up_proj");
  all.erase(kFront + "down_proj");
  all[kFront + "gate_up_proj_blocks"] = codes({kExperts, 2 * kWidth, kHidden / 32, 16}, 5, 0, 256);
  all[kFront + "gate_up_proj_scales"] = codes({kExperts, 2 * kWidth, kHidden / 32}, 6, 110, 140);
  all[kFront + "down_proj_blocks"] = codes({kExperts, kHidden, kWidth / 32, 16}, 7, 0, 256);
  all[kFront + "down_proj_scales"] = codes({kExperts, kHidden, kWidth / 32}, 8, 0, 250);
  return all;
}

double stored(const Tensor& t, std::int64_t i) {
  const auto at = static_cast<std::size_t>(i);
  if (t.dtype == DType::f32) {
    float x = 0;
    std::memcpy(&x, t.bytes.data() + 4 * at, 4);
    return static_cast<double>(x);
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, t.bytes.data() + 2 * at, 2);
  return static_cast<double>(from_bf16(bits));
}

/// Element (output, input) of a matrix of an expert, by the definition of both forms in float64.
double element(const Tensors& all, const std::string& name, std::int64_t e, std::int64_t output,
               std::int64_t input) {
  if (const auto found = all.find(kFront + name); found != all.end()) {
    const auto& shape = found->second.shape;
    return stored(found->second, (e * shape[1] + input) * shape[2] + output);
  }
  static constexpr double kValues[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
  const Tensor &blocks = all.at(kFront + name + "_blocks"), &scales = all.at(kFront + name + "_scales");
  const std::int64_t group = (e * blocks.shape[1] + output) * blocks.shape[2] + input / 32;
  const auto pair =
      static_cast<unsigned char>(blocks.bytes[static_cast<std::size_t>(group * 16 + input % 32 / 2)]);
  const unsigned code = input % 2 == 0 ? pair % 16 : pair / 16;
  const int exponent = static_cast<unsigned char>(scales.bytes[static_cast<std::size_t>(group)]) - 127;
  return std::ldexp((code >= 8 ? -1.0 : 1.0) * kValues[code % 8], exponent);
}

class ExpertStacksTest : public testing::Test {
 protected:
  /// Writes one file, or one shard for each tensor.
  void write(Tensors& all, bool shards = false) {
    ShardPlan plan;
    std::vector<TensorSlice> slices;
    for (auto& [name, t] : all) {
      slices.push_back({.name = name,
                        .dtype = t.dtype,
                        .shape = t.shape,
                        .count = count_of(t.shape),
                        .data = t.bytes.data()});
      if (!shards) continue;
      plan.files.push_back("model-" + std::to_string(plan.files.size()) + ".safetensors");
      plan.tensors.push_back({{name, t.dtype, t.shape}});
      write_safetensors(scratch_ / plan.files.back(), {slices.back()});
    }
    shards ? write_file_atomically(scratch_ / "model.safetensors.index.json", index_json(plan))
           : write_safetensors(scratch_ / "model.safetensors", slices);
  }

  void expect_values(const Tensors& all, const WeightFolder& folder) {
    for (std::int64_t e = 0; e < kExperts; ++e) {
      for (const std::string part : {"gate_proj", "up_proj", "down_proj"}) {
        const bool down = part == "down_proj";
        const std::int64_t outputs = down ? kHidden : kWidth, inputs = down ? kWidth : kHidden;
        const std::string name = kFront + std::to_string(e) + "." + part;
        const std::string stacked = down ? "down_proj" : "gate_up_proj";
        const auto column = [&](std::int64_t i) { return down ? i : 2 * i + (part == "up_proj" ? 1 : 0); };
        const StoredTensor& matrix = folder.expect(name + ".weight", {outputs, inputs});
        for (const auto& [begin, count] : {std::pair<std::int64_t, std::int64_t>{0, outputs * inputs},
                                           {5, 3},
                                           {inputs - 2, 4 * inputs + 5},
                                           {outputs * inputs - 1, 1},
                                           {9, 0}}) {
          std::vector<float> found(static_cast<std::size_t>(count));
          folder.read(matrix.name, begin, count, found.data());
          for (std::int64_t i = 0; i < count; ++i) {
            const std::int64_t at = begin + i;
            const double want = element(all, stacked, e, column(at / inputs), at % inputs);
            ASSERT_EQ(static_cast<double>(found[static_cast<std::size_t>(i)]), want) << name << " " << at;
          }
        }
        const StoredTensor& bias = folder.expect(name + ".bias", {outputs});
        std::vector<float> found(static_cast<std::size_t>(outputs));
        folder.read(bias.name, 0, outputs, found.data());
        const Tensor& biases = all.at(kFront + stacked + "_bias");
        for (std::int64_t i = 0; i < outputs; ++i) {
          ASSERT_EQ(static_cast<double>(found[static_cast<std::size_t>(i)]),
                    stored(biases, e * biases.shape[1] + column(i)));
        }
      }
    }
  }

  std::string refusal(Tensors all) {
    write(all);
    try {
      const WeightFolder folder(scratch_.path());
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      return error.what();
    }
    return "not refused";
  }

  Scratch scratch_;
};

TEST_F(ExpertStacksTest, EachExpertIsReadAsMatricesAndBiases) {
  for (Tensors all : {in_floats(DType::f32), in_floats(DType::bf16), in_mxfp4()}) {
    for (const bool shards : {false, true}) {
      std::filesystem::remove(scratch_ / "model.safetensors");
      write(all, shards);
      const WeightFolder folder(scratch_.path());
      EXPECT_EQ(folder.tensors().size(), 6U * kExperts) << "stacked tensors, codes and scales are not listed";
      expect_values(all, folder);
      std::filesystem::remove(scratch_ / "model.safetensors.index.json");
    }
  }
}

TEST_F(ExpertStacksTest, ABlockOfRowsAndColumnsIsRead) {
  Tensors all = in_mxfp4();
  write(all);
  const WeightFolder folder(scratch_.path());
  std::vector<float> block(6);
  folder.read({.name = kFront + "1.down_proj.weight",
               .shape = {kHidden, kWidth},
               .begin = 4 * kWidth + 31,
               .count = 2,
               .data = block.data(),
               .rows = 3,
               .stride = kWidth,
               .pitch = 2});
  for (std::int64_t i = 0; i < 6; ++i) {
    EXPECT_EQ(static_cast<double>(block[static_cast<std::size_t>(i)]),
              element(all, "down_proj", 1, 4 + i / 2, 31 + i % 2));
  }
}

// Scales at both ends: 2^-127 is not a normal number, and 255 is NaN.
TEST_F(ExpertStacksTest, ScalesAtTheEndsOfTheirRangeAreExact) {
  Tensors all = in_mxfp4();
  Tensor& scales = all.at(kFront + "down_proj_scales");
  scales.bytes[0] = 0;
  scales.bytes[1] = static_cast<char>(254);
  scales.bytes[2] = static_cast<char>(255);
  Tensor& blocks = all.at(kFront + "down_proj_blocks");
  for (std::size_t i = 0; i < 48; ++i) blocks.bytes[i] = '\x23';  // 1.5 and 1
  write(all);
  const WeightFolder folder(scratch_.path());
  std::vector<float> row(kWidth);
  folder.read(kFront + "0.down_proj.weight", 0, kWidth, row.data());
  EXPECT_EQ(row[0], 1.5f * 0x1p-127f);
  EXPECT_EQ(row[33], 0x1p127f);
  EXPECT_TRUE(std::isnan(row[64]));
}

TEST_F(ExpertStacksTest, WhatIsMissingOrDoesNotFitIsRefused) {
  const auto expect = [&](const std::string& says, Tensors all, const std::function<void(Tensors&)>& change) {
    change(all);
    const std::string said = refusal(std::move(all));
    EXPECT_NE(said.find(says), std::string::npos) << says << ": " << said;
  };
  expect("no 'model.layers.1.mlp.experts.gate_up_proj_scales'", in_mxfp4(),
         [](Tensors& t) { t.erase(kFront + "gate_up_proj_scales"); });
  expect("no 'model.layers.1.mlp.experts.down_proj_blocks'", in_mxfp4(),
         [](Tensors& t) { t.erase(kFront + "down_proj_blocks"); });
  expect("the matrices of experts are incomplete", in_floats(DType::bf16),
         [](Tensors& t) { t.erase(kFront + "down_proj"); });
  expect("the MXFP4 scales of experts do not fit their codes", in_mxfp4(), [](Tensors& t) {
    t[kFront + "down_proj_scales"] = codes({kExperts, kHidden, 1}, 1, 100, 120);
  });
  expect("the MXFP4 codes of experts do not fit their biases", in_mxfp4(), [](Tensors& t) {
    t[kFront + "down_proj_blocks"] = codes({kExperts, kHidden, kWidth / 16, 8}, 1, 0, 255);
  });
  expect("the matrices of experts do not fit their biases", in_floats(DType::bf16), [](Tensors& t) {
    t[kFront + "gate_up_proj"] = floats(DType::bf16, {kExperts, 2 * kWidth, kHidden}, 1);
  });
  expect("the biases of experts cannot be read", in_floats(DType::bf16), [](Tensors& t) {
    t[kFront + "gate_up_proj_bias"] = floats(DType::bf16, {kExperts, 3}, 1);
  });
  expect("the matrices of experts occur twice", in_mxfp4(), [](Tensors& t) {
    t[kFront + "down_proj"] = floats(DType::bf16, {kExperts, kWidth, kHidden}, 1);
  });
}

// The tensors of a folder, stacked again, equal the stored tensors.
TEST_F(ExpertStacksTest, StackingGivesTheStoredTensors) {
  Tensors all = in_floats(DType::f32);
  all["model.norm.weight"] = floats(DType::f32, {5}, 9);
  write(all);
  const WeightFolder folder(scratch_.path());
  std::vector<TensorHeader> headers;
  for (const StoredTensor& tensor : folder.tensors()) headers.push_back(tensor);
  ExpertStacks stacks(headers);
  ASSERT_EQ(stacks.tensors().size(), all.size());
  const auto read = [&](const std::string& name, std::int64_t begin, std::int64_t count, float* out) {
    folder.read(name, begin, count, out);
  };
  for (const TensorHeader& tensor : stacks.tensors()) {
    const Tensor& want = all.at(tensor.name);
    ASSERT_EQ(tensor.shape, want.shape) << tensor.name;
    const std::int64_t count = count_of(want.shape);
    for (const std::int64_t piece : {count, std::int64_t{1000}}) {
      std::vector<float> found(static_cast<std::size_t>(count));
      for (std::int64_t at = 0; at < count; at += piece)
        stacks.read(read, tensor.name, at, std::min(piece, count - at), found.data() + at);
      for (std::int64_t i = 0; i < count; ++i)
        ASSERT_EQ(static_cast<double>(found[static_cast<std::size_t>(i)]), stored(want, i)) << tensor.name;
    }
  }
}

/// Stacked experts without biases. kHidden and kWidth differ, so that the shapes fit one layout.
Tensors plain_stacks(ExpertLayout layout, DType dtype) {
  if (layout == ExpertLayout::inputs_first) {
    return {{kFront + "gate_up_proj", floats(dtype, {kExperts, kHidden, 2 * kWidth}, 1)},
            {kFront + "down_proj", floats(dtype, {kExperts, kWidth, kHidden}, 3)}};
  }
  return {{kFront + "gate_up_proj", floats(dtype, {kExperts, 2 * kWidth, kHidden}, 1)},
          {kFront + "down_proj", floats(dtype, {kExperts, kHidden, kWidth}, 3)}};
}

TEST_F(ExpertStacksTest, LayoutsWithoutBiasesAreReadAndStackedAgain) {
  for (const ExpertLayout layout : {ExpertLayout::inputs_first, ExpertLayout::outputs_first}) {
    const bool inputs_first = layout == ExpertLayout::inputs_first;
    Tensors all = plain_stacks(layout, DType::bf16);
    write(all);
    const WeightFolder folder(scratch_.path());
    EXPECT_EQ(folder.expert_layout(), layout);
    std::vector<TensorHeader> headers;
    for (const StoredTensor& tensor : folder.tensors()) headers.push_back(tensor);
    ASSERT_EQ(headers.size(), 3U * kExperts);
    for (const std::string part : {"gate_proj", "up_proj", "down_proj"}) {
      const bool down = part == "down_proj";
      const std::int64_t rows = down ? kHidden : kWidth, cols = down ? kWidth : kHidden;
      const std::int64_t columns = down ? kHidden : 2 * kWidth, first = part == "up_proj" ? kWidth : 0;
      const Tensor& stored_in = all.at(kFront + (down ? "down_proj" : "gate_up_proj"));
      std::vector<float> found(static_cast<std::size_t>(rows * cols));
      folder.read(folder.expect(kFront + "1." + part + ".weight", {rows, cols}).name, 0, rows * cols,
                  found.data());
      for (std::int64_t i = 0; i < rows * cols; ++i) {
        const std::int64_t row = first + i / cols, col = i % cols;
        const std::int64_t at = inputs_first ? col * columns + row : row * cols + col;
        ASSERT_EQ(static_cast<double>(found[static_cast<std::size_t>(i)]),
                  stored(stored_in, columns * cols + at))
            << part << " " << i;
      }
    }
    ExpertStacks stacks(headers, layout);
    ASSERT_EQ(stacks.tensors().size(), all.size());
    const auto read = [&](const std::string& name, std::int64_t begin, std::int64_t count, float* out) {
      folder.read(name, begin, count, out);
    };
    for (const TensorHeader& tensor : stacks.tensors()) {
      const Tensor& want = all.at(tensor.name);
      ASSERT_EQ(tensor.shape, want.shape) << tensor.name;
      std::vector<float> found(static_cast<std::size_t>(count_of(want.shape)));
      stacks.read(read, tensor.name, 0, count_of(want.shape), found.data());
      for (std::size_t i = 0; i < found.size(); ++i)
        ASSERT_EQ(static_cast<double>(found[i]), stored(want, static_cast<std::int64_t>(i))) << tensor.name;
    }
  }
}

TEST_F(ExpertStacksTest, AnExpertThatIsAlsoASingleTensorIsRefused) {
  for (const ExpertLayout layout : {ExpertLayout::inputs_first, ExpertLayout::outputs_first}) {
    Tensors all = plain_stacks(layout, DType::bf16);
    all[kFront + "1.up_proj.weight"] = floats(DType::bf16, {kWidth, kHidden}, 5);
    EXPECT_NE(refusal(all).find("1.up_proj.weight' occurs twice"), std::string::npos);
  }
}

TEST(ExpertLayouts, AreFoundFromShapes) {
  EXPECT_EQ(layout_of_stacks({4, 6, 10}, {4, 10, 3}), ExpertLayout::outputs_first);
  EXPECT_EQ(layout_of_stacks({4, 10, 6}, {4, 3, 10}), ExpertLayout::inputs_first);
  EXPECT_EQ(layout_of_stacks({4, 8, 8}, {4, 8, 4}), ExpertLayout::outputs_first);
  EXPECT_EQ(layout_of_stacks({4, 8, 8}, {4, 4, 8}), ExpertLayout::inputs_first);
  EXPECT_EQ(layout_of_stacks({4, 6, 10}, {3, 10, 3}), ExpertLayout::separate);
  EXPECT_EQ(layout_of_stacks({4, 6, 10}, {4, 10, 4}), ExpertLayout::separate);
  EXPECT_EQ(layout_of_stacks({6, 10}, {4, 10, 4}), ExpertLayout::separate);
}

// Experts without biases stay as they are.
TEST_F(ExpertStacksTest, OtherFamiliesAreNotStacked) {
  const std::vector<TensorHeader> headers{
      {"model.layers.0.mlp.experts.0.gate_proj.weight", DType::bf16, {4, 2}},
      {"model.layers.0.mlp.down_proj.bias", DType::bf16, {4}}};
  const ExpertStacks stacks(headers);
  ASSERT_EQ(stacks.tensors().size(), 2U);
  EXPECT_EQ(stacks.tensors()[0].name, headers[0].name);
}

}  // namespace
}  // namespace octet::weights::expert_stacks_test
