// Ranks as threads of one process.
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "device_communicator.h"
#include "engine.h"
#include "memory_transport.h"
#include "octet/base/error.h"
#include "octet/comm/communicator.h"
#include "rank_communicator.h"

namespace octet::comm {
namespace {

// Keeps the first exception of any rank; the others' are its consequences.
class FirstError {
 public:
  explicit FirstError(MemoryJob& job) : job_(job) {}

  void take(std::exception_ptr error, const std::string& message, int code) {
    const std::scoped_lock lock(mutex_);
    if (!error_) error_ = std::move(error);
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

std::unique_ptr<Communicator> make_rank(MemoryJob& job, Carrier carrier, Device& device,
                                        const std::shared_ptr<Engine>& engine) {
  const auto rank =
      std::make_shared<RankJob>(RankOptions{.engine = engine, .alive = [&job] { job.require_not_failed(); }});
  const Group world{.name = "world", .ranks = all_ranks(job.size())};
  if (carrier == Carrier::messages || job.size() == 1) {
    return std::make_unique<RankCommunicator>(device, rank, world);
  }
  return std::make_unique<DeviceCommunicator>(device, rank, world, carrier);
}

}  // namespace

void run_ranks_as_threads(const ThreadRanksOptions& options,
                          const std::function<void(Communicator&, Device&)>& body) {
  check(options.ranks >= 1, "there is at least one rank");
  MemoryJob job(options.ranks, options.node_of, options.bytes_per_second);
  FirstError errors(job);
  const auto run_rank = [&](int rank) {
    const auto device = make_cpu_device({.threads = options.threads_per_rank,
                                         .compute_worker = options.compute_worker,
                                         .stands_for = options.stands_for});
    const auto engine = std::make_shared<Engine>([&job, rank] { return job.make_transport(rank); });
    const auto communicator = make_rank(job, options.carrier, *device, engine);
    // The body's error reaches the other ranks before this one ends its communicator, which waits for them.
    guarded(errors, [&] { body(*communicator, *device); });
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.ranks; ++rank) {
    threads.emplace_back([&, rank] { guarded(errors, [&] { run_rank(rank); }); });
  }
  for (auto& thread : threads) thread.join();
  errors.rethrow();
}

}  // namespace octet::comm
