#include "cpu/cpu_stream.h"

#include <sched.h>

#include <chrono>
#include <utility>

#include "octet/base/error.h"
#include "octet/device/cpu.h"

namespace octet::cpu {

void Completion::complete(std::exception_ptr error) noexcept {
  error_ = std::move(error);
  time_ = std::chrono::steady_clock::now();
  done_.store(1, std::memory_order_release);
  done_.notify_all();
}

void Completion::wait() const {
  if (done()) return;
  if (waiters_ != nullptr) waiters_->enter([this] { return done(); });
  done_.wait(0, std::memory_order_acquire);
  if (waiters_ != nullptr) waiters_->leave();
}

void Waiters::on_wait(OnWait call) {
  const std::lock_guard lock(mutex_);
  call_ = std::move(call);
}

void Waiters::enter(const std::function<bool()>& done) {
  count_.fetch_add(1, std::memory_order_release);
  const std::shared_lock lock(mutex_);
  if (call_) call_(done);
}

std::shared_ptr<Completion> CpuEvent::renew(std::shared_ptr<Waiters> waiters) {
  auto record = std::make_shared<Completion>(std::move(waiters));
  const std::lock_guard lock(mutex_);
  latest_ = record;
  return record;
}

std::shared_ptr<Completion> CpuEvent::latest() const {
  const std::lock_guard lock(mutex_);
  return latest_;
}

namespace {

CpuEvent& cpu_event(Event& event) {
  auto* found = dynamic_cast<CpuEvent*>(&event);
  check(found != nullptr, "an event of another device is used on a CPU stream");
  return *found;
}

CpuStream& cpu_stream(Stream& stream) {
  auto* found = dynamic_cast<CpuStream*>(&stream);
  check(found != nullptr, "CPU work is put on a stream of another device");
  return *found;
}

}  // namespace

double seconds_between(const Event& from, const Event& to) {
  const auto time_of = [](const Event& event) {
    const auto* found = dynamic_cast<const CpuEvent*>(&event);
    const auto record = found != nullptr ? found->latest() : nullptr;
    check(record != nullptr && record->done(), "time is taken between events of the CPU that were reached");
    return record->time();
  };
  return std::chrono::duration<double>(time_of(to) - time_of(from)).count();
}

void CpuStream::record(Event& event) {
  push(Entry{.poll = {}, .mark = cpu_event(event).renew(waiters()), .until = {}});
}

void CpuStream::wait(Event& event) {
  auto latest = cpu_event(event).latest();
  if (latest != nullptr) push(Entry{.poll = {}, .mark = {}, .until = std::move(latest)});
}

void CpuStream::enqueue(std::function<void()> work) {
  push(Entry{.poll =
                 [run = std::move(work)] {
                   run();
                   return true;
                 },
             .mark = {},
             .until = {},
             .threads = op_threads()});
}

void CpuStream::enqueue_resumable(std::function<bool()> poll) {
  push(Entry{.poll = std::move(poll), .mark = {}, .until = {}, .threads = op_threads()});
}

bool CpuStream::serve() {
  check(false, "only streams of mode 'served' are served");
  return false;
}

namespace {
/// Sets claims() for ops that this thread runs during the lifetime of the object.
class Claiming {
 public:
  explicit Claiming(bool on) : before_(cpu::claims()) { set_claims(on); }
  ~Claiming() { set_claims(before_); }
  Claiming(const Claiming&) = delete;
  Claiming& operator=(const Claiming&) = delete;

 private:
  bool before_;
};
}  // namespace

bool CpuStream::advance(Entry& entry, bool may_block) {
  if (entry.mark != nullptr) {
    entry.mark->complete(error());
    return true;
  }
  if (entry.until != nullptr) {
    if (!entry.until->done()) {
      if (!may_block) return false;
      const auto start = std::chrono::steady_clock::now();
      entry.until->wait();
      waited_ += std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count();
    }
    if (entry.until->error() != nullptr) poison(entry.until->error());
    return true;
  }
  if (error() != nullptr) return true;
  const Claiming as_told(claims());
  try {
    while (!entry.poll()) {
      if (!may_block) return false;
      sched_yield();
    }
  } catch (...) {
    poison(std::current_exception());
  }
  return true;
}

void CpuStream::poison(std::exception_ptr error) {
  const std::lock_guard lock(error_mutex_);
  if (error_ == nullptr) error_ = std::move(error);
}

std::exception_ptr CpuStream::error() const {
  const std::lock_guard lock(error_mutex_);
  return error_;
}

void CpuStream::rethrow() const {
  if (auto found = error(); found != nullptr) std::rethrow_exception(found);
}

namespace {

class InLineStream final : public CpuStream {
 public:
  using CpuStream::CpuStream;
  void synchronize() override { rethrow(); }

 protected:
  void push(Entry entry) override { advance(entry, true); }
};

class WorkerStream final : public CpuStream {
 public:
  WorkerStream(Device& owner, const std::string& label, int threads)
      : CpuStream(owner, label), thread_([this, threads] { run(threads); }) {}
  /// Completes all enqueued work.
  ~WorkerStream() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    filled_.notify_all();
    thread_.join();
  }

  void synchronize() override {
    auto end = std::make_shared<Completion>();
    push(Entry{.poll = {}, .mark = end, .until = {}});
    end->wait();
    rethrow();
  }

 protected:
  void push(Entry entry) override {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(entry));
    }
    filled_.notify_one();
  }

 private:
  void run(int threads) {
    set_op_threads(threads);
    for (;;) {
      Entry entry;
      {
        std::unique_lock lock(mutex_);
        filled_.wait(lock, [this] { return closing_ || !queue_.empty(); });
        if (queue_.empty()) return;
        entry = std::move(queue_.front());
        queue_.pop_front();
      }
      if (entry.threads > 0 && entry.threads != op_threads()) set_op_threads(entry.threads);
      advance(entry, true);
    }
  }

  std::mutex mutex_;
  std::condition_variable filled_;
  std::deque<Entry> queue_;
  bool closing_ = false;
  std::thread thread_;
};

class ServedStream final : public CpuStream {
 public:
  using CpuStream::CpuStream;
  /// No thread serves the stream any more: remaining entries are dropped, and their waiters get an Error.
  ~ServedStream() override {
    for (auto& entry : queue_) {
      if (entry.mark != nullptr) {
        entry.mark->complete(
            error() != nullptr
                ? error()
                : std::make_exception_ptr(Error("stream '" + name() + "' ended before its work was done")));
      }
    }
  }

  void synchronize() override {
    auto end = std::make_shared<Completion>(waiters_);
    push(Entry{.poll = {}, .mark = end, .until = {}});
    end->wait();
    rethrow();
  }

  std::shared_ptr<Waiters> waiters() const override { return waiters_; }

  bool serve() override {
    bool any = false;
    for (;;) {
      Entry* front = nullptr;
      {
        const std::lock_guard lock(mutex_);
        if (queue_.empty()) return any;
        front = &queue_.front();  // stays in place while others append
      }
      if (!advance(*front, false)) return any;
      any = true;
      Entry finished;  // destroyed outside the lock: captures may be large
      {
        const std::lock_guard lock(mutex_);
        finished = std::move(queue_.front());
        queue_.pop_front();
      }
    }
  }

 protected:
  void push(Entry entry) override {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(entry));
  }

 private:
  const std::shared_ptr<Waiters> waiters_ = std::make_shared<Waiters>();
  std::mutex mutex_;
  std::deque<Entry> queue_;
};

}  // namespace

std::unique_ptr<Stream> make_in_line_stream(Device& device, const std::string& name) {
  return std::make_unique<InLineStream>(device, name);
}

std::unique_ptr<Stream> make_worker_stream(Device& device, const std::string& name, int threads) {
  return std::make_unique<WorkerStream>(device, name, threads);
}

std::unique_ptr<Stream> make_served_stream(Device& device, const std::string& name) {
  return std::make_unique<ServedStream>(device, name);
}

void enqueue(Stream& stream, std::function<void()> work) {
  cpu_stream(stream).enqueue(std::move(work));
}

void enqueue_resumable(Stream& stream, std::function<bool()> poll) {
  cpu_stream(stream).enqueue_resumable(std::move(poll));
}

bool serve(Stream& stream) {
  return cpu_stream(stream).serve();
}

void on_wait(Stream& stream, OnWait call) {
  const auto waiters = cpu_stream(stream).waiters();
  check(waiters != nullptr, "served streams have a list of waiting requests");
  waiters->on_wait(std::move(call));
}

int waiting_for(Stream& stream) {
  const auto waiters = cpu_stream(stream).waiters();
  return waiters == nullptr ? 0 : waiters->count();
}

}  // namespace octet::cpu
