// The sequences that a decoder answers: who waits, who has which slot of the cache, and which tokens are
// computed in the next forward pass. Knows no model.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <optional>
#include <vector>

#include "octet/generate/decoder.h"

namespace octet::generate {

/// A request while it is being answered.
struct Sequence {
  std::size_t request = 0;
  Request asked;
  AnswerOptions options;
  Answer answer;
  std::vector<std::int32_t> tokens;  ///< prompt, then answer
  std::int32_t slot = -1;
  std::size_t cached = 0;  ///< tokens whose keys and values are in the slot
  bool waits = false;      ///< for the beginning of its prompt, which another sequence is computing
};

/// A copy of the first `tokens` tokens from one slot to another.
struct PrefixCopy {
  std::int32_t from = 0, to = 0;
  std::size_t tokens = 0;
};

/// The tokens of one forward pass, and which of them yield logits, for whom.
struct PassTokens {
  std::vector<std::int32_t> ids, slots, positions;
  std::int64_t alone = 0;            ///< the first so many are each the only one of their sequence
  std::vector<std::int32_t> rows;    ///< tokens whose logits are wanted
  std::vector<Sequence*> sequences;  ///< of each row
};

/// Requests on their way through the slots of a cache. A slot keeps what it holds when its sequence ends: a
/// prompt that begins with the same tokens goes on from there, in the same slot or behind a copy, and
/// computes only its own. Where the other sequence is still computing them, it waits for it.
class Sequences {
 public:
  /// Prefixes shorter than this are computed again: waiting would cost more.
  static constexpr std::size_t kSharedFrom = 16;

  Sequences(std::int64_t slots, std::int64_t capacity);

  void submit(Sequence sequence) { waiting_.push_back(std::move(sequence)); }
  bool busy() const { return !waiting_.empty() || !active_.empty(); }
  std::int64_t room() const;
  /// Gives free slots to those who wait. The copies must be done, in this order, before the next pass.
  std::vector<PrefixCopy> admit();
  /// Up to `room` tokens: first one for everybody who is being answered, then prompts, the oldest first.
  /// Advances `cached`.
  PassTokens next_pass(std::size_t room);
  /// Ends a sequence; its slot is free.
  void end(Sequence& sequence);
  /// Nothing that slots hold is true any more: other weights would write something else. Only without
  /// sequences.
  void forget();
  /// Prompt tokens that were not computed since they were there.
  std::int64_t shared() const { return shared_; }

 private:
  struct Slot {
    std::vector<std::int32_t> tokens;  ///< what the cache holds of a sequence that has ended
    Sequence* holder = nullptr;
    std::uint64_t used = 0;  ///< when its last sequence ended; the oldest is taken first
  };
  /// Where a sequence finds the beginning of its prompt.
  struct Source {
    std::int32_t slot = -1;
    std::size_t tokens = 0;
  };
  struct Waiting {
    Sequence* sequence = nullptr;
    Source source;
  };

  Source find_source(const Sequence& sequence) const;
  std::int32_t free_slot() const;
  const std::vector<std::int32_t>& tokens_of(const Slot& slot) const;
  void share(Sequence& sequence, std::size_t tokens);

  std::size_t capacity_;
  std::vector<Slot> slots_;
  std::deque<Sequence> waiting_;
  std::list<Sequence> active_;         ///< by age; addresses stay
  std::vector<Waiting> for_prefixes_;  ///< active ones whose prefix another sequence is computing
  std::uint64_t clock_ = 0;
  std::int64_t shared_ = 0;
};

}  // namespace octet::generate
