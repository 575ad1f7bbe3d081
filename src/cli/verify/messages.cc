// What ranks send each other.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>

#include "octet/base/strings.h"
#include "octet/comm/collectives.h"
#include "octet/comm/mesh.h"
#include "octet/runtime/link_rates.h"
#include "octet/setup/setup.h"
#include "verify/checks.h"

namespace octet::cli {

using Clock = std::chrono::steady_clock;

std::string check_messages(runtime::Session& session) {
  comm::Collectives& data = session.data();
  if (data.size() == 1) return "none are needed";
  Device& device = session.device();
  constexpr std::int64_t kCount = 1 << 20;
  const int size = data.size();
  Arena arena(device);
  auto* from = arena.reserve_as<float>("verify", static_cast<std::size_t>(kCount * size));
  auto* to = arena.reserve_as<float>("verify", kCount);
  std::vector<float> host(static_cast<std::size_t>(kCount * size), static_cast<float>(data.rank() + 1));
  Stream& stream = data.reduce_stream();
  const auto stream_of_copies = device.make_stream({.name = "verify"});
  device.copy_to_device(*stream_of_copies, from, host.data(), host.size() * sizeof(float));
  stream_of_copies->synchronize();
  session.job().barrier();
  const auto start = Clock::now();
  data.reduce_scatter(stream, {.name = "verify", .from = from, .to = to, .count = kCount});
  stream.synchronize();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  device.copy_to_host(*stream_of_copies, host.data(), to, kCount * sizeof(float));
  stream_of_copies->synchronize();
  const float expected = static_cast<float>(size) * static_cast<float>(size + 1) / 2;
  session.job().together([&] {
    const auto wrong = std::ranges::find_if(host.begin(), host.begin() + kCount,
                                            [expected](float found) { return found != expected; });
    if (wrong == host.begin() + kCount) return;
    throw failed("ranks add up wrongly", std::to_string(expected), std::to_string(*wrong),
                 "try another carrier (gpu_transport=host), and look at the network");
  });
  return "sums agree, " + per_second(static_cast<double>(kCount) * sizeof(float) * (size - 1), seconds) +
         " from each rank";
}

// Choosing a carrier sent a pattern through every link of a host and took the time of a larger message.
std::string check_carrier(runtime::Session& session) {
  const std::vector<std::string> all = session.job().all_gather_bytes(session.data().carrier());
  std::string text;
  session.job().together([&] {
    const auto none = std::ranges::find(all, "");
    if (none == all.end() || session.place().rank != 0) return;
    throw failed("nothing carries the bytes of a rank", "a carrier",
                 "none on rank " + std::to_string(none - all.begin()), "leave gpu_transport at auto");
  });
  for (std::size_t r = 0; r < all.size(); ++r) {
    text += (r == 0 ? "rank " : "; rank ") + std::to_string(r) + " " + all[r];
  }
  const bool alike = std::ranges::all_of(all, [&](const std::string& one) { return one == all.front(); });
  return alike ? all.front() + " on every rank" : text;
}

namespace {

/// A row for each rank, of what it sends every other one.
std::string table_of(const std::vector<double>& rates, int size) {
  std::string text = "\n              rank";
  const auto cell = [&](const std::string& word) {
    text += std::string(8 - std::min<std::size_t>(7, word.size()), ' ') + word;
  };
  for (int to = 0; to < size; ++to) cell(std::to_string(to));
  for (int from = 0; from < size; ++from) {
    std::array<char, 32> row{};
    std::snprintf(row.data(), row.size(), "\n              %4d", from);
    text += row.data();
    for (int to = 0; to < size; ++to) {
      std::array<char, 32> rate{};
      std::snprintf(rate.data(), rate.size(), "%.2f",
                    1e-9 * rates[static_cast<std::size_t>(from) * static_cast<std::size_t>(size) +
                                 static_cast<std::size_t>(to)]);
      cell(from == to ? "-" : rate.data());
    }
  }
  return text;
}

}  // namespace

// Every carrier that there can be is tried, whichever one a run would take.
std::string check_links(runtime::Session& session) {
  comm::Job& job = session.job();
  Device& device = session.device();
  const bool gpus = device.kind() == DeviceKind::cuda;
  constexpr int kTries = 3;
  const std::size_t bytes = std::size_t{gpus ? 64u : 4u} << 20;
  std::string text = "GB/s between every two ranks, both ways at once, messages of " +
                     human_bytes(static_cast<double>(bytes));
  const auto rates_of = [&](comm::Collectives& collectives) {
    return table_of(runtime::pair_rates(collectives, device, bytes, kTries), collectives.size());
  };
  if (!gpus) return text + "\n              MPI" + rates_of(session.data());
  const comm::Mesh mesh(job.size());
  for (const char* transport : {"peer", "nccl", "host"}) {
    text += "\n              " + std::string(transport);
    try {
      const auto collectives =
          job.collectives(mesh.group("data", job.rank()), device, setup::carrier_of(transport));
      text += rates_of(*collectives);
    } catch (const Error& error) {  // agreed upon: all ranks have it
      text +=
          " does not work: " + (error.problem().found.empty() ? error.problem().what : error.problem().found);
    }
  }
  return text;
}

}  // namespace octet::cli
