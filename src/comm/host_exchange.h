// The carrier that works anywhere: bytes go to pinned memory of the host, travel as messages that the
// communication thread makes, and go to the device on the other side. The thread makes no call of the
// device's library: it and the stream meet by counters in pinned memory.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "exchange.h"
#include "messages.h"
#include "peer_access.h"
#include "steps.h"

namespace octet::comm {

/// Messages between two points of a stream.
struct HostRound {
  struct Piece {
    int peer = 0;
    std::byte* data = nullptr;  ///< pinned
    std::size_t bytes = 0;
  };
  std::uint32_t number = 0;
  std::vector<Piece> out, in;
};

/// What the stream of a collective asks of the communication thread, round after round.
class HostScript {
 public:
  void add(HostRound round);
  /// There will be no more.
  void close();
  /// The next round, if there is one yet; `closed` when there will be none.
  std::unique_ptr<HostRound> take(bool& closed);

 private:
  std::mutex mutex_;
  std::deque<HostRound> rounds_;
  bool closed_ = false;
};

class HostExchange final : public Exchange {
 public:
  /// `capacity`: bytes of one of the two sets of pinned buffers, each way.
  HostExchange(Device& device, PeerAccess& counters, int member, int size, std::size_t capacity);
  ~HostExchange() override;
  HostExchange(const HostExchange&) = delete;
  HostExchange& operator=(const HostExchange&) = delete;

  /// Messages of the exchanges that follow are asked of this script.
  void begin(std::shared_ptr<HostScript> script) { script_ = std::move(script); }
  void exchange(Stream& stream, std::span<const Outgoing> out, std::span<const Incoming> in) override;
  bool reaches(const void*, std::size_t) const override { return true; }

  /// What the communication thread does: the rounds of a script, until it is closed.
  Steps serve(Call& call, std::shared_ptr<HostScript> script);

  static std::size_t pinned_bytes(std::size_t capacity);

 private:
  static constexpr int sets = 2;
  /// In pinned memory, each the number of the last round for which it holds.
  struct Counters {
    std::uint32_t left;   ///< by the stream: what goes out lies in pinned memory
    std::uint32_t come;   ///< by the thread: all messages are through
    std::uint32_t taken;  ///< by the stream: what came in lies on the device
  };
  struct Copy {
    void* device = nullptr;
    std::byte* host = nullptr;
    std::size_t bytes = 0;
  };
  void take_in(Stream& stream, std::uint32_t round, const std::vector<Copy>& copies);

  Device& device_;
  PeerAccess& counters_of_;
  int size_;
  std::size_t capacity_;
  std::byte* memory_;
  Counters* counters_;
  std::uint32_t round_ = 0;
  std::shared_ptr<HostScript> script_;
};

}  // namespace octet::comm
