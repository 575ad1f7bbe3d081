#include "octet/checkpoint/keeper.h"

#include <chrono>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/base/thread_priority.h"
#include "octet/checkpoint/folder.h"

namespace octet::checkpoint {

Keeper::Keeper(std::string folder, std::int64_t keep_last)
    : folder_(std::move(folder)), keep_last_(keep_last) {}

void Keeper::trust(std::int64_t step) {
  counts_.insert(step);
}

void Keeper::saved(std::int64_t step) {
  settle();
  counts_.erase(step);  // a new checkpoint of this step replaced it
  step_ = step;
  reading_ = std::async(std::launch::async, [path = folder_ + "/" + folder_name(step)]() -> std::string {
    run_thread_behind();  // low priority, because training steps run concurrently
    try {
      read_back(path);
    } catch (const std::exception& e) {
      return e.what();
    }
    return "";
  });
}

bool Keeper::is_read() const {
  return reading_.valid() && reading_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

std::string Keeper::settle() {
  if (!reading_.valid()) return "";
  std::string wrong = reading_.get();
  if (!wrong.empty()) return wrong;
  counts_.insert(step_);
  rotate(folder_, keep_last_, best_ < 0 ? "" : folder_name(best_), &counts_);
  return "";
}

}  // namespace octet::checkpoint
