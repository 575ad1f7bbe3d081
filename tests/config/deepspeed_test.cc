// DeepSpeed's JSON.

#include <algorithm>
#include <filesystem>

#include "config/support.h"
#include "support/temporary_folder.h"

namespace octet::config::test::deepspeed_test {
namespace {

bool warns(const Resolved& resolved, const std::string& part) {
  return std::ranges::any_of(resolved.warnings,
                             [&](const std::string& warning) { return says(warning, part); });
}

class DeepSpeed : public testing::Test {
 protected:
  octet::test::TemporaryFolder folder_{"deepspeed"};
  const std::string path_ = folder_ / "deepspeed.json";
  Resolved with(const std::string& json, const std::string& yaml = "", const Strings& overrides = {}) {
    write_file_atomically(path_, json);
    return read("deepspeed: " + path_ + "\n" + yaml, overrides);
  }
  std::string message(const std::string& json, const std::string& yaml = "") {
    write_file_atomically(path_, json);
    return refusal("deepspeed: " + path_ + "\n" + yaml);
  }
};

TEST_F(DeepSpeed, ItsKeysBecomeOurs) {
  const Resolved r = with(R"({ // a comment
    "train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": "auto",
    "gradient_clipping": 0.5, "bf16": {"enabled": true}, "steps_per_print": 10,
    "zero_optimization": {"stage": 1, "overlap_comm": false, "contiguous_gradients": true,
       "allgather_bucket_size": 5e8, "offload_optimizer": {"device": "cpu", "pin_memory": true}},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95], "eps": "auto", "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 7, "warmup_max_lr": 1e-4}}})");
  const Config& c = r.config;
  EXPECT_EQ(c.global_batch_size, 64);
  EXPECT_EQ(c.per_device_train_batch_size, 2);
  EXPECT_FALSE(c.gradient_accumulation_steps);
  EXPECT_EQ(c.max_grad_norm, 0.5);
  EXPECT_EQ(c.zero_stage, 1);
  EXPECT_TRUE(c.bf16 && !c.overlap_comm && c.optim_state_cpu_offload);
  EXPECT_EQ(c.learning_rate, 1e-4);
  EXPECT_EQ(c.adam_beta2, 0.95);
  EXPECT_EQ(c.lr_scheduler_type, "deepspeed_warmup_decay");
  EXPECT_EQ(c.warmup_steps, 7);
  EXPECT_EQ(r.origins.at("zero_stage").source, Source::deepspeed);
  EXPECT_SAYS(r.origins.at("zero_stage").where, "zero_optimization.stage");
  EXPECT_TRUE(notes(r, "allgather_bucket_size"));
}

TEST_F(DeepSpeed, GroupsOfShardsBecomeOurs) {
  for (const std::string key : {"zero_hpz_partition_size", "mics_shard_size"}) {
    const auto group = [&](const std::string& size) {
      return with(R"({"zero_optimization": {"stage": 3, ")" + key + "\": " + size + "}}")
          .config.zero_group_size;
    };
    EXPECT_EQ(group("8"), "8") << key;
    for (const char* off : {"1", "-1", "0", "null"}) EXPECT_EQ(group(off), std::nullopt) << key << " " << off;
    EXPECT_SAYS(message(R"({"zero_optimization": {"stage": 3, ")" + key + "\": 1.5}}"), key);
    EXPECT_SAYS(message(R"({"zero_optimization": {"stage": 0, ")" + key + "\": 8}}"), "has no meaning");
  }
  EXPECT_TRUE(notes(with(R"({"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}})"),
                    "shards all states inside a group"));
}

TEST_F(DeepSpeed, MayBeWrittenInPlaceOfAFile) {
  write_file_atomically(path_, R"({"zero_optimization": {"stage": 3}})");
  const std::string json =
      R"({"zero_optimization": {"stage": 2, "overlap_comm": false}, "gradient_clipping": 0.5})";
  struct Given {
    const char* name;
    std::string yaml;
    Strings arguments;
    Environment environment;
    std::string where;
  };
  const std::vector<Given> all{
      {"on the command line", "", {"deepspeed=" + json}, {}, "command line: deepspeed"},
      {"with hyphens", "", {"--deepspeed", json}, {}, "command line: deepspeed"},
      {"in place of a file", "deepspeed: " + path_, {"deepspeed=" + json}, {}, "command line: deepspeed"},
      {"in place of a map",
       "deepspeed: {zero_optimization: {stage: 1}}",
       {"deepspeed=" + json},
       {},
       "command line: deepspeed"},
      {"as SFT-Play's Makefile has it", "", {"DEEPSPEED_CONFIG=" + json}, {}, "command line: deepspeed"},
      {"as YAML",
       "",
       {"deepspeed={zero_optimization: {stage: 2, overlap_comm: false}, gradient_clipping: 0.5}"},
       {},
       "command line: deepspeed"},
      {"as a text in the file", "deepspeed: '" + json + "'", {}, {}, "test.yaml:4"},
      {"as a map in the file", "deepspeed: " + json, {}, {}, "test.yaml"},
      {"in the environment", "", {}, {{"OCTET_DEEPSPEED", json}}, "environment OCTET_DEEPSPEED"},
  };
  for (const Given& given : all) {
    SCOPED_TRACE(given.name);
    const Resolved r = load_text(kBase + given.yaml, "test.yaml", given.arguments,
                                 {.for_training = true, .environment = given.environment});
    EXPECT_EQ(r.config.zero_stage, 2);
    EXPECT_EQ(r.config.max_grad_norm, 0.5);
    EXPECT_FALSE(r.config.overlap_comm);
    EXPECT_SAYS(r.origins.at("zero_stage").where, given.where);
    EXPECT_EQ(load_text(r.to_yaml(), "again.yaml", {}, quiet()).config.zero_stage, 2);
  }
  EXPECT_SAYS(refusal("", {"deepspeed={\"zero_optimisation\": {}}"}), "did you mean 'zero_optimization'");
  EXPECT_SAYS(refusal("", {"deepspeed={\"a\": "}), "command line: deepspeed");
}

TEST_F(DeepSpeed, AutoNeverConflictsAndAnExplicitMismatchNamesBothPlaces) {
  EXPECT_EQ(with(R"({"gradient_accumulation_steps": "auto"})", "gradient_accumulation_steps: 3")
                .config.gradient_accumulation_steps,
            3);
  EXPECT_EQ(with(R"({"gradient_accumulation_steps": 3})", "gradient_accumulation_steps: 3")
                .config.gradient_accumulation_steps,
            3);
  const std::string text = message(R"({"gradient_accumulation_steps": 4})", "gradient_accumulation_steps: 3");
  EXPECT_SAYS(text, "disagree on 'gradient_accumulation_steps'");
  EXPECT_SAYS(text, "test.yaml:5");
  EXPECT_SAYS(text, ".json:1: gradient_accumulation_steps");
  const Resolved r = with(R"({"gradient_accumulation_steps": 4})", "gradient_accumulation_steps: 3",
                          {"gradient_accumulation_steps=2"});
  EXPECT_EQ(r.config.gradient_accumulation_steps, 2);
}

TEST_F(DeepSpeed, AnFp8SectionIsAnErrorUnlessTheYamlAsksForFp8) {
  EXPECT_SAYS(message(R"({"fp8": {"enabled": true}})"), "no 'fp8' section");
  EXPECT_TRUE(warns(with(R"({"fp8": {"enabled": true}})", "fp8: true"), "no 'fp8' section"));
}

TEST_F(DeepSpeed, KeysThatDeepSpeedWouldRefuseOrIgnoreAreErrors) {
  EXPECT_SAYS(message(R"({"zero_optimization": {"stagee": 1}})"), "did you mean 'zero_optimization.stage'?");
  EXPECT_SAYS(message(R"({"gradient_cliping": 1})"), "gradient_clipping");
  EXPECT_SAYS(message(R"({"communication_data_type": "fp8"})"), "reduce_dtype");
  EXPECT_SAYS(message(R"({"communication_data_type": "fp16"})", "reduce_dtype: bf16"), "fp32 or bf16");
  EXPECT_TRUE(warns(with(R"({"communication_data_type": "fp32"})"), "twice as long"));
  EXPECT_EQ(with(R"({"communication_data_type": "bf16"})").config.reduce_dtype, "bf16");
  EXPECT_SAYS(message(R"({"fp16": {"enabled": true}})"), "bf16");
  EXPECT_NO_THROW(
      with(R"({"fp16": {"enabled": false}, "bf16": {"enabled": false}, "zero_optimization": {"stage": 0}})",
           "bf16: true"));
  EXPECT_SAYS(message(R"({"zero_optimization": {"zero_quantized_gradients": true}})"), "not supported");
  EXPECT_SAYS(message(R"({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}})"), "none or cpu");
  EXPECT_SAYS(message(R"({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}})"),
              "cpu, which keeps the optimizer's state in host memory");
  for (const char* json : {R"({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}})",
                           R"({"zero_optimization": {"stage": 3, "cpu_offload": true}})"}) {
    EXPECT_TRUE(with(json, "device: cuda").config.optim_state_cpu_offload) << json;
  }
  EXPECT_SAYS(message(R"({"zero_optimization": 1})"), "must be an object");
  EXPECT_SAYS(message(R"({"zero_optimization": {"stage": 1.5}})"), "zero_optimization.stage");
  EXPECT_SAYS(message(R"({"optimizer": {"type": "Lamb"}})"), "AdamW");
  EXPECT_SAYS(message(R"({"scheduler": {"type": "OneCycle"}})"), "WarmupLR");
  EXPECT_SAYS(message(R"({"optimizer": {"params": {"betas": [0.9]}}})"), "two numbers");
}

// Unsupported values are refused unless the command line replaces them.
TEST_F(DeepSpeed, WhatTheCommandLineReplacesIsNotRefused) {
  EXPECT_EQ(with(R"({"communication_data_type": "fp16"})", "", {"reduce_dtype=bf16"}).config.reduce_dtype,
            "bf16");
  const std::string disks = R"({"zero_optimization": {"offload_optimizer": {"device": "nvme"}}})";
  EXPECT_TRUE(with(disks, "", {"optim_state_cpu_offload=true"}).config.optim_state_cpu_offload);
  EXPECT_FALSE(with(disks, "", {"optim_state_cpu_offload=false"}).config.optim_state_cpu_offload);
  EXPECT_SAYS(message(disks, "optim_state_cpu_offload: true"), "none or cpu");
  const std::string half = R"({"fp16": {"enabled": true}, "bf16": {"enabled": true}})";
  EXPECT_TRUE(with(half, "", {"bf16=true"}).config.bf16);
  EXPECT_SAYS(message(half, "bf16: true"), "'fp16.enabled' is not supported");
  EXPECT_TRUE(with(R"({"amp": {"enabled": true}})", "", {"bf16=true"}).config.bf16);
  EXPECT_EQ(with(R"({"zero_optimization": {"stage": 2, "zero_quantized_gradients": true}})", "",
                 {"reduce_dtype=int8"})
                .config.reduce_dtype,
            "int8");
  EXPECT_EQ(
      with(R"({"zero_optimization": {"stage": 3, "zero_quantized_weights": true}})", "", {"gather_dtype=fp8"})
          .config.gather_dtype,
      "fp8");
  EXPECT_EQ(with(R"({"scheduler": {"type": "OneCycle"}})", "", {"lr_scheduler_type=linear"})
                .config.lr_scheduler_type,
            "linear");
  EXPECT_EQ(with(R"({"optimizer": {"type": "Lamb", "params": {"lr": 1}}})", "", {"optim=adamw_torch"})
                .config.learning_rate,
            Config().learning_rate);
}

// deepspeed/runtime/engine.py: type Adam is AdamW unless adam_w_mode is false; type AdamW always is.
TEST_F(DeepSpeed, AdamIsAdamWUnlessItsDecayGoesIntoTheGradient) {
  const auto optimizer = [](const std::string& type, const std::string& params) {
    return R"({"optimizer": {"type": ")" + type + R"(", "params": {)" + params + "}}}";
  };
  EXPECT_EQ(with(optimizer("Adam", R"("weight_decay": 0.1)")).config.weight_decay, 0.1);
  EXPECT_TRUE(with(optimizer("Adam", R"("weight_decay": 0.1, "adam_w_mode": true)")).notes.empty());
  const std::string l2 = optimizer("Adam", R"("weight_decay": 0.1, "adam_w_mode": false)");
  EXPECT_SAYS(message(l2), "'optimizer.params.adam_w_mode: false' with a weight decay");
  EXPECT_SAYS(message(l2), "set adam_w_mode: true");
  const std::string open = optimizer("Adam", R"("weight_decay": "auto", "adam_w_mode": false)");
  EXPECT_SAYS(message(open, "weight_decay: 0.2"), "weight_decay 0.2");
  EXPECT_NO_THROW(with(open)) << "without decay both are the same";
  EXPECT_NO_THROW(with(l2, "", {"weight_decay=0"}));
  EXPECT_TRUE(
      notes(with(optimizer("AdamW", R"("weight_decay": 0.1, "adam_w_mode": false)")), "nor in DeepSpeed"));
  EXPECT_SAYS(message(optimizer("Adam", R"("adam_w_mode": 3)")), "true or false");
  EXPECT_TRUE(notes(with(optimizer("Adam", R"("torch_adam": true)")), "torch.optim.AdamW"));
  EXPECT_SAYS(message(optimizer("Adam", R"("amsgrad": true)")), "without AMSGrad");
  EXPECT_SAYS(message(optimizer("Adam", R"("bias_correction": false)")), "always corrected");
  EXPECT_SAYS(message(optimizer("Adam", R"("weight_dekay": 1)")),
              "did you mean 'optimizer.params.weight_decay'?");
  EXPECT_SAYS(message(R"({"optimizer": {"parameters": {}}})"), "did you mean 'optimizer.params'?");
  EXPECT_SAYS(message(R"({"optimizer": {"params": 3}})"), "'optimizer.params' must be an object");
}

TEST_F(DeepSpeed, ItsSchedulesComeWithAllTheirParameters) {
  const auto scheduler = [](const std::string& type, const std::string& params) {
    return R"({"scheduler": {"type": ")" + type + R"(", "params": {)" + params + "}}}";
  };
  const auto argument = [](const Config& c, const char* name) {
    return std::get<double>(c.lr_scheduler_kwargs.at(name));
  };
  const std::string rest = R"("warmup_max_lr": 2e-4, "warmup_num_steps": 9)";
  const Config log =
      with(scheduler("WarmupLR", R"("warmup_min_lr": 1e-5, "warmup_type": "log", )" + rest)).config;
  EXPECT_EQ(log.lr_scheduler_type, "deepspeed_warmup");
  EXPECT_EQ(argument(log, "warmup_min_lr"), 1e-5);
  EXPECT_EQ(std::get<std::string>(log.lr_scheduler_kwargs.at("warmup_type")), "log");
  EXPECT_EQ(log.learning_rate, 2e-4);
  EXPECT_EQ(log.warmup_steps, 9);
  const Config decay =
      with(scheduler("WarmupDecayLR", R"("total_num_steps": 77, "warmup_type": "linear", )" + rest)).config;
  EXPECT_EQ(decay.lr_scheduler_type, "deepspeed_warmup_decay");
  EXPECT_EQ(argument(decay, "total_num_steps"), 77);
  EXPECT_EQ(std::get<std::string>(decay.lr_scheduler_kwargs.at("warmup_type")), "linear");
  const Config cosine =
      with(scheduler("WarmupCosineLR", R"("total_num_steps": "auto", "warmup_min_ratio": 0.2,
      "cos_min_ratio": 0.3, "warmup_num_steps": "auto")"),
           "warmup_steps: 5")
          .config;
  EXPECT_EQ(cosine.lr_scheduler_type, "deepspeed_warmup_cosine");
  EXPECT_EQ(argument(cosine, "warmup_min_ratio"), 0.2);
  EXPECT_EQ(argument(cosine, "cos_min_ratio"), 0.3);
  EXPECT_FALSE(cosine.lr_scheduler_kwargs.contains("total_num_steps"));
  EXPECT_EQ(cosine.warmup_steps, 5);
  // A missing parameter has DeepSpeed's default, not ours.
  for (const std::string type : {"WarmupLR", "WarmupDecayLR"}) {
    const std::string bare = R"({"scheduler": {"type": ")" + type + R"("}})";
    EXPECT_EQ(with(bare).config.warmup_steps, 1000) << type;
    EXPECT_EQ(with(bare).config.learning_rate, 0.001) << type;
    EXPECT_SAYS(message(bare, "learning_rate: 3e-5"), "scheduler.params.warmup_max_lr (DeepSpeed's default)");
    EXPECT_EQ(with(scheduler(type, R"("warmup_max_lr": "auto")"), "learning_rate: 3e-5").config.learning_rate,
              3e-5)
        << type;
  }
  const std::string bare = R"({"scheduler": {"type": "WarmupCosineLR"}})";
  EXPECT_EQ(with(bare, "learning_rate: 3e-5").config.learning_rate, 3e-5) << "the optimizer's is its peak";
  EXPECT_SAYS(message(scheduler("WarmupLR", R"("total_num_steps": 7)")), "unknown DeepSpeed key");
  EXPECT_SAYS(message(scheduler("WarmupCosineLR", rest)),
              "unknown DeepSpeed key 'scheduler.params.warmup_max_lr'");
  EXPECT_SAYS(message(scheduler("WarmupLR", R"("warmup_type": "cosine", )" + rest)), "log, linear");
  EXPECT_SAYS(message(scheduler("WarmupLR", rest), "lr_scheduler_type: cosine"), "disagree");
}

TEST_F(DeepSpeed, ThePeakOfTheScheduleStandsAboveTheRateOfTheOptimizer) {
  const Resolved r = with(R"({"optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 2e-4, "warmup_num_steps": 9}}})");
  EXPECT_EQ(r.config.learning_rate, 2e-4);
  EXPECT_TRUE(notes(r, "'optimizer.params.lr: 0.001' changes nothing here, nor in DeepSpeed"));
}

TEST_F(DeepSpeed, StatesInBf16AreStoredSo) {
  const Config c = with(R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": true}})").config;
  EXPECT_EQ(c.param_dtype + c.grad_dtype + c.optim_dtype, "bf16bf16auto");
  const Config all =
      with(
          R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": true, "bf16_optimizer_states": true}})")
          .config;
  EXPECT_EQ(all.param_dtype + all.grad_dtype + all.optim_dtype, "bf16bf16bf16");
  EXPECT_SAYS(message(R"({"bf16": {"bf16_optimizer_states": 2}})"), "true or false");
}

TEST_F(DeepSpeed, BrokenFilesAreExplained) {
  EXPECT_SAYS(message("{"), "not valid JSON");
  EXPECT_SAYS(message("[]"), "one object");
  EXPECT_SAYS(message(R"({"bf16": {}, "bf16": {}})"), "twice");
  EXPECT_SAYS(message(std::string(10000, '[')), "JSON");
  EXPECT_SAYS(refusal("deepspeed: /nowhere/ds.json"), "does not exist");
}

TEST_F(DeepSpeed, AnInlineMapIsReadTheSame) {
  const Resolved r = read("deepspeed:\n  zero_optimization: {stage: 1}\n  gradient_clipping: auto\n");
  EXPECT_EQ(r.config.zero_stage, 1);
  EXPECT_SAYS(refusal("deepspeed: {zero_optimization: {stag: 1}}"), "zero_optimization.stag");
}

// The file is found in the configuration's folder, in the working folder, or in a parent folder of the
// configuration. The value may also be the JSON itself.
TEST(DeepspeedPath, IsFoundFromAnyWorkingFolder) {
  namespace fs = std::filesystem;
  const octet::test::TemporaryFolder folder("deepspeed_path");
  const auto write = [&](const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(folder / path).parent_path());
    write_file_atomically(folder / path, text);
  };
  const auto json = [](int stage) {
    return R"({"zero_optimization": {"stage": )" + std::to_string(stage) + "}}";
  };
  write("repository/configs/z3.json", json(3));
  write("repository/configs/deep/z2.json", json(2));
  const std::string yaml = folder / "repository/configs/deep/run.yaml";
  const auto stage = [&](const std::string& path, const Strings& words = {}) {
    write("repository/configs/deep/run.yaml", kBase + (path.empty() ? "" : "deepspeed: " + path + "\n"));
    Strings arguments = words;
    arguments.push_back(yaml);
    return load(arguments, quiet()).config.zero_stage;
  };
  EXPECT_EQ(stage("z2.json"), 2);
  EXPECT_EQ(stage("../z3.json"), 3);
  EXPECT_EQ(stage("configs/z3.json"), 3) << "the repository is not the working folder";
  EXPECT_EQ(stage("configs/deep/z2.json"), 2);
  EXPECT_EQ(stage(folder / "repository/configs/z3.json"), 3);
  EXPECT_EQ(stage("", {"deepspeed=configs/z3.json"}), 3);
  EXPECT_EQ(stage("", {"deepspeed=" + json(2)}), 2);
  EXPECT_EQ(stage("z2.json", {"--deepspeed", json(1)}), 1);
  EXPECT_EQ(stage("'" + json(2) + "'"), 2);
  EXPECT_SAYS(refusal("deepspeed: examples/deepspeed/ds_z3_offload_config.json"), "set zero_stage: 3");
  EXPECT_SAYS(refusal("deepspeed: nowhere.json"), "relative to the configuration");
  EXPECT_SAYS(refusal("", {R"(deepspeed={"zero_optimization": {"stage": 3},,})"}), "command line");
}

}  // namespace
}  // namespace octet::config::test::deepspeed_test
