// The sequences that a decoder answers: who waits, who is being answered, and which tokens are computed in
// the next forward pass. Knows no model.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <vector>

#include "paged_cache.h"
#include "sequence.h"

namespace octet::generate {

/// The tokens of one forward pass, and which of them yield logits, for whom. An id below 0, of a pass behind
/// another one: -1 less the row of that one which yields the token.
struct PassTokens {
  std::vector<std::int32_t> ids, slots, positions;
  std::int64_t alone = 0;            ///< the first so many are each the only one of their sequence
  std::vector<std::int32_t> rows;    ///< tokens whose logits are wanted
  std::vector<Sequence*> sequences;  ///< of each row
};

/// Requests on their way through a cache. One that begins as another does holds the same pages and computes
/// only its own tokens; where the other is still computing them, it waits for it. When the cache is full, the
/// youngest sequence goes back to the head of the queue with its answer so far, and is computed again.
class Sequences {
 public:
  /// Prefixes shorter than this are computed again: waiting would cost more.
  static constexpr std::size_t kSharedFrom = 16;

  /// `slots` sequences side by side, of up to `capacity` tokens, of which the cache holds one or more.
  Sequences(std::int64_t slots, std::int64_t capacity, const CacheShape& shape);

  void submit(Sequence sequence) { waiting_.push_back(std::move(sequence)); }
  bool busy() const { return !waiting_.empty() || !active_.empty(); }
  std::int64_t room() const;
  /// Takes up those who wait, as long as there is room for their tokens. The copies must be done, in this
  /// order, before the next pass.
  std::vector<PageCopy> admit();
  /// Up to `room` tokens: first one for everybody who is being answered, then prompts, the oldest first.
  /// Advances `cached`. Sequences whose rows are in a pass that has not landed are left out. `batches`: how
  /// many passes are to be on their way at once, so that each takes that part of the sequences. No tokens
  /// where all wait for what is on its way.
  PassTokens next_pass(std::size_t room, std::int64_t batches = 1) { return pass(room, batches, false); }
  /// A pass behind the only one that is on its way: of the sequences whose rows are in it the tokens that it
  /// will make, unless their answers end with these by their length.
  PassTokens next_behind(std::size_t room) { return pass(room, 1, true); }
  /// A pass that made a token of a sequence is over. False where the answer had ended before: nothing comes
  /// of the token, and the sequence may be gone.
  bool land(Sequence& sequence);
  /// The token was added to the sequence's.
  void learn(Sequence& sequence) { cache_.learn(sequence); }
  /// What of the page tables the next pass finds changed.
  std::vector<PageChange> take_changes() { return cache_.take_changes(); }
  /// Ends a sequence, once no pass on its way computes anything of it; what it held may be found again.
  void end(Sequence& sequence);
  /// Nothing that the cache holds is true any more: other weights would write something else. Only without
  /// sequences.
  void forget();

  /// Takes up a text in the first slot, of which next_of_text makes passes that want all logits. Only without
  /// sequences; end_text forgets it.
  void begin_text(const std::vector<std::int32_t>& ids);
  PassTokens next_of_text(std::int64_t tokens);
  void end_text();

  /// Prompt tokens that were not computed since they were there.
  std::int64_t shared() const { return shared_; }
  /// Sequences that went back into the queue, and tokens that were computed once more for that.
  std::int64_t put_back() const { return put_back_; }
  std::int64_t recomputed() const { return recomputed_; }
  const PagePool& pages() const { return cache_.pool(); }

 private:
  struct Waiting {
    Sequence* sequence = nullptr;
    const Sequence* source = nullptr;  ///< null: it is no longer being answered
    std::size_t tokens = 0;
  };

  PagedCache::Found find(const Sequence& sequence) const;
  /// The sequence that is computing more of a beginning than is there, if one does.
  Waiting source_of(Sequence& sequence) const;
  void begin(Sequence& sequence, std::vector<PageCopy>& copies);
  bool fits(const Sequence& next) const;
  /// Pages that a sequence takes until its tokens have room, and one a group more while it grows.
  std::int64_t still_wanted(const Sequence& sequence) const;
  std::int32_t take_slot();
  void leave(Sequence& sequence);
  void put_back(Sequence& sequence);
  bool put_back_younger(const Sequence& than);
  PassTokens pass(std::size_t room, std::int64_t batches, bool behind);
  void take(Sequence& sequence, PassTokens& pass);
  void take_decoding(PassTokens& pass, std::int64_t most, bool behind);
  void take_prompts(PassTokens& pass, std::size_t room);

  std::size_t capacity_;
  PagedCache cache_;
  std::vector<bool> slot_used_;
  std::deque<Sequence> waiting_;
  std::list<Sequence> active_;         ///< by age; addresses stay
  std::vector<Waiting> for_prefixes_;  ///< active ones whose prefix another sequence is computing
  std::int64_t in_flight_ = 0;         ///< rows of the active ones
  std::int64_t shared_ = 0, put_back_ = 0, recomputed_ = 0;
};

}  // namespace octet::generate
