#include "memory_transport.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <mutex>
#include <vector>

#include "octet/base/error.h"

namespace octet::comm {
namespace {

// One side's half of a message. Both are through once the later side has copied.
struct Channel;
struct Message {
  Channel* channel = nullptr;
  int tag = 0;
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t bytes = 0;
  std::chrono::steady_clock::time_point due;  // of a slow link: when its last byte is there
  std::atomic<bool> through{false};
  std::string trouble;  // written before `through`
};

// Messages on their way from one rank to another in one queue: either sends or receives wait, never both.
struct Channel {
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
  explicit State(int size) : channels(static_cast<std::size_t>(size) * size * queue_count) {}
  std::deque<Channel> channels;
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

  int isend(Queue queue, int peer, int tag, const void* data, std::size_t bytes) override {
    Channel& channel = channel_of(queue, place_.rank, peer);
    auto message = std::make_shared<Message>();
    message->channel = &channel;
    message->tag = tag;
    message->from = data;
    message->bytes = bytes;
    message->due = leaves(bytes);
    {
      const std::scoped_lock lock(channel.mutex);
      if (auto receive = take_first(channel.receives)) {
        deliver(*message, *receive);
      } else {
        channel.sends.push_back(message);
      }
    }
    return ticket_of(std::move(message));
  }

  int irecv(Queue queue, int peer, int tag, void* data, std::size_t bytes) override {
    Channel& channel = channel_of(queue, peer, place_.rank);
    auto message = std::make_shared<Message>();
    message->channel = &channel;
    message->tag = tag;
    message->to = data;
    message->bytes = bytes;
    {
      const std::scoped_lock lock(channel.mutex);
      if (auto send = take_first(channel.sends)) {
        deliver(*send, *message);
      } else {
        channel.receives.push_back(message);
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
    if (job_.state_->failed) {
      withdraw();
      job_.require_not_failed();
    }
    return false;
  }

  std::optional<int> probe(Queue queue) override {
    for (int peer = 0; peer < place_.size; ++peer) {
      Channel& channel = channel_of(queue, peer, place_.rank);
      const std::scoped_lock lock(channel.mutex);
      if (!channel.sends.empty()) return peer;
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

 private:
  using Clock = std::chrono::steady_clock;

  // When a message of this size that is sent now has passed the link.
  Clock::time_point leaves(std::size_t bytes) {
    const auto now = Clock::now();
    if (job_.bytes_per_second_ <= 0) return now;
    const std::chrono::duration<double> takes(static_cast<double>(bytes) / job_.bytes_per_second_);
    link_free_ = std::max(link_free_, now) + std::chrono::duration_cast<Clock::duration>(takes);
    return link_free_;
  }

  // After a failure the buffers of messages under way go with those who waited for them: nobody may copy
  // there.
  void withdraw() {
    for (auto& message : messages_) {
      if (message == nullptr) continue;
      Channel& channel = *message->channel;
      const std::scoped_lock lock(channel.mutex);
      std::erase(channel.sends, message);
      std::erase(channel.receives, message);
    }
  }

  Channel& channel_of(Queue queue, int from, int to) {
    const auto size = static_cast<std::size_t>(job_.size());
    return job_.state_->channels[(static_cast<std::size_t>(queue) * size + from) * size + to];
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
  Clock::time_point link_free_;
  std::vector<std::shared_ptr<Message>> messages_;
  std::vector<int> free_;
};

std::unique_ptr<Transport> MemoryJob::make_transport(int rank) {
  return std::make_unique<MemoryTransport>(*this, rank);
}

}  // namespace octet::comm
