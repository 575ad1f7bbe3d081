#include "messages/rounds.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "octet/base/index.h"
#include "octet/ops/wire.h"

namespace octet::comm {
namespace {

/// Returns the rank `distance` after this rank; rank 0 follows the last rank.
int rank_after(const Place& place, int distance) {
  return (place.rank + distance) % place.size;
}
int rank_before(const Place& place, int distance) {
  return (place.rank - distance + place.size) % place.size;
}

}  // namespace

std::vector<Round> rounds_of(int size) {
  std::vector<Round> rounds;
  const auto others = static_cast<unsigned>(size - 1);
  int held = 0;
  for (int bit = std::bit_width(others) - 1; bit >= 0; --bit) {
    rounds.push_back({.held = held, .own = (others >> bit & 1u) != 0});
    held += rounds.back().count();
  }
  return rounds;
}

std::vector<std::int64_t> equal_slices(int size, std::int64_t bytes) {
  std::vector<std::int64_t> starts;
  for (int rank = 0; rank <= size; ++rank) starts.push_back(rank * bytes);
  return starts;
}

Steps gather_in_rounds_steps(Call& call, std::byte* buffer, std::vector<std::int64_t> starts) {
  const Place& place = call.place();
  // Slices of consecutive ranks are one message, or two if rank 0 is among them after other ranks.
  const auto each_run = [&](int first, int count, auto&& act) {
    const int until_end = std::min(count, place.size - first);
    for (const auto& [from, to] : {std::pair(first, first + until_end), std::pair(0, count - until_end)}) {
      act(buffer + starts[index(from)], static_cast<std::size_t>(starts[index(to)] - starts[index(from)]));
    }
  };
  Messages messages(call);
  for (const Round& round : rounds_of(place.size)) {
    const int from = rank_after(place, round.distance()), to = rank_before(place, round.distance());
    each_run(rank_after(place, round.held + 1), round.count(),
             [&](std::byte* at, std::size_t bytes) { messages.receive(from, at, bytes); });
    each_run(rank_after(place, round.own ? 0 : 1), round.count(),
             [&](std::byte* at, std::size_t bytes) { messages.send(to, at, bytes); });
    while (!messages.complete()) co_await pause;
  }
}

Steps exchange_in_rounds_steps(Call& call, std::byte* blocks, std::size_t bytes) {
  const Place& place = call.place();
  const std::size_t size = index(place.size);
  // Block j is for the rank j after this rank. In the round of bit b, each block with this bit in j is sent
  // 2^b ranks further.
  std::vector<std::byte> by_distance(size * bytes), out, in;
  for (std::size_t j = 0; j < size; ++j)
    std::memcpy(&by_distance[j * bytes], blocks + index(rank_after(place, static_cast<int>(j))) * bytes,
                bytes);
  Messages messages(call);
  for (std::size_t step = 1; step < size; step *= 2) {
    out.clear();
    for (std::size_t j = step; j < size; ++j) {
      const std::byte* const block = &by_distance[j * bytes];
      if ((j & step) != 0) out.insert(out.end(), block, block + bytes);
    }
    in.resize(out.size());
    messages.receive(rank_before(place, static_cast<int>(step)), in.data(), in.size());
    messages.send(rank_after(place, static_cast<int>(step)), out.data(), out.size());
    while (!messages.complete()) co_await pause;
    const std::byte* next = in.data();
    for (std::size_t j = step; j < size; ++j) {
      if ((j & step) == 0) continue;
      std::memcpy(&by_distance[j * bytes], next, bytes);
      next += bytes;
    }
  }
  for (std::size_t j = 0; j < size; ++j)
    std::memcpy(blocks + index(rank_before(place, static_cast<int>(j))) * bytes, &by_distance[j * bytes],
                bytes);
}

namespace {

bool is_ordered(const ReducedValues& values) {
  return values.how == ops::Combine::sum_f64;
}
std::size_t bytes_of(const ReducedValues& values) {
  return static_cast<std::size_t>(values.count) * ops::element_bytes(values.how);
}
std::size_t bytes_of(const std::vector<ReducedValues>& values, bool ordered) {
  std::size_t bytes = 0;
  for (const ReducedValues& some : values) bytes += is_ordered(some) == ordered ? bytes_of(some) : 0;
  return bytes;
}

/// Returns the maximum, independent of the order: NaN wins, and 0 is above -0.
float larger(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<float>::quiet_NaN();
  if (a == b) return std::signbit(a) ? b : a;
  return a < b ? b : a;
}
std::int64_t wrapped_sum(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

/// into[i] = two(into[i], from[i]). The addresses need no alignment.
template <typename T>
void combine_each(std::byte* into, const std::byte* from, std::int64_t count, T (*two)(T, T)) {
  for (std::int64_t i = 0; i < count; ++i, into += sizeof(T), from += sizeof(T)) {
    T a, b;
    std::memcpy(&a, into, sizeof a);
    std::memcpy(&b, from, sizeof b);
    a = two(a, b);
    std::memcpy(into, &a, sizeof a);
  }
}

// Exact values (maxima, integers) are combined on the way. Doubles are kept by rank and added in rank order
// at the end.
class ReductionInRounds {
 public:
  ReductionInRounds(const Place& place, const std::vector<ReducedValues>& values)
      : place_(place),
        values_(values),
        exact_bytes_(bytes_of(values, false)),
        slice_bytes_(bytes_of(values, true)),
        slices_(slice_bytes_ * index(place.size)) {
    for (const ReducedValues& some : values_) {
      const auto* bytes = static_cast<const std::byte*>(some.values);
      if (is_ordered(some)) continue;
      own_.insert(own_.end(), bytes, bytes + bytes_of(some));
    }
    std::size_t at = 0;
    for (const ReducedValues& some : values_) {
      if (!is_ordered(some) || some.count == 0) continue;
      std::memcpy(slices_.data() + at, some.values, bytes_of(some));
      at += bytes_of(some);
    }
  }

  void post(Messages& messages, const Round& round) {
    const std::size_t bytes = exact_bytes_ + index(round.count()) * slice_bytes_;
    in_.resize(bytes);
    messages.receive(rank_after(place_, round.distance()), in_.data(), bytes);
    out_ = round.own ? with_own() : others_;
    const std::byte* slices = slices_.data() + (round.own ? 0 : slice_bytes_);
    out_.insert(out_.end(), slices, slices + (bytes - exact_bytes_));
    messages.send(rank_before(place_, round.distance()), out_.data(), bytes);
  }

  void take(const Round& round) {
    if (round.held == 0) {
      others_.assign(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(exact_bytes_));
    } else {
      combine_exact(others_.data(), in_.data());
    }
    std::copy(in_.begin() + static_cast<std::ptrdiff_t>(exact_bytes_), in_.end(),
              slices_.begin() + static_cast<std::ptrdiff_t>(index(round.held + 1) * slice_bytes_));
  }

  void finish() {
    const std::vector<std::byte> exact = with_own();
    std::size_t at_exact = 0, at_slice = 0;
    for (const ReducedValues& some : values_) {
      if (some.count == 0) continue;
      if (is_ordered(some)) {
        add_in_rank_order(some, at_slice);
        at_slice += bytes_of(some);
      } else {
        std::memcpy(some.values, exact.data() + at_exact, bytes_of(some));
        at_exact += bytes_of(some);
      }
    }
  }

 private:
  std::vector<std::byte> with_own() const {
    std::vector<std::byte> all = own_;
    if (!others_.empty()) combine_exact(all.data(), others_.data());
    return all;
  }
  void combine_exact(std::byte* into, const std::byte* from) const {
    for (const ReducedValues& some : values_) {
      if (is_ordered(some)) continue;
      if (some.how == ops::Combine::max_f32) combine_each(into, from, some.count, larger);
      if (some.how == ops::Combine::sum_i64) combine_each(into, from, some.count, wrapped_sum);
      into += bytes_of(some), from += bytes_of(some);
    }
  }
  void add_in_rank_order(const ReducedValues& some, std::size_t at) const {
    std::vector<const void*> parts;
    for (int rank = 0; rank < place_.size; ++rank) {
      const int distance = (rank - place_.rank + place_.size) % place_.size;
      parts.push_back(slices_.data() + index(distance) * slice_bytes_ + at);
    }
    ops::combine_parts({.how = some.how, .parts = parts, .to = some.values, .count = some.count});
  }

  const Place& place_;
  std::vector<ReducedValues> values_;
  std::size_t exact_bytes_;
  std::size_t slice_bytes_;
  std::vector<std::byte> own_;     // exact values of this rank
  std::vector<std::byte> others_;  // exact values of the ranks after it, combined
  std::vector<std::byte> slices_;  // [size, slice_bytes_]: doubles by the distance of their rank
  std::vector<std::byte> in_, out_;
};

}  // namespace

bool reduces_in_rounds(const Place& place, const std::vector<ReducedValues>& values) {
  // Between few ranks of several nodes, messages by node cross the network once.
  if (place.nodes > 1 && place.size <= most_direct_ranks_of_slices) return false;
  return in_rounds(place.size, static_cast<std::int64_t>(bytes_of(values, false))) &&
         in_rounds(place.size, static_cast<std::int64_t>(bytes_of(values, true)) * place.size);
}

Steps all_reduce_in_rounds_steps(Call& call, std::vector<ReducedValues> values) {
  ReductionInRounds reduction(call.place(), values);
  Messages messages(call);
  for (const Round& round : rounds_of(call.place().size)) {
    reduction.post(messages, round);
    while (!messages.complete()) co_await pause;
    reduction.take(round);
  }
  reduction.finish();
}

}  // namespace octet::comm
