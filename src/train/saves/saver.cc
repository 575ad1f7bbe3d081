#include "saves/saver.h"

#include <cstdio>
#include <filesystem>
#include <utility>

#include "octet/base/files.h"
#include "octet/base/log.h"
#include "octet/base/process.h"
#include "octet/base/strings.h"
#include "octet/base/timing.h"
#include "octet/checkpoint/checkpoint.h"

namespace octet::train {

namespace fs = std::filesystem;

std::string fallback_folder(const std::string& save_fallback_dir, const std::string& output_dir) {
  const fs::path whole = fs::absolute(output_dir + "/.").lexically_normal().parent_path();
  return save_fallback_dir + "/" + whole.filename().string() + "-" + hash128_hex(whole.string()).substr(0, 8);
}

Saver::Saver(comm::Channel& channel, SaverOptions options, const std::string& trusted)
    : channel_(channel),
      options_(std::move(options)),
      keeper_(options_.folder, options_.keep_last),
      fallback_keeper_(options_.fallback, options_.keep_last) {
  if (trusted.empty()) return;
  const std::int64_t step = checkpoint::Checkpoint(trusted).step();
  for (auto [keeper, folder] :
       {std::pair(&keeper_, options_.folder), std::pair(&fallback_keeper_, options_.fallback)}) {
    std::error_code none;
    if (!folder.empty() && fs::equivalent(fs::path(trusted).parent_path(), folder, none)) keeper->trust(step);
  }
}

// Returns the path of the checkpoint on all ranks; or "", and sets `why` to the same text on all ranks.
std::string Saver::attempt(const std::string& folder, const checkpoint::CheckpointContents& contents,
                           std::string& why) {
  std::string path, mine;
  try {
    path = checkpoint::save(channel_, folder, contents);
  } catch (const Error& e) {
    // An Error that only this rank has ends the job, because the others would wait.
    if (!e.problem().agreed) throw;
    if (!e.problem().what.empty()) mine = e.what();
  }
  for (const std::string& of_rank : channel_.all_gather_bytes(mine)) {
    if (why.empty()) why = of_rank;
  }
  return path;
}

Saver::Written Saver::write(const checkpoint::CheckpointContents& contents) {
  Written written{.step = contents.step};
  written.path = attempt(options_.folder, contents, written.why);
  written.keeper = &keeper_;
  if (!written.path.empty() || options_.fallback.empty()) return written;
  std::string why_there;
  written.path = attempt(options_.fallback, contents, why_there);
  written.keeper = &fallback_keeper_;
  if (channel_.rank() == 0 && !written.path.empty())
    log::warn("output_dir could not store the checkpoint of step " + with_commas(contents.step) +
              "; it is in save_fallback_dir: " + written.path + "\n" + written.why);
  if (!why_there.empty()) written.why += "\n" + why_there;
  return written;
}

void Saver::count_failure(std::int64_t step) {
  ++failed_in_a_row_;
  retry_step_ = step + options_.retry_steps;
}

void Saver::say_not_taken(const Written& written) const {
  if (channel_.rank() != 0) return;
  log::warn("the checkpoint of step " + with_commas(written.step) + " could not be saved (" +
            std::to_string(failed_in_a_row_) + " in a row; " + std::to_string(options_.most_failed) +
            " end the run). Training continues, and the next attempt follows after step " +
            with_commas(retry_step_) + "\n" + written.why);
}

std::string Saver::save(const checkpoint::CheckpointContents& contents) {
  holds();  // one checkpoint at a time is read back, so at most one more than `keep_last` is on the disk
  const Written written = write(contents);
  if (written.path.empty()) {
    count_failure(contents.step);
    say_not_taken(written);
    return "";
  }
  if (options_.reads_back) {
    reading_ = written.keeper;
    reading_step_ = contents.step;
    if (channel_.rank() == 0) reading_->saved(contents.step);
  } else {
    failed_in_a_row_ = 0;
  }
  return written.path;
}

// `step`: of the checkpoint; `now`: complete steps.
bool Saver::agree_that_it_holds(std::int64_t step, const std::string& wrong, std::int64_t now) {
  if (!wrong.empty()) {
    log::warn("the checkpoint of step " + with_commas(step) +
              " was saved, but is damaged; older checkpoints are kept\n" + wrong);
  }
  const bool bad = channel_.all_max(wrong.empty() ? 0 : 1) != 0;
  if (bad) {
    count_failure(now);
  } else {
    failed_in_a_row_ = 0;
  }
  return !bad;
}

bool Saver::holds() {
  if (reading_ == nullptr) return true;
  std::string wrong;
  if (channel_.rank() == 0) wrong = reading_->settle();
  reading_ = nullptr;
  return agree_that_it_holds(reading_step_, wrong, reading_step_);
}

void Saver::say_taken(const SaveBeside& save) const {
  if (channel_.rank() != 0) return;
  char text[32];
  std::snprintf(text, sizeof text, "%.3f s", seconds_since(save.began));
  log::debug("the state of step " + with_commas(save.contents.step) + " is copied (" + text +
             "); its checkpoint is written during the next steps");
}

Saver::Written Saver::write_beside(const SaveBeside& save) {
  watchdog_->enter("the writing of a checkpoint during the steps", options_.most_seconds);
  channel_.together(save.wait);
  say_taken(save);
  Written written = write(save.contents);
  if (channel_.rank() == 0 && !written.path.empty()) {
    watchdog_->enter("the reading back of a checkpoint", options_.most_seconds);
    keep(save.best);
    written.keeper->saved(written.step);
    written.wrong = written.keeper->settle();
  }
  watchdog_->rest();
  return written;
}

void Saver::begin(SaveBeside save) {
  check(!in_flight() && reading_ == nullptr, "only one save runs at a time");
  if (!watchdog_) {
    watchdog_ = std::make_unique<runtime::Watchdog>("rank " + std::to_string(channel_.rank()) + " on " +
                                                    channel_.place().host);
  }
  asks_ = false;
  beside_ = std::async(std::launch::async, [this, save = std::move(save)] {
    run_thread_behind();  // steps continue meanwhile
    try {
      Written written = write_beside(save);
      asks_ = channel_.rank() == 0;  // rank 0 ends last and reports for all ranks
      return written;
    } catch (...) {
      watchdog_->rest();
      asks_ = true;
      throw;
    }
  });
}

std::optional<Ended> Saver::end(std::int64_t step) {
  if (!in_flight()) return std::nullopt;
  Written written;
  try {
    written = beside_.get();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    throw Error(Problem{.what = "the thread that writes checkpoints ended",
                        .found = e.what(),
                        .fix = "start the run again: it resumes from its newest checkpoint"});
  }
  asks_ = false;
  if (written.path.empty()) {
    count_failure(step);
    say_not_taken(written);
    return Ended{.step = written.step};
  }
  const bool holds = agree_that_it_holds(written.step, written.wrong, step);
  return Ended{.step = written.step, .path = holds ? written.path : ""};
}

bool Saver::asks_to_settle() const {
  return asks_ || (reading_ != nullptr && reading_->is_read());
}

}  // namespace octet::train
