// A whole job under a supervisor, with a script in place of the launcher. Checks the arguments of each start,
// the record of each ended start, and the checkpoint from which the next start resumes.
#include "octet/supervise/supervisor.h"
#include "octet/config/config.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "../src/supervise/supervisor_output.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/checkpoint/save.h"
#include "octet/comm/thread_ranks.h"
#include "octet/report/progress.h"
#include "octet/supervise/job_command.h"
#include "support/program.h"

namespace octet::supervise::supervisor_test {
namespace {

namespace fs = std::filesystem;

/// Writes a valid checkpoint of a tensor with four numbers. Returns its folder.
std::string saved_in(const std::string& output, std::int64_t step) {
  std::string path;
  comm::run_ranks_as_threads({.ranks = 1}, [&](comm::Job& job, Device&) {
    const std::vector<float> values{1, 2, 3, 4};
    checkpoint::CheckpointContents contents;
    contents.step = step;
    contents.state = Json{{"step", step}};
    contents.config_yaml = "seed: 1\n";
    path = checkpoint::save(job, output, contents);
  });
  return path;
}

/// The fields of a record of a job's progress.
struct Told {
  std::int64_t first = 0, step = 0, saved = -1, memory = -1;
  bool finished = false;
  std::string from = {};
  int ranks = 4;
};

class Supervised : public testing::Test {
 protected:
  Supervised() : folder_("supervised") {
    test::spill(config(), "model_name_or_path: " + folder_.path() +
                              "/m\ntemplate: chatml\ndataset: d\nmax_steps: 12\n"
                              "global_batch_size: 24\nper_device_train_batch_size: 2\n");
    test::spill(program(), "#!/bin/sh\n");
    ::chmod(program().c_str(), 0755);
  }
  std::string config() const { return folder_ / "config.yaml"; }
  std::string program() const { return folder_ / "program"; }
  std::string output() const { return folder_ / "run"; }
  std::string file(const std::string& name) const { return folder_ / name; }

  /// Returns shell code that writes such a record.
  std::string told(const Told& t) const {
    const Json record{{"first_step", t.first},
                      {"step", t.step},
                      {"saved_step", t.saved},
                      {"saved", output() + "/checkpoint-" + std::to_string(t.saved)},
                      {"memory_step", t.memory},
                      {"from", t.from},
                      {"ranks", t.ranks},
                      {"total_steps", 12},
                      {"step_seconds", static_cast<double>(t.step - t.first)},
                      {"finished", t.finished}};
    const std::string text = record.dump();
    return "mkdir -p " + output() + "; echo '" + text.substr(0, text.size() - 1) +
           ",\"job\":\"'$OCTETRUN_SUPERVISED'\"}' >" + output() + "/octet.progress; ";
  }
  std::string done() const { return told({.first = 0, .step = 12, .saved = 12, .finished = true}); }
  /// Long enough for the supervisor to read each of two records.
  static constexpr const char* kLook = "sleep 0.25; ";

  /// Runs a supervisor and returns its exit code. Start n runs the n-th script; the last script repeats.
  int run(const std::vector<std::string>& starts, const Options& how = {},
          const std::vector<std::string>& keys = {},
          const std::vector<std::string>& launcher_words = {"-np", "4"}) {
    std::string script = "#!/bin/bash\necho \"$*\" >>" + file("arguments") +
                         "\necho \"$OCTETRUN_SUPERVISED\" >>" + file("names") + "\n[ $(wc -l <" +
                         file("arguments") + ") -le 12 ] || exit 64  # it would never end\ncase $(wc -l <" +
                         file("arguments") + ") in\n";
    for (std::size_t i = 0; i < starts.size(); ++i) {
      script += (i + 1 < starts.size() ? std::to_string(i + 1) : "*") + ") " + starts[i] + " ;;\n";
    }
    test::spill(file("launcher"), script + "esac\n");
    ::chmod(file("launcher").c_str(), 0755);
    fs::remove(file("arguments"));
    fs::remove(file("names"));
    Options options = how;
    options.launcher = file("launcher");
    options.words = launcher_words;
    for (const std::string& word :
         {program(), config(), output_word_.empty() ? "output_dir=" + output() : output_word_})
      options.words.push_back(word);
    options.words.insert(options.words.end(), keys.begin(), keys.end());
    return run_as_said(options);
  }
  /// Runs in a new process, because the supervisor changes its whole process.
  int run_as_said(const Options& options) {
    const pid_t child = ::fork();
    if (child == 0) {
      if (!working_folder_.empty() && ::chdir(working_folder_.c_str()) != 0) ::_exit(98);
      if (std::freopen(file("said").c_str(), "w", stderr) == nullptr) ::_exit(99);
      int code = 0;
      try {
        code = supervise(options);
      } catch (const Error& e) {
        std::fputs(e.what(), stderr);
        std::fflush(stderr);
        code = static_cast<int>(e.code());
      }
      ::_exit(code);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    said_ = test::slurp(file("said"));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::vector<std::string> lines(const std::string& name) const {
    std::vector<std::string> all = split(test::slurp(file(name)), '\n');
    if (!all.empty() && all.back().empty()) all.pop_back();
    return all;
  }
  std::vector<Json> incidents() const {
    std::vector<Json> rows;
    if (!path_exists(output() + "/incidents.jsonl")) return rows;
    for (const auto& line : split(test::slurp(output() + "/incidents.jsonl"), '\n')) {
      if (!line.empty()) rows.push_back(parse_json(line, "incidents.jsonl"));
    }
    return rows;
  }

  test::TemporaryFolder folder_;
  Options quick_{.policy = {.most_starts = 4, .first_wait = 0}};
  std::string said_;
  std::string output_word_, working_folder_;  ///< "": output(), and the working folder of this process
};

TEST_F(Supervised, ARowHasEveryFactOfItsStartAndOfTheStepThatFollowed) {
  EXPECT_EQ(
      run({told({.first = 2, .step = 9, .saved = 6, .memory = 8, .from = "disk"}) +
               "echo 'error: it broke' >&2; exit 137",
           told({.first = 8, .step = 9, .saved = -1, .memory = 8, .from = "memory"}) + kLook + "exit 1",
           "exit 75", told({.first = 5, .step = 5}) + kLook + told({.first = 5, .step = 6}) + kLook + done()},
          quick_),
      0)
      << said_;
  const auto rows = incidents();
  ASSERT_EQ(rows.size(), 3u) << said_;
  EXPECT_EQ(rows[0]["start"], 1);
  EXPECT_EQ(rows[0]["code"], 137);
  EXPECT_EQ(rows[0]["meaning"], "signal 9 ended a process of the job");
  EXPECT_EQ(rows[0]["ranks"], 4);
  EXPECT_EQ(rows[0]["what"], "it broke");
  EXPECT_TRUE(rows[0]["who"].is_null());
  EXPECT_EQ(rows[0]["step"], 9);
  EXPECT_EQ(rows[0]["steps_lost"], 1) << "a checkpoint in memory had the eighth";
  EXPECT_EQ(rows[0]["from"], "memory");
  EXPECT_EQ(rows[1]["step"], 9);
  EXPECT_TRUE(rows[1]["what"].is_null());
  EXPECT_EQ(rows[1]["start"], 2);
  EXPECT_EQ(rows[1]["steps_lost"], 4) << "the next step was the sixth";
  EXPECT_EQ(rows[1]["from"], "beginning") << "so says the start that followed";
  EXPECT_EQ(rows[2]["start"], 3);
  EXPECT_EQ(rows[2]["step"], 8) << "it would have begun at the newest checkpoint";
  EXPECT_EQ(rows[2]["steps_lost"], 3);
  for (const Json& row : rows) {
    EXPECT_EQ(row["wait_seconds"].get<double>(), 0) << row;
    EXPECT_GT(row["seconds_to_next_step"].get<double>(), 0) << row;
    EXPECT_GT(row["goodput"].get<double>(), 0) << row;
  }
  EXPECT_GT(rows[1]["seconds_to_next_step"], rows[2]["seconds_to_next_step"]);
  for (const char* part :
       {"start 1 ended with 137 (signal 9 ended a process of the job) after step 9: it broke; goodput",
        "supervise: start 2 follows\n", "start 3 ended with 75", "supervise: 4 starts, goodput so far"})
    EXPECT_NE(said_.find(part), std::string::npos) << part << "\n" << said_;
  EXPECT_FALSE(path_exists(output() + "/octet.progress"));
}

TEST_F(Supervised, StartsOfOneRunHaveNamesOfTheirOwnAndOneInCommon) {
  EXPECT_EQ(run({"exit 75", "exit 75", done()}, quick_), 0);
  const auto first = lines("names");
  ASSERT_EQ(first.size(), 3u);
  EXPECT_EQ(std::set<std::string>(first.begin(), first.end()).size(), 3u);
  for (const auto& name : first) EXPECT_EQ(report::run_of(name), report::run_of(first[0]));
  // The same command again is another run of the same job. Another command or folder is another job.
  const auto job_of = [](const std::string& name) { return name.substr(0, name.find('-')); };
  EXPECT_EQ(run({done()}, quick_), 0);
  const std::string again = lines("names")[0];
  EXPECT_EQ(job_of(again), job_of(first[0]));
  EXPECT_NE(report::run_of(again), report::run_of(first[0]));
  EXPECT_EQ(run({done()}, quick_, {"seed=1"}), 0);
  EXPECT_NE(job_of(lines("names")[0]), job_of(again));
  EXPECT_EQ(run({done()}, quick_, {}, {"-np", "3"}), 0);
  EXPECT_NE(job_of(lines("names")[0]), job_of(again));
  std::set<std::string> jobs;
  output_word_ = "output_dir=here";
  for (const char* folder : {"one", "other"}) {
    working_folder_ = file(folder);
    fs::create_directories(working_folder_);
    EXPECT_EQ(run({"exit 0"}, quick_), 0) << said_;
    jobs.insert(job_of(lines("names")[0]));
  }
  EXPECT_EQ(jobs.size(), 2u) << "the same words in another folder";
}

// A killed supervisor leaves the progress of its job. Its file name tells which job that is.
TEST_F(Supervised, TheProgressThatAnEarlierSupervisorLeftIsTakenOver) {
  EXPECT_EQ(run({done()}, quick_), 0);
  const std::string job = lines("names")[0].substr(0, lines("names")[0].find('-'));
  struct Case {
    std::string name;
    bool finished, taken;
  };
  for (const Case& c : {Case{job + "-1.2-1.1", false, true}, Case{job + "-1.2-1.1", true, false},
                        Case{"x" + job + "-1.2-1.1", false, false}, Case{job, false, false}}) {
    SCOPED_TRACE(c.name);
    fs::remove(output() + "/incidents.jsonl");
    test::spill(
        output() + "/octet.progress",
        Json{{"first_step", 3}, {"step", 9}, {"saved_step", 7}, {"job", c.name}, {"finished", c.finished}}
            .dump());
    EXPECT_EQ(run({told({.first = 6, .step = 7, .from = "disk"}) + kLook + done()}, quick_), 0);
    EXPECT_EQ(report::run_of(lines("names")[0]) == job + "-1.2", c.taken);
    EXPECT_NE(lines("names")[0], c.name) << "a start of its own";
    const auto rows = incidents();
    ASSERT_EQ(rows.size(), c.taken ? 1u : 0u);
    if (!c.taken) continue;
    EXPECT_EQ(rows[0]["start"], 0);
    EXPECT_TRUE(rows[0]["code"].is_null() && rows[0]["meaning"].is_null());
    EXPECT_EQ(rows[0]["who"], "supervise");
    EXPECT_EQ(rows[0]["step"], 9);
    EXPECT_EQ(rows[0]["steps_lost"], 3) << "the run went on behind the sixth";
    EXPECT_EQ(rows[0]["from"], "disk");
    EXPECT_EQ(rows[0]["wait_seconds"], 0.0);
  }
}

// A run with overwrite_output_dir would start again from step 0, so it gets its newest checkpoint.
TEST_F(Supervised, ARunThatOverwritesIsToldOfItsOwnCheckpoint) {
  const std::string path = saved_in(output(), 12);
  ASSERT_EQ(path, output() + "/checkpoint-12");
  const std::string named = " resume_from_checkpoint=" + path;
  const std::vector<std::string> keys{"overwrite_output_dir=true"};
  EXPECT_EQ(run({told({.first = 0, .step = 12, .saved = 12}) + "exit 137", done()}, quick_, keys), 0);
  EXPECT_FALSE(lines("arguments")[0].ends_with(named));
  EXPECT_TRUE(lines("arguments")[1].ends_with(named)) << lines("arguments")[1];
  // The same holds if an earlier supervisor had named the checkpoint.
  const std::string job = lines("names")[0].substr(0, lines("names")[0].find('-'));
  const auto left = [&](std::int64_t first, std::int64_t saved, const std::vector<std::string>& with) {
    test::spill(output() + "/octet.progress", Json{{"first_step", first},
                                                   {"step", first + 1},
                                                   {"total_steps", 12},
                                                   {"saved_step", saved},
                                                   {"saved", path},
                                                   {"job", job + "-1.2-1.1"}}
                                                  .dump());
    EXPECT_EQ(run({done()}, quick_, with), 0);
    return lines("arguments")[0].ends_with(named);
  };
  EXPECT_TRUE(left(12, -1, keys));
  EXPECT_TRUE(left(3, 12, keys));
  EXPECT_FALSE(left(0, -1, keys)) << "it had none";
  EXPECT_FALSE(left(11, -1, keys)) << "that one does not hold";
}

// Killed after the end of the run: the next start must not train again.
TEST_F(Supervised, ARunThatOverwritesAndHasJustEndedIsNotBegunAfresh) {
  struct Case {
    std::string others, overwrites;
    bool finished, old, started;
  };
  for (const Case& c : {Case{"", "true", true, false, false}, Case{"", "true", true, true, true},
                        Case{"", "true", false, false, true}, Case{"", "false", true, false, true},
                        Case{"x", "true", true, false, true}}) {
    SCOPED_TRACE(c.others + c.overwrites + (c.finished ? " finished" : "") + (c.old ? " long ago" : ""));
    const std::vector<std::string> keys{"overwrite_output_dir=" + c.overwrites};
    EXPECT_EQ(run({done()}, quick_, keys), 0);
    const std::string job = c.others + lines("names")[0].substr(0, lines("names")[0].find('-'));
    const std::string progress = output() + "/octet.progress";
    test::spill(progress, Json{{"first_step", 3},
                               {"step", 12},
                               {"saved_step", 12},
                               {"total_steps", 12},
                               {"job", job + "-1.2-1.1"},
                               {"finished", c.finished}}
                              .dump());
    if (c.old) fs::last_write_time(progress, fs::file_time_type::clock::now() - std::chrono::minutes(16));
    EXPECT_EQ(run({done()}, quick_, keys), 0);
    EXPECT_EQ(fs::exists(file("arguments")), c.started);
    EXPECT_EQ(said_.find("another start begins a new run") == std::string::npos, c.started) << said_;
    EXPECT_FALSE(fs::exists(progress));
  }
}

TEST_F(Supervised, OnlyItsOwnProgressCounts) {
  // A record of another start, which claims that the run is finished.
  const std::string other = "mkdir -p " + output() +
                            "; echo '{\"finished\":true,\"step\":12,\"job\":\"other\"}' >" + output() +
                            "/octet.progress; ";
  EXPECT_EQ(run({other + "exit 64"}, quick_), 64);
  EXPECT_EQ(lines("arguments").size(), 1u);
}

TEST_F(Supervised, ItGivesUpWithTheLastCodeAndSaysWhy) {
  EXPECT_EQ(run({"exit 74"}, {.policy = {.most_starts = 2, .first_wait = 0.01, .longest_wait = 0.02}}), 74);
  EXPECT_EQ(lines("arguments").size(), 2u);
  EXPECT_NE(said_.find("error: supervise: no further start: 2 starts in a row"), std::string::npos) << said_;
  EXPECT_NE(said_.find("start 2 follows in 0.01 s"), std::string::npos) << said_;
  EXPECT_NE(said_.find("supervise: 2 starts, goodput"), std::string::npos) << said_;
  EXPECT_EQ(run({"exit 77"}, quick_), 77);
  EXPECT_NE(said_.find("supervise: 1 start, goodput"), std::string::npos) << said_;
}

// A checkpoint is progress only if it is newer than all checkpoints before, including the one that the start
// resumed from.
TEST_F(Supervised, ProgressIsACheckpointNewerThanAny) {
  const Options two{.policy = {.most_starts = 2, .first_wait = 0}};
  EXPECT_EQ(run({told({.first = 0, .step = 5, .saved = 4}) + "exit 137",
                 told({.first = 2, .step = 5, .saved = 4}) + "exit 137",
                 told({.first = 4, .step = 6}) + "exit 137"},
                two),
            137);
  EXPECT_EQ(lines("arguments").size(), 3u) << "the fourth step was saved before";
  EXPECT_EQ(run({told({.first = 4, .step = 5, .saved = 4}) + "exit 137"}, two), 137);
  EXPECT_EQ(lines("arguments").size(), 2u) << "it had been gone on from";
  // The first step of a start stays the same if the run returns to a checkpoint by itself.
  EXPECT_EQ(run({told({.first = 0, .step = 8, .saved = 6}) + kLook + told({.first = 6, .step = 7}) + kLook +
                     "exit 137",
                 done()},
                {.policy = {.most_starts = 1, .first_wait = 0}}),
            0);
  // The newest checkpoint of a start counts, even if the run goes back by itself and saves again.
  EXPECT_EQ(run({told({.first = 0, .step = 8, .saved = 6}) + kLook + told({.first = 4, .step = 5}) + kLook +
                     "exit 137",
                 told({.first = 6, .step = 7, .memory = 6}) + "exit 137",
                 told({.first = 6, .step = 8, .memory = 7}) + "exit 137", done()},
                two),
            0);
}

// If no start follows, the row keeps the state at the end: the steps after the newest saved step are lost.
TEST_F(Supervised, StepsAreLostBehindWhateverIsSafe) {
  struct Case {
    Told told;
    int step, lost;
  };
  for (const Case& c :
       {Case{{.first = 2, .step = 9, .saved = 6, .memory = 8}, 9, 1},
        Case{{.first = 2, .step = 9, .saved = 8, .memory = 6}, 9, 1},
        Case{{.first = 5, .step = 9, .saved = -1, .memory = -1}, 9, 4},
        Case{{.first = 5, .step = 9, .saved = 4, .memory = 3}, 9, 4}, Case{{.first = 5, .step = 5}, 5, 0}}) {
    fs::remove(output() + "/incidents.jsonl");
    EXPECT_EQ(run({told(c.told) + "exit 64"}, quick_), 64);
    ASSERT_EQ(incidents().size(), 1u);
    EXPECT_EQ(incidents()[0]["step"], c.step);
    EXPECT_EQ(incidents()[0]["steps_lost"], c.lost) << c.told.saved << " " << c.told.memory;
    EXPECT_TRUE(incidents()[0]["from"].is_null());
    EXPECT_EQ(incidents()[0]["goodput"].get<double>() > 0, c.step - c.lost > c.told.first)
        << "seconds of steps that were lost do not count";
  }
}

TEST_F(Supervised, FewerRanksBeginToCountAnew) {
  Options options = quick_;
  options.min_ranks = 2;
  options.policy.most_starts = 3;
  options.policy.first_wait = 0.01;
  EXPECT_EQ(run({"exit 75", "exit 75", "exit 75", "exit 75", done()}, options), 0) << said_;
  const auto starts = lines("arguments");
  ASSERT_EQ(starts.size(), 5u);
  EXPECT_TRUE(starts[2].starts_with("-np 4 "));
  EXPECT_TRUE(starts[3].starts_with("-np 3 ")) << starts[3];
  EXPECT_NE(said_.find("the run continues with 3 ranks"), std::string::npos);
  ASSERT_EQ(incidents().size(), 4u);
  EXPECT_EQ(incidents()[2]["ranks"], 4) << "of the start that ended";
  EXPECT_EQ(incidents()[3]["ranks"], 3);
  // A start that finished a step does not count as a hang at the start.
  EXPECT_EQ(run({told({.first = 0, .step = 1}) + "exit 75"}, options), 75);
  EXPECT_EQ(lines("arguments").size(), 3u);
  ASSERT_EQ(incidents().size(), 7u) << "rows of an earlier job stay";
  EXPECT_TRUE(incidents()[6]["wait_seconds"].is_null()) << "none follows";
  EXPECT_EQ(incidents()[6]["start"], 3);
}

TEST_F(Supervised, RanksThatGoOnWithoutOthersHaveARowAndNoStart) {
  Options options = quick_;
  options.min_ranks = 2;
  options.survive = true;
  const auto lost = [](const std::string& who) { return "echo 'warning: " + who + " without it' >&2; "; };
  EXPECT_EQ(run({"echo $OCTETRUN_SURVIVORS $OCTETRUN_START_TIMEOUT >" + file("least") + "; " +
                 told({.first = 0, .step = 9, .saved = 6, .memory = 8}) + kLook +
                 lost("rank 3 has ended, and the other 3 ranks continue") + kLook +
                 told({.first = 8, .step = 8, .from = "memory", .ranks = 3}) + kLook +
                 told({.first = 8, .step = 10, .from = "memory", .ranks = 3}) + kLook +
                 lost("rank 0 has ended, and the other 2 ranks continue") + kLook +
                 told({.first = 6, .step = 12, .saved = 12, .finished = true, .from = "disk", .ranks = 2})},
                options),
            0)
      << said_;
  EXPECT_EQ(lines("arguments").size(), 1u);
  EXPECT_EQ(lines("least"), std::vector<std::string>{"2 60"});
  const auto rows = incidents();
  ASSERT_EQ(rows.size(), 2u) << said_;
  EXPECT_EQ(rows[0]["who"], "rank 3");
  EXPECT_EQ(rows[0]["ranks"], 3);
  EXPECT_EQ(rows[0]["step"], 9);
  EXPECT_EQ(rows[0]["steps_lost"], 1) << "a checkpoint in memory had the eighth";
  EXPECT_EQ(rows[0]["from"], "memory");
  EXPECT_EQ(rows[1]["who"], "rank 0");
  EXPECT_EQ(rows[1]["ranks"], 2);
  EXPECT_EQ(rows[1]["step"], 10);
  EXPECT_EQ(rows[1]["steps_lost"], 4);
  EXPECT_EQ(rows[1]["from"], "disk");
  for (const Json& row : rows) {
    EXPECT_TRUE(row["code"].is_null()) << row;
    EXPECT_EQ(row["start"], 1) << row;
    EXPECT_EQ(row["meaning"], "ranks ended, and the other ranks continue without them") << row;
    EXPECT_GT(row["seconds_to_next_step"].get<double>(), 0.2)
        << "what was told before is of no step behind it " << row;
  }
  EXPECT_NE(said_.find("supervise: 1 start, "), std::string::npos) << said_;
  // If the job ends after that, it had only the remaining ranks. All ranks are started again.
  EXPECT_EQ(
      run({told({.step = 1}) + kLook + lost("rank 3 has ended, and the other 3 ranks continue") + "exit 137",
           done()},
          options),
      0);
  const auto more = incidents();
  ASSERT_EQ(more.size(), 4u) << "rows of an earlier job stay";
  EXPECT_EQ(more[3]["code"], 137);
  EXPECT_EQ(more[3]["ranks"], 3);
  EXPECT_TRUE(lines("arguments").at(1).starts_with("-np 4 ")) << lines("arguments").at(1);
}

TEST_F(Supervised, AJobWithoutANumberOfRanksHasNone) {
  EXPECT_EQ(run({told({.step = 1}) + "exit 137", done()}, quick_, {}, {}), 0);
  ASSERT_EQ(incidents().size(), 1u);
  EXPECT_TRUE(incidents()[0]["ranks"].is_null());
}

TEST_F(Supervised, ALauncherThatIsKilledIsTheCause) {
  EXPECT_EQ(run({told({.step = 1}) + "echo 'error: what followed' >&2; kill -KILL $$", done()}, quick_), 0);
  ASSERT_EQ(incidents().size(), 1u);
  EXPECT_EQ(incidents()[0]["who"], "launcher");
  EXPECT_EQ(incidents()[0]["what"], "the launcher was ended by signal 9, and the job with it");
  EXPECT_EQ(incidents()[0]["code"], 137);
}

TEST_F(Supervised, AStopBeforeTheRunCouldListenIsAStop) {
  const auto stopped = [&](const std::string& before, const std::string& signal) {
    return run({before + "trap 'exit 143' TERM; trap '' USR1; kill -" + signal +
                    " $PPID; for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.05; done; exit 137",
                done()},
               quick_);
  };
  EXPECT_EQ(stopped("", "TERM"), 76);
  EXPECT_EQ(lines("arguments").size(), 1u);
  EXPECT_EQ(stopped(told({.step = 1}), "TERM"), 143) << "it had begun";
  EXPECT_EQ(stopped("", "USR1"), 0) << "this signal asks for a checkpoint, not for an end";
  EXPECT_EQ(lines("arguments").size(), 2u);
}

// ---- which checkpoint is named ----

TEST(Resumption, NamesACheckpointWhereTheRunWouldNotFindItByItself) {
  const test::TemporaryFolder folder("resumption");
  const std::string path = saved_in(folder.path(), 5);
  struct Case {
    std::optional<std::string> wish;
    bool overwrites;
    std::int64_t saved, total;
    bool named;
  };
  for (const Case& c :
       {Case{{}, false, 5, 5, false}, Case{{}, false, 5, 12, false}, Case{"true", false, 5, 12, false},
        Case{"auto", false, 5, 12, false}, Case{"true", true, 5, 5, false}, Case{"auto", true, 5, 5, false},
        Case{"false", false, 5, 12, true}, Case{"/elsewhere", false, 5, 12, true},
        Case{"false", true, 5, 12, true}, Case{{}, true, 5, 12, false}, Case{{}, true, 5, 6, false},
        Case{{}, true, 5, 5, true}, Case{{}, true, 5, 4, true}, Case{"/elsewhere", false, -1, 12, false},
        Case{"/elsewhere", false, 0, 12, true}}) {
    config::Config config;
    config.resume_from_checkpoint = c.wish;
    config.overwrite_output_dir = c.overwrites;
    report::Progress saved{.total_steps = c.total, .saved_step = c.saved, .saved = path};
    SCOPED_TRACE(c.wish.value_or("unset") + (c.overwrites ? " overwrites " : " ") + std::to_string(c.total));
    EXPECT_EQ(resume_overrides(config, saved),
              c.named ? Strings{"resume_from_checkpoint=" + path} : Strings{});
    saved.saved = folder / "checkpoint-6";
    EXPECT_EQ(resume_overrides(config, saved), Strings{}) << "what does not hold is not named";
  }
}

// ---- incidents ----

TEST(Rows, OfEarlierJobsStayAndWhatADiskDidNotTakeFollows) {
  const test::TemporaryFolder folder("rows");
  const std::string path = folder / "run/incidents.jsonl";
  Incidents early(folder / "run");
  early.add({{"n", 0}});
  EXPECT_FALSE(path_exists(path)) << "no folder is made for it";
  test::spill(path, "{\"old\":1}");
  Incidents rows(folder / "run");
  rows.add({{"n", 1}});
  EXPECT_EQ(test::slurp(path), "{\"old\":1}\n{\"n\":1}\n");
  rows.add({{"n", 2}});
  rows.row(0)["n"] = 3;
  EXPECT_EQ(rows.size(), 2u);
  rows.write();
  EXPECT_EQ(test::slurp(path), "{\"old\":1}\n{\"n\":3}\n{\"n\":2}\n");
  EXPECT_EQ(test::slurp(path), [&] {
    Incidents again(folder / "run");
    again.write();
    return test::slurp(path);
  }());
  fs::remove(path);
  fs::create_directories(path);
  try {
    const Incidents none(folder / "run");
    ADD_FAILURE() << "a folder is no record";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
  }
}

}  // namespace
}  // namespace octet::supervise::supervisor_test
