// Buffers that concurrent calls of encode() reuse.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <string_view>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "unicode/utf8.h"

namespace octet::text {

/// Buffers of one call of encode(), reused by the next call.
struct EncodeScratch {
  BpeScratch bpe;
  std::vector<Found> raw, found;
  std::vector<TextView> pieces;
  std::deque<AlignedText> made;
  std::vector<std::string_view> tokens;  ///< for trimming: the text of each id
};

/// Lends scratch to all threads that encode concurrently. A thread gets its previous scratch back, unless
/// another thread took it. Its cache of words is then warm on its core.
class ScratchPool {
 public:
  ScratchPool() : slots_(kSlots) {}
  ~ScratchPool();
  std::unique_ptr<EncodeScratch> take();
  void give(std::unique_ptr<EncodeScratch> scratch);

 private:
  static constexpr std::size_t kSlots = 256;
  // One cache line per slot prevents false sharing.
  struct alignas(64) Slot {
    std::atomic<EncodeScratch*> idle{nullptr};
  };
  std::vector<Slot> slots_;
};

}  // namespace octet::text
