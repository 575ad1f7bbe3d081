#include "survive.h"

#include <utility>

#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/comm/job.h"
#include "octet/config/config.h"
#include "octet/report/progress.h"
#include "octet/supervise/messages.h"
#include "octet/supervise/resumption.h"

namespace octet::cli {
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

}  // namespace octet::cli
