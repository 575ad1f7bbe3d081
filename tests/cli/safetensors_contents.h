// Weight files that tests modify.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cli/task.h"
#include "octet/base/dtype.h"
#include "octet/base/json.h"
#include "octet/weights/safetensors.h"
#include "octet/weights/safetensors_writer.h"

namespace octet::test {

/// The tensors of a file, for modification and rewriting.
struct Contents {
  struct Tensor {
    DType dtype;
    std::vector<std::int64_t> shape;
    std::string bytes;
  };
  std::map<std::string, Tensor> all;

  explicit Contents(const std::string& path) {
    const weights::SafetensorsFile file(path);
    for (const auto& tensor : file.tensors()) {
      const auto bytes = file.bytes(tensor);
      all[tensor.name] = {tensor.dtype, tensor.shape,
                          std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())};
    }
  }
  void write(const std::string& path) {
    std::vector<TensorSlice> slices;
    for (auto& [name, t] : all) {
      slices.push_back({.name = name,
                        .dtype = t.dtype,
                        .shape = t.shape,
                        .count = static_cast<std::int64_t>(t.bytes.size() / size_of(t.dtype)),
                        .data = t.bytes.data()});
    }
    weights::write_safetensors(path, slices);
  }
};

/// Copies a model to FOLDER/fp8 with its blocks' matrices in fine-grained FP8 (except matrices of `but`), and
/// to FOLDER/decoded with the decoded values. Returns both folders. No side of a matrix may exceed 128.
inline std::pair<std::string, std::string> write_fp8_folders(const std::string& model,
                                                             const std::string& folder,
                                                             const std::string& but = "nothing") {
  const weights::SafetensorsFile file(model + "/model.safetensors");
  Contents fp8(model + "/model.safetensors"), decoded = fp8;
  for (const auto& [name, tensor] : Contents(fp8).all) {
    if (tensor.shape.size() != 2 || name.find(".layers.") == std::string::npos ||
        name.find(but) != std::string::npos) {
      continue;
    }
    EXPECT_LE(std::max(tensor.shape[0], tensor.shape[1]), 128) << "one square";
    const std::size_t count = tensor.bytes.size() / size_of(tensor.dtype);
    decoded.all[name] = {DType::f32, tensor.shape, std::string(count * sizeof(float), ' ')};
    auto* values = reinterpret_cast<float*>(decoded.all.at(name).bytes.data());
    file.read(name, 0, static_cast<std::int64_t>(count), values);
    const float scale = 0.5f / 448.0f;
    std::string codes(count, ' ');
    for (std::size_t i = 0; i < count; ++i) {
      codes[i] = static_cast<char>(to_fp8(values[i] / scale, DType::e4m3));
      values[i] = from_fp8(static_cast<std::uint8_t>(codes[i]), DType::e4m3) * scale;
    }
    fp8.all[name] = {DType::e4m3, tensor.shape, codes};
    fp8.all[name + "_scale_inv"] = {
        DType::f32, {1, 1}, std::string(reinterpret_cast<const char*>(&scale), sizeof scale)};
  }
  Json config = read_json(model + "/config.json");
  config["quantization_config"] = {{"quant_method", "fp8"},
                                   {"fmt", "e4m3"},
                                   {"activation_scheme", "dynamic"},
                                   {"modules_to_not_convert", {"lm_head", "model.layers.0.mlp.gate"}},
                                   {"weight_block_size", {128, 128}}};
  const auto write = [&](const std::string& to, Contents& contents) {
    std::filesystem::create_directories(to);
    spill(to + "/config.json", config.dump());
    contents.write(to + "/model.safetensors");
    return to;
  };
  std::string first = write(folder + "/fp8", fp8);
  config.erase("quantization_config");
  return {first, write(folder + "/decoded", decoded)};
}

}  // namespace octet::test
