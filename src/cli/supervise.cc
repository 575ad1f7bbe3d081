// `trainer supervise`, which launch/supervise runs.
#include <algorithm>
#include <array>
#include <cstdio>

#include "octet/base/error.h"
#include "octet/comm/job.h"
#include "octet/supervise/job_command.h"
#include "octet/supervise/supervisor.h"
#include "options.h"

namespace octet::cli {
namespace {

constexpr std::array kOwn{"--launcher",   "--min-ranks",    "--most-starts",
                          "--first-wait", "--longest-wait", "--end-within"};
constexpr const char* kSurvive = "--survive";

// Returns the number of leading words that are options of supervise. All except --survive have a value, as
// the next word or after "=".
std::size_t own_options(const Arguments& arguments) {
  std::size_t at = 0;
  while (at < arguments.size()) {
    const std::string& word = arguments[at];
    if (word == "--help" || word == "-h") return at + 1;
    if (word.substr(0, word.find('=')) == kSurvive) {
      ++at;
      continue;
    }
    if (std::ranges::find(kOwn, word.substr(0, word.find('='))) == kOwn.end()) break;
    at += word.find('=') == std::string::npos ? 2 : 1;
  }
  return std::min(at, arguments.size());
}

// Whether a word is an option of supervise. --launcher is excepted: MPICH's mpirun has it, too.
bool is_misplaced(const std::string& word) {
  const std::string name = word.substr(0, word.find('='));
  if (name == kSurvive) return true;
  return name != "--launcher" && std::ranges::find(kOwn, name) != kOwn.end();
}

// Throws Error for options in the wrong place: mpirun would be restarted with an unknown option again and
// again.
void require_own_options_first(const supervise::Options& job) {
  const std::vector<std::string> words = supervise::parse_command(job.launcher, job.words).launcher;
  const auto found = std::ranges::find_if(words, is_misplaced);
  if (found == words.end()) return;
  throw Error(
      {.what = "'" + *found + "' comes after launch/mpirun's options, so mpirun would read it",
       .expected = "launch/supervise [its own options] [launch/mpirun's arguments] trainer config.yaml",
       .found = "'" + *found + "' after '" + job.words.front() + "'",
       .where = "command line",
       .fix = "put supervise's own options before launch/mpirun's",
       .code = ExitCode::usage});
}

}  // namespace

int supervise_command(const Arguments& arguments) {
  Options options("supervise",
                  "Starts a run by launch/mpirun and restarts it from its newest checkpoint until it is "
                  "complete. launch/supervise calls it; its options precede launch/mpirun's options. "
                  "docs/checkpoints.md describes exit codes and files");
  options.example("launch/supervise -np 8 build/bin/trainer config.yaml");
  options.example("launch/supervise --survive --min-ranks 6 -np 8 build/bin/trainer config.yaml");
  options.example("launch/supervise --min-ranks 4 --hostfile hosts -np 16 trainer config.yaml");
  supervise::Options job;
  options.add_option("--launcher", job.launcher, "launch/mpirun; launch/supervise names it");
  options
      .add_option("--min-ranks", job.min_ranks,
                  "continue with at least this number of ranks if a host or the place of a rank is lost; "
                  "default: all ranks")
      .check(whole(1, 1 << 22));
  options
      .add_flag(kSurvive, job.survive,
                "if a rank ends, the other ranks continue at once in their processes, if --min-ranks or more "
                "are left; for ranks on CPUs, with Open MPI 5.0 or later")
      .needs("--min-ranks");
  options
      .add_option("--most-starts", job.policy.most_starts,
                  "give up after so many starts in a row that ended before a newer checkpoint was saved")
      .check(whole(1, 1 << 20))
      .shows_default();
  options
      .add_option("--first-wait", job.policy.first_wait,
                  "seconds before the restart after the first of these starts, doubled after each further "
                  "one. After a start with progress, the restart follows at once")
      .check(between(0.0, 86400.0))
      .shows_default();
  options.add_option("--longest-wait", job.policy.longest_wait, "longest wait in seconds")
      .check(between(0.0, 86400.0))
      .shows_default();
  options
      .add_option("--end-within", job.end_within,
                  "seconds that the launcher has from the job's first error to its end, before it is killed: "
                  "mpirun may wait for a lost host")
      .check(between(1.0, 86400.0))
      .shows_default();
  const auto rest = arguments.begin() + static_cast<std::ptrdiff_t>(own_options(arguments));
  if (!options.parse({arguments.begin(), rest})) return 0;
  job.words.assign(rest, arguments.end());
  if (job.launcher.empty() || comm::launched_by_mpi()) {
    throw Error({.what = "trainer supervise cannot find launch/mpirun, or was started by it",
                 .expected = "launch/supervise [options] [launch/mpirun's arguments] trainer config.yaml",
                 .where = "command line",
                 .fix = "start launch/supervise, which names launch/mpirun",
                 .code = ExitCode::usage});
  }
  require_own_options_first(job);
  return supervise::supervise(job);
}

}  // namespace octet::cli
