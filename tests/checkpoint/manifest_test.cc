// Manifests of models with very many tensors.
#include "../src/checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <chrono>

#include "octet/base/error.h"

namespace octet::checkpoint {
namespace {

// A mixture of experts with its moments. Quadratic time was most of a minute.
TEST(ManifestOfManyTensors, IsReadInTimeInProportionToThem) {
  Manifest manifest;
  manifest.step = 7;
  manifest.file = kDataName;
  manifest.file_bytes = INT64_C(1) << 40;
  manifest.layout_hash = std::string(32, '0');
  manifest.state = manifest.config = {.offset = 0, .bytes = 1, .hash = std::string(32, '0')};
  for (int i = 0; i < 100000; ++i) {
    CheckpointTensor tensor;
    tensor.name = "exp_avg/model.layers." + std::to_string(i / 1000) + ".mlp.experts." +
                  std::to_string(i % 1000) + ".weight";
    tensor.shape = {768, 2048};
    tensor.bytes = byte_count(tensor);
    tensor.offset = 4096 + i * INT64_C(4096);
    tensor.chunks.resize(static_cast<std::size_t>(chunk_count(tensor.bytes)), static_cast<std::uint64_t>(i));
    tensor.hash = content_hash(tensor, tensor.chunks);
    manifest.tensors.push_back(std::move(tensor));
  }
  const std::string text = manifest_text(manifest);
  const auto start = std::chrono::steady_clock::now();
  const Manifest read = parse_manifest(text, "manifest.json");
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  RecordProperty("seconds", std::to_string(seconds));
  EXPECT_EQ(read.tensors.size(), manifest.tensors.size());
  EXPECT_EQ(read.tensors.back().name, manifest.tensors.back().name);
  EXPECT_EQ(read.tensors.back().chunks, manifest.tensors.back().chunks);
  EXPECT_LT(seconds, 10);
}

}  // namespace
}  // namespace octet::checkpoint
