#include "sequences.h"

#include <algorithm>

#include "octet/base/error.h"

namespace octet::generate {

Sequences::Sequences(std::int64_t slots, std::int64_t capacity)
    : capacity_(static_cast<std::size_t>(capacity)), slots_(static_cast<std::size_t>(slots)) {}

std::int64_t Sequences::room() const {
  return std::ssize(slots_) - std::ssize(active_) - std::ssize(waiting_);
}

const std::vector<std::int32_t>& Sequences::tokens_of(const Slot& slot) const {
  return slot.holder != nullptr ? slot.holder->tokens : slot.tokens;
}

// The slot with the longest common beginning. The last token of a prompt is always computed: its logits are
// wanted.
Sequences::Source Sequences::find_source(const Sequence& sequence) const {
  Source best;
  const auto prompt_end = sequence.tokens.end() - 1;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const std::vector<std::int32_t>& there = tokens_of(slots_[i]);
    const auto common = static_cast<std::size_t>(
        std::mismatch(sequence.tokens.begin(), prompt_end, there.begin(), there.end()).first -
        sequence.tokens.begin());
    if (common >= kSharedFrom && common > best.tokens) best = {static_cast<std::int32_t>(i), common};
  }
  return best;
}

std::int32_t Sequences::free_slot() const {
  std::int32_t found = -1;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].holder != nullptr) continue;
    if (found < 0 || slots_[i].used < slots_[static_cast<std::size_t>(found)].used)
      found = static_cast<std::int32_t>(i);
  }
  return found;
}

void Sequences::share(Sequence& sequence, std::size_t tokens) {
  sequence.cached = tokens;
  shared_ += static_cast<std::int64_t>(tokens);
}

std::vector<PrefixCopy> Sequences::admit() {
  std::vector<PrefixCopy> copies;
  // Those who wait come first: what they wait for may have ended, and its slot is given away below.
  std::erase_if(for_prefixes_, [&](const Waiting& w) {
    const Slot& slot = slots_[static_cast<std::size_t>(w.source.slot)];
    const std::size_t there = slot.holder != nullptr ? slot.holder->cached : slot.tokens.size();
    if (slot.holder != nullptr && there < w.source.tokens) return false;
    const std::size_t tokens = std::min(there, w.source.tokens);
    copies.push_back({w.source.slot, w.sequence->slot, tokens});
    share(*w.sequence, tokens);
    w.sequence->waits = false;
    return true;
  });
  while (!waiting_.empty() && std::ssize(active_) < std::ssize(slots_)) {
    active_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    Sequence& s = active_.back();
    const Source source = find_source(s);
    const bool in_place = source.slot >= 0 && slots_[static_cast<std::size_t>(source.slot)].holder == nullptr;
    s.slot = in_place ? source.slot : free_slot();
    Slot& slot = slots_[static_cast<std::size_t>(s.slot)];
    slot.holder = &s;
    slot.tokens.clear();
    if (in_place) {
      share(s, source.tokens);
    } else if (source.slot >= 0) {
      for_prefixes_.push_back({&s, source});
      s.waits = true;
    }
  }
  return copies;
}

PassTokens Sequences::next_pass(std::size_t room) {
  PassTokens pass;
  const auto take = [&](Sequence& s) {
    while (s.cached < s.tokens.size() && pass.ids.size() < room) {
      pass.ids.push_back(s.tokens[s.cached]);
      pass.slots.push_back(s.slot);
      pass.positions.push_back(static_cast<std::int32_t>(s.cached++));
      if (s.cached < s.tokens.size()) continue;
      pass.rows.push_back(static_cast<std::int32_t>(pass.ids.size()) - 1);
      pass.sequences.push_back(&s);
    }
  };
  for (Sequence& s : active_) {
    if (!s.answer.ids.empty()) take(s);
  }
  // Of an answer one token is new.
  pass.alone = std::ssize(pass.ids);
  for (Sequence& s : active_) {
    if (s.answer.ids.empty() && !s.waits) take(s);
  }
  return pass;
}

void Sequences::end(Sequence& sequence) {
  Slot& slot = slots_[static_cast<std::size_t>(sequence.slot)];
  slot.holder = nullptr;
  slot.used = ++clock_;
  slot.tokens.assign(sequence.tokens.begin(),
                     sequence.tokens.begin() + static_cast<std::ptrdiff_t>(sequence.cached));
  active_.remove_if([&sequence](const Sequence& s) { return &s == &sequence; });
}

void Sequences::forget() {
  check(!busy(), "what slots hold is forgotten between sequences");
  for (Slot& slot : slots_) slot.tokens.clear();
}

}  // namespace octet::generate
