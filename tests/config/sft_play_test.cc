// SFT-Play's files, and the files that they include.

#include <filesystem>

#include "config/support.h"
#include "support/temporary_folder.h"

namespace octet::config::test::sft_play_test {
namespace {

TEST(SftPlay, ItsNestedKeysBecomeOurs) {
  const Resolved r = load_text(R"(
model: {name: org/model, local_dir: models/m, max_seq_len: 1024, type: causal}
tuning: {mode: full, backend: bnb, lora: {r: 32, alpha: 64}}
train:
  batch_size: 4
  grad_accum: auto
  epochs: 3
  learning_rate: 2e-4
  warmup_ratio: 0.06
  lr_scheduler_type: cosine
  optim: paged_adamw_8bit
  bf16: true
  evaluation_strategy: steps
  save_total_limit: 3
  output_dir: runs/x
data: {format: chat, train_path: train.jsonl, val_path: val.jsonl}
logging: {backend: tensorboard, log_interval: 5}
task_mode: cpt
seed: 7
)",
                               "play.yaml", {"train.batch_size=2"}, quiet());
  const Config& c = r.config;
  EXPECT_EQ(c.model_name_or_path, "models/m");
  EXPECT_EQ(c.cutoff_len, 1024);
  EXPECT_EQ(c.per_device_train_batch_size, 2);
  EXPECT_EQ(c.gradient_accumulation_steps, kAutomatic);
  EXPECT_EQ(resolve_batch(c, 1).global, 32) << "grad_accum: auto";
  EXPECT_EQ(c.learning_rate, 2e-4);
  EXPECT_EQ(c.eval_strategy, "steps");
  EXPECT_EQ(c.dataset, Strings{"train.jsonl"});
  EXPECT_EQ(c.stage, "pt");
  EXPECT_EQ(c.logging_steps, 5);
  EXPECT_TRUE(c.tensorboard());
  EXPECT_TRUE(notes(r, "tuning.backend"));
  EXPECT_EQ(c.finetuning_type, "full");
  EXPECT_TRUE(notes(r, "'tuning.lora.r'")) << "by the word that stands in the file";
  EXPECT_EQ(c.optim_dtype, "int8");
  EXPECT_TRUE(notes(r, "pages nothing"));
}

// SFT-Play's guide names keys without their sections.
TEST(SftPlay, KeysMayStandWithoutTheirSection) {
  const std::string file = "model: {name: m}\ntrain: {epochs: 1, output_dir: o}\ndata: {train_path: d}\n";
  struct Edit {
    const char* name;
    std::string yaml;
    Strings arguments;
    std::int64_t length, micro;
    std::string note;
  };
  const std::vector<Edit> edits{
      {"in the file",
       "batch_size: 2\nmax_seq_len: 1024\n",
       {},
       1024,
       2,
       "'batch_size' is read as 'train.batch_size'"},
      {"on the command line",
       "",
       {"max_seq_len=512", "batch_size=4"},
       512,
       4,
       "'max_seq_len' is read as 'model.max_seq_len'"},
      {"with hyphens", "", {"--max-seq-len", "512", "--batch_size", "4"}, 512, 4, "'batch_size' is read as"},
      {"the command line wins", "batch_size: 2\nmax_seq_len: 1024\n", {"train.batch_size=8"}, 1024, 8, ""},
      {"over a key in its section too",
       "tuning: {mode: lora, lora: {r: 8}}\n",
       {"batch_size=3", "model.max_seq_len=256"},
       256,
       3,
       ""},
      {"a key of three parts",
       "tuning: {mode: lora}\nalpha: 7\nmax_seq_len: 128\nbatch_size: 1\n",
       {},
       128,
       1,
       "'alpha' is read as 'tuning.lora.alpha'"},
  };
  for (const Edit& edit : edits) {
    SCOPED_TRACE(edit.name);
    const Resolved r = load_text(file + edit.yaml, "play.yaml", edit.arguments, quiet());
    EXPECT_EQ(r.config.cutoff_len, edit.length);
    EXPECT_EQ(r.config.per_device_train_batch_size, edit.micro);
    EXPECT_EQ(r.dialect, "SFT-Play");
    EXPECT_TRUE(edit.note.empty() || notes(r, edit.note)) << edit.note;
  }
  const auto message = [&](const std::string& yaml) -> std::string {
    try {
      load_text(file + yaml, "play.yaml", {}, quiet());
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_SAYS(message("epochs: 2\n"), "'train.epochs' is given twice");
  EXPECT_SAYS(message("max_seq_lem: 2\n"), "did you mean 'model.max_seq_len'");
  EXPECT_SAYS(message("backend: x\n"), "unknown key 'backend'");
}

TEST(SftPlay, ItsAdaptersBecomeOurs) {
  const Config c =
      load_text(
          "tuning: {mode: lora, lora: {r: 32, alpha: 64, dropout: 0, target_modules: [q_proj, v_proj]}}",
          "play.yaml", {}, quiet(false))
          .config;
  EXPECT_EQ(c.finetuning_type, "lora");
  EXPECT_EQ(c.lora_rank, 32);
  EXPECT_EQ(c.lora_alpha, 64);
  EXPECT_EQ(c.lora_target, (Strings{"q_proj", "v_proj"}));
  const Config q = load_text("tuning: {mode: qlora}", "play.yaml", {}, quiet(false)).config;
  EXPECT_EQ(q.finetuning_type, "lora");
  EXPECT_EQ(q.quantization_bit, 4);
}

TEST(SftPlay, WhatIsNotBuiltIsRefusedByItsOwnName) {
  EXPECT_SAYS(refusal("tuning: {mode: oft}"), "'tuning.mode: oft'");
  EXPECT_SAYS(refusal("tuning: {mode: ptuning}"), "'ptuning'");
  EXPECT_SAYS(refusal("tuning: {lora: {r: 8}}"), "'tuning.lora.r' is for adapters");
  EXPECT_SAYS(refusal("train: {lerning_rate: 1}"), "did you mean 'train.learning_rate'?");
  EXPECT_SAYS(refusal("train: {learning_rate: x}"), "train.learning_rate");
  EXPECT_SAYS(refusal("train: {learning_rate: 1}\nlearning_rate: 2"), "given twice");
  EXPECT_SAYS(refusal("train: {load_best_model_at_end: true, metric_for_best_model: bleu}\nval_size: 0.1\n"
                      "eval_strategy: steps"),
              "a figure of the evaluations of this run: loss");
  EXPECT_SAYS(refusal("include: base.yaml"), "the included configuration does not exist");
  EXPECT_SAYS(refusal("", {"include=base.yaml"}), "write it into the configuration file");
  EXPECT_SAYS(refusal("train: 3"), "unknown key 'train'");
  EXPECT_SAYS(refusal("datasets: [{pth: a}]"), "did you mean 'path'?");
  EXPECT_SAYS(refusal("datasets: {path: a}"), "a list of {path: FILE, weight: NUMBER}");
  EXPECT_SAYS(refusal("data: {split: {train_ratio: 7}}"), "a share above 0");
  EXPECT_SAYS(refusal("data: {split: {val: 1}}"), "a share of at least 0 and below 1");
  EXPECT_SAYS(refusal("data: {split: {train: 0.8, val: 0.1, test: 0.2}}"), "found:    1.1");
  EXPECT_SAYS(refusal("datasets: [{path: a, type: text}]"), "cpt, for texts, or chat");
  EXPECT_SAYS(refusal("task_mode: cpt\ndatasets: [{path: a, type: chat}]"), "set task_mode: cpt_mixed");
  EXPECT_SAYS(refusal("datasets: [a]\ndata: {train_path: b}"), "both name the training data");
}

// For each number of ranks: the micro-batch x the accumulation, or the possible micro-batches.
TEST(SftPlay, AutoMakesStepsOfAboutThirtyTwo) {
  const auto batch = [](const std::string& train, std::int64_t world, const Strings& overrides = {}) {
    const Config c = load_text("train: {" + train + "}", "play.yaml", overrides, quiet(false)).config;
    if (!c.auto_find_batch_size) {
      const Batch b = resolve_batch(c, world);
      return std::to_string(b.micro) + " x " + std::to_string(b.accumulation) + " = " +
             std::to_string(b.global);
    }
    std::string found, steps;
    for (const std::int64_t micro : possible_micro_batches(c, world)) {
      Config chosen = c;
      chosen.per_device_train_batch_size = micro;
      found += std::to_string(micro) + " ";
      const std::string step = std::to_string(resolve_batch(chosen, world).global);
      if (steps.find(step) == std::string::npos) steps += (steps.empty() ? "" : ",") + step;
    }
    return found + "= " + steps;
  };
  const std::string automatic = "batch_size: auto, grad_accum: auto";
  EXPECT_EQ(batch(automatic, 1), "1 2 4 8 16 32 = 32");
  EXPECT_EQ(batch("batch_size: auto", 2), "1 2 4 8 16 = 32");
  EXPECT_EQ(batch(automatic, 3), "1 11 = 33");
  EXPECT_EQ(batch(automatic, 5), "1 2 3 6 = 30");
  EXPECT_EQ(batch(automatic, 6), "1 5 = 30");
  EXPECT_EQ(batch(automatic, 7), "1 5 = 35");
  EXPECT_EQ(batch(automatic, 32), "1 = 32");
  EXPECT_EQ(batch(automatic, 33), "1 = 33");
  EXPECT_EQ(batch(automatic, 512), "1 = 512");
  EXPECT_EQ(batch("batch_size: 4, grad_accum: auto", 1), "4 x 8 = 32");
  EXPECT_EQ(batch("batch_size: 4, grad_accum: auto", 3), "4 x 3 = 36");
  EXPECT_EQ(batch("batch_size: 6, grad_accum: auto", 1), "6 x 5 = 30");
  EXPECT_EQ(batch("batch_size: 64, grad_accum: auto", 1), "64 x 1 = 64");
  EXPECT_EQ(batch("grad_accum: auto", 1), "8 x 4 = 32");
  EXPECT_EQ(batch("batch_size: 4, grad_accum: 2", 1), "4 x 2 = 8");
  EXPECT_EQ(batch(automatic, 3, {"global_batch_size=48"}), "1 2 4 8 16 = 48");
  // A given accumulation is kept, and the step follows from the micro-batch that fits.
  const std::string eight = batch("batch_size: auto, grad_accum: 8", 3);
  EXPECT_TRUE(eight.starts_with("1 2 3 4 5 ")) << eight;
  EXPECT_SAYS(eight, " 64 = 24,48,72,");
  EXPECT_EQ(batch(automatic, 1, {"train.grad_accum=4"}).substr(0, 6), "1 2 3 ");
  EXPECT_TRUE(
      notes(load_text("train: {grad_accum: auto}", "play.yaml", {}, quiet(false)), "global_batch_size sets"));
}

TEST(SftPlay, ANumberThatAutoMeansIsSaid) {
  const auto text = [](const std::string& yaml, std::int64_t world) {
    const Config c = load_text(yaml, "play.yaml", {}, quiet(false)).config;
    return automatic_step_text(c, resolve_batch(c, world));
  };
  EXPECT_SAYS(text("train: {batch_size: 4, grad_accum: auto}", 2),
              "32 samples: 4 per micro-batch x 4 x 2 ranks");
  EXPECT_SAYS(text("train: {batch_size: 4, grad_accum: auto}", 3), "36 samples");
  EXPECT_SAYS(text("train: {batch_size: 4, grad_accum: auto}", 3), "the nearest number to 32");
  EXPECT_EQ(text("train: {batch_size: 4, grad_accum: 2}", 2), "");
  EXPECT_SAYS(text("train: {batch_size: auto, grad_accum: 2}", 3), "found makes steps of 48 samples");
  EXPECT_EQ(text("gradient_accumulation_steps: auto\nglobal_batch_size: 16", 2), "");
}

TEST(SftPlay, SeveralSetsAreMixedByTheirWeights) {
  const Config c = load_text(R"(
task_mode: cpt_mixed
block_size: 1024
datasets:
  - {name: domain, path: a.jsonl, type: cpt, weight: 0.7}
  - {name: chat, path: b.jsonl, type: chat}
)",
                             "play.yaml", {}, quiet(false))
                       .config;
  EXPECT_EQ(c.dataset, (Strings{"a.jsonl", "b.jsonl"}));
  EXPECT_EQ(c.interleave_probs, (Strings{"0.7", "1"}));
  EXPECT_EQ(c.mix_strategy, "interleave_under");
  EXPECT_EQ(c.stage, "sft") << "texts are trained whole there, too";
  EXPECT_TRUE(c.packing);
  EXPECT_EQ(c.cutoff_len, 1024);
  const Config plain = load_text("datasets: [a.jsonl, {name: b}]", "play.yaml", {}, quiet(false)).config;
  EXPECT_EQ(plain.dataset, (Strings{"a.jsonl", "b"}));
  EXPECT_EQ(plain.mix_strategy, "concat");
}

TEST(SftPlay, WhatIsNotTrainedOfADividedFileIsHeldOut) {
  const auto held = [](const std::string& data) {
    return load_text("data: {" + data + "}", "play.yaml", {}, quiet(false));
  };
  EXPECT_DOUBLE_EQ(held("split: {train_ratio: 0.7, val: 0.1, test: 0.2}").config.val_size, 0.3);
  EXPECT_EQ(held("split: {train_ratio: 1}").config.val_size, 0);
  const Resolved divided = held("val_path: v.jsonl, split: {train_ratio: 0.7}");
  EXPECT_EQ(divided.config.val_size, 0);
  EXPECT_TRUE(notes(divided, "'data.split.train_ratio' is not read"));
  EXPECT_EQ(held("split: {val: 0.1}").config.val_size, 0.1);
  EXPECT_EQ(held("split: {val_ratio: 0.1, test_ratio: 0.05}").config.val_size, 0.15);
  EXPECT_TRUE(notes(held("split: {val_ratio: 0.1, test_ratio: 0.05}"), "including the share for tests"));
}

TEST(SftPlay, TheBestModelIsFoundByTheLossWhereItWouldBeByRouge) {
  const Resolved r = load_text(
      "train: {load_best_model_at_end: true, metric_for_best_model: rougeL, greater_is_better: true, "
      "evaluation_strategy: steps, save_strategy: steps}\nval_size: 0.1",
      "play.yaml", {}, quiet(false));
  EXPECT_TRUE(r.config.load_best_model_at_end);
  EXPECT_TRUE(notes(r, "rougeL' is not computed while training"));
  EXPECT_SAYS(refusal("train: {load_best_model_at_end: true, metric_for_best_model: eval_loss, "
                      "greater_is_better: true, evaluation_strategy: steps}\nval_size: 0.1"),
              "largest evaluation loss");
}

TEST(SftPlay, AnOldFolderIsOverwrittenWhereNothingIsGoneOnWith) {
  const auto overwrites = [](const std::string& train, const Strings& overrides = {}) {
    return load_text("train: {" + train + "}", "play.yaml", overrides, quiet(false));
  };
  EXPECT_TRUE(overwrites("overwrite_output_dir: true").config.overwrite_output_dir);
  const Resolved both = overwrites("overwrite_output_dir: true, resume_from_checkpoint: auto");
  EXPECT_FALSE(both.config.overwrite_output_dir);
  EXPECT_TRUE(notes(both, "resumes the newest checkpoint"));
  EXPECT_SAYS(refusal("train: {resume_from_checkpoint: auto}", {"train.overwrite_output_dir=true"}),
              "exclude each other");
}

// SFT-Play's Makefile and scripts name a configuration in these ways.
TEST(SftPlay, AConfigurationIsNamedInItsWays) {
  const octet::test::TemporaryFolder folder("named");
  write_file_atomically(folder / "run.yaml", "seed: 7\n");
  write_file_atomically(folder / "ds.json", R"({"zero_optimization": {"stage": 2}})");
  for (const Strings& arguments :
       {Strings{folder / "run.yaml"}, Strings{"--config", folder / "run.yaml"},
        Strings{"--config=" + (folder / "run.yaml")}, Strings{"CONFIG=" + (folder / "run.yaml")}}) {
    EXPECT_EQ(load(arguments, quiet(false)).config.seed, 7) << arguments.back();
  }
  EXPECT_EQ(
      load({"CONFIG=" + (folder / "run.yaml"), "DEEPSPEED_CONFIG=" + (folder / "ds.json")}, quiet(false))
          .config.zero_stage,
      2);
  const auto message = [](const Strings& arguments) {
    try {
      load(arguments, quiet(false));
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("accepted");
  };
  EXPECT_SAYS(message({"--config"}), "'--config' is not followed by a configuration");
  EXPECT_SAYS(message({"CONFIG=run"}), "a path ending in .yaml");
  EXPECT_SAYS(message({"a.yaml", "CONFIG=b.yaml"}), "two configurations");
}

class Included : public testing::Test {
 protected:
  octet::test::TemporaryFolder scratch_{"include"};
  const std::string& folder_ = scratch_.path();
  Included() { std::filesystem::create_directories(folder_ + "/below"); }
  void file(const std::string& name, const std::string& text) {
    write_file_atomically(folder_ + "/" + name, text);
  }
  Resolved loaded(const std::string& name, Strings overrides = {}) {
    overrides.insert(overrides.begin(), folder_ + "/" + name);
    return load(overrides, quiet(false));
  }
  std::string message(const std::string& name, const Strings& overrides = {}) {
    try {
      loaded(name, overrides);
    } catch (const Error& e) {
      return e.what();
    }
    return "accepted";
  }
};

TEST_F(Included, FilesGiveWhatTheIncludingOneDoesNotSay) {
  file("base.yaml", "train: {epochs: 3, learning_rate: 2e-4}\nseed: 7\ndata: {train_path: a}\n");
  file("more.yaml", "seed: 8\ntrain: {epochs: 5}\n");
  file("below/run.yaml", "include: ../base.yaml\ntrain: {epochs: 1}\n");
  file("both.yaml", "include: [base.yaml, more.yaml]\n");
  file("again.yaml", "include: below/run.yaml\ntrain: {learning_rate: null}\n");
  const Resolved r = loaded("below/run.yaml");
  EXPECT_EQ(r.config.num_train_epochs, 1);
  EXPECT_EQ(r.config.learning_rate, 2e-4);
  EXPECT_SAYS(r.origins.at("learning_rate").where, "base.yaml:1");
  EXPECT_SAYS(r.origins.at("num_train_epochs").where, "run.yaml:2");
  const Config both = loaded("both.yaml").config;
  EXPECT_EQ(both.seed, 8) << "the last file counts";
  EXPECT_EQ(both.num_train_epochs, 5);
  EXPECT_EQ(both.learning_rate, 2e-4);
  const Config again = loaded("again.yaml").config;
  EXPECT_EQ(again.num_train_epochs, 1);
  EXPECT_EQ(again.learning_rate, Config().learning_rate) << "null takes a value back";
}

// Two names for the same value do not conflict across an include: the including file wins.
TEST_F(Included, AnotherNameInTheIncludingFileCounts) {
  file("base.yaml",
       "mode: sft\nlearning_rate: 2e-4\ntrain: {steps: 5, batch_size: auto, evaluation_strategy: steps}\n"
       "data: {train_path: a, val_path: v}\nmodel: {max_seq_len: 512}\n");
  file("run.yaml",
       "include: base.yaml\ntask_mode: cpt_mixed\nblock_size: 256\nstride: 32\n"
       "datasets: [{path: b, type: cpt, weight: 1}]\nmodel: {max_seq_len: 1024}\n"
       "train: {max_steps: 9, per_device_train_batch_size: 3, eval_strategy: epoch, learning_rate: 1e-5}\n");
  const Resolved r = loaded("run.yaml");
  EXPECT_EQ(r.config.dataset, Strings{"b"});
  EXPECT_EQ(r.config.max_steps, 9);
  EXPECT_EQ(r.config.per_device_train_batch_size, 3);
  EXPECT_FALSE(r.config.auto_find_batch_size);
  EXPECT_EQ(r.config.eval_strategy, "epoch");
  EXPECT_EQ(r.config.learning_rate, 1e-5);
  EXPECT_EQ(r.config.cutoff_len, 256);
  EXPECT_TRUE(r.config.packing);
  for (const char* note :
       {"'data.train_path' is overridden by 'datasets'", "'mode' is overridden by 'task_mode'",
        "'model.max_seq_len' is overridden by 'block_size'", "blocks do not overlap"}) {
    EXPECT_TRUE(notes(r, note)) << note;
  }
  file("sets.yaml", "include: base.yaml\ndatasets: [b]\n");
  EXPECT_EQ(loaded("sets.yaml").config.dataset, Strings{"b"}) << "also where nobody names a mode";
  file("twice.yaml", "include: base.yaml\ntrain: {max_steps: 1, steps: 2}\n");
  EXPECT_SAYS(message("twice.yaml"), "given twice");
}

TEST_F(Included, MistakesAreToldOfTheFileThatHasThem) {
  file("bad.yaml", "seed: 1\ntrain:\n  lerning_rate: 1\n");
  file("run.yaml", "include: bad.yaml\n");
  file("circle.yaml", "seed: 1\ninclude: other.yaml\n");
  file("other.yaml", "include: [circle.yaml]\n");
  file("gone.yaml", "\ninclude: nowhere.yaml\n");
  file("map.yaml", "include: {a: b}\n");
  EXPECT_SAYS(message("run.yaml"), "bad.yaml:3");
  EXPECT_SAYS(message("circle.yaml"), "in a cycle");
  EXPECT_SAYS(message("gone.yaml"), "gone.yaml:2");
  EXPECT_SAYS(message("map.yaml"), "a file, or a list of files");
}

}  // namespace
}  // namespace octet::config::test::sft_play_test
