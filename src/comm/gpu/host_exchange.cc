#include "gpu/host_exchange.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "octet/base/error.h"

namespace octet::comm {
namespace {

constexpr std::size_t counter_bytes = 256;

std::uint32_t value_of(std::uint32_t& counter) {
  return std::atomic_ref<std::uint32_t>(counter).load(std::memory_order_acquire);
}
bool reached_round(std::uint32_t& counter, std::uint32_t round) {
  return static_cast<std::int32_t>(value_of(counter) - round) >= 0;
}

/// Returns the largest number of bytes of a piece per round, so that a round has room for every piece of a
/// peer. Both sides of a pair know the number of their pieces, so they split them alike.
template <typename Piece>
std::size_t limit_of(std::span<const Piece> pieces, int peer, std::size_t budget) {
  const auto count = std::ranges::count_if(pieces, [&](const Piece& p) { return p.peer == peer; });
  return budget / static_cast<std::size_t>(count) / 256 * 256;
}

}  // namespace

void HostScript::add(HostRound round) {
  const std::scoped_lock lock(mutex_);
  rounds_.push_back(std::move(round));
}

void HostScript::close() {
  const std::scoped_lock lock(mutex_);
  closed_ = true;
}

std::unique_ptr<HostRound> HostScript::take(bool& closed) {
  const std::scoped_lock lock(mutex_);
  closed = rounds_.empty() && closed_;
  if (rounds_.empty()) return nullptr;
  auto first = std::make_unique<HostRound>(std::move(rounds_.front()));
  rounds_.pop_front();
  return first;
}

std::size_t HostExchange::pinned_bytes(std::size_t capacity) {
  return 2 * sets * capacity + counter_bytes;
}

HostExchange::HostExchange(Device& device, PeerAccess& counters, int, int size, std::size_t capacity)
    : device_(device),
      counters_of_(counters),
      size_(size),
      capacity_(capacity),
      memory_(static_cast<std::byte*>(device.allocate_host(pinned_bytes(capacity)))),
      counters_(reinterpret_cast<Counters*>(memory_ + 2 * sets * capacity)) {}

HostExchange::~HostExchange() {
  device_.release_host(memory_, pinned_bytes(capacity_));
}

void HostExchange::take_in(Stream& stream, std::uint32_t round, const std::vector<Copy>& copies) {
  counters_of_.wait(stream, &counters_->come, round);
  for (const Copy& copy : copies) device_.copy_to_device(stream, copy.device, copy.host, copy.bytes);
  counters_of_.write(stream, &counters_->taken, round);
}

void HostExchange::exchange(Stream& stream, std::span<const Outgoing> out, std::span<const Incoming> in) {
  check(script_ != nullptr, "an exchange over the host belongs to a collective");
  const std::size_t budget = capacity_ / static_cast<std::size_t>(std::max(1, size_ - 1));
  std::vector<std::size_t> out_limit, in_limit;
  std::size_t rounds = 0;
  const auto limits = [&](const auto& pieces, std::vector<std::size_t>& to) {
    for (const auto& piece : pieces) {
      to.push_back(limit_of(pieces, piece.peer, budget));
      check(to.back() > 0, "pinned memory holds a part of every piece");
      rounds = std::max(rounds, (piece.bytes + to.back() - 1) / to.back());
    }
  };
  limits(out, out_limit);
  limits(in, in_limit);
  // Round r moves the r-th part of every piece. Received parts are copied to the device after the next round
  // is enqueued.
  std::vector<Copy> before;
  for (std::size_t r = 0; r < rounds; ++r) {
    HostRound round{.number = ++round_, .out = {}, .in = {}};
    std::byte* set = memory_ + (round_ % sets) * 2 * capacity_;
    const auto part = [&](std::size_t bytes, std::size_t limit) {
      return r * limit < bytes ? std::min(limit, bytes - r * limit) : std::size_t{0};
    };
    if (round_ > sets) counters_of_.wait(stream, &counters_->come, round_ - sets);
    std::byte* at = set;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::size_t bytes = part(out[i].bytes, out_limit[i]);
      if (bytes == 0) continue;
      device_.copy_to_host(stream, at, static_cast<const std::byte*>(out[i].from) + r * out_limit[i], bytes);
      round.out.push_back({out[i].peer, at, bytes});
      at += out_limit[i];
    }
    counters_of_.write(stream, &counters_->left, round_);
    std::vector<Copy> copies;
    at = set + capacity_;
    for (std::size_t i = 0; i < in.size(); ++i) {
      const std::size_t bytes = part(in[i].bytes, in_limit[i]);
      if (bytes == 0) continue;
      copies.push_back({static_cast<std::byte*>(in[i].to) + r * in_limit[i], at, bytes});
      round.in.push_back({in[i].peer, at, bytes});
      at += in_limit[i];
    }
    script_->add(std::move(round));
    if (r > 0) take_in(stream, round_ - 1, before);
    before = std::move(copies);
  }
  if (rounds > 0) take_in(stream, round_, before);
}

Steps HostExchange::serve(Call& call, std::shared_ptr<HostScript> script) {
  for (;;) {
    bool closed = false;
    const std::unique_ptr<HostRound> round = script->take(closed);
    if (closed) co_return;
    if (round == nullptr) {
      co_await pause;
      continue;
    }
    while (!reached_round(counters_->taken, round->number - sets))
      co_await pause;  // true for the first rounds
    Messages messages(call);
    for (const auto& piece : round->in) messages.receive(piece.peer, piece.data, piece.bytes);
    while (!reached_round(counters_->left, round->number)) co_await pause;
    for (const auto& piece : round->out) messages.send(piece.peer, piece.data, piece.bytes);
    while (!messages.complete()) co_await pause;
    std::atomic_ref<std::uint32_t>(counters_->come).store(round->number, std::memory_order_release);
  }
}

}  // namespace octet::comm
