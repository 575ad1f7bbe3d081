#include "sequences.h"

#include <algorithm>
#include <span>

#include "octet/base/error.h"

namespace octet::generate {

Sequences::Sequences(std::int64_t slots, std::int64_t capacity, const CacheShape& shape)
    : capacity_(static_cast<std::size_t>(capacity)),
      cache_(shape),
      slot_used_(static_cast<std::size_t>(slots)) {}

std::int64_t Sequences::room() const {
  return std::ssize(slot_used_) - std::ssize(active_) - std::ssize(waiting_);
}

PagedCache::Found Sequences::find(const Sequence& sequence) const {
  if (!cache_.shape().shared) return {};
  PagedCache::Found found = cache_.find(sequence, active_);
  return found.tokens < kSharedFrom ? PagedCache::Found{} : found;
}

Sequences::Waiting Sequences::source_of(Sequence& sequence) const {
  Waiting best{.sequence = &sequence, .tokens = find(sequence).tokens + kSharedFrom - 1};
  if (!cache_.shape().shared) return best;
  const auto wanted = std::span(sequence.tokens).first(sequence.tokens.size() - 1);
  for (const Sequence& other : active_) {
    if (&other == &sequence) continue;
    const auto common =
        static_cast<std::size_t>(std::ranges::mismatch(wanted, other.tokens).in1 - wanted.begin());
    if (common > best.tokens && other.cached < common)
      best = {.sequence = &sequence, .source = &other, .tokens = common};
  }
  return best;
}

void Sequences::begin(Sequence& s, std::vector<PageCopy>& copies) {
  cache_.begin(s, find(s), copies);
  shared_ += static_cast<std::int64_t>(s.cached - std::min(s.lost, s.cached));
}

std::int64_t Sequences::still_wanted(const Sequence& s) const {
  const auto longest = static_cast<std::int64_t>(s.longest(capacity_));
  const auto next = std::min(std::ssize(s.tokens) + cache_.shape().page_tokens, longest);
  std::int64_t pages = 0;
  for (std::size_t g = 0; g < cache_.shape().windows.size(); ++g) {
    const std::int64_t held =
        s.held.pages.empty() ? 0 : static_cast<std::int64_t>(s.held.count() - s.held.first[g]);
    pages += std::max<std::int64_t>(0, pages_of_group(cache_.shape(), g, next) - held);
  }
  return pages;
}

// Active sequences have priority, so that admitted sequences do not evict each other at once.
bool Sequences::fits(const Sequence& next) const {
  if (active_.empty()) return true;
  std::int64_t free = cache_.pool().free();
  for (const Sequence& s : active_) free -= still_wanted(s);
  return cache_.wanted(find(next), std::ssize(next.tokens) + 1) <= free;
}

std::int32_t Sequences::take_slot() {
  const auto unused = std::ranges::find(slot_used_, false);
  *unused = true;
  return static_cast<std::int32_t>(unused - slot_used_.begin());
}

std::vector<PageCopy> Sequences::admit() {
  std::vector<PageCopy> copies;
  // Waiting sequences start first. Their source may have ended, and its pages may be taken below.
  std::erase_if(for_prefixes_, [&](const Waiting& w) {
    if (w.source != nullptr && w.source->cached < w.tokens) return false;
    w.sequence->waits = false;
    begin(*w.sequence, copies);
    return true;
  });
  while (!waiting_.empty() && std::ssize(active_) < std::ssize(slot_used_) && fits(waiting_.front())) {
    active_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    Sequence& s = active_.back();
    s.slot = take_slot();
    const Waiting waiting = source_of(s);
    s.waits = waiting.source != nullptr;
    if (s.waits) {
      for_prefixes_.push_back(waiting);
    } else {
      begin(s, copies);
    }
  }
  return copies;
}

void Sequences::take(Sequence& s, PassTokens& pass) {
  pass.ids.push_back(s.cached < s.tokens.size() ? s.tokens[s.cached] : -1 - s.row);
  pass.slots.push_back(s.slot);
  pass.positions.push_back(static_cast<std::int32_t>(s.cached));
  if (s.cached < s.lost) ++recomputed_;
  cache_.advance(s);
  if (s.cached < s.tokens.size()) return;
  s.row = static_cast<std::int32_t>(pass.rows.size());
  pass.rows.push_back(static_cast<std::int32_t>(pass.ids.size()) - 1);
  pass.sequences.push_back(&s);
  ++s.in_flight;
  ++in_flight_;
}

Sequence& Sequences::at_slot(std::int32_t slot) {
  const auto found = std::ranges::find(active_, slot, &Sequence::slot);
  check(found != active_.end(), "a pass computes tokens of active sequences");
  return *found;
}

bool Sequences::land(Sequence& s) {
  check(s.in_flight > 0, "a sequence is returned as often as it was taken");
  --s.in_flight;
  --in_flight_;
  if (!s.ended) return true;
  end(s);
  return false;
}

// Each decoding sequence takes one token. If no page is free, the youngest sequence gives up its pages;
// sequences that were already taken are older. Sequences in flight keep their pages until their pass ends.
// Older sequences wait for them.
void Sequences::take_decoding(PassTokens& pass, std::int64_t most, bool behind) {
  for (Sequence& s : active_) {
    if (std::ssize(pass.ids) == most) return;
    if (!s.decodes() && !(behind && s.can_be_followed(capacity_))) continue;
    bool has_room = cache_.grow(s);
    while (!has_room && put_back_younger(s)) has_room = cache_.grow(s);
    if (!has_room && in_flight_ > std::ssize(pass.rows)) return;
    if (!has_room) return put_back(s);  // no younger sequence holds pages
    take(s, pass);
  }
}

// A prompt without a page waits for active sequences, unless there are none. Decoding sequences that were not
// taken are left for another pass.
void Sequences::take_prompts(PassTokens& pass, std::size_t room) {
  for (Sequence& s : active_) {
    if (s.waits || s.decodes()) continue;
    for (std::int64_t taken = 0; taken < cache_.shape().piece && s.cached < s.tokens.size(); ++taken) {
      if (pass.ids.size() == room) return;
      bool has_room = cache_.grow(s);
      while (!has_room && pass.ids.empty() && put_back_younger(s)) has_room = cache_.grow(s);
      if (!has_room) break;
      take(s, pass);
    }
  }
}

PassTokens Sequences::pass(std::size_t room, std::int64_t batches, bool behind) {
  for (Sequence& s : active_) cache_.free_behind_windows(s);
  const std::int64_t before = in_flight_;
  PassTokens pass;
  take_decoding(pass, (std::ssize(active_) + batches - 1) / batches, behind);
  pass.alone = std::ssize(pass.ids);
  take_prompts(pass, room);
  check(active_.empty() || !pass.ids.empty() || before > 0, "the oldest sequence always continues");
  return pass;
}

void Sequences::leave(Sequence& s) {
  cache_.release(s);
  slot_used_[static_cast<std::size_t>(s.slot)] = false;
  for (Waiting& w : for_prefixes_) {
    if (w.source == &s) w.source = nullptr;
  }
}

void Sequences::put_back(Sequence& s) {
  s.lost = std::max(s.lost, s.cached);
  leave(s);
  ++put_back_;
  const auto at = std::ranges::find_if(active_, [&s](const Sequence& one) { return &one == &s; });
  waiting_.push_front(std::move(*at));
  active_.erase(at);
}

// Puts back the youngest sequence that holds pages. Returns false if only older sequences hold pages.
bool Sequences::put_back_younger(const Sequence& than) {
  for (auto s = active_.rbegin(); s != active_.rend(); ++s) {
    if (&*s == &than) return false;
    if (s->held.count() == 0 || s->in_flight > 0) continue;
    put_back(*s);
    return true;
  }
  return false;
}

void Sequences::end(Sequence& sequence) {
  sequence.ended = true;
  if (sequence.in_flight > 0) return;
  leave(sequence);
  active_.remove_if([&sequence](const Sequence& s) { return &s == &sequence; });
}

void Sequences::forget() {
  check(!busy(), "the cache is cleared only between sequences");
  cache_.forget();
}

void Sequences::begin_text(const std::vector<std::int32_t>& ids) {
  forget();
  Sequence& text = active_.emplace_back();
  text.tokens = ids;
  text.slot = take_slot();
}

PassTokens Sequences::next_of_text(std::int64_t tokens) {
  Sequence& text = active_.front();
  cache_.free_behind_windows(text);
  PassTokens pass;
  for (std::int64_t t = 0; t < tokens && text.cached < text.tokens.size(); ++t) {
    check(t < cache_.shape().piece && cache_.grow(text), "a cache holds the pages of one sequence");
    pass.rows.push_back(static_cast<std::int32_t>(t));
    pass.ids.push_back(text.tokens[text.cached]);
    pass.slots.push_back(text.slot);
    pass.positions.push_back(static_cast<std::int32_t>(text.cached));
    cache_.advance(text);
  }
  return pass;
}

void Sequences::end_text() {
  end(active_.front());
  forget();
}

}  // namespace octet::generate
