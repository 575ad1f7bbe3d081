// Adapters of a parameter of all experts, in the tensors of PEFT: delta[e, o, i] = sum_r B[o, r, e] A[e, r,
// i] (PEFT 0.21.2, ParamWrapper.get_delta_weight).
#include "octet/runtime/adapter_file.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "octet/base/error.h"
#include "octet/model/layout.h"
#include "octet/weights/safetensors_writer.h"
#include "support/program.h"

namespace octet::runtime::stacked_adapter_test {
namespace {

using test::spill;
using test::TemporaryFolder;

constexpr std::int64_t kRank = 2, kExperts = 6;

constexpr int kMixtures[] = {0, 2};  ///< blocks with experts

/// A small mixture with adapters on parameters of experts. Gate and up have 32 rows of 32 columns, so that
/// inputs equal outputs. The down projection has 32 rows of 16 columns.
model::Architecture adapted(bool gate_up) {
  model::Architecture a =
      model::read_architecture(std::string(OCTET_SOURCE_DIR) + "/tests/golden/models/qwen3-moe-trained");
  a.tuning.adapters = true;
  for (const int layer : kMixtures) {
    const std::string mixture = "model.layers." + std::to_string(layer) + ".mlp.experts";
    for (std::int64_t e = 0; e < kExperts; ++e) {
      const std::string expert = mixture + "." + std::to_string(e) + ".";
      const auto add = [&](const std::string& module, const std::string& tensors) {
        a.tuning.modules[module] = {.rank = kRank};
        a.tuning.stacked[module] = {.tensors = tensors, .expert = e, .experts = kExperts};
      };
      add(expert + "down_proj", mixture);
      if (gate_up) add(expert + "gate_up_proj", mixture + ".base_layer");
    }
  }
  return a;
}

/// A folder with tensors of these shapes. Their elements are numbered.
struct Folder : TemporaryFolder {
  explicit Folder(const std::map<std::string, std::vector<std::int64_t>>& shapes,
                  const std::string& config = "{}")
      : TemporaryFolder("stacked") {
    std::vector<std::vector<float>> values;
    values.reserve(2 * shapes.size());
    std::vector<TensorSlice> slices;
    for (const int layer : kMixtures) {
      for (const auto& [name, shape] : shapes) {
        auto& own = values.emplace_back(static_cast<std::size_t>(shape[0] * shape[1]));
        for (std::size_t i = 0; i < own.size(); ++i) own[i] = static_cast<float>(i);
        slices.push_back({"base_model.model.model.layers." + std::to_string(layer) + ".mlp.experts." + name,
                          DType::f32, shape, 0, std::ssize(own), own.data()});
      }
    }
    weights::write_safetensors(*this / "adapter_model.safetensors", slices);
    spill(*this / "adapter_config.json", config);
  }
};

float element(const AdapterFile& file, const std::string& name, std::int64_t i) {
  float value = -1;
  file.read("base_model.model.model.layers.2.mlp.experts." + name, i, 1, &value);
  return value;
}

const std::map<std::string, std::vector<std::int64_t>> kDown{{"lora_A.weight", {12, 16}},
                                                             {"lora_B.weight", {32, 12}}};

TEST(StackedAdapter, HasTheElementsOfPeft) {
  const model::Architecture a = adapted(false);
  const Folder folder(kDown);
  AdapterFile file(folder.path(), a.tuning);
  file.require_fit(model::build_layout(a));
  for (std::int64_t e = 0; e < kExperts; ++e) {
    const std::string expert = std::to_string(e) + ".down_proj.";
    EXPECT_TRUE(file.holds("base_model.model.model.layers.0.mlp.experts." + expert + "lora_A.weight"));
    EXPECT_EQ(file.count("base_model.model.model.layers.0.mlp.experts." + expert + "lora_B.weight"), 64);
    for (std::int64_t r = 0; r < kRank; ++r) {
      for (const std::int64_t i : {0, 1, 15}) {
        EXPECT_EQ(element(file, expert + "lora_A.weight", r * 16 + i),
                  static_cast<float>((e * kRank + r) * 16 + i));
      }
      for (const std::int64_t o : {0, 1, 31}) {
        EXPECT_EQ(element(file, expert + "lora_B.weight", o * kRank + r),
                  static_cast<float>(o * 12 + r * kExperts + e));
      }
    }
  }
}

// gpt-oss: rows of B of gate and of up alternate. Older PEFT did not exchange A and B of transposed
// parameters.
TEST(StackedAdapter, RowsOfGateAndUpAlternateInTransposedParameters) {
  model::Architecture a = adapted(true);
  for (auto& [module, stacked] : a.tuning.stacked) {
    stacked.transposed = true;
    stacked.alternates = module.ends_with("gate_up_proj");
  }
  const Folder folder({{"lora_A.weight", {12, 16}},
                       {"lora_B.weight", {32, 12}},
                       {"base_layer.lora_A.weight", {12, 32}},
                       {"base_layer.lora_B.weight", {32, 12}}},
                      R"({"peft_version": "0.18.0"})");
  AdapterFile file(folder.path(), a.tuning);
  file.require_fit(model::build_layout(a));
  EXPECT_EQ(element(file, "3.gate_up_proj.lora_A.weight", 1 * 32 + 5),
            static_cast<float>((3 * 2 + 1) * 32 + 5));
  for (const std::int64_t row : {0, 1, 15, 16, 31}) {  // 16 rows of gate, then 16 rows of up
    const std::int64_t stored = row < 16 ? 2 * row : 2 * (row - 16) + 1;
    EXPECT_EQ(element(file, "3.gate_up_proj.lora_B.weight", row * 2 + 1),
              static_cast<float>(stored * 12 + 1 * 6 + 3));
    EXPECT_EQ(element(file, "3.down_proj.lora_B.weight", row * 2 + 1),
              static_cast<float>(row * 12 + 1 * 6 + 3));
    const auto place =
        stacked_matrix(a.tuning, "base_model.model.model.layers.2.mlp.experts.3.gate_up_proj.lora_B.weight");
    ASSERT_TRUE(place.has_value());
    EXPECT_EQ(place->element({32, 2}, row * 2 + 1), stored * 12 + 1 * 6 + 3);
  }
}

// PEFT before 0.19.1: delta[e, o, i] = sum_r B[i, r, e] A[e, r, o].
TEST(StackedAdapter, OfOlderPeftHasExchangedMatrices) {
  const model::Architecture a = adapted(false);
  const Folder folder({{"lora_A.weight", {12, 32}}, {"lora_B.weight", {16, 12}}});
  AdapterFile file(folder.path(), a.tuning);
  file.require_fit(model::build_layout(a));
  EXPECT_EQ(element(file, "3.down_proj.lora_A.weight", 1 * 16 + 5), static_cast<float>(5 * 12 + 1 * 6 + 3));
  EXPECT_EQ(element(file, "3.down_proj.lora_B.weight", 20 * 2 + 1),
            static_cast<float>((3 * 2 + 1) * 32 + 20));
}

TEST(StackedAdapter, TheVersionDecidesIfInputsEqualOutputs) {
  const model::Architecture a = adapted(true);
  const float straight = (3 * 2 + 1) * 32 + 5, exchanged = 5 * 12 + 1 * 6 + 3;
  const std::pair<std::string, float> rows[] = {
      {"{}", straight},
      {R"({"peft_version": "0.19.1"})", straight},
      {R"({"peft_version": "0.21.2"})", straight},
      {R"({"peft_version": "1.0"})", straight},
      {R"({"peft_version": "0.19.1.dev0"})", straight},
      {R"({"peft_version": "0.19.0"})", exchanged},
      {R"({"peft_version": "0.18.2.dev0@abc"})", exchanged},
  };
  for (const auto& [config, expected] : rows) {
    auto shapes = kDown;
    if (expected == exchanged) shapes = {{"lora_A.weight", {12, 32}}, {"lora_B.weight", {16, 12}}};
    shapes["base_layer.lora_A.weight"] = {12, 32};
    shapes["base_layer.lora_B.weight"] = {32, 12};
    const Folder folder(shapes, config);
    AdapterFile file(folder.path(), a.tuning);
    file.require_fit(model::build_layout(a));
    EXPECT_EQ(element(file, "3.gate_up_proj.lora_A.weight", 1 * 32 + 5), expected) << config;
  }
}

TEST(StackedAdapter, ThatDoesNotFitIsRefusedByName) {
  const model::Architecture a = adapted(true);
  auto whole = kDown;
  whole["base_layer.lora_A.weight"] = {12, 32};
  whole["base_layer.lora_B.weight"] = {32, 12};
  struct Row {
    std::function<void(std::map<std::string, std::vector<std::int64_t>>&)> change;
    std::string says;
  };
  const Row rows[] = {
      {[](auto& shapes) { shapes.erase("base_layer.lora_B.weight"); }, "lacks a tensor"},
      {[](auto& shapes) {
         shapes["lora_A.weight"] = {6, 16};
       },
       "[12, 16]"},
      {[](auto& shapes) {
         shapes["lora_B.weight"] = {32, 9};
       },
       "[32, 12]"},
      {[](auto& shapes) {
         shapes["0.down_proj.lora_A.weight"] = {2, 16};
       },
       "no place in the model"},
  };
  for (const Row& row : rows) {
    auto shapes = whole;
    row.change(shapes);
    const Folder folder(shapes);
    try {
      AdapterFile file(folder.path(), a.tuning);
      file.require_fit(model::build_layout(a));
      ADD_FAILURE() << row.says;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_NE(std::string(error.what()).find(row.says), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace octet::runtime::stacked_adapter_test
