// Exports of vision-language models: the text model is converted, and other tensors keep their bytes.
#include <gtest/gtest.h>

#include <cmath>

#include "octet/base/files.h"
#include "octet/checkpoint/hub_export.h"
#include "octet/weights/safetensors.h"
#include "octet/weights/safetensors_writer.h"
#include "sample.h"

namespace octet::checkpoint::wrapper_export_test {
namespace {

/// A source with tensors of images in several formats, and a checkpoint of its text model.
class WrapperExport : public testing::Test {
 protected:
  WrapperExport() {
    std::filesystem::create_directory(scratch_ / "source");
    put(scratch_ / "source/config.json",
        R"({"text_config": {}, "vision_config": {}, "torch_dtype": "bfloat16"})");
    put(scratch_ / "source/video_preprocessor_config.json", "of videos");
    for (std::size_t i = 0; i < text_.size(); ++i) text_[i] = static_cast<float>(i) / 7.0f;
    for (std::size_t i = 0; i < bits_.size(); ++i) bits_[i] = static_cast<std::uint16_t>(7919 * i + 13);
    const float none[2] = {NAN, INFINITY};
    std::copy_n(none, 2, wide_.begin());
    const auto whole = [](const std::string& name, DType dtype, std::vector<std::int64_t> shape,
                          auto& values) {
      const std::int64_t count = element_count(shape, name);
      return TensorSlice{name, dtype, std::move(shape), 0, count, values.data()};
    };
    weights::write_safetensors(
        scratch_ / "source/model.safetensors",
        {whole("model.norm.weight", DType::f32, {100, 10}, text_),
         whole("visual.patch.weight", DType::bf16, {2, 50, 3, 10}, bits_),
         whole("visual.half", DType::f16, {3000}, bits_), whole("visual.wide", DType::f32, {3}, wide_),
         whole("visual.position_ids", DType::i64, {2}, ids_)});
    for (float& value : text_) value += 1;
    on_ranks(1, [&](comm::Channel& channel) {
      CheckpointContents contents;
      contents.slices.push_back(whole("model.norm.weight", DType::f32, {100, 10}, text_));
      save(channel, scratch_ / "run", contents);
    });
  }
  ExportOptions options(DType dtype) const {
    return {.folder = scratch_ / "out",
            .source_folder = scratch_ / "source",
            .dtype = dtype,
            .model_tensors = {"model.", "lm_head.weight"}};
  }
  std::string bytes(const std::string& folder, const std::string& tensor) const {
    const weights::WeightFolder weights(scratch_ / folder);
    std::string all(name_of(weights.find(tensor)->dtype));
    weights.read_bytes(tensor, [&](std::span<const std::byte> piece) {
      all.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    });
    return all;
  }

  Scratch scratch_;
  std::vector<float> text_ = std::vector<float>(1000), wide_ = {0, 0, 0.1f};
  std::vector<std::uint16_t> bits_ = std::vector<std::uint16_t>(3000);
  std::vector<std::int64_t> ids_ = {3, std::int64_t{1} << 60};
};

TEST_F(WrapperExport, TensorsOfImagesKeepTheirBytes) {
  for (const auto& [dtype, shard] :
       {std::pair{DType::f32, 5'000'000'000}, {DType::bf16, 5'000'000'000}, {DType::f16, 7000}}) {
    std::filesystem::remove_all(scratch_ / "out");
    ExportOptions wanted = options(dtype);
    wanted.shard_bytes = shard;
    const ExportSize size = size_of_export(wanted, {{"model.norm.weight", DType::f32, {100, 10}}});
    export_checkpoint(wanted, scratch_ / "run/checkpoint-0");
    std::int64_t on_disk = 0;
    for (const auto& entry : std::filesystem::directory_iterator(scratch_ / "out")) {
      if (entry.path().filename().string().starts_with("model"))
        on_disk += static_cast<std::int64_t>(entry.file_size());
    }
    EXPECT_EQ(size.weights, on_disk);
    for (const char* name : {"visual.patch.weight", "visual.half", "visual.wide", "visual.position_ids"})
      EXPECT_EQ(bytes("out", name), bytes("source", name)) << name;
    const weights::WeightFolder folder(scratch_ / "out");
    EXPECT_EQ(folder.tensors().size(), 5u);
    EXPECT_EQ(folder.expect("model.norm.weight", {100, 10}).dtype, dtype);
    EXPECT_EQ(folder.expect("visual.patch.weight", {2, 50, 3, 10}).dtype, DType::bf16);
    std::vector<float> values(2);
    folder.read("model.norm.weight", 0, 2, values.data());
    EXPECT_EQ(values[0], 1) << "trained";
    EXPECT_EQ(read_file(scratch_ / "out/video_preprocessor_config.json"), "of videos");
    EXPECT_EQ(path_exists(scratch_ / "out/model.safetensors.index.json"), shard == 7000);
  }
}

// Without names of the trained model, all tensors are converted, and a tensor of whole numbers cannot be.
TEST_F(WrapperExport, OnlyTensorsOutsideOfTheModelAreCopied) {
  ExportOptions wanted = options(DType::f32);
  wanted.model_tensors = {"model.", "visual.wide"};
  EXPECT_ERROR("tensor 'visual.wide'", export_checkpoint(wanted, scratch_ / "run/checkpoint-0"));
  EXPECT_FALSE(path_exists(scratch_ / "out"));
}

}  // namespace
}  // namespace octet::checkpoint::wrapper_export_test
