// All ranks of a job in one thread: the collectives over messages run as in a job, and their messages, bytes,
// rounds and partners are counted. A thousand ranks need no thousand threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "messages/message_set.h"
#include "messages/transport.h"

namespace octet::comm {

/// Messages of one rank.
struct MessageCounts {
  std::int64_t messages = 0;     ///< sent
  std::int64_t bytes = 0;        ///< sent
  std::int64_t small_bytes = 0;  ///< of these, in messages of less than `small_message` bytes
  int rounds = 0;                ///< messages in the longest chain of messages that ends at this rank
  std::set<int> peers = {};      ///< ranks that it sent to or received from
};
inline constexpr std::size_t small_message = std::size_t{64} << 10;

/// Counts a message of a rank.
inline void count_sent(MessageCounts& counts, int peer, std::size_t bytes) {
  ++counts.messages;
  counts.bytes += static_cast<std::int64_t>(bytes);
  if (bytes < small_message) counts.small_bytes += static_cast<std::int64_t>(bytes);
  counts.peers.insert(peer);
}

/// Returns the place of a rank, with `per_node` consecutive ranks on each node. 0: all are on one node.
inline Place place_of_rank(int rank, int size, int per_node) {
  Place place{.rank = rank, .size = size, .host = "this process"};
  std::vector<int> node_of;
  for (int r = 0; r < size; ++r) node_of.push_back(per_node == 0 ? 0 : r / per_node);
  set_nodes(place, node_of);
  return place;
}

/// The ranks of a job, their messages and counts. Messages are copied when both sides have posted them, and a
/// send is complete only then.
class CountedRanks {
 public:
  explicit CountedRanks(int size, int per_node = 0) : arrivals_(static_cast<std::size_t>(size)) {
    for (int rank = 0; rank < size; ++rank) {
      ranks_.push_back(std::make_unique<Rank>(*this, place_of_rank(rank, size, per_node)));
    }
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  Transport& transport(int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  const MessageCounts& counts(int rank) const { return ranks_[static_cast<std::size_t>(rank)]->counts; }
  /// Returns the largest value of each count over the ranks, and the partners of one of them.
  MessageCounts most() const {
    MessageCounts most;
    for (const auto& rank : ranks_) {
      const MessageCounts& its = rank->counts;
      most.messages = std::max(most.messages, its.messages);
      most.bytes = std::max(most.bytes, its.bytes);
      most.small_bytes = std::max(most.small_bytes, its.small_bytes);
      most.rounds = std::max(most.rounds, its.rounds);
      if (its.peers.size() > most.peers.size()) most.peers = its.peers;
    }
    return most;
  }
  void reset_counts() {
    for (const auto& rank : ranks_) rank->counts = {};
  }
  /// Makes the next message between two ranks disappear: both sides wait forever.
  void lose_message(int from, int to) { lost_ = {from, to}; }
  /// Makes the ranks advance in another order, drawn from `seed`.
  void shuffle(std::uint64_t seed) { seed_ = seed; }

  /// A collective of every rank. start(rank, call) returns its coroutine.
  using Start = std::function<Steps(int rank, Call& call)>;
  /// Runs one collective on all ranks until it is complete on each. Throws std::runtime_error if no message
  /// moves any more.
  void run(const Start& start) { run_all({start}); }
  /// Runs several collectives, one after the other on each rank. A fast rank may be ahead of slow ranks.
  void run_all(const std::vector<Start>& starts) {
    const std::vector<std::unique_ptr<Work>> works = begin(starts);
    std::vector<Work*> open;
    for (const auto& work : works) open.push_back(work.get());
    std::mt19937_64 random(seed_);
    while (!open.empty()) {
      if (seed_ != 0) std::shuffle(open.begin(), open.end(), random);
      const std::int64_t before = moved_;
      const std::size_t ranks = open.size();
      std::erase_if(open, [](Work* work) { return work->advance(); });
      if (moved_ == before && open.size() == ranks) {
        throw std::runtime_error(std::to_string(ranks) + " ranks wait for each other");
      }
    }
  }

 private:
  struct Message {
    const void* from = nullptr;
    void* to = nullptr;
    std::size_t bytes = 0;
    int tag = 0;
    int sent_in = 0;  // round of the sender
    bool through = false;
    bool receives = false;
  };
  struct Link {
    std::deque<Message*> sends, receives;
  };

  class Rank final : public Transport {
   public:
    Rank(CountedRanks& all, Place place) : all_(all), place_(std::move(place)) {}
    const Place& place() const override { return place_; }
    std::size_t max_message() const override { return std::size_t{1} << 24; }
    int open_lane(Queue, const std::vector<int>&) override { return lanes_++; }
    int isend(int lane, int peer, int tag, const void* data, std::size_t bytes) override {
      count_sent(counts, peer, bytes);
      const int ticket = ticket_of({.from = data, .bytes = bytes, .tag = tag, .sent_in = counts.rounds});
      if (!all_.loses(place_.rank, peer)) all_.post(lane, place_.rank, peer, message_of(ticket));
      return ticket;
    }
    int irecv(int lane, int peer, int tag, void* data, std::size_t bytes) override {
      counts.peers.insert(peer);
      const int ticket = ticket_of({.to = data, .bytes = bytes, .tag = tag, .receives = true});
      all_.post(lane, peer, place_.rank, message_of(ticket));
      return ticket;
    }
    bool test(int ticket) override {
      const Message& message = message_of(ticket);
      if (!message.through) return false;
      if (message.receives) counts.rounds = std::max(counts.rounds, message.sent_in + 1);
      free_.push_back(ticket);
      return true;
    }
    std::optional<Waiting> probe(int lane) override {
      for (auto& [key, link] : all_.arrivals_[static_cast<std::size_t>(place_.rank)]) {
        if (key.first != lane || link.sends.empty()) continue;
        return Waiting{.peer = key.second, .bytes = link.sends.front()->bytes};
      }
      return std::nullopt;
    }
    void progress() override {}
    void finish() override {}
    void end_job(const std::string& message, int) override { throw std::runtime_error(message); }
    bool is_process() const override { return false; }
    bool any_thread() const override { return true; }

    MessageCounts counts;

   private:
    Message& message_of(int ticket) { return messages_[static_cast<std::size_t>(ticket)]; }
    int ticket_of(Message message) {
      if (free_.empty()) {
        free_.push_back(static_cast<int>(messages_.size()));
        messages_.emplace_back();
      }
      const int ticket = free_.back();
      free_.pop_back();
      message_of(ticket) = message;
      return ticket;
    }

    CountedRanks& all_;
    Place place_;
    int lanes_ = 0;
    std::deque<Message> messages_;  // addresses are stable
    std::vector<int> free_;
  };

  /// The collectives of one rank.
  struct Work {
    int rank = 0;
    Lane lane;
    std::deque<Start> starts;
    std::unique_ptr<Call> call;
    Steps steps;
    unsigned sequence = 0;
    Transport* transport = nullptr;

    bool advance() {
      while (call != nullptr || !starts.empty()) {
        if (call == nullptr) {
          call = std::make_unique<Call>();
          call->transport = transport;
          call->lane = &lane;
          call->sequence = sequence;
          call->tag = tag_of(Kind::control, sequence++);
          steps = starts.front()(rank, *call);
          starts.pop_front();
        }
        if (!steps.resume()) return false;
        steps = {};
        call.reset();
      }
      return true;
    }
  };

  std::vector<std::unique_ptr<Work>> begin(const std::vector<Start>& starts) {
    std::vector<std::unique_ptr<Work>> works;
    for (int rank = 0; rank < size(); ++rank) {
      auto& work = works.emplace_back(std::make_unique<Work>());
      work->rank = rank;
      work->transport = &transport(rank);
      work->lane = {.queue = Queue::control,
                    .name = "control",
                    .place = transport(rank).place(),
                    .ranks = all_ranks(size())};
      work->starts.assign(starts.begin(), starts.end());
    }
    return works;
  }

  bool loses(int from, int to) {
    if (lost_ != std::pair(from, to)) return false;
    lost_ = {-1, -1};
    return true;
  }

  void post(int lane, int from, int to, Message& message) {
    Link& link = arrivals_[static_cast<std::size_t>(to)][{lane, from}];
    auto& others = message.receives ? link.sends : link.receives;
    if (others.empty()) {
      (message.receives ? link.receives : link.sends).push_back(&message);
      return;
    }
    Message& other = *others.front();
    others.pop_front();
    Message& send = message.receives ? other : message;
    Message& receive = message.receives ? message : other;
    if (send.bytes != receive.bytes || send.tag != receive.tag) {
      throw std::runtime_error(mismatch(receive.tag, receive.bytes, send.tag, send.bytes));
    }
    std::memcpy(receive.to, send.from, send.bytes);
    receive.sent_in = send.sent_in;
    send.through = receive.through = true;
    ++moved_;
  }

  struct HashOfLink {
    std::size_t operator()(const std::pair<int, int>& key) const {
      return static_cast<std::size_t>(key.first) * 65599 + static_cast<std::size_t>(key.second);
    }
  };
  // By receiver: the links by lane and sender.
  std::vector<std::unordered_map<std::pair<int, int>, Link, HashOfLink>> arrivals_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::pair<int, int> lost_{-1, -1};
  std::uint64_t seed_ = 0;
  std::int64_t moved_ = 0;
};

}  // namespace octet::comm
