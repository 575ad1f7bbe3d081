// Who is still there: asked over a lane of its own when a collective seems lost, so that a message names the
// ranks that did not come and not those that wait for them too.
#pragma once

#include <boost/serialization/map.hpp>
#include <boost/serialization/string.hpp>
#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "messages.h"

namespace octet::comm {

/// What a rank says about one of its lanes when it is asked.
struct LaneReport {
  std::string lane;     ///< its name
  int queue = 0;        ///< what it is for
  unsigned begun = 0;   ///< collectives that the rank has taken part in, the one under way included
  bool waits = false;   ///< one is under way, or a message between two ranks
  bool paired = false;  ///< it is the latter
  std::string doing;    ///< the one under way, in words
  template <typename Archive>
  void serialize(Archive& archive, unsigned) {
    archive& lane& queue& begun& waits& paired& doing;
  }
};

struct RankReport {
  std::map<int, LaneReport> lanes;  ///< those of data and of channels, by number
  bool ends = false;                ///< it has agreed to end
  bool waits() const;
  /// Of that lane; null where there was nothing on it yet.
  const LaneReport* on(int lane) const;
  template <typename Archive>
  void serialize(Archive& archive, unsigned) {
    archive& lanes& ends;
  }
};

/// Asks and answers. Used by whoever serves. Ranks answer at any time, whatever they wait for
/// or compute; those that are stopped or gone do not.
class RollCall {
 public:
  using Clock = std::chrono::steady_clock;
  /// `lane` is one of all ranks.
  RollCall(Transport& transport, const Lane& lane) : transport_(transport), lane_(lane) {}

  /// Keeps the report of this rank up to date.
  void began(const Call& call, const std::string& what);
  void ended(const Call& call);

  /// Answers who has asked, takes answers. Cheap: looks a few times in a tenth of a second at most.
  void serve();

  /// Asks all ranks that take part in this collective, unless some are being asked already.
  void ask(const Call& call);
  bool asks_for(const Call& call) const { return asking_ == &call; }
  bool asking() const { return asking_ != nullptr; }
  void forget() { asking_ = nullptr; }
  /// All have answered, or have had that long to do it.
  bool heard(std::chrono::duration<double> patience) const;
  std::chrono::duration<double> since_asked() const { return Clock::now() - asked_at_; }

  /// Ranks of the job without which the collective that was asked for cannot go on: those that do not answer,
  /// and those that answer, have not come to it and wait in no other. When there are none of these: those
  /// that have not come and wait elsewhere. Empty: all have come.
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
    bool is_answer = false;
    unsigned round = 0;
    RankReport report;
    template <typename Archive>
    void serialize(Archive& archive, unsigned) {
      archive& is_answer& round& report;
    }
  };
  struct Sent {
    std::string bytes;
    int ticket = 0;
  };
  void send(int peer, bool is_answer, unsigned round);
  void take(int peer);
  bool came(const RankReport& report) const;
  std::string words_of(int rank) const;

  Transport& transport_;
  const Lane& lane_;
  RankReport own_;
  std::list<Sent> sent_;  // until they are through
  std::string arriving_;
  std::optional<std::pair<int, int>> arriving_from_;  // peer and ticket
  Clock::time_point looked_;
  bool broken_ = false;

  const Call* asking_ = nullptr;
  unsigned round_ = 0;
  Clock::time_point asked_at_;
  std::map<int, std::optional<RankReport>> answers_;  // by rank of the job, of those who were asked
};

}  // namespace octet::comm
