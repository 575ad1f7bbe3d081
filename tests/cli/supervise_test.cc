// A job that is restarted until it is complete. A stand-in for launch/mpirun ends as each test requires.
#include <sys/stat.h>

#include <csignal>

#include "cli/task.h"
#include "octet/base/json.h"

namespace octet::test::supervise_test {
namespace {

namespace fs = std::filesystem;

/// A stand-in launcher. Its N-th start runs the N-th line as a shell script; the last line repeats. `told
/// FIRST STEP SAVED FINISHED [IN_MEMORY]` writes the progress of the run.
class FakeLauncher {
 public:
  explicit FakeLauncher(const std::vector<std::string>& starts) : folder_("fake") {
    std::string script =
        "#!/bin/bash\n"
        "told() { mkdir -p " +
        output() +
        "; echo \"{\\\"first_step\\\": $1, \\\"step\\\": $2, \\\"saved_step\\\": $3, "
        "\\\"saved\\\": \\\"" +
        output() +
        "/checkpoint-$3\\\", \\\"memory_step\\\": ${5:--1}, \\\"total_steps\\\": 12, \\\"step_seconds\\\": "
        "1, "
        "\\\"finished\\\": $4, \\\"job\\\": \\\"$OCTETRUN_SUPERVISED\\\"}\" >" +
        output() +
        "/octet.progress; }\n"
        "echo \"$*\" >>" +
        arguments_file() +
        "\n"
        "case $(wc -l <" +
        arguments_file() + ") in\n";
    for (std::size_t i = 0; i < starts.size(); ++i) {
      script += (i + 1 < starts.size() ? std::to_string(i + 1) : "*") + ") " + starts[i] + " ;;\n";
    }
    spill(folder_ / "launcher", script + "esac\n");
    ::chmod((folder_ / "launcher").c_str(), 0755);
  }
  std::string output() const { return folder_ / "run"; }
  std::string file(const std::string& name) const { return folder_ / name; }
  std::string arguments_file() const { return folder_ / "arguments"; }
  std::string command(const std::string& options, const std::string& words,
                      const std::string& keys = "") const {
    return OCTET_TRAINER " supervise --launcher " + (folder_ / "launcher") + " " + options + " " + words +
           " " OCTET_TRAINER " " + Task::get().config() + " output_dir=" + output() + " " + keys;
  }
  Outcome run(const std::string& options = "--first-wait 0", const std::string& words = "-np 4",
              const std::string& keys = "") const {
    return shell(command(options, words, keys));
  }
  /// Returns the arguments of each start.
  std::vector<std::string> starts() const {
    auto lines = split(slurp(arguments_file()), '\n');
    if (!lines.empty() && lines.back().empty()) lines.pop_back();
    return lines;
  }
  std::vector<Json> incidents() const {
    std::vector<Json> rows;
    for (const auto& line : split(slurp(output() + "/incidents.jsonl"), '\n')) {
      if (!line.empty()) rows.push_back(parse_json(line, "incidents.jsonl"));
    }
    return rows;
  }

 private:
  TemporaryFolder folder_;
};

TEST(Supervise, StartsAgainUntilTheRunIsComplete) {
  const FakeLauncher fake(
      {"told 0 7 5 false; echo \"error: it broke\" >&2; echo \"  where:    rank 3 on far\" >&2; exit 137",
       "exit 1", "told 5 6 -1 false; sleep 0.4; told 5 12 12 true; exit 0"});
  const Outcome run = fake.run();
  EXPECT_EQ(run.code, 0) << run.both();
  ASSERT_EQ(fake.starts().size(), 3u) << run.both();
  const std::string words =
      "-np 4 " OCTET_TRAINER " " + Task::get().config() + " output_dir=" + fake.output();
  for (const std::string& start : fake.starts()) EXPECT_EQ(start, words);
  const auto rows = fake.incidents();
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["start"], 1);
  EXPECT_EQ(rows[0]["code"], 137);
  EXPECT_EQ(rows[0]["ranks"], 4);
  EXPECT_EQ(rows[0]["who"], "rank 3 on far");
  EXPECT_EQ(rows[0]["what"], "it broke");
  EXPECT_EQ(rows[0]["step"], 7);
  EXPECT_EQ(rows[0]["steps_lost"], 2);
  EXPECT_EQ(rows[0]["wait_seconds"], 0.0);
  EXPECT_EQ(rows[1]["code"], 1);
  EXPECT_EQ(rows[1]["step"], 5) << "where it would have begun";
  EXPECT_EQ(rows[1]["steps_lost"], 0);
  for (const Json& row : rows) {
    EXPECT_TRUE(row["seconds_to_next_step"].is_number()) << row;
    EXPECT_GT(row["goodput"].get<double>(), 0) << row;
  }
  EXPECT_GE(rows[0]["seconds_to_next_step"], rows[1]["seconds_to_next_step"]);
  EXPECT_NE(run.err.find("supervise: 3 starts, goodput so far"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("error: it broke\n  where:    rank 3 on far\n"), std::string::npos) << run.err;
  EXPECT_FALSE(fs::exists(fake.output() + "/octet.progress"));
}

TEST(Supervise, TheEndOfTheRunCountsAndNotThatOfItsLauncher) {
  const FakeLauncher killed({"told 0 12 12 true; kill -KILL $$"});
  EXPECT_EQ(killed.run().code, 0);
  EXPECT_EQ(killed.starts().size(), 1u);
  const FakeLauncher lies({"told 0 3 -1 false; exit 0", "told 0 12 12 true; exit 0"});
  EXPECT_EQ(lies.run().code, 0);
  EXPECT_EQ(lies.starts().size(), 2u);
}

TEST(Supervise, TheLockOfARunThatWasKilledBehindItsEndGoes) {
  const FakeLauncher fake({"told 0 12 12 true; echo {} >$(dirname $0)/run/octet.lock; exit 137"});
  const Outcome run = fake.run();
  EXPECT_EQ(run.code, 0) << run.both();
  EXPECT_FALSE(fs::exists(fake.output() + "/octet.lock")) << run.both();
}

TEST(Supervise, NeverTriesAgainWhatEndsAlike) {
  for (const std::string code : {"64", "77"}) {
    const FakeLauncher fake({"exit " + code});
    const Outcome run = fake.run();
    EXPECT_EQ(run.code, std::stoi(code)) << run.both();
    EXPECT_EQ(fake.starts().size(), 1u);
    EXPECT_NE(run.err.find("supervise: no further start: another start would fail in the same way"),
              std::string::npos)
        << run.err;
    EXPECT_FALSE(fs::exists(fake.output())) << "nothing is made for it";
  }
  const FakeLauncher fake({"exit 0"});
  EXPECT_EQ(shell(OCTET_TRAINER " supervise --launcher /nowhere/launcher -np 1 " OCTET_TRAINER " " +
                  Task::get().config() + " output_dir=" + fake.output())
                .code,
            127);
}

TEST(Supervise, GivesUpWhenStepsAreLostAgainAndAgain) {
  // Each start gets further than the previous one, and none reaches a checkpoint.
  const FakeLauncher fake(
      {"told 5 7 -1 false; exit 139", "told 5 8 -1 false; exit 139", "told 5 9 -1 false; exit 139"});
  const Outcome run = fake.run("--first-wait 0.1 --most-starts=3");
  EXPECT_EQ(run.code, 139) << run.both();
  EXPECT_EQ(fake.starts().size(), 3u);
  EXPECT_NE(run.err.find("3 starts in a row ended without a newer checkpoint"), std::string::npos) << run.err;
  const auto rows = fake.incidents();
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0]["wait_seconds"], 0.1);
  EXPECT_EQ(rows[1]["wait_seconds"], 0.2);
  EXPECT_TRUE(rows[2]["wait_seconds"].is_null());
  EXPECT_TRUE(rows[2]["seconds_to_next_step"].is_null());
  EXPECT_EQ(rows[1]["steps_lost"], 3);
}

TEST(Supervise, CheckpointsAreProgress) {
  const FakeLauncher fake({"told 0 3 2 false; exit 137", "told 2 5 4 false; exit 75",
                           "told 4 7 6 false; exit 76", "told 6 12 12 true"});
  EXPECT_EQ(fake.run("--first-wait 9 --most-starts 1").code, 0);
  EXPECT_EQ(fake.starts().size(), 4u);
}

TEST(Supervise, CheckpointsInMemoryAreProgress) {
  const FakeLauncher fake({"told 0 3 -1 false 2; exit 137", "told 2 5 -1 false 4; exit 137",
                           "told 4 7 -1 false 6; exit 137", "told 6 12 12 true"});
  EXPECT_EQ(fake.run("--first-wait 9 --most-starts 1").code, 0);
  EXPECT_EQ(fake.starts().size(), 4u);
}

TEST(Supervise, ARunThatGoesBackByItselfHasStillSavedWhatItSaved) {
  const FakeLauncher fake(
      {"told 0 8 6 false; sleep 1.5; told 4 5 -1 false; sleep 0.4; exit 137", "told 6 12 12 true"});
  EXPECT_EQ(fake.run("--first-wait 9 --most-starts 1").code, 0);
  EXPECT_EQ(fake.starts().size(), 2u);
}

TEST(Supervise, AnotherBeginningIsMeantForTheFirstStart) {
  const FakeLauncher fake({"told 0 3 2 false; exit 137", "exit 137", "told 2 12 12 true"});
  // A saved checkpoint is named only if it is intact.
  const TemporaryFolder real("real");
  expect_success(trainer(Task::get().train(real / "run", "max_steps=2 save_steps=2")));
  fs::create_directories(fake.output());
  fs::copy(real / "run/checkpoint-2", fake.output() + "/checkpoint-2", fs::copy_options::recursive);
  EXPECT_EQ(fake.run("--first-wait 0", "-np 4", "resume_from_checkpoint=false").code, 0);
  const auto starts = fake.starts();
  ASSERT_EQ(starts.size(), 3u);
  const std::string named = " resume_from_checkpoint=" + fake.output() + "/checkpoint-2";
  EXPECT_EQ(starts[0].find(named), std::string::npos);
  EXPECT_TRUE(starts[1].ends_with(" resume_from_checkpoint=false" + named)) << starts[1];
  EXPECT_TRUE(starts[2].ends_with(named)) << starts[2];
}

TEST(Supervise, ALauncherThatDoesNotEndBehindAnErrorIsKilled) {
  const FakeLauncher fake(
      {"told 0 3 2 false; echo \"error: a link is down\" >&2; sleep 60", "told 2 12 12 true"});
  const Outcome run = fake.run("--end-within 1");
  EXPECT_EQ(run.code, 0) << run.both();
  const auto rows = fake.incidents();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["code"], 75);
  EXPECT_EQ(rows[0]["what"], "a link is down");
}

TEST(Supervise, SignalsArePassedOnEachAsOftenAsItCame) {
  const FakeLauncher fake({"trap 'echo USR1 >>" + std::string("$0.got") +
                           "' USR1; trap 'echo TERM >>$0.got; exit 76' TERM; "
                           "told 0 3 2 false; touch $0.ready; while :; do sleep 0.05; done"});
  const Outcome run = shell(fake.command("", "-np 2") + " & s=$!; until [ -e " + fake.file("launcher.ready") +
                            " ]; do sleep 0.02; done; kill -USR1 $s; sleep 0.4; kill -USR1 $s; sleep 0.4; "
                            "kill -TERM $s; wait $s; echo code $?");
  EXPECT_NE(run.out.find("code 76"), std::string::npos) << run.both();
  EXPECT_EQ(slurp(fake.file("launcher.got")), "USR1\nUSR1\nTERM\n");
  EXPECT_EQ(fake.starts().size(), 1u);
  EXPECT_TRUE(fake.incidents().empty()) << "a stop is no incident";
}

TEST(Supervise, AStopWhileItWaitsForTheNextStartEndsIt) {
  const FakeLauncher fake({"exit 137"});
  const Outcome run =
      shell(fake.command("--first-wait 60", "-np 2") + " & s=$!; until [ -e " + fake.arguments_file() +
                " ]; do sleep 0.02; done; sleep 0.5; kill -INT $s; wait $s; echo code $?",
            30);
  EXPECT_NE(run.out.find("code 76"), std::string::npos) << run.both();
}

TEST(Supervise, EndsWhatAJobLeavesBeforeTheNextOne) {
  // A process that the launcher knows, and an orphan.
  const FakeLauncher fake(
      {"setsid sleep 7777 & echo $! >$0.left; (setsid bash -c \"echo \\$\\$ >$0.orphan; exec sleep 8888\" "
       "&); "
       "until [ -s $0.orphan ]; do sleep 0.01; done; exit 137",
       "kill -0 $(cat $0.left) && exit 64; kill -0 $(cat $0.orphan) && exit 77; told 0 12 12 true; exit 0"});
  const Outcome run = fake.run();
  EXPECT_EQ(run.code, 0) << run.both();
  EXPECT_EQ(fake.starts().size(), 2u);
  for (const char* left : {"launcher.left", "launcher.orphan"}) {
    ASSERT_FALSE(slurp(fake.file(left)).empty());
    EXPECT_NE(shell("kill -0 " + slurp(fake.file(left))).code, 0) << left;
  }
}

TEST(Supervise, AKilledSupervisorTakesTheJobWithItAndTheNextOneKnows) {
  const FakeLauncher fake(
      {"told 5 8 6 false; echo $$ >$0.pid; sleep 60", "told 6 7 -1 false; sleep 0.5; told 6 12 12 true"});
  const std::string command = fake.command("--first-wait 0", "-np 2");
  const Outcome run =
      shell(command + " & s=$!; until [ -s " + fake.file("launcher.pid") +
            " ]; do sleep 0.02; done; sleep 0.3; kill -KILL $s; sleep 0.3; ps -o stat= -p $(cat " +
            fake.file("launcher.pid") + ") | grep -qv Z && echo left; " + command + "; echo code $?");
  EXPECT_NE(run.out.find("code 0"), std::string::npos) << run.both();
  EXPECT_EQ(run.out.find("left"), std::string::npos);
  const auto rows = fake.incidents();
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["who"], "supervise");
  EXPECT_TRUE(rows[0]["code"].is_null());
  EXPECT_EQ(rows[0]["step"], 8);
  EXPECT_EQ(rows[0]["steps_lost"], 2);
  EXPECT_TRUE(rows[0]["seconds_to_next_step"].is_number());
}

TEST(Supervise, GoesOnWithFewerRanksWhereAHostIsLost) {
  const std::string lost = "echo \"  Remote daemon: [[1,0],1] on node far\" >&2; ";
  const FakeLauncher fake({"told 0 3 2 false; " + lost + "exit 75", "told 2 12 12 true"});
  const Outcome run = fake.run("--min-ranks 2", "-np 4 --host near:2,far:2", "global_batch_size=24");
  EXPECT_EQ(run.code, 0) << run.both();
  const auto starts = fake.starts();
  ASSERT_EQ(starts.size(), 2u);
  EXPECT_TRUE(starts[0].starts_with("-np 4 --host near:2,far:2 ")) << starts[0];
  EXPECT_TRUE(starts[1].starts_with("--host near:2 -np 2 ")) << starts[1];
  EXPECT_NE(run.err.find("the run continues without host far, with 2 ranks"), std::string::npos) << run.err;
  EXPECT_EQ(fake.incidents().at(0)["who"], "host far");
}

TEST(Supervise, WhatIsNoTrainingIsRefusedBeforeAnythingIsStarted) {
  const FakeLauncher fake({"exit 0"});
  for (const std::string& words :
       {std::string("supervise"), "supervise --launcher " + fake.file("launcher") + " -np 2",
        "supervise --launcher " + fake.file("launcher") + " -np 2 " OCTET_TRAINER " lint " +
            Task::get().config(),
        "supervise --launcher " + fake.file("launcher") + " --min-ranks 3 -np 2 " OCTET_TRAINER " " +
            Task::get().config() + " output_dir=" + fake.output(),
        "supervise --launcher " + fake.file("launcher") + " --survive -np 2 " OCTET_TRAINER " " +
            Task::get().config() + " output_dir=run",
        "supervise --launcher " + fake.file("launcher") + " -np 2 --wdir /tmp " OCTET_TRAINER " " +
            Task::get().config() + " output_dir=run",
        "supervise --launcher " + fake.file("launcher") + " --hostfile " + fake.file("hosts") +
            " -np 2 " OCTET_TRAINER " " + Task::get().config() + " output_dir=run",
        "supervise --launcher " + fake.file("launcher") + " -np 2 " OCTET_TRAINER " " + Task::get().config() +
            " output_dir=run zero_stage=9"}) {
    const Outcome run = trainer(words);
    EXPECT_EQ(run.code, 64) << words << "\n" << run.both();
    EXPECT_EQ(errors_in(run), 1) << run.both();
  }
  EXPECT_TRUE(fake.starts().empty());
  EXPECT_EQ(shell(OCTET_SOURCE_DIR "/launch/supervise --help").code, 0);
}

TEST(Supervise, ItsOwnOptionsBehindThoseOfTheLauncherAreRefused) {
  const FakeLauncher fake({"exit 213"});
  spill(fake.file("hosts"), "near slots=2\n");
  for (const std::string& words : {"--hostfile " + fake.file("hosts") + " --min-ranks 1 -np 2",
                                   std::string("-np 2 --most-starts=3"), std::string("-np 2 --first-wait 0"),
                                   std::string("-np 2 --end-within 9"), std::string("-np 2 --survive")}) {
    const Outcome run = fake.run("", words);
    EXPECT_EQ(run.code, 64) << words << "\n" << run.both();
    EXPECT_EQ(errors_in(run), 1) << run.both();
    EXPECT_NE(run.err.find("put supervise's own options before launch/mpirun's"), std::string::npos)
        << run.err;
  }
  EXPECT_TRUE(fake.starts().empty());
  EXPECT_FALSE(fs::exists(fake.output()));
  // Equal option names of others are not interpreted: MPICH's --launcher, and all words after the program.
  EXPECT_EQ(FakeLauncher({"told 0 12 12 true"}).run("", "-np 2 --launcher ssh").code, 0);
  // A missing hostfile is named.
  const Outcome missing = fake.run("", "--hostfile " + fake.file("nohosts") + " -np 2");
  EXPECT_EQ(missing.code, 64);
  EXPECT_NE(missing.err.find("the hostfile cannot be read"), std::string::npos) << missing.err;
  EXPECT_NE(missing.err.find(fake.file("nohosts")), std::string::npos) << missing.err;
  EXPECT_TRUE(fake.starts().empty());
}

// The stand-in launcher loses a host after four ranks have saved. Two ranks continue.
TEST(Supervise, FewerRanksTrainTheSameSamplesToTheSameBits) {
  const TemporaryFolder folder("fewer");
  const std::string keys = "save_steps=4 deterministic=strict per_device_train_batch_size=3 ";
  expect_success(trainer(Task::get().train(folder / "calm", keys), 4));
  spill(folder / "launcher",
        "#!/bin/bash\n"
        "[ -e $0.first ] && exec " OCTET_SOURCE_DIR
        "/launch/mpirun \"$@\"\n"
        "touch $0.first\nshift 4\n"
        "OCTETRUN_FAILPOINT=before_manifest:2 " OCTET_SOURCE_DIR
        "/launch/mpirun -np 4 \"$@\"\n"
        "echo \"  Remote daemon: [[1,0],1] on node far\" >&2\nexit 75\n");
  ::chmod((folder / "launcher").c_str(), 0755);
  const Outcome run = shell(OCTET_TRAINER " supervise --launcher " + (folder / "launcher") +
                            " --min-ranks 2 -np 4 --host localhost:2,far:2 " OCTET_TRAINER " " +
                            Task::get().train(folder / "run", keys));
  EXPECT_EQ(run.code, 0) << run.both();
  EXPECT_NE(run.err.find("the run continues without host far, with 2 ranks"), std::string::npos) << run.err;
  EXPECT_NE(run.err.find("2 ranks on 1 node"), std::string::npos) << run.err;
  expect_every_step(folder / "run", 12);
  expect_identical(folder / "run/checkpoint-12", folder / "calm/checkpoint-12");
}

// Only this script can report that mpirun was killed, and clean up.
TEST(Launcher, AnMpirunThatWasKilledIsNamedAndLeavesNothing) {
  const TemporaryFolder folder("mpirun");
  const std::string tmp = folder / "tmp";
  fs::create_directories(tmp);
  // The process number of mpirun in its folder's name: Open MPI 4, and two forms of Open MPI 5.
  const std::string numbers = "ls -d " + tmp + "/ompi.*/pid.* " + tmp + "/prterun.* " + tmp +
                              "/ompi.* 2>/dev/null | sed -nE \"s,.*/(pid|ompi)[.]([0-9]+)$,\\2,p; "
                              "s,.*/prterun[.].*[.]([0-9]+)[.][0-9]+$,\\1,p\"";
  const Outcome run = shell("TMPDIR=" + tmp + " " OCTET_SOURCE_DIR "/launch/mpirun -np 2 " OCTET_TRAINER " " +
                            Task::get().train(folder / "run", "max_steps=100000 save_steps=100000") +
                            " & until [ -s " + (folder / "run/trainer_log.jsonl") +
                            " ]; do sleep 0.05; done; kill -KILL $(" + numbers + "); wait $!; echo code $?");
  EXPECT_NE(run.out.find("code 137"), std::string::npos) << run.both();
  EXPECT_NE(run.err.find("error: mpirun was ended by signal 9, and its ranks with it"), std::string::npos)
      << run.err;
  EXPECT_EQ(errors_in(run), 1) << run.err;
  EXPECT_EQ(shell(numbers).out, "") << "no folder of its session";
}

// The whole process: a signal ends the ranks within every second save, and the final model has equal bits.
TEST(Supervise, ARunThatIsKilledInItsSavesEndsInTheBitsOfOneThatIsNot) {
  const TemporaryFolder folder("whole");
  expect_success(trainer(Task::get().train(folder / "calm", "save_steps=4"), 2));
  const Outcome run = shell("OCTETRUN_FAILPOINT=before_manifest:2 " OCTET_SOURCE_DIR
                            "/launch/supervise -np 2 " OCTET_TRAINER " " +
                            Task::get().train(folder / "run", "save_steps=4"));
  EXPECT_EQ(run.code, 0) << run.both();
  EXPECT_NE(run.err.find("supervise: 3 starts"), std::string::npos) << run.err;
  expect_every_step(folder / "run", 12);
  expect_identical(folder / "run/checkpoint-12", folder / "calm/checkpoint-12");
  EXPECT_EQ(slurp(folder / "run/model.safetensors"), slurp(folder / "calm/model.safetensors"));
}

}  // namespace
}  // namespace octet::test::supervise_test
