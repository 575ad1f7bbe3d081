// The carrier that works on every system. Bytes are copied to pinned host memory, sent as messages by the
// communication thread, and copied to the device of the receiver. The thread does not call the device's
// library. It synchronises with the stream by counters in pinned memory.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu/exchange.h"
#include "gpu/peer_access.h"
#include "messages/message_set.h"

namespace octet::comm {

/// The messages between two points of a stream.
struct HostRound {
  struct Piece {
    int peer = 0;
    std::byte* data = nullptr;  ///< pinned
    std::size_t bytes = 0;
  };
  std::uint32_t number = 0;
  std::vector<Piece> out, in;
};

/// The requests of a collective's stream to the communication thread, round by round.
class HostScript {
 public:
  void add(HostRound round);
  /// Declares that no more rounds follow.
  void close();
  /// Returns the next round, or null if there is none yet. Sets `closed` if no more rounds follow.
  std::unique_ptr<HostRound> take(bool& closed);

 private:
  std::mutex mutex_;
  std::deque<HostRound> rounds_;
  bool closed_ = false;
};

class HostExchange final : public Exchange {
 public:
  /// `capacity`: bytes of one of the two sets of pinned buffers, in each direction.
  HostExchange(Device& device, PeerAccess& counters, int member, int size, std::size_t capacity);
  ~HostExchange() override;
  HostExchange(const HostExchange&) = delete;
  HostExchange& operator=(const HostExchange&) = delete;

  /// Sets the script that receives the messages of later exchanges.
  void begin(std::shared_ptr<HostScript> script) { script_ = std::move(script); }
  void exchange(Stream& stream, std::span<const Outgoing> out, std::span<const Incoming> in) override;
  bool reaches(const void*, std::size_t) const override { return true; }

  /// Runs the rounds of a script on the communication thread until the script is closed.
  Steps serve(Call& call, std::shared_ptr<HostScript> script);

  static std::size_t pinned_bytes(std::size_t capacity);

 private:
  static constexpr int sets = 2;
  /// In pinned memory. Each counter holds the number of the last round that reached its state.
  struct Counters {
    std::uint32_t left;   ///< by the stream: outgoing bytes are in pinned memory
    std::uint32_t come;   ///< by the thread: all messages are complete
    std::uint32_t taken;  ///< by the stream: incoming bytes are on the device
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
