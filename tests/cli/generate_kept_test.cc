// Written answers of `trainer generate` are kept: after a kill, after changes by hand, on another call, and
// with wrong rows and calls.
#include "cli/generate_task.h"
#include "octet/base/json.h"

namespace octet::test::generate_kept_test {
namespace {

namespace fs = std::filesystem;

TEST_F(GenerateFile, WhatWasAnsweredIsNotComputedAgain) {
  const std::string lively = "--temperature 1.5 --batch 2";
  answers("whole.jsonl", lively);
  answers("cut.jsonl", lively);
  const std::string whole = slurp(folder_ / "whole.jsonl");
  // The files of a killed run: some notes, the last one cut, and arbitrary answers.
  const std::vector<std::string> notes = split(slurp(folder_ / "cut.jsonl.rows"), '\n');
  ASSERT_EQ(notes.size(), 14u) << "a head, twelve rows, nothing";
  const auto note_of = [&](int row) {
    return *std::ranges::find_if(notes, [&](const std::string& note) {
      return note.find("\"row\":" + std::to_string(row) + ",") != note.npos;
    });
  };
  spill(folder_ / "cut.jsonl.rows", notes[0] + "\n" + note_of(2) + "\n" + note_of(0) + "\n" + note_of(6) +
                                        "\n" + note_of(7).substr(0, 20));
  const std::vector<std::string> lines = split(whole, '\n');
  spill(folder_ / "cut.jsonl", lines[0].substr(0, 9));
  const Outcome again = trainer(command("cut.jsonl", lively), 2);
  ASSERT_EQ(again.code, 0) << again.both();
  EXPECT_NE(again.err.find("3 of 12 rows are answered already"), std::string::npos) << again.both();
  EXPECT_NE(again.err.find("9 rows answered in"), std::string::npos) << again.both();
  EXPECT_NE(again.err.find(" (3 were there)\n"), std::string::npos) << again.both();
  EXPECT_EQ(slurp(folder_ / "cut.jsonl"), whole);

  const auto time = fs::last_write_time(folder_ / "cut.jsonl");
  const Outcome done = trainer(command("cut.jsonl", lively));
  EXPECT_NE(done.err.find("12 of 12 rows are answered already"), std::string::npos) << done.both();
  EXPECT_EQ(fs::last_write_time(folder_ / "cut.jsonl"), time);

  // Other settings would mix two kinds of answers.
  const Outcome other = trainer(command("cut.jsonl", "--temperature 0.5 --batch 2"));
  EXPECT_EQ(other.code, 64);
  EXPECT_NE(other.err.find("made with other settings"), std::string::npos) << other.both();
  EXPECT_EQ(slurp(folder_ / "cut.jsonl"), whole);
  EXPECT_EQ(trainer(command("cut.jsonl", "--temperature 0.5 --overwrite")).code, 0);
  EXPECT_NE(slurp(folder_ / "cut.jsonl"), whole);

  spill(folder_ / "foreign.jsonl", "my own\n");
  EXPECT_EQ(trainer(command("foreign.jsonl")).code, 64);
  EXPECT_EQ(slurp(folder_ / "foreign.jsonl"), "my own\n");
}

// Settings that change answers are recorded. Settings that change only the computation are not.
TEST_F(GenerateFile, AnswersOfOtherSettingsAreNotMixed) {
  answers("kept.jsonl", "--temperature 1.1");
  const std::string before = slurp(folder_ / "kept.jsonl");
  const auto outcome = [&](const std::string& words) {
    const Outcome run = trainer(command("kept.jsonl", words));
    if (run.code != 0) {
      EXPECT_EQ(run.code, 64) << words << run.both();
      EXPECT_NE(run.err.find("made with other settings"), std::string::npos) << words << run.both();
    }
    EXPECT_EQ(slurp(folder_ / "kept.jsonl"), before) << words;
    return run.code;
  };
  for (const char* other : {"--top-p 0.5", "--top-k 3", "--min-p 0.1", "--repetition-penalty 1.2", "--seed 5",
                            "--max-new 9", "--min-new 2", "--max-length 64", "--logprobs 1", "--n 2",
                            "--stop salt", "--stop-id 5", "--ignore-eos", "--system Sort",
                            "--extract \"(.)\" --max-broken-rows 99", "--dtype bf16", "--shard 1/2"})
    EXPECT_EQ(outcome(std::string("--temperature 1.1 ") + other), 64) << other;
  for (const char* same : {"--batch 3", "--no-prefix-sharing", "--kv-page-tokens 16", "--gpu-hour-price 2"})
    EXPECT_EQ(outcome(std::string("--temperature 1.1 ") + same), 0) << same;
  const std::string extracts = "--extract \"(.)\" --max-broken-rows 99 --temperature 1 ";
  std::filesystem::remove(folder_ / "kept.jsonl");
  std::filesystem::remove(folder_ / "kept.jsonl.rows");
  EXPECT_EQ(trainer(command("kept.jsonl", extracts + "--allow a,s,t --retries 1")).code, 0);
  const std::string extracted = slurp(folder_ / "kept.jsonl");
  const std::string wider =
      "--extract \"(..)\" --max-broken-rows 99 --temperature 1 --allow a,s,t --retries 1";
  for (const std::string& other :
       {extracts + "--allow a,s --retries 1", extracts + "--allow a,s,t --retries 2", wider}) {
    const Outcome run = trainer(command("kept.jsonl", other));
    EXPECT_EQ(run.code, 64) << other << run.both();
    EXPECT_EQ(slurp(folder_ / "kept.jsonl"), extracted) << other;
  }
}

// The number format is a recorded setting.
TEST_F(WholeGenerateFile, AnswersInE4m3AreNotMixedWithOthers) {
  const std::string told = "--logprobs 0 --dtype ";
  std::set<std::string> files;
  // Passes of two ranks are smaller. CPUs with AMX use other kernels for them.
  const bool same_kernels = slurp("/proc/cpuinfo").find("amx_bf16") == std::string::npos;
  for (const std::string numbers : {"bf16", "fp8", "bf16 --kv-cache-dtype fp8", "fp8 --kv-cache-dtype fp8"}) {
    const std::string name = "numbers" + std::to_string(files.size()) + ".jsonl";
    const std::vector<Json> rows = answers(name, told + numbers);
    EXPECT_EQ(rows.size(), rows_of(Task::get().held_out()).size());
    EXPECT_TRUE(files.insert(slurp(folder_ / name)).second) << numbers << ": as without";
    answers("two_ranks.jsonl", told + numbers + " --overwrite", 2);
    if (same_kernels) {
      EXPECT_EQ(slurp(folder_ / "two_ranks.jsonl"), slurp(folder_ / name)) << numbers;
    }
  }
  answers("kept.jsonl", told + "bf16");
  for (const std::string other : {"fp8", "bf16 --kv-cache-dtype fp8"}) {
    const Outcome run = trainer(command("kept.jsonl", told + other));
    EXPECT_EQ(run.code, 64) << run.both();
    EXPECT_NE(run.err.find("made with other settings"), std::string::npos) << run.both();
  }
  refused("--dtype fp4", "--dtype");
  refused("--kv-cache-dtype int8", "--kv-cache-dtype");
}

// Answers that the user corrected or removed are not overwritten.
TEST_F(GenerateFile, WhatWasChangedByHandStays) {
  answers("out.jsonl");
  const std::string whole = slurp(folder_ / "out.jsonl"), notes = slurp(folder_ / "out.jsonl.rows");
  const std::string mended = "X" + whole.substr(1);
  for (const std::string& changed : {mended, whole + "one more\n", whole.substr(whole.find('\n') + 1)}) {
    spill(folder_ / "out.jsonl", changed);
    for (const int np : {0, 2}) {
      const Outcome run = trainer(command("out.jsonl"), np);
      EXPECT_EQ(run.code, 64) << run.both();
      EXPECT_EQ(errors_in(run), 1) << run.both();
      EXPECT_NE(run.err.find("was changed since it was written"), std::string::npos) << run.both();
      EXPECT_EQ(slurp(folder_ / "out.jsonl"), changed);
      EXPECT_EQ(slurp(folder_ / "out.jsonl.rows"), notes);
    }
  }
  // As the message says: after the file is moved away, it is written again.
  fs::remove(folder_ / "out.jsonl");
  const Outcome again = trainer(command("out.jsonl"));
  EXPECT_NE(again.err.find("12 of 12 rows are answered already"), std::string::npos) << again.both();
  EXPECT_EQ(slurp(folder_ / "out.jsonl"), whole);
}

TEST_F(GenerateFile, NothingIsWrittenOverTheQuestions) {
  const std::string rows = slurp(Task::get().held_out());
  spill(folder_ / "rows.jsonl", rows);
  fs::create_symlink("rows.jsonl", folder_ / "link.jsonl");
  fs::create_directory(folder_ / "folder");
  const std::string ask = "generate " + trained_model() + " --device cpu --overwrite --file " +
                          (folder_ / "rows.jsonl") + " --out ";
  for (const auto& [out, message] : {std::pair{"rows.jsonl", "answers would be written over"},
                                     {"link.jsonl", "answers would be written over"},
                                     {"folder", "--out names a folder"}}) {
    for (const int np : {0, 2}) {
      const Outcome run = trainer(ask + (folder_ / out), np);
      EXPECT_EQ(run.code, 64) << run.both();
      EXPECT_EQ(errors_in(run), 1) << run.both();
      EXPECT_NE(run.err.find(message), std::string::npos) << run.both();
    }
  }
  EXPECT_EQ(slurp(folder_ / "rows.jsonl"), rows);
  EXPECT_TRUE(fs::is_directory(folder_ / "folder"));
}

TEST_F(GenerateFile, WhatOneRankMeetsEndsAllWithOneMessage) {
  // NaN weights, detected when a row is answered. The second rank has rows, too.
  fs::copy(kGolden + "models/qwen3", folder_ / "model", fs::copy_options::recursive);
  std::string weights = slurp(folder_ / "model/model.safetensors");
  for (std::size_t i = weights.size() - 4096; i < weights.size(); ++i) weights[i] = '\xff';
  fs::permissions(folder_ / "model/model.safetensors", fs::perms::owner_write, fs::perm_options::add);
  spill(folder_ / "model/model.safetensors", weights);
  std::string rows;
  for (int i = 0; i < 8; ++i) rows += "{\"prompt_ids\": [1, 2, 3, 4]}\n";
  spill(folder_ / "rows.jsonl", rows);
  for (const int np : {0, 2, 3}) {
    const Outcome run = trainer("generate " + (folder_ / "model") + " --device cpu --file " +
                                    (folder_ / "rows.jsonl") + " --out " + (folder_ / "out.jsonl"),
                                np);
    EXPECT_NE(run.code, 0);
    EXPECT_EQ(errors_in(run), 1) << run.both();
    EXPECT_NE(run.err.find("logits are not finite"), std::string::npos) << run.both();
  }
}

TEST_F(GenerateFile, AKilledRunGoesOn) {
  const std::string options = "--temperature 1.5 --batch 1 --max-new 64 --ignore-eos";
  const Outcome whole = trainer(command("whole.jsonl", options));
  ASSERT_EQ(whole.code, 0) << whole.both();
  const std::string notes = folder_ / "killed.jsonl.rows";
  const Outcome killed =
      shell(OCTET_TRAINER " " + command("killed.jsonl", options) + " & job=$!; until [ $(cat " + notes +
            " 2>/dev/null | wc -l) -ge 4 ]; do sleep 0.01; done; kill -KILL $job; wait $job");
  EXPECT_EQ(killed.code, 137);
  const Outcome on = trainer(command("killed.jsonl", options), 2);
  ASSERT_EQ(on.code, 0) << on.both();
  EXPECT_EQ(on.err.find(" 0 of 12 rows"), std::string::npos);
  EXPECT_EQ(slurp(folder_ / "killed.jsonl"), slurp(folder_ / "whole.jsonl"));
}

TEST_F(GenerateFile, PartsOfTheRowsAreThoseOfTheWhole) {
  answers("whole.jsonl", "--temperature 1.5");
  answers("a.jsonl", "--temperature 1.5 --shard 1/2");
  answers("b.jsonl", "--temperature 1.5 --shard 2/2", 2);
  EXPECT_EQ(slurp(folder_ / "a.jsonl") + slurp(folder_ / "b.jsonl"), slurp(folder_ / "whole.jsonl"));
}

TEST_F(GenerateFile, RowsThatCannotBeAnsweredAreNamedAndLeftOut) {
  const std::string good = R"({"messages": [{"role": "user", "content": "Sort these words: b, a."}]})";
  std::string tall = R"({"prompt": ")";
  for (int i = 0; i < 200; ++i) tall += "a, ";
  spill(folder_ / "rows.jsonl",
        good + "\n" + tall + "\"}\n{\"messages\": []}\n" + good + "\n{\"messages\": [\n" + good + "\n");
  const std::string ask = "generate " + trained_model() +
                          " --template chatml --device cpu --max-new 4 --max-length 64 --file " +
                          (folder_ / "rows.jsonl") + " --out " + (folder_ / "out.jsonl");
  for (const int np : {0, 2}) {
    const Outcome refused = trainer(ask + " --overwrite", np);
    EXPECT_EQ(refused.code, 64) << refused.both();
    EXPECT_EQ(errors_in(refused), 1) << refused.both();
    EXPECT_NE(refused.err.find("rows could not be answered"), std::string::npos) << refused.both();
  }
  fs::remove(folder_ / "out.jsonl.rows");
  fs::remove(folder_ / "out.jsonl");
  for (const int np : {0, 2}) {
    const Outcome run = trainer(ask + " --max-broken-rows 3", np);
    ASSERT_EQ(run.code, 0) << run.both();
    EXPECT_NE(run.err.find("rows.jsonl:2: a prompt is too long"), std::string::npos) << run.both();
    EXPECT_NE(run.err.find("rows.jsonl:3: "), std::string::npos) << run.both();
    EXPECT_NE(run.err.find("rows.jsonl:5: "), std::string::npos) << run.both();
    EXPECT_EQ(rows_of(folder_ / "out.jsonl").size(), 3u);
    // Only failed rows are asked again.
    EXPECT_EQ(run.err.find("3 of 6 rows are answered already") == std::string::npos, np == 0) << run.both();
  }
}

TEST_F(GenerateFile, WrongCallsAreRefusedInASentence) {
  refused("--temperature nan", "temperature");
  refused("--temperature -1", "temperature");
  refused("--top-p 0", "top_p");
  refused("--min-p 2", "min_p");
  refused("--repetition-penalty 0", "repetition_penalty");
  refused("--top-k -3", "top_k");
  refused("--shard 3/2", "--shard is not a part");
  refused("--shard 2", "--shard is not a part");
  refused("--extract \"a(b\"", "is not a valid regular expression");
  refused("--extract abc", "--extract has no group");
  refused("--allow a", "give --extract");
  refused("--extract \"(a)\" --retries 2", "every retry gives the same answer");
  refused("--min-new 9", "--min-new 9 is above --max-new");
  refused("--score --exact-match", "--score gives no answers");
  refused("a question", "on the command line and in a file");
  spill(folder_ / "prompt.txt", "no place");
  refused("--prompt-file " + (folder_ / "prompt.txt"), "no placeholder for the text of a row");
  for (const std::string alone : {"--out x", "--score", "--n 2", "--logprobs 1", "--shard 1/2"}) {
    const Outcome run = trainer("generate " + trained_model() + " " + alone + " hello");
    EXPECT_EQ(run.code, 64) << alone;
    EXPECT_NE(run.err.find("needs questions in a file"), std::string::npos) << run.both();
  }
  const Outcome ids = trainer("generate " + kGolden + "models/qwen3 --device cpu --stop x hello");
  EXPECT_EQ(ids.code, 64);
  EXPECT_NE(ids.err.find("--stop needs a tokenizer"), std::string::npos) << ids.both();
}

}  // namespace
}  // namespace octet::test::generate_kept_test
