#include "saver.h"

#include <filesystem>
#include <utility>

#include "octet/base/files.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
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

// Of all ranks: the checkpoint's path, or "" and, the same on all, why.
std::string Saver::attempt(const std::string& folder, const checkpoint::CheckpointContents& contents,
                           std::string& why) {
  std::string path, mine;
  try {
    path = checkpoint::save(channel_, folder, contents);
  } catch (const Error& e) {
    // What only this rank met ends the job: the others would wait.
    if (!e.problem().agreed) throw;
    if (!e.problem().what.empty()) mine = e.what();
  }
  for (const std::string& of_rank : channel_.all_gather_bytes(mine)) {
    if (why.empty()) why = of_rank;
  }
  return path;
}

void Saver::count_failure(std::int64_t step) {
  ++failed_in_a_row_;
  retry_step_ = step + options_.retry_steps;
}

std::string Saver::save(const checkpoint::CheckpointContents& contents) {
  holds();  // one at a time is read back, so that no more than one more than is kept lies on the disk
  std::string why;
  std::string path = attempt(options_.folder, contents, why);
  checkpoint::Keeper* keeper = &keeper_;
  if (path.empty() && !options_.fallback.empty()) {
    std::string why_there;
    path = attempt(options_.fallback, contents, why_there);
    keeper = &fallback_keeper_;
    if (channel_.rank() == 0 && !path.empty())
      log::warn("output_dir did not take the checkpoint of step " + with_commas(contents.step) +
                ", save_fallback_dir did: " + path + "\n" + why);
    why += why_there.empty() ? "" : "\n" + why_there;
  }
  if (path.empty()) {
    count_failure(contents.step);
    if (channel_.rank() == 0) {
      log::warn("the checkpoint of step " + with_commas(contents.step) + " could not be saved (" +
                std::to_string(failed_in_a_row_) + " in a row; " + std::to_string(options_.most_failed) +
                " end the run). Training goes on, and it is tried again after step " +
                with_commas(retry_step_) + "\n" + why);
    }
    return "";
  }
  if (options_.reads_back) {
    reading_ = keeper;
    reading_step_ = contents.step;
    if (channel_.rank() == 0) keeper->saved(contents.step);
  } else {
    failed_in_a_row_ = 0;
  }
  return path;
}

bool Saver::is_read() const {
  return reading_ != nullptr && reading_->is_read();
}

bool Saver::holds() {
  if (reading_ == nullptr) return true;
  std::string wrong;
  if (channel_.rank() == 0) wrong = reading_->settle();
  reading_ = nullptr;
  if (!wrong.empty()) {
    log::warn("the checkpoint of step " + with_commas(reading_step_) +
              " was saved and does not hold; older ones stay\n" + wrong);
  }
  const bool bad = channel_.all_max(wrong.empty() ? 0 : 1) != 0;
  if (bad) {
    count_failure(reading_step_);
  } else {
    failed_in_a_row_ = 0;
  }
  return !bad;
}

}  // namespace octet::train
