// Hashes that follow messages.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "octet/comm/seals.h"

namespace octet::comm {

/// State that the collectives of a rank share about their seals. The serving thread records; other threads
/// read.
class SealNotes {
 public:
  void note(BrokenMessage&& broken) {
    const std::lock_guard lock(mutex_);
    broken_.push_back(std::move(broken));
  }
  std::vector<BrokenMessage> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(broken_, {});
  }

  void spoil(std::uint64_t draw) {
    draw_ = draw;
    left_ = static_cast<int>(draw % 8) + 1;
  }
  /// Inverts a bit of a received message when its turn comes.
  void arrived(void* data, std::size_t bytes) {
    if (left_.load(std::memory_order_relaxed) == 0 || --left_ != 0) return;
    const std::uint64_t bit = (draw_ >> 8) % (bytes * 8);
    auto* at = static_cast<std::uint8_t*>(data) + bit / 8;
    *at = static_cast<std::uint8_t>(*at ^ (1u << (bit % 8)));
  }

 private:
  std::mutex mutex_;
  std::vector<BrokenMessage> broken_;
  std::atomic<int> left_ = 0;
  std::uint64_t draw_ = 0;
};

}  // namespace octet::comm
