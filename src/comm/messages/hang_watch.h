// Watches collectives under way for hangs, and names the ranks that are missing from one.
#pragma once

#include <boost/serialization/map.hpp>
#include <boost/serialization/string.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "messages/message_set.h"
#include "messages/transport.h"
#include "octet/base/timing.h"
#include "octet/comm/job.h"

namespace octet::comm {

/// One collective of a rank.
struct Trace {
  Kind kind{};
  std::string name;
  std::string queue;  ///< the name of its lane
  unsigned sequence = 0;
  std::int64_t bytes = 0;
  double posted = 0, begun = -1, done = -1;  ///< seconds since the ring was made; negative: not yet
};

/// The latest collectives of a rank. Thread-safe.
class TraceRing {
 public:
  static constexpr std::size_t length = 1024;

  /// Sets the folder for write() and lets SIGQUIT request a write. Empty folder: nothing is written.
  void open(const std::string& folder, int rank);
  /// Records an enqueued collective and returns its number.
  std::uint64_t posted(Trace trace);
  void begun(std::uint64_t which);
  void done(std::uint64_t which);

  std::string to_json() const;
  /// Writes collectives-rank<r>.json. A file that cannot be written is a warning.
  void write() const;
  /// Returns whether SIGQUIT arrived since the last call.
  static bool take_request();

 private:
  double now() const;

  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  mutable std::mutex mutex_;
  std::uint64_t count_ = 0;
  std::vector<Trace> ring_;
  std::string folder_;
  int rank_ = 0;
};

/// State of one lane of a rank.
struct LaneReport {
  std::string lane;            ///< its name
  int queue = 0;               ///< purpose of the lane
  unsigned begun = 0;          ///< collectives that the rank has begun, including the current one
  bool waits = false;          ///< a collective or a message between two ranks is under way
  bool paired = false;         ///< it is a message between two ranks
  std::string doing;           ///< the current collective, in words
  std::vector<int> waits_for;  ///< ranks of the job that block it; filled some time after its last progress
  template <typename Archive>
  void serialize(Archive& archive, unsigned) {
    archive& lane& queue& begun& waits& paired& doing& waits_for;
  }
};

/// State of a rank.
struct RankReport {
  std::map<int, LaneReport> lanes;  ///< lanes of data and of channels, by number
  bool ends = false;                ///< the rank has agreed to end
  bool waits() const;
  /// Returns the report of that lane; null if nothing has begun on it.
  const LaneReport* on(int lane) const;
  template <typename Archive>
  void serialize(Archive& archive, unsigned) {
    archive& lanes& ends;
  }
};

/// Finds the ranks that are missing from a collective that seems lost. Queries the ranks over a separate
/// lane. Ranks answer at any time, even while they wait or compute. Ranks that are stopped or gone do not
/// answer. Used by the thread that serves.
class RollCall {
 public:
  /// `lane` includes all ranks.
  RollCall(Transport& transport, const Lane& lane) : transport_(transport), lane_(lane) {}

  /// Updates the report of this rank.
  void began(const Call& call, const std::string& what);
  void ended(const Call& call);
  /// Reports the ranks that block this call (Call::missing_ranks). Empty: it progresses.
  void waits_for(const Call& call, std::vector<int> ranks);

  /// Answers queries and receives answers. Cheap: it polls at most a few times per 0.1 s.
  void serve();

  /// Queries all ranks that take part in this collective. Does nothing if a query is already under way.
  void ask(const Call& call);
  bool asks_for(const Call& call) const { return asking_ == &call; }
  bool asking() const { return asking_ != nullptr; }
  void forget() { asking_ = nullptr; }
  /// Returns true if all ranks have answered or `patience` has passed since the query.
  bool heard(std::chrono::duration<double> patience) const;
  std::chrono::duration<double> since_asked() const { return Clock::now() - asked_at_; }

  /// Ranks of the job that block the queried collective: ranks that do not answer, and ranks that answer,
  /// have not begun it and wait in no other collective. If there are none, the ranks that have not begun it
  /// and wait elsewhere. Empty: all ranks have begun it.
  struct Missing {
    std::vector<int> ranks;
    std::string words;         ///< the known state of each rank
    bool lower_waits = false;  ///< a lower rank also waits and will print the message
  };
  Missing missing() const;
  /// Returns the ranks that block `waited_for`. All of them have begun the queried collective. A rank of
  /// `waited_for` may wait for other ranks itself, if messages are sent in rounds or forwarded. The result
  /// has the ranks at the ends of these chains. If the chains end in a circle, it has the ranks of the
  /// circle.
  std::vector<int> blocking(const std::vector<int>& waited_for) const;
  /// Returns the ranks that have begun the queried collective and wait in it.
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
  const LaneReport* report_of_waiting(int rank) const;
  std::string words_of(int rank) const;

  Transport& transport_;
  const Lane& lane_;
  RankReport own_;
  std::list<Sent> sent_;  // until they are sent
  std::string arriving_;
  std::optional<std::pair<int, int>> arriving_from_;  // peer and ticket
  Clock::time_point looked_;
  bool broken_ = false;

  const Call* asking_ = nullptr;
  unsigned round_ = 0;
  Clock::time_point asked_at_;
  std::map<int, std::optional<RankReport>> answers_;  // of the queried ranks, by rank of the job
};

/// One collective under way. `call` is declared before `steps`, which refer to it.
struct Operation {
  std::string what;        ///< for messages: "reduce_scatter 'block 3'"
  std::int64_t bytes = 0;  ///< size of one slice, or of the whole buffer if there are no slices
  std::uint64_t traced = 0;
  Call call;
  Steps steps;
  std::optional<std::chrono::steady_clock::time_point> moved;  ///< start or latest progress
  std::chrono::steady_clock::time_point noted;  ///< when the ranks that block it were last reported
  std::int64_t seen = 0;                        ///< completed messages at the latest progress
  bool all_came = false;  ///< a query found that all ranks take part, and nothing has moved since then
};

/// Records the progress of operations. If nothing moves in an operation for the timeout, queries the other
/// ranks, so that the error names the missing ranks and not the ranks that wait for them. set() and traces()
/// are thread-safe. Only the thread that serves calls the other functions.
class HangWatch {
 public:
  /// `lane` includes all ranks. Both arguments must outlive this object. Nothing is watched before set(),
  /// except for the default timeout of 600 s.
  HangWatch(Transport& transport, const Lane& lane);

  /// Sets the timeout (0: not watched) and the folder of traces.
  void set(const WatchOptions& options);
  TraceRing& traces() { return traces_; }

  /// Records the begin of an operation.
  void began(Operation& operation);
  /// Records that a message of the operation is complete, or the whole operation.
  void moved(Operation& operation, bool finished);
  /// Called when a poll has found nothing new. Throws Error with exit code 75 if nothing has moved for the
  /// timeout, and the other ranks have answered or had time to answer.
  void waits(Operation& operation);
  /// Answers queries of other ranks, and writes the traces if SIGQUIT requested it.
  void serve();

 private:
  void look_for_the_missing(Operation& operation, double seconds);

  RollCall roll_;
  int rank_;
  TraceRing traces_;
  std::atomic<double> timeout_seconds_{600};
};

}  // namespace octet::comm
