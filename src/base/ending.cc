#include "octet/base/ending.h"

#include <atomic>

namespace octet {
namespace {

std::atomic<int> code_of_end = -1;
static_assert(std::atomic<int>::is_always_lock_free);

}  // namespace

void note_ending(int code) noexcept {
  code_of_end.store(code);
}

int noted_ending() noexcept {
  return code_of_end.load();
}

}  // namespace octet
