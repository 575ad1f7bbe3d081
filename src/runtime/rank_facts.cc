#include "octet/runtime/rank_facts.h"

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "octet/base/timing.h"
#include "octet/comm/serialize.h"

namespace octet::runtime {
namespace {

constexpr std::size_t kMostRows = 64;

using Cells = std::vector<std::string>;

}  // namespace

std::vector<std::string> rank_table(const std::vector<RankRow>& rows, const std::vector<std::string>& more) {
  std::vector<Cells> table{{"rank", "host", "GPU", "bus", "NUMA", "free"}};
  table.front().insert(table.front().end(), more.begin(), more.end());
  const std::size_t columns = table.front().size();
  for (const RankRow& row : rows) {
    if (table.size() > kMostRows) break;
    Cells& cells =
        table.emplace_back(Cells{std::to_string(row.rank), row.host, row.gpu, row.bus.empty() ? "-" : row.bus,
                                 row.numa_node < 0 ? "-" : std::to_string(row.numa_node),
                                 human_bytes(static_cast<double>(row.free_bytes))});
    cells.insert(cells.end(), row.more.begin(), row.more.end());
    check(cells.size() == columns, "every rank has a text for every column");
  }
  std::vector<std::size_t> widths(columns, 0);
  for (const Cells& cells : table) {
    for (std::size_t c = 0; c < columns; ++c) widths[c] = std::max(widths[c], cells[c].size());
  }
  std::vector<std::string> lines;
  for (const Cells& cells : table) {
    std::string line;
    for (std::size_t c = 0; c < columns; ++c) {
      line += "  " + cells[c];
      if (c + 1 < columns) line += std::string(widths[c] - cells[c].size(), ' ');
    }
    lines.push_back(std::move(line));
  }
  if (rows.size() > kMostRows)
    lines.push_back("  … and " + std::to_string(rows.size() - kMostRows) + " more");
  return lines;
}

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
