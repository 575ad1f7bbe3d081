// Sizes of a run that the configuration, the data and the memory decide.
#include "../src/train/sizing/sizing.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "octet/checkpoint/save.h"
#include "octet/config/config.h"
#include "train/tiny_run.h"

namespace octet::train::sizing_test {
namespace {

using run_objects::expect_logged;
using run_objects::logged;
using run_objects::TinyRun;

config::Config with_batch(std::int64_t micro, std::int64_t accumulation) {
  config::Config config;
  config.per_device_train_batch_size = micro;
  config.gradient_accumulation_steps = accumulation;
  return config;
}

// The run has eleven documents of at most six tokens.
TEST(Sizing, ChoosesABatchOfAtMostAnEpoch) {
  struct Row {
    std::int64_t micro, accumulation;
    std::int64_t chosen, passes;
  };
  for (const Row& row : {Row{2, 2, 2, 2}, {4, 2, 4, 2}, {4, 8, 4, 3}, {3, 4, 3, 4}, {16, 4, 16, 1}}) {
    TinyRun run(with_batch(row.micro, row.accumulation));
    Sizing sizing(run.run(), run.parts());
    sizing.choose();
    SCOPED_TRACE(std::to_string(row.micro) + " x " + std::to_string(row.accumulation));
    EXPECT_EQ(run.parts().batch.micro, row.chosen);
    EXPECT_EQ(run.parts().batch.accumulation, row.accumulation);
    EXPECT_EQ(run.parts().batch.passes, row.passes);
    EXPECT_EQ(run.parts().feed->shape().tokens, row.chosen * TinyRun::kLongest);
    const runtime::InstanceOptions options = sizing.options();
    EXPECT_EQ(options.transformer.max_tokens, row.chosen * TinyRun::kLongest);
    EXPECT_EQ(options.transformer.max_length, TinyRun::kLongest);
    EXPECT_EQ(options.max_documents, row.chosen);
    EXPECT_EQ(options.max_micro_batches, row.passes);
  }
}

TEST(Sizing, FindsABatchThatFitsMemory) {
  config::Config config = with_batch(1, 1);
  config.auto_find_batch_size = true;
  config.global_batch_size = 8;
  config.gradient_accumulation_steps.reset();
  TinyRun run(config);
  Sizing sizing(run.run(), run.parts());
  const std::string text = logged([&] { sizing.choose(); });
  const config::Batch& batch = run.parts().batch;
  EXPECT_EQ(batch.global, 8);
  EXPECT_EQ(batch.micro * batch.accumulation, 8);
  EXPECT_EQ(sizing.options().transformer.max_tokens, batch.micro * TinyRun::kLongest);
  expect_logged(text, "chosen to fit the memory of the device: per_device_train_batch_size=" +
                          std::to_string(batch.micro) + " ");
}

// Evaluations may need more memory than training.
TEST(Sizing, MakesRoomForEvaluations) {
  struct Row {
    std::int64_t eval_batch, length;
    std::int64_t tokens, longest, documents;
  };
  for (const Row& row : {Row{1, 5, 12, 6, 2}, {1, 9, 12, 9, 2}, {2, 9, 18, 9, 2}, {4, 4, 16, 6, 4}}) {
    config::Config config = with_batch(2, 1);
    config.per_device_eval_batch_size = row.eval_batch;
    TinyRun run(config);
    feed::Corpus& corpus = run.parts().corpus;
    const std::vector<std::int32_t> ids(static_cast<std::size_t>(row.length), 1);
    corpus.evaluation.append(ids, ids, 0);
    corpus.evaluation_items = data::one_each(corpus.evaluation);
    Sizing sizing(run.run(), run.parts());
    sizing.choose();
    const runtime::InstanceOptions options = sizing.options();
    SCOPED_TRACE(std::to_string(row.eval_batch) + " x " + std::to_string(row.length));
    EXPECT_EQ(options.transformer.max_tokens, row.tokens);
    EXPECT_EQ(options.transformer.max_length, row.longest);
    EXPECT_EQ(options.max_documents, row.documents);
  }
}

config::Config with_storage(const std::string& parameters, const std::string& gradients,
                            const std::string& moments) {
  config::Config config = with_batch(2, 1);
  config.bf16 = true;
  config.param_dtype = parameters;
  config.grad_dtype = gradients;
  config.optim_dtype = moments;
  return config;
}

std::string storage_of(const config::Config& config) {
  return config.param_dtype + " " + config.grad_dtype + " " + config.optim_dtype;
}

checkpoint::Checkpoint checkpoint_with(TinyRun& run, std::int64_t step, const std::string& yaml) {
  return checkpoint::Checkpoint(checkpoint::save(
      run.run().job, run.folder().path(), {.step = step, .state = Json::object(), .config_yaml = yaml}));
}

TEST(Sizing, AdoptsTheStorageOfACheckpointForOpenKeys) {
  struct Row {
    config::Config config;
    std::string yaml, adopted;
    bool is_told;
  };
  const std::string narrow = "bf16: true\nparam_dtype: bf16\ngrad_dtype: bf16\noptim_dtype: int8\n";
  for (const Row& row : std::vector<Row>{
           {with_storage("auto", "auto", "auto"), narrow, "bf16 bf16 int8", true},
           {with_storage("auto", "auto", "auto"), "bf16: true\noptim_dtype: bf16\n", "fp32 fp32 bf16", true},
           {with_storage("fp32", "auto", "auto"), narrow, "fp32 fp32 int8", true},
           {with_storage("fp32", "fp32", "bf16"), narrow, "fp32 fp32 bf16", false},
       }) {
    TinyRun run(row.config);
    Sizing sizing(run.run(), run.parts());
    sizing.adopt_storage(checkpoint_with(run, 1, row.yaml));
    EXPECT_EQ(storage_of(run.run().config), row.adopted) << row.yaml;
    sizing.choose();
    EXPECT_EQ(storage_of(run.run().config), row.adopted) << "memory decides nothing any more";
    const std::string text = logged([&] { sizing.say_storage_of_checkpoint(); });
    expect_logged(text, row.is_told ? "states are stored as in the checkpoint, param_dtype=" : "no: states");
    expect_logged(logged([&] { sizing.say_storage_asked(); }), "no: states");
  }
  // An older checkpoint, because the first is damaged: keys are still open.
  TinyRun run(with_storage("auto", "auto", "auto"));
  Sizing sizing(run.run(), run.parts());
  sizing.adopt_storage(checkpoint_with(run, 2, narrow));
  sizing.adopt_storage(checkpoint_with(run, 1, "bf16: true\noptim_dtype: bf16\n"));
  EXPECT_EQ(storage_of(run.run().config), "fp32 fp32 bf16");
}

TEST(Sizing, NamesTheFilesThatAskForLessThanFp32) {
  struct Row {
    config::Config config;
    std::string says;
  };
  for (const Row& row : std::vector<Row>{
           {with_storage("fp32", "fp32", "fp32"), "no: states"},
           {with_storage("bf16", "fp32", "auto"), "no: states"},
           {with_storage("bf16", "fp32", "fp32"),
            "param_dtype=bf16 grad_dtype=fp32 optim_dtype=fp32, as asked (a.yaml:1): less than fp32 rounds"},
           {with_storage("bf16", "bf16", "int8"), "as asked (a.yaml:1, command line): less than fp32"},
       }) {
    TinyRun run(row.config);
    run.run().resolved.origins = {{"param_dtype", {config::Source::yaml, "a.yaml:1"}},
                                  {"grad_dtype", {config::Source::yaml, "a.yaml:1"}},
                                  {"optim_dtype", {config::Source::override_, "command line"}}};
    const Sizing sizing(run.run(), run.parts());
    expect_logged(logged([&] { sizing.say_storage_asked(); }), row.says);
  }
}

// The run has ten steps, and an epoch has six.
TEST(Sizing, SavesDuringStepsIfThereAreStepsAfterASave) {
  struct Row {
    const char *save_async, *strategy;
    double steps;
    const char* chosen;
  };
  for (const Row& row : {Row{"auto", "steps", 5, "true"},
                         {"auto", "steps", 10, "false"},
                         {"auto", "steps", 500, "false"},
                         {"auto", "epoch", 500, "true"},
                         {"auto", "no", 5, "auto"},
                         {"false", "steps", 5, "false"},
                         {"true", "steps", 500, "true"}}) {
    config::Config config = with_batch(2, 1);
    config.save_async = row.save_async;
    config.save_strategy = row.strategy;
    config.save_steps = row.steps;
    TinyRun run(config);
    Sizing sizing(run.run(), run.parts());
    sizing.choose();
    sizing.choose_where_to_save();
    EXPECT_EQ(run.run().config.save_async, row.chosen)
        << row.save_async << " " << row.strategy << " " << row.steps;
    EXPECT_EQ(sizing.options().snapshot, run.run().config.save_async == "true");
  }
}

}  // namespace
}  // namespace octet::train::sizing_test
