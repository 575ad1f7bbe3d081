#include "octet/runtime/link_rates.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "octet/base/clock.h"
#include "octet/comm/serialize.h"

namespace octet::runtime {
namespace {

/// More ranks have too many pairs for each to have its turn alone.
constexpr int most_ranks_alone = 16;

/// Returns the seconds until this rank and its partner have each other's bytes.
double exchange(comm::Collectives& collectives, const std::byte* from, std::byte* to, std::size_t bytes,
                int partner) {
  Stream& stream = collectives.reduce_stream();
  const auto size = static_cast<std::int64_t>(bytes);
  const auto begin = Clock::now();
  collectives.send_receive(stream, {.name = "rate", .to = partner, .from = from, .bytes = size},
                           {.name = "rate", .from = partner, .to = to, .bytes = size});
  stream.synchronize();
  return seconds_since(begin);
}

}  // namespace

std::vector<std::vector<std::pair<int, int>>> rounds_of_pairs(int ranks, bool alone) {
  std::vector<std::vector<std::pair<int, int>>> rounds;
  const int seats = ranks + ranks % 2;  // with an odd number one seat stays empty
  for (int round = 0; round + 1 < seats; ++round) {
    if (!alone) rounds.emplace_back();
    for (int i = 0; i < seats / 2; ++i) {
      // The last seat stays, the others go round.
      const int a = i == 0 ? seats - 1 : (round + i) % (seats - 1);
      const int b = i == 0 ? round : (round + seats - 1 - i) % (seats - 1);
      if (std::max(a, b) >= ranks) continue;
      if (alone) rounds.emplace_back();
      rounds.back().emplace_back(std::min(a, b), std::max(a, b));
    }
  }
  return rounds;
}

std::vector<double> pair_rates(comm::Collectives& collectives, Device& device, std::size_t bytes, int tries) {
  const int size = collectives.size(), rank = collectives.rank();
  std::vector<double> own(static_cast<std::size_t>(size), 0.0);
  Arena arena(device);
  const auto* from = arena.reserve_as<std::byte>("rates", bytes);
  auto* to = arena.reserve_as<std::byte>("rates", bytes);
  for (const auto& round : rounds_of_pairs(size, size <= most_ranks_alone)) {
    const auto mine = std::ranges::find_if(
        round, [&](const std::pair<int, int>& pair) { return pair.first == rank || pair.second == rank; });
    const int partner = mine == round.end() ? -1 : mine->first == rank ? mine->second : mine->first;
    for (int i = 0; i <= tries; ++i) {
      collectives.channel().barrier();
      if (partner < 0) continue;
      const double seconds = exchange(collectives, from, to, bytes, partner);
      double& best = own[static_cast<std::size_t>(partner)];
      if (i > 0) best = std::max(best, static_cast<double>(bytes) / std::max(seconds, 1e-9));
    }
  }
  std::vector<double> all;
  for (const std::vector<double>& row : comm::all_gather_value(collectives.channel(), own)) {
    all.insert(all.end(), row.begin(), row.end());
  }
  // A pass is through when both have come through it.
  const auto ranks = static_cast<std::size_t>(size);
  for (std::size_t a = 0; a < ranks; ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      double& there = all[a * ranks + b];
      double& back = all[b * ranks + a];
      there = back = std::min(there, back);
    }
  }
  return all;
}

}  // namespace octet::runtime
