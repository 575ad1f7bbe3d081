#include <algorithm>
#include <unordered_set>

#include "octet/base/error.h"
#include "regex/regex.h"
#include "unicode/utf8.h"

namespace octet::text {
namespace {

constexpr std::size_t kRememberAfter = 8192;  // steps of one search before failed states are recorded
constexpr std::size_t kMaxPlaces = 1 << 22;   // largest number of recorded positions
constexpr std::size_t kFreeSteps = 1 << 20;
constexpr std::size_t kStepsPerByte = 4000;
constexpr std::size_t kManySteps = std::size_t{1} << 26;  // some seconds
constexpr std::size_t kStepsPerByteOfMany = 100;
constexpr int kMostLookArounds = 32;

}  // namespace

RegexFinder::RegexFinder(const Regex& regex, std::string_view text)
    : regex_(regex), begin_(text.data()), end_(text.data() + text.size()), at_(begin_) {}

void RegexFinder::charge(std::size_t steps) {
  steps_ += steps;
  if (steps_ <= kFreeSteps) return;
  const auto bytes = static_cast<std::size_t>(end_ - begin_);
  if (steps_ > std::min(kFreeSteps + kStepsPerByte * bytes, kManySteps + kStepsPerByteOfMany * bytes)) {
    throw Error({.what = "the tokenizer's regular expression takes too long on a text",
                 .found = with_steps(steps_),
                 .fix = "use a tokenizer with an expression without nested look-around",
                 .code = ExitCode::usage});
  }
}

std::string RegexFinder::with_steps(std::size_t steps) const {
  return std::to_string(steps) + " steps for " + std::to_string(end_ - begin_) + " bytes";
}

bool RegexFinder::next(std::size_t& begin, std::size_t& end) {
  search_steps_ = 0;
  while (at_ <= end_) {
    const auto& starts =
        at_ == end_ ? regex_.starts_at_end_ : regex_.starts_[static_cast<unsigned char>(*at_)];
    const char* found = nullptr;
    for (const std::uint32_t pc : starts) {
      if ((found = match(pc, at_))) break;
    }
    if (found && !(found == at_ && last_end_ == at_)) {
      begin = static_cast<std::size_t>(at_ - begin_);
      end = static_cast<std::size_t>(found - begin_);
      at_ = last_end_ = found;
      if (remembering_) forget(found);
      return true;
    }
    if (at_ == end_) break;
    at_ += utf8_length(static_cast<unsigned char>(*at_));
  }
  at_ = end_ + 1;
  return false;
}

void RegexFinder::start_remembering() {
  remembering_ = true;
  memory_begin_ = at_;
  words_ = regex_.code_.size() / 64 + 1;
  memory_places_ = std::min<std::size_t>(static_cast<std::size_t>(end_ - at_) + 1, kMaxPlaces / words_);
  memory_.assign(memory_places_ * words_, 0);
  tried_runs_.assign(regex_.code_.size(), {});
}

bool RegexFinder::seen(std::uint32_t pc, const char* at) {
  const auto place = static_cast<std::size_t>(at - memory_begin_);
  if (place >= memory_places_) {
    if (at_ - memory_begin_ <= static_cast<std::ptrdiff_t>(memory_places_ / 2)) return false;
    start_remembering();  // moves the window of positions forward; later states are recorded again
    return seen(pc, at);
  }
  std::uint64_t& word = memory_[place * words_ + pc / 64];
  const std::uint64_t bit = std::uint64_t{1} << (pc % 64);
  if (word & bit) return true;
  word |= bit;
  return false;
}

// States up to the end of a match may have succeeded. The next search starts at this end.
void RegexFinder::forget(const char* through) {
  const std::size_t first = std::min(static_cast<std::size_t>(through - memory_begin_), memory_places_);
  const std::size_t last = std::min(first + 1, memory_places_);
  std::fill(memory_.begin() + static_cast<std::ptrdiff_t>(first * words_),
            memory_.begin() + static_cast<std::ptrdiff_t>(last * words_), 0);
  std::fill(tried_runs_.begin(), tried_runs_.end(), Run{});
}

bool RegexFinder::holds(RegexAssertion assertion, const char* at) const {
  const auto word_at = [&](const char* p) { return regex_.word_.contains(utf8_at(p)); };
  switch (assertion) {
    case RegexAssertion::text_start:
      return at == begin_;
    case RegexAssertion::text_end:
      return at == end_;
    case RegexAssertion::text_end_or_last_newline:
      return at == end_ || (at + 1 == end_ && *at == '\n');
    case RegexAssertion::line_start:
      return at == begin_ || (at[-1] == '\n' && at != end_);
    case RegexAssertion::line_end:
      return at == end_ || *at == '\n';
    case RegexAssertion::word_edge:
    case RegexAssertion::no_word_edge: {
      const bool before = at != begin_ && word_at(utf8_before(begin_, at));
      const bool after = at != end_ && word_at(at);
      return (before != after) == (assertion == RegexAssertion::word_edge);
    }
  }
  return false;
}

bool RegexFinder::look(const Regex::Instruction& in, const char* at, int depth) {
  const char* from = at;
  for (int i = 0; i < in.behind; ++i) {
    if (from == begin_) return in.negated;
    from = utf8_before(begin_, from);
  }
  const auto& inner = regex_.code_[in.other];
  bool found;
  if (in.behind < 0 && inner.op == Regex::Op::set && regex_.code_[inner.next].op == Regex::Op::accept) {
    found = at != end_ && regex_.sets_[inner.set].contains(utf8_at(at));
  } else {
    found = match(in.other, from, depth + 1) != nullptr;
  }
  return found != in.negated;
}

const char* RegexFinder::match(std::uint32_t pc, const char* at, int depth) {
  using Op = Regex::Op;
  if (depth > kMostLookArounds)
    throw Error("the tokenizer's regular expression nests look-arounds too deeply");
  const std::size_t base = stack_.size();
  const bool outer = depth == 0;
  std::unordered_set<std::uint64_t> inner_seen;  // of this look-around or atomic group
  std::size_t here = 0;
  const auto repeats = [&](const char* p) {
    if (outer) {
      if (!remembering_ && (regex_.has_loops_ || search_steps_ > kRememberAfter)) start_remembering();
      return remembering_ && seen(pc, p);
    }
    if (!regex_.has_loops_ && here < kRememberAfter) return false;
    return !inner_seen.insert(static_cast<std::uint64_t>(p - begin_) << 16 | pc).second;
  };
  for (;;) {
    charge(1);
    ++search_steps_, ++here;
    const Regex::Instruction& in = regex_.code_[pc];
    bool alive = true;
    switch (in.op) {
      case Op::accept:
        stack_.resize(base);
        return at;
      case Op::set:
        alive = at != end_ && regex_.sets_[in.set].contains(utf8_at(at));
        if (alive) at += utf8_length(static_cast<unsigned char>(*at));
        break;
      case Op::run:
        alive = !repeats(at) && run(in, pc, at, outer);
        break;
      case Op::split:
        alive = !repeats(at);
        if (alive) stack_.push_back({.pc = in.other, .position = at, .least = at});
        break;
      case Op::assertion:
        alive = holds(in.assertion, at);
        break;
      case Op::look:
        alive = !repeats(at) && look(in, at, depth);
        break;
      case Op::atomic: {
        const char* after = repeats(at) ? nullptr : match(in.other, at, depth + 1);
        alive = after != nullptr;
        if (alive) at = after;
        break;
      }
    }
    if (alive) {
      pc = in.next;
    } else if (!retreat(base, pc, at)) {
      return nullptr;
    }
  }
}

// Matches as many characters as the run allows and records the backtracking choices. Returns false if there
// are fewer than its minimum.
bool RegexFinder::run(const Regex::Instruction& in, std::uint32_t pc, const char*& at, bool outer) {
  const CharSet& set = regex_.sets_[in.set];
  const char* p = at;
  const char* least = in.min == 0 ? at : nullptr;
  const bool lazy = in.greed == RegexGreed::lazy;
  const int want = lazy ? in.min : in.max;
  // An unbounded run that starts inside a failed one ends at the same position, and so fails as well.
  const bool known = outer && remembering_ && in.max < 0 && !lazy;
  if (known && at > tried_runs_[pc].begin && at <= tried_runs_[pc].end && tried_runs_[pc].begin) return false;
  int n = 0;
  while (n != want && p != end_ && set.contains(utf8_at(p))) {
    p += utf8_length(static_cast<unsigned char>(*p));
    if (++n == in.min) least = p;
  }
  charge(static_cast<std::size_t>(n));
  if (n < in.min) return false;
  if (known) tried_runs_[pc] = {at, p};
  if (lazy) {
    if (n != in.max) stack_.push_back({.pc = pc, .position = p, .least = p, .lazy_count = n});
  } else if (p > least && !in.settled && in.greed == RegexGreed::greedy) {
    stack_.push_back({.pc = in.next, .position = utf8_before(begin_, p), .least = least});
  }
  at = p;
  return true;
}

// Backtracks to the latest choice above `base`. Returns false if there is none.
bool RegexFinder::retreat(std::size_t base, std::uint32_t& pc, const char*& at) {
  while (stack_.size() > base) {
    Choice& choice = stack_.back();
    if (choice.lazy_count >= 0) {
      const Regex::Instruction& in = regex_.code_[choice.pc];
      const char* p = choice.position;
      if (p == end_ || !regex_.sets_[in.set].contains(utf8_at(p))) {
        stack_.pop_back();
        continue;
      }
      at = choice.position = p + utf8_length(static_cast<unsigned char>(*p));
      pc = in.next;
      if (++choice.lazy_count == in.max) stack_.pop_back();
      return true;
    }
    pc = choice.pc;
    at = choice.position;
    if (choice.position > choice.least) {
      choice.position = utf8_before(begin_, choice.position);
    } else {
      stack_.pop_back();
    }
    return true;
  }
  return false;
}

}  // namespace octet::text
