// Files of a finished run: names, formats, shards, and the parts of a model that were not trained.
#include <gtest/gtest.h>

#include "cli/task.h"
#include "cli/weights.h"
#include "octet/base/json.h"

namespace octet::test::model_export_test {
namespace {

namespace fs = std::filesystem;

// Writes the configuration of a Gemma 3 text model as part of a multimodal model, with the task's tokenizer.
void write_multimodal_config(const std::string& model) {
  const Json text{
      {"model_type", "gemma3_text"}, {"vocab_size", 512},        {"hidden_size", 32},
      {"intermediate_size", 48},     {"num_hidden_layers", 2},   {"num_attention_heads", 2},
      {"num_key_value_heads", 1},    {"head_dim", 16},           {"query_pre_attn_scalar", 16},
      {"sliding_window", 64},        {"torch_dtype", "float32"}, {"max_position_embeddings", 256}};
  spill(model + "/config.json", Json{{"architectures", {"Gemma3ForConditionalGeneration"}},
                                     {"model_type", "gemma3"},
                                     {"torch_dtype", "float32"},
                                     {"text_config", text},
                                     {"vision_config", {{"torch_dtype", "float32"}}}}
                                    .dump(2));
}

TEST(ModelExport, ATextModelGoesBackWithThePartsThatWereNotTrainedUnderEitherName) {
  const TemporaryFolder folder("multimodal");
  const std::string model = folder / "model";
  fs::copy(Task::get().model(), model);
  remove_weights(model);
  write_multimodal_config(model);
  spill(model + "/preprocessor_config.json", "{}");
  const std::string train = "model_name_or_path=" + model + " max_steps=2 ";
  const Outcome fresh = trainer(Task::get().train(folder / "fresh", train));
  expect_success(fresh);
  EXPECT_NE(fresh.both().find("has no weights"), std::string::npos) << fresh.both();
  const Weights text = read_weights(folder / "fresh");
  EXPECT_TRUE(text.contains("language_model.model.layers.1.self_attn.k_norm.weight"));
  for (const bool newer : {false, true}) {
    SCOPED_TRACE(newer ? "model.language_model." : "language_model.model.");
    Weights weights;
    for (const auto& [name, w] : text) {
      weights[newer ? "model.language_model." + name.substr(21) : name] = w;
    }
    const std::string tower = newer ? "model.vision_tower.encoder.weight" : "vision_tower.encoder.weight";
    weights[tower] = {{3, 2}, {1, 2, 3, 4, 5, 6.5f}};
    write_weights(model, weights);
    const std::string run = folder / (newer ? "newer" : "older");
    expect_success(trainer(Task::get().train(run, train + "train_from_scratch=false save_steps=1"), 2));
    const Weights trained = read_weights(run);
    EXPECT_EQ(trained.size(), weights.size()) << "no head beside a tied embedding, nothing lost";
    for (const auto& [name, w] : weights) {
      ASSERT_TRUE(trained.contains(name)) << name;
      EXPECT_EQ(trained.at(name).shape, w.shape);
      if (name == tower) {
        EXPECT_EQ(trained.at(name).values, w.values) << "not trained";
      } else {
        EXPECT_NE(trained.at(name).values, w.values) << name << " was trained";
      }
    }
    EXPECT_TRUE(path_exists(run + "/preprocessor_config.json"));
    const Json config = read_json(run + "/config.json");
    EXPECT_EQ(config["model_type"], "gemma3");

    // The same model exported from the checkpoint, in another format and in shards.
    const std::string exported = folder / (newer ? "newer_export" : "older_export");
    expect_success(trainer("export " + run + "/checkpoint-2 " + exported +
                           " --export_dtype bf16 --export_size 0.00002"));
    const weights::WeightFolder files(exported);
    EXPECT_TRUE(path_exists(exported + "/model.safetensors.index.json"));
    EXPECT_EQ(files.tensors().size(), weights.size());
    for (const auto& tensor : files.tensors())
      EXPECT_EQ(tensor.dtype, tensor.name == tower ? DType::f32 : DType::bf16) << tensor.name;
    const Json as_bf16 = read_json(exported + "/config.json");
    EXPECT_EQ(as_bf16["torch_dtype"], "bfloat16");
    EXPECT_EQ(as_bf16["text_config"]["torch_dtype"], "bfloat16");
    EXPECT_EQ(as_bf16["vision_config"]["torch_dtype"], "bfloat16");
    // The export answers questions, and can be trained further.
    expect_success(trainer("generate " + exported + " --template chatml --max-new 2 --device cpu hello"));
    expect_success(trainer(Task::get().train(
        run + "_again", "model_name_or_path=" + exported + " train_from_scratch=false max_steps=1")));
  }
}

TEST(ModelExport, ARunWritesItsFinalModelInTheFormatAndSizeItWasAskedFor) {
  const TemporaryFolder folder("final_model");
  const std::string run = folder / "run";
  expect_success(
      trainer(Task::get().train(run, "max_steps=1 export_dtype=fp16 export_size=0.00004 bf16=true")));
  const weights::WeightFolder files(run);
  EXPECT_TRUE(path_exists(run + "/model.safetensors.index.json"));
  for (const auto& tensor : files.tensors()) EXPECT_EQ(tensor.dtype, DType::f16) << tensor.name;
  EXPECT_TRUE(path_exists(run + "/tokenizer.json"));
  EXPECT_TRUE(path_exists(run + "/generation_config.json"));
  const std::string exported = folder / "exported";
  expect_success(trainer("export " + run + "/checkpoint-1 " + exported));
  EXPECT_EQ(slurp(exported + "/model.safetensors.index.json"), slurp(run + "/model.safetensors.index.json"))
      << "export takes the run's words";
  for (const auto& entry : fs::directory_iterator(exported)) {
    EXPECT_EQ(slurp(entry.path().string()), slurp(run + "/" + entry.path().filename().string()))
        << entry.path();
  }
}

// The settings of conversations come from the run, both in its final model and in the export of a checkpoint.
TEST(ModelExport, OfACheckpointItHasTheTextFilesOfTheFinalModelByteForByte) {
  const TemporaryFolder folder("same_files");
  const std::string own = folder / "own";
  fs::copy(Task::get().model(), own);
  const std::string chatml =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  spill(own + "/chat_template.jinja", chatml);
  const std::string told = " default_system=Xyzzy tool_format=llama3 ";
  struct Case {
    std::string name, keys, says;  ///< part of its chat template
  };
  for (const auto& [name, keys, says] : std::vector<Case>{
           {"told", "template=chatml" + told, "'Xyzzy'"},
           {"quiet", "template=qwen3 enable_thinking=false" + told, "is defined else false"},
           {"thinking", "template=qwen3 preserve_thinking=true mask_history=true", "set preserved = true"},
           {"found", "template=null model_name_or_path=" + own + told, "'Xyzzy'"},
           {"adapted", "template=qwen3 enable_thinking=false finetuning_type=lora lora_rank=2" + told,
            "is defined else false"}}) {
    SCOPED_TRACE(name);
    const std::string run = folder / name, exported = folder / (name + "_export");
    expect_success(trainer(Task::get().train(run, "max_steps=1 save_steps=1 " + keys)));
    expect_success(trainer("export " + run + "/checkpoint-1 " + exported));
    EXPECT_NE(slurp(run + "/chat_template.jinja").find(says), std::string::npos)
        << slurp(run + "/chat_template.jinja");
    int compared = 0;
    for (const auto& entry : fs::directory_iterator(exported)) {
      EXPECT_EQ(slurp(entry.path().string()), slurp(run + "/" + entry.path().filename().string()))
          << entry.path();
      ++compared;
    }
    EXPECT_GE(compared, 5);
  }
  // ChatML answers have two end tokens, also if the template was found in the model.
  EXPECT_EQ(read_json(folder / "found_export/generation_config.json")["eos_token_id"].size(), 2u);
}

// The same keys in a file for LLaMA-Factory's export.
TEST(ModelExport, AFileOfLlamaFactorysExportNamesTheTemplatesOptionsToo) {
  const TemporaryFolder folder("same_keys");
  expect_success(trainer(Task::get().train(folder / "run", "max_steps=1")));
  spill(folder / "merge.yaml", "model_name_or_path: " + (folder / "run") +
                                   "\nexport_dir: " + (folder / "out") +
                                   "\ntemplate: chatml\ndefault_system: Xyzzy\ntool_format: qwen\n");
  expect_success(trainer("export " + (folder / "merge.yaml")));
  const std::string jinja = slurp(folder / "out/chat_template.jinja");
  EXPECT_NE(jinja.find("'Xyzzy'"), std::string::npos) << jinja;
  EXPECT_NE(jinja.find("<tool_call>"), std::string::npos) << jinja;
}

TEST(ModelExport, ATokenizerWithMoreTokensThanTheModelHasRowsIsRefusedWhereverItIsUsed) {
  const TemporaryFolder folder("tokenizer");
  expect_success(trainer(Task::get().train(folder / "run", "max_steps=1")));
  Json config = parse_json(slurp((folder / "run") + "/config.json"), "config");
  config["vocab_size"] = 400;
  spill((folder / "run") + "/config.json", config.dump());
  const std::string run = folder / "run";
  for (const std::string& command :
       {"generate " + run + " --template chatml --device cpu hello",
        Task::get().train(folder / "next", "train_from_scratch=false model_name_or_path=" + run)}) {
    const Outcome outcome = trainer(command);
    EXPECT_EQ(outcome.code, 64) << outcome.both();
    EXPECT_EQ(errors_in(outcome), 1) << outcome.both();
    for (const char* piece : {"the tokenizer does not fit the model", "400", "512", "use the tokenizer"}) {
      EXPECT_NE(outcome.err.find(piece), std::string::npos) << outcome.err;
    }
  }
}

}  // namespace
}  // namespace octet::test::model_export_test
