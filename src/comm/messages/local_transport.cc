#include "messages/local_transport.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <mutex>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/process.h"
#include "octet/base/timing.h"

namespace octet::comm {

SelfTransport::SelfTransport() {
  place_.host = host_name();
}

namespace {

// One side of a message. Both sides are complete after the later side has copied.
struct Link;
struct Message {
  Link* link = nullptr;
  int tag = 0;
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t bytes = 0;
  std::chrono::steady_clock::time_point due;  // for a slow link: arrival time of the last byte
  std::atomic<bool> through{false};
  std::string trouble;  // written before `through`
};

// Messages in flight from one rank to another in one queue. Either sends or receives wait, never both.
struct Link {
  std::mutex mutex;
  std::vector<std::shared_ptr<Message>> sends;
  std::vector<std::shared_ptr<Message>> receives;
};

std::shared_ptr<Message> take_first(std::vector<std::shared_ptr<Message>>& waiting) {
  if (waiting.empty()) return nullptr;
  auto first = waiting.front();
  waiting.erase(waiting.begin());
  return first;
}

void deliver(Message& send, Message& receive) {
  if (send.tag != receive.tag || send.bytes != receive.bytes) {
    receive.trouble = send.trouble = mismatch(receive.tag, receive.bytes, send.tag, send.bytes);
  } else {
    std::memcpy(receive.to, send.from, send.bytes);
  }
  receive.due = send.due;
  send.through.store(true, std::memory_order_release);
  receive.through.store(true, std::memory_order_release);
}

}  // namespace

struct MemoryJob::State {
  explicit State(int ranks) : size(static_cast<std::size_t>(ranks)) {}
  /// The links of a lane, [from, to] by rank of the job, so groups with the same lane number stay separate.
  std::deque<Link>& links_of(int lane) {
    const std::scoped_lock lock(mutex);
    while (lanes.size() <= static_cast<std::size_t>(lane)) lanes.emplace_back(size * size);
    return lanes[static_cast<std::size_t>(lane)];
  }
  std::size_t size;
  std::deque<std::deque<Link>> lanes;
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::string message;
  int code = 1;
};

MemoryJob::MemoryJob(int size, std::vector<int> node_of, double bytes_per_second)
    : size_(size),
      node_of_(std::move(node_of)),
      bytes_per_second_(bytes_per_second),
      state_(std::make_unique<State>(size)) {
  if (node_of_.empty()) node_of_.assign(static_cast<std::size_t>(size), 0);
}
MemoryJob::~MemoryJob() = default;

void MemoryJob::fail(const std::string& message, int code) {
  const std::scoped_lock lock(state_->mutex);
  if (state_->failed) return;
  state_->message = message;
  state_->code = code;
  state_->failed = true;
}

void MemoryJob::require_not_failed() const {
  if (!state_->failed) return;
  const std::scoped_lock lock(state_->mutex);
  throw Error(Problem{.what = state_->message, .code = static_cast<ExitCode>(state_->code)});
}

class MemoryTransport final : public Transport {
 public:
  MemoryTransport(MemoryJob& job, int rank) : job_(job) {
    place_.rank = rank;
    place_.size = job.size();
    place_.host = "this process";
    set_nodes(place_, job.node_of());
  }

  ~MemoryTransport() override { withdraw(); }

  const Place& place() const override { return place_; }
  // Small, so that tests split messages.
  std::size_t max_message() const override { return std::size_t{1} << 18; }

  int open_lane(Queue, const std::vector<int>& ranks) override {
    const int id = static_cast<int>(lanes_.size());
    lanes_.push_back({.ranks = ranks, .links = &job_.state_->links_of(id)});
    return id;
  }

  int isend(int lane, int peer, int tag, const void* data, std::size_t bytes) override {
    require_job();
    Link& link = link_of(lane, place_.rank, job_rank(lane, peer));
    auto message = std::make_shared<Message>();
    message->link = &link;
    message->tag = tag;
    message->from = data;
    message->bytes = bytes;
    message->due = leaves(bytes);
    {
      const std::scoped_lock lock(link.mutex);
      if (auto receive = take_first(link.receives)) {
        deliver(*message, *receive);
      } else {
        link.sends.push_back(message);
      }
    }
    return ticket_of(std::move(message));
  }

  int irecv(int lane, int peer, int tag, void* data, std::size_t bytes) override {
    require_job();
    Link& link = link_of(lane, job_rank(lane, peer), place_.rank);
    auto message = std::make_shared<Message>();
    message->link = &link;
    message->tag = tag;
    message->to = data;
    message->bytes = bytes;
    {
      const std::scoped_lock lock(link.mutex);
      if (auto send = take_first(link.sends)) {
        deliver(*send, *message);
      } else {
        link.receives.push_back(message);
      }
    }
    return ticket_of(std::move(message));
  }

  bool test(int ticket) override {
    Message& message = *messages_[ticket];
    if (message.through.load(std::memory_order_acquire)) {
      if (job_.bytes_per_second_ > 0 && Clock::now() < message.due) return false;
      if (!message.trouble.empty()) throw Error(message.trouble);
      messages_[ticket] = nullptr;
      free_.push_back(ticket);
      return true;
    }
    require_job();
    return false;
  }

  std::optional<Waiting> probe(int lane) override {
    const int size = static_cast<int>(lanes_[static_cast<std::size_t>(lane)].ranks.size());
    for (int peer = 0; peer < size; ++peer) {
      Link& link = link_of(lane, job_rank(lane, peer), place_.rank);
      const std::scoped_lock lock(link.mutex);
      if (!link.sends.empty()) return Waiting{.peer = peer, .bytes = link.sends.front()->bytes};
    }
    return std::nullopt;
  }

  void progress() override {}
  void finish() override {}
  void end_job(const std::string& message, int code) override {
    job_.fail(message, code);
    withdraw();
  }
  bool is_process() const override { return false; }
  bool any_thread() const override { return true; }

 private:
  // Nothing starts in a job that has ended, and started messages no longer write to memory, because ranks
  // that are processes would be gone.
  void require_job() {
    if (!job_.state_->failed) return;
    withdraw();
    job_.require_not_failed();
  }

  // Returns the time when a message of this size, if sent at once, has passed the link.
  Clock::time_point leaves(std::size_t bytes) {
    const auto now = Clock::now();
    if (job_.bytes_per_second_ <= 0) return now;
    const std::chrono::duration<double> takes(static_cast<double>(bytes) / job_.bytes_per_second_);
    link_free_ = std::max(link_free_, now) + std::chrono::duration_cast<Clock::duration>(takes);
    return link_free_;
  }

  // After a failure, the waiting threads free the buffers of messages under way, so no thread may copy there.
  void withdraw() {
    for (auto& message : messages_) {
      if (message == nullptr) continue;
      Link& link = *message->link;
      const std::scoped_lock lock(link.mutex);
      std::erase(link.sends, message);
      std::erase(link.receives, message);
    }
  }

  struct Opened {
    std::vector<int> ranks;
    std::deque<Link>* links = nullptr;
  };
  int job_rank(int lane, int peer) const {
    return lanes_[static_cast<std::size_t>(lane)].ranks[static_cast<std::size_t>(peer)];
  }
  Link& link_of(int lane, int from, int to) {
    const auto size = static_cast<std::size_t>(job_.size());
    auto& links = *lanes_[static_cast<std::size_t>(lane)].links;
    return links[static_cast<std::size_t>(from) * size + static_cast<std::size_t>(to)];
  }

  int ticket_of(std::shared_ptr<Message> message) {
    if (free_.empty()) {
      messages_.push_back(std::move(message));
      return static_cast<int>(messages_.size()) - 1;
    }
    const int ticket = free_.back();
    free_.pop_back();
    messages_[ticket] = std::move(message);
    return ticket;
  }

  MemoryJob& job_;
  Place place_;
  std::vector<Opened> lanes_;
  Clock::time_point link_free_;
  std::vector<std::shared_ptr<Message>> messages_;
  std::vector<int> free_;
};

std::unique_ptr<Transport> MemoryJob::make_transport(int rank) {
  return std::make_unique<MemoryTransport>(*this, rank);
}

}  // namespace octet::comm
