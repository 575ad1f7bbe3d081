// Every integer key of a configuration at its maximum. lint, plan and the start of a run finish within a
// second. They refuse sizes that cannot fit before they allocate memory.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "cli/task.h"
#include "octet/cli/cli.h"
#include "octet/config/key_table.h"

namespace octet::test::sizes_test {
namespace {

struct Answer {
  int code = 0;
  double seconds = 0;  ///< CPU seconds
  long mebibytes = 0;  ///< peak memory
  std::string said;
};

// Runs the program in a child of this process.
Answer answer(const std::string& words, const std::string& output) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("OMP_NUM_THREADS", "1", 1);
    const int file = ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(file, 1), ::dup2(file, 2);
    // Excessive CPU time or memory ends the child.
    const rlimit time{10, 10};
    ::setrlimit(RLIMIT_CPU, &time);
    std::vector<std::string> all = split(words, ' ');
    std::vector<const char*> arguments{"trainer"};
    for (const std::string& word : all) arguments.push_back(word.c_str());
    const int code = cli::run(static_cast<int>(arguments.size()), arguments.data());
    std::fflush(nullptr);
    ::_exit(code);
  }
  int status = 0;
  rusage used{};
  ::wait4(child, &status, 0, &used);
  Answer found;
  found.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  for (const timeval& time : {used.ru_utime, used.ru_stime})
    found.seconds += static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  found.mebibytes = used.ru_maxrss / 1024;
  found.said = slurp(output);
  return found;
}

void expect_at_once(const std::string& words, const Answer& found) {
  SCOPED_TRACE("trainer " + words + "\n" + found.said.substr(0, 2000));
  // An answer takes about half a second of CPU time; work that grows with the size would take minutes.
  EXPECT_LT(found.seconds, 5);
  EXPECT_LT(found.mebibytes, 1024);
  EXPECT_TRUE(found.code == 0 || found.code == 1 || found.code == 64) << found.code;
  EXPECT_EQ(found.said.find("internal error"), std::string::npos);
}

// Keys that apply only together with other keys.
const std::map<std::string, std::string> kTogether{{"buffer_size", " streaming=true"},
                                                   {"eval_steps", " eval_strategy=steps val_size=0.1"},
                                                   {"per_device_eval_batch_size", " val_size=0.1"},
                                                   {"fp8_amax_history_len", " fp8=true"},
                                                   {"pack_factor", " packing=true"},
                                                   {"lora_rank", " finetuning_type=lora"}};

constexpr double kMost = 1e15;  // for keys without their own maximum

TEST(LargeSizes, OfAllKeysAreAnsweredAtOnce) {
  const TemporaryFolder folder("large_sizes");
  int keys = 0;
  for (const config::Field& field : config::schema()) {
    if (field.kind != config::Kind::integer || field.status != config::Status::used) continue;
    ++keys;
    const auto more = kTogether.find(field.name);
    const std::string rest = Task::get().config() + " device=cpu output_dir=" + (folder / "out") + " " +
                             (field.name == "global_batch_size" ? "" : "global_batch_size=null ") +
                             field.name + "=" +
                             std::to_string(static_cast<std::int64_t>(std::min(field.high, kMost))) +
                             (more == kTogether.end() ? "" : more->second);
    for (const char* command : {"lint ", "plan "})
      expect_at_once(command + rest, answer(command + rest, folder / "said"));
  }
  EXPECT_GE(keys, 25);
}

TEST(LargeSizes, OfPlansAreAnsweredAtOnce) {
  const TemporaryFolder folder("large_plans");
  for (const char* words :
       {"tiny device=cpu cutoff_len=16777216", "llama-3.1-8b card=h100 cutoff_len=16777216",
        "llama-3.1-8b card=h100 per_device_train_batch_size=1048576",
        "llama-3.1-8b card=h100 gradient_accumulation_steps=1048576",
        "llama-3.1-8b --generate card=h100 max_num_batched_tokens=1048576",
        "llama-3.1-8b --generate card=h100 batch=4096 max_length=524288"})
    expect_at_once(std::string("plan ") + words, answer(std::string("plan ") + words, folder / "said"));
}

TEST(LargeSizes, OfAStepEndWithTheEpoch) {
  const TemporaryFolder folder("large_steps");
  int run = 0;
  for (const char* more : {"", "streaming=true", "packing=true", "streaming=true packing=true"}) {
    const std::string words =
        Task::get().config() + " device=cpu max_samples=2 max_steps=1 save_steps=1 " +
        "per_device_train_batch_size=1 global_batch_size=null " +
        "gradient_accumulation_steps=1048576 output_dir=" + (folder / std::to_string(++run)) +
        (*more == '\0' ? "" : " ") + more;
    const Answer found = answer(words, folder / "said");
    expect_at_once(words, found);
    EXPECT_EQ(found.code, 0) << found.said;
    EXPECT_NE(found.said.find("but an epoch has only "), std::string::npos) << found.said;
  }
}

TEST(LargeSizes, ThatCannotFitAreRefusedBeforeTheyAreAllocated) {
  const TemporaryFolder folder("large_runs");
  struct Row {
    std::string words, what, fix;
  };
  const Row rows[] = {
      {"train_from_scratch=true per_device_train_batch_size=1048576 global_batch_size=null",
       "error: the run does not fit the memory of its device", "per_device_train_batch_size="},
      {"global_batch_size=1099511627776",
       "error: global_batch_size 1099511627776 needs too many micro-batches per step", "global_batch_size"},
  };
  for (const Row& row : rows) {
    const std::string words =
        Task::get().config() + " device=cpu output_dir=" + (folder / "out") + " " + row.words;
    const Answer found = answer(words, folder / "said");
    expect_at_once(words, found);
    SCOPED_TRACE(found.said);
    EXPECT_EQ(found.code, 64);
    EXPECT_NE(found.said.find(row.what), std::string::npos);
    const std::size_t fix = found.said.find("to do:");
    ASSERT_NE(fix, std::string::npos);
    EXPECT_NE(found.said.find(row.fix, fix), std::string::npos);
  }
}

}  // namespace
}  // namespace octet::test::sizes_test
