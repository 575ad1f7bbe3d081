#include <csignal>
#include <cstdio>
#include <functional>
#include <utility>

#include "command.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/comm/job.h"
#include "octet/config/config.h"
#include "octet/report/progress.h"
#include "octet/setup/setup.h"
#include "octet/supervise/job_command.h"
#include "octet/supervise/job_errors.h"
#include "octet/train/trainer.h"
#include "options.h"

namespace octet::cli {

// Continues a training run on the surviving ranks.

/// Runs `train` with its words. If ranks end and the others may continue (OCTETRUN_SURVIVORS, an MPI with
/// ULFM), runs it again on the survivors. They stay in the same processes and resume from the newest
/// checkpoint. This repeats until `train` returns. If too few ranks are left, or they cannot divide the
/// samples of a step, prints an error and returns 75.
int run_with_survivors(const Arguments& words, const std::function<int(const Arguments&)>& train);

namespace {

// Returns "rank 3" or "ranks 1, 3".
std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return text;
}

// More ranks may end while the survivors agree, so this is retried.
comm::Survivors survivors() {
  for (;;) {
    try {
      return comm::survive();
    } catch (const comm::RanksLost&) {
      continue;
    }
  }
}

bool may_go_on(const config::Config& config, int ranks) {
  return ranks >= comm::least_survivors() && supervise::runs_on(config, ranks);
}

}  // namespace

int run_with_survivors(const Arguments& words, const std::function<int(const Arguments&)>& train) {
  Arguments now = words;
  report::Progress saved;  // the newest checkpoint that this run has saved
  for (;;) {
    try {
      return train(now);
    } catch (const comm::RanksLost&) {
      // All objects of the run are destroyed here, so the job can be created again.
    }
    const comm::Survivors left = survivors();
    log::set_rank(left.place.rank, left.place.rank == 0);
    const config::Config config = config::load(words).config;
    const supervise::Lost lost{.who = ranks_text(left.lost), .left = left.place.size};
    if (!may_go_on(config, lost.left)) {
      if (left.place.rank == 0) {
        log::error(Error({.what = lost.who + " ended, and too few ranks are left to continue",
                          .expected = "at least " + std::to_string(comm::least_survivors()) +
                                      " ranks, a number that the samples per step can be divided among",
                          .found = std::to_string(lost.left) + " ranks",
                          .fix = "start the run again: it resumes from its newest checkpoint"})
                       .what());
      }
      return static_cast<int>(ExitCode::hang);
    }
    if (left.place.rank == 0) log::warn(supervise::text_of(lost));
    const auto progress = report::read_progress(config.output_dir);
    if (progress && progress->job == report::supervised_start() && progress->saved_step >= 0)
      saved = *progress;
    now = words;
    for (std::string& more : supervise::resume_overrides(config, saved)) now.push_back(std::move(more));
  }
}

namespace {

constexpr int kStartRows = 20;

int train_once(const Arguments& arguments) {
  const config::Resolved config = config::load(arguments);
  const setup::SessionWish wish = setup::session_wish(config.config);
  const log::StartScreen start(kStartRows);
  runtime::Session session(wish.device, nullptr, wish.carrying);
  return session.run([&] {
    return with_places(config, [&] {
      train::require_same_start(session, OCTET_VERSION, config.config);
      session.mention_idle_gpus("CONFIG");
      return train::train(session, config);
    });
  });
}

}  // namespace

int train_command(const Arguments& arguments) {
  Options options(
      "train",
      "Fine-tunes a model with the settings of CONFIG, in one process or on the ranks that `mpirun -np N` "
      "started. The word train may be left out");
  std::string config_file;
  options.add_option("CONFIG", config_file,
                     "YAML or JSON: our own, or LLaMA-Factory's, SFT-Play's, verl's, axolotl's");
  options.take_overrides();
  options.example("trainer config.yaml learning_rate=2e-5");
  options.example("launch/mpirun -np 8 build/bin/trainer config.yaml zero_stage=2");
  // Prints the help of one key, like `trainer --help KEY`.
  if (arguments.size() == 2 && arguments[0] == "--help" &&
      arguments[1].find_first_of("-/=") == std::string::npos && !arguments[1].ends_with(".yaml") &&
      !arguments[1].ends_with(".yml") && !arguments[1].ends_with(".json")) {
    std::printf("%s", key_text(arguments[1], terminal_width()).c_str());
    return 0;
  }
  if (options.only_tells(arguments)) {
    if (!arguments.empty()) std::printf("\nKeys:\n%s", keys_text(terminal_width()).c_str());
    return 0;
  }
  // The reader of the output may end (a closed terminal, a dead `tee`); the run continues.
  std::signal(SIGPIPE, SIG_IGN);
  return run_with_survivors(arguments, train_once);
}

}  // namespace octet::cli
