// Ranks as threads of one process.
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "job/rank_job.h"
#include "messages/local_transport.h"
#include "messages/message_engine.h"
#include "octet/base/error.h"
#include "octet/comm/thread_ranks.h"

namespace octet::comm {
namespace {

// Keeps the first exception of any rank; the others' are its consequences.
class FirstError {
 public:
  explicit FirstError(MemoryJob& job) : job_(job) {}

  void take(const std::exception_ptr& error, const std::string& message, int code) {
    const std::scoped_lock lock(mutex_);
    if (!error_) error_ = error;
    job_.fail(message, code);
  }
  void rethrow() {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  MemoryJob& job_;
  std::mutex mutex_;
  std::exception_ptr error_;
};

template <typename Work>
void guarded(FirstError& errors, Work&& work) {
  try {
    work();
  } catch (const Error& error) {
    errors.take(std::current_exception(), error.what(), static_cast<int>(error.code()));
  } catch (const std::exception& error) {
    errors.take(std::current_exception(), error.what(), static_cast<int>(ExitCode::failure));
  } catch (...) {
    errors.take(std::current_exception(), "an exception of unknown type",
                static_cast<int>(ExitCode::failure));
  }
}

using Body = std::function<void(FirstError&, Job&, Device&)>;

void run_each(const ThreadRanksOptions& options, const Body& body) {
  check(options.ranks >= 1, "there is at least one rank");
  MemoryJob memory(options.ranks, options.node_of, options.bytes_per_second);
  FirstError errors(memory);
  const auto run_rank = [&](int rank) {
    const auto device = make_cpu_device({.threads = options.threads_per_rank,
                                         .compute_worker = options.compute_worker,
                                         .stands_for = options.stands_for});
    RankJob job(
        {.engine = std::make_shared<MessageEngine>([&memory, rank] { return memory.make_transport(rank); }),
         .alive = [&memory] { memory.require_not_failed(); }});
    body(errors, job, *device);
  };
  std::vector<std::thread> threads;
  guarded(errors, [&] {  // a rank that cannot start fails the others, which wait for it
    for (int rank = 0; rank < options.ranks; ++rank) {
      threads.emplace_back([&, rank] { guarded(errors, [&] { run_rank(rank); }); });
    }
  });
  for (auto& thread : threads) thread.join();
  errors.rethrow();
}

}  // namespace

void run_ranks_as_threads(const ThreadRanksOptions& options, const std::function<void(Job&, Device&)>& body) {
  run_each(options, [&](FirstError&, Job& job, Device& device) { body(job, device); });
}

void run_ranks_as_threads(const ThreadRanksOptions& options,
                          const std::function<void(Job&, Collectives&, Device&)>& body) {
  run_each(options, [&](FirstError& errors, Job& job, Device& device) {
    const auto collectives =
        job.collectives({.name = "world", .ranks = all_ranks(job.size())}, device, options.carrier);
    // The body's error reaches the other ranks before this one ends its collectives, which wait for them.
    guarded(errors, [&] { body(job, *collectives, device); });
  });
}

}  // namespace octet::comm
