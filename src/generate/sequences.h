// Schedules the sequences of a decoder: the queue, the active sequences, and the tokens of the next forward
// pass. It is independent of the model.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <vector>

#include "paged_cache.h"

namespace octet::generate {

/// The tokens of one forward pass, the tokens that need logits, and their sequences. If an id is below 0, row
/// -1 - id of the pass in flight computes the token.
struct PassTokens {
  std::vector<std::int32_t> ids, slots, positions;
  std::int64_t alone = 0;            ///< the first `alone` tokens are each the only token of their sequence
  std::vector<std::int32_t> rows;    ///< indices of the tokens that need logits
  std::vector<Sequence*> sequences;  ///< of each row
};

/// Requests that share a cache. A request with the same beginning as another holds the same pages and
/// computes only the remaining tokens. If the other sequence is still computing them, the request waits. If
/// the cache is full, the youngest sequence returns to the head of the queue with its partial answer, and is
/// computed again.
class Sequences {
 public:
  /// Shorter prefixes are computed again, because waiting would cost more.
  static constexpr std::size_t kSharedFrom = 16;

  /// Up to `slots` concurrent sequences of up to `capacity` tokens. The cache holds at least one of them.
  Sequences(std::int64_t slots, std::int64_t capacity, const CacheShape& shape);

  void submit(Sequence sequence) { waiting_.push_back(std::move(sequence)); }
  bool busy() const { return !waiting_.empty() || !active_.empty(); }
  std::int64_t room() const;
  /// Admits waiting sequences while there is room for their tokens. The copies must be done, in this order,
  /// before the next pass.
  std::vector<PageCopy> admit();
  /// Returns up to `room` tokens: one for each decoding sequence, then prompts, oldest first. Advances
  /// `cached`. Skips sequences with rows in an unfinished pass. `batches`: target number of passes in flight;
  /// each takes that fraction of the sequences. Returns no tokens if all sequences wait for passes in flight.
  PassTokens next_pass(std::size_t room, std::int64_t batches = 1) { return pass(room, batches, false); }
  /// Returns a pass after the only pass in flight. It takes the tokens which that pass will compute, except
  /// for answers that end there by their length.
  PassTokens next_behind(std::size_t room) { return pass(room, 1, true); }
  /// Records the end of a pass that computed a token of `sequence`. Returns false if the answer had already
  /// ended. The token is then discarded, and the sequence may be destroyed.
  bool land(Sequence& sequence);
  /// Returns the active sequence in a slot.
  Sequence& at_slot(std::int32_t slot);
  /// Must be called after a token was appended to the sequence.
  void learn(Sequence& sequence) { cache_.learn(sequence); }
  /// Returns the changes of page tables before the next pass.
  std::vector<PageChange> take_changes() { return cache_.take_changes(); }
  /// Ends a sequence as soon as no pass in flight computes it. Its pages can still be found and shared.
  void end(Sequence& sequence);
  /// Invalidates the cache after the weights changed. Only without sequences.
  void forget();

  /// Starts a text in the first slot. next_of_text() returns its passes, which need all logits. Only without
  /// sequences. end_text() releases the text.
  void begin_text(const std::vector<std::int32_t>& ids);
  PassTokens next_of_text(std::int64_t tokens);
  void end_text();

  /// Prompt tokens that were already cached and were not computed.
  std::int64_t shared() const { return shared_; }
  /// Sequences that returned to the queue, and tokens that were computed again for them.
  std::int64_t put_back() const { return put_back_; }
  std::int64_t recomputed() const { return recomputed_; }
  const PagePool& pages() const { return cache_.pool(); }

 private:
  struct Waiting {
    Sequence* sequence = nullptr;
    const Sequence* source = nullptr;  ///< null: it is no longer active
    std::size_t tokens = 0;
  };

  PagedCache::Found find(const Sequence& sequence) const;
  /// The sequence that is computing more of the prefix than the cache holds, if any.
  Waiting source_of(Sequence& sequence) const;
  void begin(Sequence& sequence, std::vector<PageCopy>& copies);
  bool fits(const Sequence& next) const;
  /// Pages that a sequence takes until its tokens have room, plus one per group while it grows.
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
  std::list<Sequence> active_;  ///< by age; addresses are stable
  std::vector<Waiting>
      for_prefixes_;            ///< active sequences that wait for another sequence to compute their prefix
  std::int64_t in_flight_ = 0;  ///< rows in flight of the active sequences
  std::int64_t shared_ = 0, put_back_ = 0, recomputed_ = 0;
};

}  // namespace octet::generate
