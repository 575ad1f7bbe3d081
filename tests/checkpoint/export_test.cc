#include "octet/checkpoint/hub_export.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmath>
#include <csignal>

#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/weights/safetensors.h"
#include "octet/weights/safetensors_writer.h"
#include "sample.h"

namespace octet::checkpoint::export_test {
namespace {

// A source folder and a checkpoint of three parameters and their moments.
class Export : public testing::Test {
 protected:
  Export() {
    std::filesystem::create_directory(scratch_ / "source");
    put(scratch_ / "source/config.json",
        R"({"model_type": "llama", "torch_dtype": "float32", "tie_word_embeddings": false, "big": 18446744073709551615})");
    put(scratch_ / "source/tokenizer.json", R"({"version": "1.0"})");
    put(scratch_ / "source/generation_config.json", R"({"eos_token_id": 2})");
    put(scratch_ / "source/training.log", "not copied");
    for (std::size_t i = 0; i < embedding_.size(); ++i) embedding_[i] = static_cast<float>(i) / 7.0f;
    on_ranks(2, [&](comm::Channel& channel) {
      CheckpointContents contents;
      const auto half = static_cast<std::int64_t>(embedding_.size()) / 2;
      const std::int64_t begin = half * channel.rank();
      for (const char* name : {"model.embed_tokens.weight", "lm_head.weight", "exp_avg/lm_head.weight"})
        contents.slices.push_back(
            {name, DType::f32, {2 * half / 10, 10}, begin, half, embedding_.data() + begin});
      if (channel.rank() == 0)
        contents.slices.push_back({"model.norm.weight", DType::f32, {3}, 0, 3, embedding_.data()});
      save(channel, scratch_ / "run", contents);
    });
  }

  ExportOptions options(DType dtype) const {
    return {.folder = scratch_ / "out", .source_folder = scratch_ / "source", .dtype = dtype};
  }
  std::vector<std::string> run(const ExportOptions& wanted) const {
    return export_checkpoint(wanted, scratch_ / "run/checkpoint-0");
  }
  void expect_weights(DType dtype) const {
    const weights::WeightFolder folder(scratch_ / "out");
    EXPECT_EQ(folder.tensors().size(), 3u);
    EXPECT_EQ(folder.expect("model.norm.weight", {3}).dtype, dtype);
    const weights::StoredTensor& embedding = folder.expect("model.embed_tokens.weight", {1000, 10});
    std::vector<float> values(embedding_.size());
    folder.read(embedding.name, 0, embedding.count, values.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float x = embedding_[i];
      const float expected = dtype == DType::bf16  ? from_bf16(to_bf16(x))
                             : dtype == DType::f16 ? from_f16(to_f16(x))
                                                   : x;
      ASSERT_EQ(values[i], expected) << i;
    }
  }

  Scratch scratch_;
  std::vector<float> embedding_ = std::vector<float>(10000);
};

TEST_F(Export, WritesWhatHuggingFaceLoads) {
  for (const DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    std::filesystem::remove_all(scratch_ / "out");
    const auto files = run(options(dtype));
    EXPECT_EQ(files.size(), 4u);
    expect_weights(dtype);
    EXPECT_EQ(weights::SafetensorsFile(scratch_ / "out/model.safetensors").metadata().at("format"), "pt");
    const Json config = read_json(scratch_ / "out/config.json");
    EXPECT_EQ(config["torch_dtype"], dtype == DType::bf16  ? "bfloat16"
                                     : dtype == DType::f16 ? "float16"
                                                           : "float32");
    EXPECT_FALSE(config.contains("dtype"));
    EXPECT_EQ(config["big"].dump(), "18446744073709551615");
    EXPECT_EQ(read_file(scratch_ / "out/tokenizer.json"), R"({"version": "1.0"})");
    EXPECT_TRUE(path_exists(scratch_ / "out/generation_config.json"));
    EXPECT_FALSE(path_exists(scratch_ / "out/training.log"));
  }
}

TEST_F(Export, ShardsBySizeAndReplacesOldWeightsWhenAsked) {
  ExportOptions small = options(DType::f32);
  small.shard_bytes = 50000;
  run(small);
  expect_weights(DType::f32);
  EXPECT_TRUE(path_exists(scratch_ / "out/model.safetensors.index.json"));
  EXPECT_TRUE(path_exists(scratch_ / "out/model-00002-of-00002.safetensors"));
  EXPECT_ERROR("has weights already", run(options(DType::bf16)));
  expect_weights(DType::f32);
  ExportOptions again = options(DType::bf16);
  again.overwrite = true;
  run(again);
  expect_weights(DType::bf16);
  EXPECT_FALSE(path_exists(scratch_ / "out/model.safetensors.index.json"));
  EXPECT_FALSE(path_exists(scratch_ / "out/model-00001-of-00002.safetensors"));
}

// A user may keep files with similar names next to the model. Only files named by an index belong to the
// model.
TEST_F(Export, FilesThatBelongToNoModelOfTheFolderStay) {
  const std::vector<std::string> mine{"model_best.safetensors", "model-old.safetensors",
                                      "model.ema.safetensors",  "model-00001-of-00003.safetensors",
                                      "modelcard.safetensors",  "model.safetensors.bak"};
  for (const char* index : {R"({"weight_map": {"a": "model-00001-of-00009.safetensors"}})", "{", ""}) {
    SCOPED_TRACE(index);
    const std::string out = scratch_ / "out";
    std::filesystem::remove_all(out);
    std::filesystem::create_directory(out);
    for (const std::string& name : mine) put(out + "/" + name, "mine");
    put(out + "/model.safetensors", "of the model before");
    if (*index != '\0') put(out + "/model.safetensors.index.json", index);
    put(out + "/model-00001-of-00009.safetensors", "a shard");
    EXPECT_ERROR("has weights already", run(options(DType::f32)));
    ExportOptions again = options(DType::f32);
    again.overwrite = true;
    run(again);
    expect_weights(DType::f32);
    for (const std::string& name : mine) EXPECT_EQ(read_file(out + "/" + name), "mine") << name;
    const bool named = std::string(index).size() > 1;
    EXPECT_EQ(path_exists(out + "/model-00001-of-00009.safetensors"), !named);
    EXPECT_FALSE(path_exists(out + "/model.safetensors.index.json"));
  }
}

TEST_F(Export, AShardReplacesNoFileOfTheUserAndItsOwnRemains) {
  ExportOptions small = options(DType::f32);
  small.shard_bytes = 50000;
  small.overwrite = true;
  const std::string shard = scratch_ / "out/model-00002-of-00002.safetensors";
  std::filesystem::create_directory(scratch_ / "out");
  put(shard, "mine");
  EXPECT_ERROR("a shard of the export has the name of another file", run(small));
  EXPECT_EQ(read_file(shard), "mine");
  std::filesystem::remove_all(scratch_ / "out");
  run(small);
  // An export that was killed before it wrote its index has left its shards.
  std::filesystem::remove(scratch_ / "out/model.safetensors.index.json");
  run(small);
  expect_weights(DType::f32);
}

TEST_F(Export, AWeightThatIsNotFiniteIsWrittenNowhere) {
  for (const auto& [value, dtype] :
       {std::pair{NAN, DType::f32}, {INFINITY, DType::bf16}, {70000.0f, DType::f16}}) {
    embedding_[7] = value;
    on_ranks(1, [&](comm::Channel& channel) {
      CheckpointContents contents;
      contents.slices.push_back({"model.norm.weight", DType::f32, {10}, 0, 10, embedding_.data()});
      save(channel, scratch_ / "odd", contents);
    });
    EXPECT_ERROR("tensor 'model.norm.weight'",
                 export_checkpoint(options(dtype), scratch_ / "odd/checkpoint-0"));
    EXPECT_FALSE(path_exists(scratch_ / "out")) << value;
  }
}

TEST_F(Export, ACopiedWeightThatIsNotFiniteIsWrittenNowhere) {
  on_ranks(1, [&](comm::Channel& channel) {
    CheckpointContents contents;
    contents.slices.push_back({"model.norm.weight", DType::f32, {3}, 0, 3, embedding_.data()});
    save(channel, scratch_ / "part", contents);
  });
  for (const auto& [value, dtype] :
       {std::pair{NAN, DType::f32}, {-INFINITY, DType::bf16}, {70000.0f, DType::f16}}) {
    std::vector<float> head = {1.0f, value, 3.5f};
    const std::vector<TensorSlice> slices{{"lm_head.weight", DType::f32, {3}, 0, 3, head.data()}};
    weights::write_safetensors(scratch_ / "source/model.safetensors", slices);
    ExportOptions part = options(dtype);
    part.rest_from_source = true;
    EXPECT_ERROR("tensor 'lm_head.weight'", export_checkpoint(part, scratch_ / "part/checkpoint-0"));
    EXPECT_FALSE(path_exists(scratch_ / "out")) << value;
  }
}

TEST_F(Export, ATiedHeadIsNotWrittenTwice) {
  put(scratch_ / "source/config.json", R"({"tie_word_embeddings": true})");
  run(options(DType::bf16));
  const weights::WeightFolder folder(scratch_ / "out");
  EXPECT_EQ(folder.tensors().size(), 2u);
  EXPECT_EQ(folder.find("lm_head.weight"), nullptr);
  EXPECT_EQ(read_json(scratch_ / "out/config.json")["torch_dtype"], "bfloat16");
}

// If a model was trained in part, the other tensors come from its source, including a separate output head.
// If all of it was trained, an additional head of the source is not exported.
TEST_F(Export, WhatWasNotTrainedComesFromTheSource) {
  std::vector<float> head = {1.0f, -2.0f, 3.5f};
  on_ranks(1, [&](comm::Channel& channel) {
    CheckpointContents contents;
    contents.slices.push_back({"model.norm.weight", DType::f32, {3}, 0, 3, embedding_.data()});
    save(channel, scratch_ / "part", contents);
  });
  weights::write_safetensors(scratch_ / "source/model.safetensors",
                             {{"lm_head.weight", DType::f32, {3}, 0, 3, head.data()},
                              {"model.norm.weight", DType::f32, {3}, 0, 3, head.data()}});
  ExportOptions part = options(DType::f32);
  part.rest_from_source = true;
  export_checkpoint(part, scratch_ / "part/checkpoint-0");
  const weights::WeightFolder folder(scratch_ / "out");
  ASSERT_EQ(folder.tensors().size(), 2u);
  std::vector<float> values(3);
  folder.read("lm_head.weight", 0, 3, values.data());
  EXPECT_EQ(values, head);
  folder.read("model.norm.weight", 0, 3, values.data());
  EXPECT_EQ(values, std::vector<float>(embedding_.begin(), embedding_.begin() + 3));
}

// All files that a tokenizer, its template and a processor may have are copied, and no other files of the
// source.
TEST_F(Export, TakesEveryFileOfTheTokenizerAlong) {
  const std::vector<std::string> copied{"generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "tokenizer.model",
                                        "chat_template.jinja",
                                        "chat_template.json",
                                        "preprocessor_config.json",
                                        "processor_config.json",
                                        "video_preprocessor_config.json"};
  for (const std::string& name : copied) put(scratch_ / ("source/" + name), "of " + name);
  ExportOptions wanted = options(DType::f32);
  std::string completed;
  wanted.complete = [&](const std::string& folder) {
    completed = folder;
    put(folder + "/tokenizer.json", "another");
  };
  std::vector<std::string> expected{"config.json"};
  expected.insert(expected.end(), copied.begin(), copied.end());
  expected.push_back("model.safetensors");
  EXPECT_EQ(run(wanted), expected);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch_ / "out"), {}), 15);
  for (const std::string& name : copied) {
    EXPECT_EQ(read_file(scratch_ / ("out/" + name)), name == "tokenizer.json" ? "another" : "of " + name);
  }
  EXPECT_TRUE(completed.starts_with(scratch_ / "out.tmp-")) << "beside the folder, which appears whole";
}

TEST_F(Export, ConfigJsonNamesTheFormatWhereverTheSourceDid) {
  const auto exported = [&](const std::string& config) {
    std::filesystem::remove_all(scratch_ / "out");
    put(scratch_ / "source/config.json", config);
    run(options(DType::bf16));
    return read_json(scratch_ / "out/config.json").dump();
  };
  EXPECT_EQ(exported(R"({"dtype": "float32"})"), R"({"dtype":"bfloat16"})");
  EXPECT_EQ(exported(R"({"a": 1, "dtype": "float32", "torch_dtype": "float32"})"),
            R"({"a":1,"dtype":"bfloat16","torch_dtype":"bfloat16"})");
  EXPECT_EQ(exported(R"({"quantization_config": {"bits": 4}, "vision_config": {"dtype": "float32"}})"),
            R"({"vision_config":{"dtype":"bfloat16"},"torch_dtype":"bfloat16"})");
  EXPECT_EQ(exported(R"({"text_config": {"torch_dtype": "float16", "b": 2}, "vision_config": 3})"),
            R"({"text_config":{"torch_dtype":"bfloat16","b":2},"vision_config":3,"torch_dtype":"bfloat16"})");
}

// The config of the whole model decides whether the head is tied. If it lacks the key, the text model's
// config decides.
TEST_F(Export, AHeadIsTiedWhereTheModelSaysSo) {
  for (const auto& [config, tensors] : std::initializer_list<std::pair<const char*, std::size_t>>{
           {R"({})", 3},
           {R"({"text_config": {"tie_word_embeddings": true}})", 2},
           {R"({"text_config": {"tie_word_embeddings": true}, "tie_word_embeddings": false})", 3},
           {R"({"text_config": 3, "tie_word_embeddings": true})", 2}}) {
    std::filesystem::remove_all(scratch_ / "out");
    put(scratch_ / "source/config.json", config);
    run(options(DType::f32));
    EXPECT_EQ(weights::WeightFolder(scratch_ / "out").tensors().size(), tensors) << config;
  }
  put(scratch_ / "source/config.json", "[]");
  EXPECT_ERROR("config.json is not a JSON object", run(options(DType::f32)));
}

// In a container, a process has the same number at each start, so the temporary folder has the same name.
TEST_F(Export, TakesNothingFromAnExportThatWasKilled) {
  const std::string temporary = scratch_ / ("out.tmp-" + std::to_string(::getpid()));
  std::filesystem::create_directory(temporary);
  put(temporary + "/model-00003-of-00003.safetensors", "half a file");
  put(temporary + "/chat_template.jinja", "of another model");
  run(options(DType::f32));
  expect_weights(DType::f32);
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "out/model-00003-of-00003.safetensors"));
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "out/chat_template.jinja"));
  EXPECT_FALSE(std::filesystem::exists(temporary));
}

TEST_F(Export, LeavesNothingBehindWhenItFails) {
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{10000, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string message = error_of([&] { run(options(DType::f32)); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_NE(message.find("disk space"), std::string::npos) << message;
  std::filesystem::remove(scratch_ / "source/config.json");
  EXPECT_ERROR("config.json", run(options(DType::f32)));
  EXPECT_FALSE(path_exists(scratch_ / "out"));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch_.path()), {}), 2) << "source and run";
}

}  // namespace
}  // namespace octet::checkpoint::export_test
