#include "tokenizer/scratch_pool.h"

namespace octet::text {
namespace {

// Returns the number of the calling thread. Threads are numbered in the order of their first encode().
std::size_t thread_number() {
  static std::atomic<std::size_t> next{0};
  thread_local const std::size_t number = next++;
  return number;
}

}  // namespace

ScratchPool::~ScratchPool() {
  for (Slot& slot : slots_) delete slot.idle.load();
}

std::unique_ptr<EncodeScratch> ScratchPool::take() {
  const std::size_t own = thread_number();
  for (std::size_t i = 0; i < kSlots; ++i) {
    std::atomic<EncodeScratch*>& idle = slots_[(own + i) % kSlots].idle;
    if (idle.load(std::memory_order_relaxed) == nullptr) continue;
    if (EncodeScratch* found = idle.exchange(nullptr)) return std::unique_ptr<EncodeScratch>(found);
  }
  return std::make_unique<EncodeScratch>();
}

void ScratchPool::give(std::unique_ptr<EncodeScratch> scratch) {
  const std::size_t own = thread_number();
  for (std::size_t i = 0; i < kSlots; ++i) {
    EncodeScratch* none = nullptr;
    if (slots_[(own + i) % kSlots].idle.compare_exchange_strong(none, scratch.get())) {
      static_cast<void>(scratch.release());
      return;
    }
  }
}

}  // namespace octet::text
