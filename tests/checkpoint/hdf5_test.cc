// Checks that libhdf5's own tool reads the files.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "octet/base/json.h"
#include "octet/checkpoint/manifest.h"
#include "sample.h"

namespace octet::checkpoint::hdf5_test {
namespace {

std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return text;
  char buffer[4096];
  while (std::size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, n);
  return ::pclose(pipe) == 0 ? text : "failed: " + text;
}

TEST(Hdf5, ItsOwnToolReadsWhatRanksWrote) {
  if (output_of("h5dump --version").starts_with("failed"))
    GTEST_SKIP() << "h5dump (hdf5-tools) is not installed";
  const Scratch scratch;
  std::vector<float> weights = {1.5f, -2.25f, 1e-3f, 448.0f};
  std::vector<std::uint16_t> halves = {to_bf16(1.5f), to_bf16(-96.0f)}, floats16 = {to_f16(0.333251953125f)};
  std::vector<std::uint8_t> e4m3 = {to_fp8(448.0f, DType::e4m3)}, e5m2 = {to_fp8(-57344.0f, DType::e5m2)};
  on_ranks(2, [&](comm::Channel& channel) {
    CheckpointContents contents;
    contents.step = 12;
    contents.config_yaml = "seed: 42\n";
    contents.state = Json{{"epoch", 3}};
    const std::int64_t begin = channel.rank() * 2;
    contents.slices.push_back({"w", DType::f32, {2, 2}, begin, 2, weights.data() + begin});
    if (channel.rank() == 1) {
      contents.slices.push_back({"exp_avg/w", DType::bf16, {2}, 0, 2, halves.data()});
      contents.slices.push_back({"exp_avg_sq/w", DType::f16, {1}, 0, 1, floats16.data()});
      contents.slices.push_back({"fp8/weights/a", DType::e4m3, {1}, 0, 1, e4m3.data()});
      contents.slices.push_back({"fp8/weights/b", DType::e5m2, {1}, 0, 1, e5m2.data()});
    }
    save(channel, scratch.path(), contents);
  });
  const auto dump = [&](const std::string& what) {
    return output_of("h5dump -m %.9g -w 200 " + what + " " + scratch.path() + "/checkpoint-12/checkpoint.h5");
  };
  const auto expect_in = [&](const std::string& what, const char* part) {
    EXPECT_PRED_FORMAT2(testing::IsSubstring, part, dump(what));
  };
  expect_in("-d /parameters/w", "(0,0): 1.5, -2.25,");
  expect_in("-d /parameters/w", "(1,0): 0.00100000005, 448");
  expect_in("-d /optimizer/exp_avg/w", "(0): 1.5, -96");
  expect_in("-d /optimizer/exp_avg_sq/w", "(0): 0.333251953");
  expect_in("-d /fp8/weights/a", "(0): 126");
  expect_in("-d /fp8/weights/a", "fp8_e4m3");
  expect_in("-d /fp8/weights/b", "(0): -57344");
  expect_in("-d /config", "seed: 42");
  expect_in("-d /state", "epoch");
  expect_in("-a /step", "(0): 12");
}

TEST(Hdf5, ManyTensorsFitTheirBound) {
  const Scratch scratch;
  std::vector<float> values(3000);
  on_ranks(2, [&](comm::Channel& channel) {
    CheckpointContents contents;
    for (int i = channel.rank(); i < 3000; i += 2) {
      const auto at = static_cast<std::size_t>(i);
      values[at] = static_cast<float>(i);
      contents.slices.push_back(
          {"model.layers." + std::to_string(i) + "." + std::string(static_cast<std::size_t>(i % 200), 'n'),
           DType::f32,
           {1},
           0,
           1,
           &values[at]});
    }
    save(channel, scratch.path(), contents);
  });
  const Checkpoint checkpoint(scratch / "checkpoint-0");
  EXPECT_EQ(checkpoint.tensors().size(), 3000u);
  checkpoint.verify();
  float value = 0;
  checkpoint.read("model.layers.2001.n", 0, 1, &value);
  EXPECT_EQ(value, 2001.0f);
}

// Adapters of a small model have hundreds of tensors of a few KiB. Page alignment would double their size.
TEST(Hdf5, SmallTensorsTakeLittleMoreThanTheirBytesAndLargeOnesBeginOnPages) {
  const Scratch scratch;
  std::vector<float> values(130 * 257);
  CheckpointContents contents;
  std::int64_t bytes = 0;
  const auto add = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    const std::int64_t count = element_count(shape, name);
    contents.slices.push_back({name, DType::f32, shape, 0, count, values.data()});
    bytes += 4 * count;
  };
  for (const std::string state : {"", "exp_avg/", "exp_avg_sq/"}) {
    for (int layer = 0; layer < 4; ++layer) {
      for (const std::string module :
           {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}) {
        const std::string name =
            state + "base_model.model.model.layers." + std::to_string(layer) + ".self_attn." + module;
        add(name + ".lora_A.weight", {8, 256});
        add(name + ".lora_B.weight", {257, 8});
      }
    }
  }
  on_ranks(1, [&](comm::Channel& channel) { save(channel, scratch.path(), contents); });
  const auto size = std::filesystem::file_size(scratch / "checkpoint-0/checkpoint.h5");
  EXPECT_LE(static_cast<double>(size), 1.05 * static_cast<double>(bytes) + 65536);
  contents.step = 1;
  for (const std::string name : {"large.0", "large.1", "large.2"}) add(name, {130, 257});
  on_ranks(1, [&](comm::Channel& channel) { save(channel, scratch.path(), contents); });
  int large = 0;
  for (const CheckpointTensor& tensor : read_manifest(scratch / "checkpoint-1").tensors) {
    if (!tensor.name.starts_with("large")) continue;
    EXPECT_EQ(tensor.offset % 4096, 0) << "a rank that writes it shares no page with another";
    ++large;
  }
  EXPECT_EQ(large, 3);
}

}  // namespace
}  // namespace octet::checkpoint::hdf5_test
