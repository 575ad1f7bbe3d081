// Streaming: data are tokenised during training. Results are equal at any number of ranks, exact after a
// stop, with and without packing, and equal to data in memory if nothing is shuffled.
#include <gtest/gtest.h>

#include "cli/task.h"

namespace octet::test::streaming_test {
namespace {

namespace fs = std::filesystem;

const std::string kStream = "streaming=true buffer_size=50 ";

TEST(Streaming, InTheOrderOfTheFilesItTrainsWhatMemoryWouldHold) {
  const TemporaryFolder folder("stream_order");
  const Task& task = Task::get();
  const std::string plain = "disable_shuffling=true save_strategy=no max_steps=14 ";
  expect_success(trainer(task.train(folder / "memory", plain)));
  for (const std::string window : {"7", "50", "16384"}) {
    SCOPED_TRACE("buffer_size " + window);
    const std::string output = folder / ("stream" + window);
    expect_success(trainer(task.train(output, plain + "streaming=true buffer_size=" + window)));
    expect_same_losses(folder / "memory", output, 1e-12);
    // An epoch of 240 rows is ten steps of 24.
    EXPECT_EQ(steps_of(output).at(10)["epoch"], 1.0);
  }
}

TEST(WholeStreaming, EveryEpochTrainsEveryRowOnce) {
  const TemporaryFolder folder("stream_epoch");
  const Task& task = Task::get();
  // 50 rows in windows of 16, a batch of 12: the fifth step of an epoch is the last and a partial one.
  const std::string more =
      kStream +
      "max_samples=50 buffer_size=16 global_batch_size=12 per_device_train_batch_size=3 max_steps=10 "
      "save_strategy=epoch ";
  expect_success(trainer(task.train(folder / "run", more), 2));
  EXPECT_TRUE(fs::exists(folder / "run/checkpoint-5"));
  EXPECT_TRUE(fs::exists(folder / "run/checkpoint-10"));
  const auto steps = steps_of(folder / "run");
  EXPECT_EQ(steps.at(5)["epoch"], 1.0);
  EXPECT_EQ(steps.at(10)["epoch"], 2.0);
  const auto tokens = [&steps](int step) { return steps.at(step).at("total_tokens").get<std::int64_t>(); };
  EXPECT_EQ(tokens(10), 2 * tokens(5)) << "the same rows";
  EXPECT_NE(tokens(6) - tokens(5), tokens(1)) << "in another order";
}

TEST(WholeStreaming, RanksTradeWithoutChangingTheData) {
  const TemporaryFolder folder("stream_ranks");
  const Task& task = Task::get();
  for (const std::string packs :
       {"", "packing=true cutoff_len=256 global_batch_size=4 per_device_train_batch_size=1 "}) {
    const std::string alone = folder / ("alone" + std::to_string(packs.size()));
    const std::string two = folder / ("two" + std::to_string(packs.size()));
    const std::string more = kStream + packs + "save_strategy=no ";
    expect_success(trainer(task.train(alone, more)));
    expect_success(trainer(task.train(two, more + "zero_stage=1"), 2));
    expect_same_losses(alone, two, 1e-5);
    for (const auto& [step, row] : steps_of(alone)) {
      EXPECT_EQ(row.at("total_tokens"), steps_of(two).at(step).at("total_tokens")) << "step " << step;
    }
  }
}

TEST(Streaming, AResumedRunIsAtTheVeryPlaceWhereItStopped) {
  const TemporaryFolder folder("stream_resume");
  const Task& task = Task::get();
  for (const std::string packs :
       {"", "packing=true cutoff_len=256 global_batch_size=4 per_device_train_batch_size=2 "}) {
    SCOPED_TRACE(packs);
    const std::string whole = folder / ("whole" + std::to_string(packs.size()));
    const std::string rest = folder / ("rest" + std::to_string(packs.size()));
    const std::string more = kStream + packs + "num_train_epochs=9 ";
    expect_success(trainer(task.train(whole, more), 2));
    fs::create_directories(rest);
    fs::copy(whole + "/checkpoint-5", rest + "/checkpoint-5", fs::copy_options::recursive);
    const Outcome run = trainer(task.train(rest, more), 2);
    expect_success(run);
    EXPECT_NE(run.err.find("resumed"), std::string::npos) << run.err;
    EXPECT_EQ(run.err.find("differ from the data of the checkpoint"), std::string::npos) << run.err;
    expect_identical(whole + "/checkpoint-12", rest + "/checkpoint-12");
  }
}

TEST(WholeStreaming, APlaceThatIsNoneOfThisStreamIsRefused) {
  const TemporaryFolder folder("stream_place");
  const Task& task = Task::get();
  expect_success(trainer(task.train(folder / "run", kStream + "max_steps=5")));
  const Outcome other = trainer(task.train(folder / "run", "streaming=true buffer_size=51"), 2);
  EXPECT_EQ(other.code, 64) << other.both();
  EXPECT_EQ(errors_in(other), 1);
  EXPECT_NE(other.err.find("buffer_size"), std::string::npos) << other.err;
  expect_success(trainer(task.train(folder / "memory", "max_steps=5")));
  const Outcome none = trainer(task.train(folder / "memory", kStream));
  EXPECT_EQ(none.code, 64) << none.both();
  EXPECT_NE(none.err.find("a checkpoint of a run with streaming: true"), std::string::npos) << none.err;
}

TEST(Streaming, HeldOutRowsAreEvaluatedAndNotTrained) {
  const TemporaryFolder folder("stream_held");
  const Task& task = Task::get();
  const Outcome run =
      trainer(task.train(folder / "run", kStream + "val_size=40 eval_strategy=epoch max_steps=9 "
                                                   "global_batch_size=24 save_strategy=no"),
              2);
  expect_success(run);
  // 200 rows remain: the ninth step ends the epoch.
  EXPECT_EQ(steps_of(folder / "run").at(9)["epoch"], 1.0);
  EXPECT_NE(run.err.find("evaluation data: 40 documents of 40 rows"), std::string::npos) << run.err;
  EXPECT_NE(slurp(folder / "run/trainer_log.jsonl").find("eval_loss"), std::string::npos);
}

// Runs until the log has a row, then runs `damage` and waits for the end.
Outcome damage_while_training(const std::string& arguments, const std::string& output,
                              const std::string& damage, int np) {
  const std::string log = output + "/trainer_log.jsonl";
  const std::string launch = np > 1 ? OCTET_SOURCE_DIR "/launch/mpirun -np " + std::to_string(np) + " " : "";
  return shell(launch + OCTET_TRAINER " " + arguments + " & run=$!; while kill -0 $run && ! grep -q loss " +
               log + "; do sleep 0.05; done; " + damage + "; wait $run");
}

TEST(WholeStreaming, AFileThatBecomesShorterEndsTheRunWithACheckpoint) {
  const Task& task = Task::get();
  const TemporaryFolder folder("stream_shorter");
  const std::string rows = folder / "rows.jsonl", cache = folder / "tokens", other = folder / "other";
  std::string text;
  for (int i = 0; i < 20; ++i) text += slurp(task.data());
  spill(other, std::string(std::size_t{1} << 20, 'x'));
  const std::string taken = "tokenized_path=" + cache + " ";
  expect_success(trainer(task.train(folder / "first", taken + "max_steps=1 save_strategy=no")));
  std::string tokens;
  for (const auto& entry : fs::directory_iterator(cache)) tokens = entry.path();
  const std::string bytes = slurp(tokens), streams = "streaming=true buffer_size=50 dataset=" + rows + " ";
  struct Case {
    std::string keys, file, damage, says;
    int np;
  };
  const std::string shorter = "a file became shorter while the program was reading it";
  for (const Case& c :
       {Case{streams, rows, "truncate -s 2000 ", shorter, 1},
        Case{streams, rows, "truncate -s 2000 ", shorter, 2},
        Case{taken, tokens, "truncate -s -1 ", shorter, 1},
        Case{taken + "per_device_train_batch_size=1 ", tokens, "truncate -s 2000 ", shorter, 2},
        Case{taken, tokens, "dd conv=notrunc status=none if=" + other + " of=",
             "a file was overwritten while the program was reading it", 2}}) {
    SCOPED_TRACE(c.keys + c.damage);
    spill(rows, text);
    spill(tokens, bytes);
    const std::string output = folder / "run";
    fs::remove_all(output);
    const Outcome run = damage_while_training(
        task.train(output, "max_steps=100000 save_steps=100000 " + c.keys), output, c.damage + c.file, c.np);
    EXPECT_EQ(run.code, 64) << run.both();
    EXPECT_EQ(errors_in(run), 1) << run.err;
    EXPECT_NE(run.err.find(c.says), std::string::npos) << run.err;
    EXPECT_NE(run.err.find(c.file), std::string::npos) << run.err;
    EXPECT_NE(run.err.find("is kept: "), std::string::npos) << run.err;
    bool kept = false;
    for (const auto& entry : fs::directory_iterator(output))
      kept |= entry.path().filename().string().starts_with("checkpoint-");
    EXPECT_TRUE(kept);
  }
}

TEST(Streaming, BrokenRowsAreCountedAndTooManyEndTheRunOnAllRanks) {
  const TemporaryFolder folder("stream_broken");
  const Task& task = Task::get();
  std::string text = slurp(task.data());
  text += "{\"broken\n{\"broken\n{\"broken\n";
  spill(folder / "rows.jsonl", text);
  const std::string more =
      kStream + "disable_shuffling=true save_strategy=no dataset=" + (folder / "rows.jsonl");
  expect_success(trainer(task.train(folder / "few", more + " max_broken_rows=3"), 2));
  const Outcome many = trainer(task.train(folder / "many", more + " max_broken_rows=2"), 2);
  EXPECT_EQ(many.code, 64) << many.both();
  EXPECT_EQ(errors_in(many), 1) << many.err;
  EXPECT_NE(many.err.find("rows.jsonl:241"), std::string::npos) << many.err;
}

TEST(Streaming, NothingToTrainIsSaid) {
  const TemporaryFolder folder("stream_nothing");
  std::string text;
  for (int i = 0; i < 30; ++i)
    text += R"({"messages": [{"role": "user", "content": "why"}]})"
            "\n";
  spill(folder / "rows.jsonl", text);
  const Outcome run = trainer(
      Task::get().train(folder / "run", kStream + "buffer_size=10 dataset=" + (folder / "rows.jsonl")), 2);
  EXPECT_EQ(run.code, 64) << run.both();
  EXPECT_EQ(errors_in(run), 1) << run.err;
  EXPECT_NE(run.err.find("no tokens to train"), std::string::npos) << run.err;
}

TEST(WholeStreaming, WhatItCannotDoIsRefused) {
  const TemporaryFolder folder("stream_refused");
  const Task& task = Task::get();
  for (const auto& [more, says] : {std::pair{"streaming=true max_steps=-1", "max_steps"},
                                   std::pair{"streaming=true tokenized_path=t", "tokenized_path"},
                                   std::pair{"streaming=true buffer_size=0", "buffer_size"}}) {
    const Outcome run = trainer(task.train(folder / "run", more));
    EXPECT_EQ(run.code, 64) << run.both();
    EXPECT_NE(run.err.find(says), std::string::npos) << run.err;
  }
}

}  // namespace
}  // namespace octet::test::streaming_test
