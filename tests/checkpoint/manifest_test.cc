// Valid contents of manifests, and manifests with very many tensors.
#include "octet/checkpoint/manifest.h"

#include <gtest/gtest.h>

#include <chrono>

#include "octet/base/error.h"

namespace octet::checkpoint::manifest_test {
namespace {

// A mixture of experts with its moments. An algorithm with quadratic time would take most of a minute.
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
    tensor.bytes = weights::byte_count(tensor);
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

// The file ends with the last byte of the tensor. One byte less is too small.
TEST(Manifest, PlacesNothingOutsideTheFile) {
  CheckpointTensor tensor;
  tensor.name = "model.norm.weight";
  tensor.shape = {4};
  tensor.bytes = weights::byte_count(tensor);
  tensor.offset = 4096;
  tensor.chunks = {7};
  tensor.hash = content_hash(tensor, tensor.chunks);
  Manifest manifest;
  manifest.step = 7;
  manifest.file = kDataName;
  manifest.layout_hash = std::string(32, '0');
  manifest.state = manifest.config = {.offset = 0, .bytes = 4096, .hash = std::string(32, '0')};
  manifest.tensors = {tensor};
  manifest.file_bytes = tensor.offset + tensor.bytes;
  EXPECT_EQ(parse_manifest(manifest_text(manifest), "manifest.json").tensors[0].offset, 4096);
  const auto refused = [&manifest](const std::string& what) {
    try {
      parse_manifest(manifest_text(manifest), "manifest.json");
      ADD_FAILURE() << what;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("the manifest places " + what + " outside the file"),
                std::string::npos)
          << e.what();
    }
  };
  --manifest.file_bytes;
  refused("tensor 'model.norm.weight'");
  manifest.tensors[0].offset = INT64_MAX - 1;
  refused("tensor 'model.norm.weight'");
  manifest.tensors.clear();
  manifest.file_bytes = 4095;
  refused("state");
}

}  // namespace
}  // namespace octet::checkpoint::manifest_test
