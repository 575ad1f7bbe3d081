// Who is still there: asked over a queue of its own when a collective seems lost, so that a message names the
// ranks that did not come and not those that wait for them too.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "messages.h"

namespace octet::comm {

/// What a rank says about itself when it is asked. Travels as it lies.
struct RankReport {
  static constexpr int queues = 3;  ///< gather, reduce, control
  std::array<std::uint32_t, queues>
      begun{};  ///< collectives that it has taken part in, the one under way included
  std::array<std::uint8_t, queues> waits{};          ///< 1: one is under way
  std::uint8_t ends = 0;                             ///< 1: it has agreed to end
  std::array<std::array<char, 80>, queues> doing{};  ///< the one under way, in words
};

/// Asks and answers. Used by the communication thread alone. Ranks answer at any time, whatever they wait for
/// or compute; those that are stopped or gone do not.
class RollCall {
 public:
  using Clock = std::chrono::steady_clock;
  explicit RollCall(Transport& transport) : transport_(transport) {}

  /// Keeps the report of this rank up to date.
  void began(const Call& call, const std::string& what);
  void ended(const Call& call);

  /// Answers who has asked, takes answers. Cheap: looks a few times in a tenth of a second at most.
  void serve();

  /// Asks all ranks on behalf of this collective, unless they are being asked already.
  void ask(const Call& call);
  bool asks_for(const Call& call) const { return asking_ == &call; }
  bool asking() const { return asking_ != nullptr; }
  void forget() { asking_ = nullptr; }
  /// All have answered, or have had that long to do it.
  bool heard(std::chrono::duration<double> patience) const;
  std::chrono::duration<double> since_asked() const { return Clock::now() - asked_at_; }

  /// Ranks without which the collective that was asked for cannot go on: those that do not answer, and those
  /// that answer, have not come to it and wait in no other. When there are none of these: those that have not
  /// come and wait elsewhere. Empty: all have come.
  struct Missing {
    std::vector<int> ranks;
    std::string words;         ///< what is known of each of them
    bool lower_waits = false;  ///< a lower rank waits for something too, and will say so
  };
  Missing missing() const;
  /// Those who have come to the collective that was asked for, and wait in it.
  std::vector<int> still_in() const;

 private:
  struct Letter {
    std::uint32_t is_answer = 0;
    std::uint32_t round = 0;
    RankReport report;
  };
  struct Sent {
    Letter letter;
    int ticket = 0;
  };
  void send(int peer, bool is_answer, std::uint32_t round);
  void take(int peer);
  bool came(const RankReport& report) const;
  std::string words_of(int rank) const;

  Transport& transport_;
  RankReport own_;
  std::list<Sent> sent_;  // until they are through
  Letter arriving_;
  std::optional<std::pair<int, int>> arriving_from_;  // peer and ticket
  Clock::time_point looked_;
  bool broken_ = false;

  const Call* asking_ = nullptr;
  std::uint32_t round_ = 0;
  Clock::time_point asked_at_;
  std::vector<std::optional<RankReport>> answers_;
};

}  // namespace octet::comm
