// A vision-language model from its folder to a folder that has all of its parts: full training, adapters,
// exports, and wrong inputs.
#include <filesystem>

#include "cli/adapter_task.h"
#include "cli/safetensors_contents.h"
#include "octet/base/json.h"

namespace octet::test::wrappers_test {
namespace {

namespace fs = std::filesystem;

/// The task's model as the text model of a Mistral 3 with a few tensors of images.
class Wrapper : public testing::Test {
 protected:
  Wrapper() : folder_("wrapper"), model_(folder_ / "model") {
    fs::copy(adapter_base(), model_, fs::copy_options::recursive);
    const Json text = read_json(model_ + "/config.json");
    const Json config{{"model_type", "mistral3"},    {"architectures", {"Mistral3ForConditionalGeneration"}},
                      {"tie_word_embeddings", true}, {"image_token_index", 10},
                      {"text_config", text},         {"vision_config", {{"model_type", "pixtral"}}}};
    spill(model_ + "/config.json", config.dump());
    Contents plain(model_ + "/model.safetensors"), whole = plain;
    whole.all.clear();
    for (auto& [name, tensor] : plain.all) {
      if (!name.starts_with("model.")) throw std::runtime_error("the task's tensors have other names");
      whole.all["language_model." + name] = tensor;
    }
    whole.all["vision_tower.patch.weight"] = {DType::bf16, {2, 3, 5}, std::string(60, '\x7f')};
    whole.all["vision_tower.layers.0.attention.q_proj.weight"] = {
        DType::f16, {4, 4}, std::string(32, '\x11')};
    whole.all["multi_modal_projector.positions"] = {DType::i64, {3}, std::string(24, '\x05')};
    whole.write(model_ + "/model.safetensors");
    for (const char* name : kProcessor) spill(model_ + "/" + name, std::string("{\"of\": \"") + name + "\"}");
    fs::remove(model_ + "/chat_template.jinja");
    spill(model_ + "/chat_template.jinja", "{% for m in messages %}<image>{{ m['content'] }}{% endfor %}");
  }
  std::string train(const std::string& output, const std::string& more = "") const {
    return Task::get().train(
        folder_ / output,
        "model_name_or_path=" + model_ + " train_from_scratch=false max_steps=2 save_steps=2 " + more);
  }
  /// All weights of a folder, whatever its shards.
  static std::map<std::string, Contents::Tensor> tensors(const std::string& folder) {
    std::map<std::string, Contents::Tensor> all;
    for (const auto& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("model") && name.ends_with(".safetensors")) all.merge(Contents(entry.path()).all);
    }
    return all;
  }
  /// Returns the answer of a model to fixed tokens.
  std::string answer(const std::string& model) const {
    spill(folder_ / "in.jsonl", "{\"prompt_ids\": [3, 17, 40, 2]}\n");
    expect_success(trainer(
        "generate " + model + " --file " + (folder_ / "in.jsonl") + " --out " + (folder_ / "out.jsonl") +
        " --overwrite --max-new 6 --max-length 64 --ignore-eos --logprobs 1 --device cpu"));
    return slurp(folder_ / "out.jsonl");
  }
  /// Expects the whole model with trained text tensors of this dtype.
  void expect_whole(const std::string& folder, DType dtype) const {
    const auto before = tensors(model_), after = tensors(folder);
    ASSERT_EQ(after.size(), before.size());
    for (const auto& [name, tensor] : before) {
      ASSERT_TRUE(after.contains(name)) << name;
      const Contents::Tensor& other = after.at(name);
      EXPECT_EQ(other.shape, tensor.shape) << name;
      if (name.starts_with("language_model.")) {
        EXPECT_EQ(other.dtype, dtype) << name;
        EXPECT_NE(other.bytes, tensor.bytes) << name << " is trained";
      } else {
        EXPECT_EQ(other.dtype, tensor.dtype) << name;
        EXPECT_EQ(other.bytes, tensor.bytes) << name;
      }
    }
    const Json config = read_json(folder + "/config.json");
    EXPECT_EQ(config["model_type"], "mistral3");
    EXPECT_EQ(config["architectures"], Json::array({"Mistral3ForConditionalGeneration"}));
    EXPECT_EQ(config["vision_config"]["model_type"], "pixtral");
    for (const char* name : kProcessor) EXPECT_EQ(slurp(folder + "/" + name), slurp(model_ + "/" + name));
    EXPECT_EQ(slurp(folder + "/chat_template.jinja"), slurp(model_ + "/chat_template.jinja"))
        << "writes images";
  }
  static constexpr const char* kProcessor[] = {"preprocessor_config.json", "processor_config.json",
                                               "video_preprocessor_config.json"};
  TemporaryFolder folder_;
  std::string model_;
};

TEST_F(Wrapper, IsSavedWithAllItsPartsAndTrainedFurther) {
  expect_success(on_ranks(2, train("run", "zero_stage=3 export_dtype=fp32")));
  expect_whole(folder_ / "run", DType::f32);
  expect_success(trainer("export " + (folder_ / "run/checkpoint-2") + " " + (folder_ / "half") +
                         " --export_dtype bf16 --export_size 0.00002"));
  EXPECT_TRUE(fs::exists(folder_ / "half/model.safetensors.index.json"));
  expect_whole(folder_ / "half", DType::bf16);
  EXPECT_EQ(answer(folder_ / "run"), answer(folder_ / "run/checkpoint-2"));
  expect_success(trainer(Task::get().train(
      folder_ / "again", "train_from_scratch=false max_steps=1 model_name_or_path=" + (folder_ / "run"))));

  // The base is needed for the parts that were not trained.
  fs::remove(model_ + "/model.safetensors");
  const Outcome run = trainer("export " + (folder_ / "run/checkpoint-2") + " " + (folder_ / "lost"));
  EXPECT_EQ(run.code, 64) << run.both();
  EXPECT_EQ(errors_in(run), 1) << run.both();
  EXPECT_NE(run.err.find("parts of the model that were not trained (vision tower, projector) are missing"),
            std::string::npos)
      << run.err;
  EXPECT_FALSE(fs::exists(folder_ / "lost"));
}

TEST_F(Wrapper, AdaptersHaveTheNamesOfPeftAndAreMerged) {
  expect_success(trainer(train("lora",
                               "finetuning_type=lora lora_rank=2 learning_rate=0.05 "
                               "additional_target=embed_tokens lora_target=q_proj,down_proj")));
  const Contents adapter(folder_ / "lora/adapter_model.safetensors");
  for (const auto& [name, tensor] : adapter.all) {
    EXPECT_TRUE(name.starts_with("base_model.model.model.language_model.") ||
                name == "base_model.model.lm_head.weight")
        << name;
  }
  EXPECT_TRUE(
      adapter.all.contains("base_model.model.model.language_model.layers.0.mlp.down_proj.lora_A.weight"));
  EXPECT_EQ(read_json(folder_ / "lora/adapter_config.json")["target_modules"],
            ".*language_model.*\\.(down_proj|q_proj)");
  const std::string with_adapter = "finetuning_type=lora adapter_name_or_path=";
  const auto beside = probed(folder_, model_, with_adapter + (folder_ / "lora"));
  EXPECT_GT(distance(beside, probed(folder_, model_)), 1e-3);
  expect_success(trainer("export " + model_ + " " + (folder_ / "merged") +
                         " --merge --export_dtype fp32 --adapter " + (folder_ / "lora")));
  EXPECT_LT(distance(probed(folder_, folder_ / "merged"), beside), 1e-5);
  const auto before = tensors(model_), after = tensors(folder_ / "merged");
  for (const char* name : {"vision_tower.patch.weight", "vision_tower.layers.0.attention.q_proj.weight",
                           "multi_modal_projector.positions"})
    EXPECT_EQ(after.at(name).bytes, before.at(name).bytes) << name;

  // A file that names the text model as in the weight files is the same adapter.
  fs::create_directory(folder_ / "older");
  fs::copy(folder_ / "lora/adapter_config.json", folder_ / "older/adapter_config.json");
  Contents older = adapter;
  older.all.clear();
  for (const auto& [name, tensor] : adapter.all) {
    const std::string newer = "base_model.model.model.language_model.";
    const bool text = name.starts_with(newer);
    older.all[text ? "base_model.model.language_model.model." + name.substr(newer.size())
                   : "base_model.model.language_model.lm_head.weight"] = tensor;
  }
  older.write(folder_ / "older/adapter_model.safetensors");
  EXPECT_EQ(probed(folder_, model_, with_adapter + (folder_ / "older")), beside);
}

TEST_F(Wrapper, KeysAndRowsForImagesAreRefusedByName) {
  const Outcome tower = trainer(train("tower", "freeze_vision_tower=false"));
  EXPECT_EQ(tower.code, 64) << tower.both();
  EXPECT_NE(tower.err.find("freeze_vision_tower: false"), std::string::npos) << tower.err;
  EXPECT_NE(tower.err.find("only the language model of a vision-language model is trained"),
            std::string::npos);
  spill(
      folder_ / "rows.jsonl",
      R"({"messages": [{"role": "user", "content": "<image>what?"}, {"role": "assistant", "content": "a cat"}], )"
      R"("images": ["cat.png"]})"
      "\n");
  const Outcome rows = trainer(train("rows",
                                     "freeze_vision_tower=true freeze_multi_modal_projector=true "
                                     "image_max_pixels=262144 dataset=" +
                                         (folder_ / "rows.jsonl")));
  EXPECT_EQ(rows.code, 64) << rows.both();
  EXPECT_NE(rows.both().find("holds images, audio or video, which are not trained"), std::string::npos)
      << rows.both();
}

}  // namespace
}  // namespace octet::test::wrappers_test
