// Sizes of checkpoints and exports, computed before they are written.
#include <gtest/gtest.h>

#include <filesystem>

#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/checkpoint/hub_export.h"
#include "octet/weights/safetensors_writer.h"
#include "sample.h"

namespace octet::checkpoint::size_test {
namespace {

namespace fs = std::filesystem;

std::int64_t bytes_of(const std::string& path) {
  return static_cast<std::int64_t>(fs::file_size(path));
}

void expect_size(const std::string& path, const CheckpointSize& size) {
  EXPECT_EQ(size.data_file, bytes_of(path + "/checkpoint.h5")) << path;
  EXPECT_EQ(size.manifest, bytes_of(path + "/manifest.json")) << path;
  EXPECT_EQ(size.all(), size.data_file + size.manifest);
  std::int64_t files = 0;
  for (const auto& entry : fs::directory_iterator(path)) files += entry.is_regular_file() ? 1 : 0;
  EXPECT_EQ(files, 2) << "there is nothing else in it";
}

std::vector<weights::TensorHeader> headers_of(const std::vector<SampleTensor>& tensors) {
  std::vector<weights::TensorHeader> headers;
  for (const SampleTensor& tensor : tensors) headers.push_back(tensor.header);
  std::ranges::sort(headers, {}, &weights::TensorHeader::name);
  return headers;
}

TEST(CheckpointSize, IsThatOfTheFilesAtAnyNumberOfRanksAndLengthOfTexts) {
  const Scratch scratch;
  std::int64_t step = 1;
  for (const int ranks : {1, 3}) {
    for (const std::size_t state : {1, 5000, 16382, 16383, 40000, 300000}) {
      auto tensors = sample(step);
      const std::string text(state, 'x'), config(state / 3 + 1, '#');
      on_ranks(ranks, [&](comm::Channel& channel) {
        CheckpointContents contents = contents_of(tensors, step, channel.rank(), ranks);
        contents.state = Json(text);
        contents.config_yaml = config;
        save(channel, scratch.path(), contents);
      });
      const std::string path = scratch / folder_name(step);
      const CheckpointSize size = size_of({.tensors = headers_of(tensors),
                                           .state_bytes = static_cast<std::int64_t>(state) + 2,  // quotes
                                           .config_bytes = static_cast<std::int64_t>(config.size()),
                                           .step = step,
                                           .world = ranks,
                                           .zero_stage = 1});
      expect_size(path, size);
      std::int64_t values = 0;
      for (const SampleTensor& tensor : tensors) values += static_cast<std::int64_t>(tensor.values.size());
      EXPECT_EQ(size.tensors, values);
      const Checkpoint checkpoint(path);
      EXPECT_EQ(checkpoint.state(), Json(text)) << "what fills a text up is no part of it";
      EXPECT_EQ(checkpoint.config_yaml(), config);
      step *= 11;
    }
  }
}

// The size does not change with the digits of a loss, or with a step of equally many digits. Disk space is
// planned with this size.
TEST(CheckpointSize, DoesNotChangeWithWhatTheStateSays) {
  const Scratch scratch;
  for (const auto& [step, loss] : {std::pair{10, 0.5}, {99, 1.0 / 3}}) {
    auto tensors = sample(step);
    on_ranks(2, [&](comm::Channel& channel) {
      CheckpointContents contents = contents_of(tensors, step, channel.rank(), 2);
      (*contents.state)["loss"] = loss;
      save(channel, scratch.path(), contents);
    });
  }
  for (const char* file : {"/checkpoint.h5", "/manifest.json"})
    EXPECT_EQ(bytes_of(scratch / "checkpoint-10" + file), bytes_of(scratch / "checkpoint-99" + file)) << file;
}

TEST(SafetensorsSize, IsThatOfTheFile) {
  const Scratch scratch;
  std::vector<float> values(64);
  const std::vector<TensorSlice> tensors = {{"b", DType::bf16, {3, 5}, 0, 15, values.data()},
                                            {"größe", DType::f32, {7}, 0, 7, values.data()},
                                            {"none", DType::f32, {0}, 0, 0, values.data()},
                                            {"a", DType::u8, {1}, 0, 1, values.data()}};
  std::vector<weights::TensorHeader> headers;
  for (const TensorSlice& tensor : tensors) headers.push_back({tensor.name, tensor.dtype, tensor.shape});
  weights::write_safetensors(scratch / "plain", tensors);
  EXPECT_EQ(weights::safetensors_bytes(headers), bytes_of(scratch / "plain"));
  weights::write_safetensors(scratch / "told", tensors, {{"format", "pt"}, {"who", "\"me\""}});
  EXPECT_EQ(weights::safetensors_bytes(headers, {{"format", "pt"}, {"who", "\"me\""}}),
            bytes_of(scratch / "told"));
}

// A source with untrained parts, tied or not, exported in one file or several.
class ExportSizes : public testing::Test {
 protected:
  ExportSizes() {
    fs::create_directory(scratch_ / "source");
    put(scratch_ / "source/tokenizer.json", R"({"version": "1.0"})");
    put(scratch_ / "source/generation_config.json", R"({"eos_token_id": 2})");
    on_ranks(1, [&](comm::Channel& channel) {
      CheckpointContents contents;
      for (const char* name : {"model.embed_tokens.weight", "lm_head.weight", "exp_avg/lm_head.weight"})
        contents.slices.push_back({name, DType::f32, {50, 10}, 0, 500, values_.data()});
      save(channel, scratch_ / "run", contents);
    });
  }

  /// Exports, and compares the predicted sizes with the files.
  void expect_exported(const std::string& config, ExportOptions options) {
    put(scratch_ / "source/config.json", config);
    options.folder = scratch_ / "out";
    options.source_folder = scratch_ / "source";
    const Checkpoint checkpoint(scratch_ / "run/checkpoint-0");
    std::vector<weights::TensorHeader> parameters;
    for (const CheckpointTensor& tensor : checkpoint.tensors()) {
      if (tensor.name.find('/') == std::string::npos) parameters.push_back(tensor);
    }
    const ExportSize size = size_of_export(options, parameters);
    export_checkpoint(options, checkpoint.path());
    std::int64_t weights = 0, others = 0, largest = 0;
    for (const auto& entry : fs::directory_iterator(options.folder)) {
      const std::string name = entry.path().filename().string();
      const auto bytes = static_cast<std::int64_t>(entry.file_size());
      (name.find("safetensors") != std::string::npos ? weights : others) += bytes;
      if (name.find("safetensors") == std::string::npos) largest = std::max(largest, bytes);
    }
    EXPECT_EQ(size.weights, weights) << config;
    EXPECT_EQ(size.others, others) << config;
    EXPECT_EQ(size.largest, largest) << config;
    fs::remove_all(options.folder);
  }

  Scratch scratch_;
  std::vector<float> values_ = std::vector<float>(500, 0.5f);
};

TEST_F(ExportSizes, AreThoseOfTheFiles) {
  for (const std::int64_t shard : {INT64_C(5'000'000'000), INT64_C(1'200)}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      expect_exported(R"({"model_type": "llama"})", {.dtype = dtype, .shard_bytes = shard});
      expect_exported(R"({"model_type": "llama", "tie_word_embeddings": true, "torch_dtype": "float32"})",
                      {.dtype = dtype, .shard_bytes = shard});
    }
  }
}

TEST_F(ExportSizes, CountWhatIsCopiedUntrained) {
  weights::write_safetensors(scratch_ / "source/model.safetensors",
                             {{"vision.weight", DType::f32, {20, 20}, 0, 400, values_.data()},
                              {"model.embed_tokens.weight", DType::f32, {50, 10}, 0, 500, values_.data()},
                              {"lm_head.weight", DType::f32, {50, 10}, 0, 500, values_.data()}});
  for (const std::int64_t shard : {INT64_C(5'000'000'000), INT64_C(1'200)}) {
    expect_exported(R"({"model_type": "gemma3", "text_config": {}})",
                    {.dtype = DType::bf16, .shard_bytes = shard});
    expect_exported(R"({"model_type": "llama"})",
                    {.dtype = DType::bf16, .shard_bytes = shard, .rest_from_source = true});
  }
}

TEST_F(ExportSizes, OfAShapeAreThoseOfItsWeights) {
  const std::vector<weights::TensorHeader> parameters = {{"w", DType::f32, {4, 4}}};
  const ExportSize size = size_of_export({.dtype = DType::bf16}, parameters);
  EXPECT_EQ(size.weights, weights::safetensors_bytes({{"w", DType::bf16, {4, 4}}}));
  EXPECT_EQ(size.others, 0);
}

}  // namespace
}  // namespace octet::checkpoint::size_test
