// Which thread calls the transport: one thread at a time, and the waiting thread if MPI allows it.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "../src/comm/job/rank_job.h"
#include "../src/comm/messages/local_transport.h"
#include "../src/comm/messages/message_engine.h"
#include "comm/ranks.h"
#include "octet/base/error.h"

namespace octet::comm::serving_test {
namespace {

/// Statistics of a rank's calls.
struct Calls {
  std::thread::id maker;            ///< the communication thread, which creates the transport
  std::atomic<int> by_maker{0};     ///< messages started by it
  std::atomic<int> by_others{0};    ///< messages started by other threads
  std::atomic<int> at_once{0};      ///< calls made during another thread's call
  std::atomic<bool> slow{false};    ///< makes the communication thread's test() slow
  std::atomic<bool> breaks{false};  ///< makes the next test() throw
  std::atomic<bool> lacks{false};   ///< makes test() throw the system's error for lack of threads
  std::atomic<int> ends{0};         ///< number of calls of end_job()
  std::string last_words;           ///< message of the first end_job()
};

/// A transport through memory that records the calling threads.
class Observed final : public Transport {
 public:
  Observed(std::unique_ptr<Transport> inner, bool any_thread, Calls& calls)
      : inner_(std::move(inner)), any_thread_(any_thread), calls_(calls) {
    calls_.maker = std::this_thread::get_id();
  }
  const Place& place() const override { return inner_->place(); }
  std::size_t max_message() const override { return inner_->max_message(); }
  int open_lane(Queue queue, const std::vector<int>& ranks) override {
    const Inside inside(*this);
    return inner_->open_lane(queue, ranks);
  }
  int isend(int lane, int peer, int tag, const void* data, std::size_t bytes) override {
    const Inside inside(*this);
    ++(std::this_thread::get_id() == calls_.maker ? calls_.by_maker : calls_.by_others);
    return inner_->isend(lane, peer, tag, data, bytes);
  }
  int irecv(int lane, int peer, int tag, void* data, std::size_t bytes) override {
    const Inside inside(*this);
    return inner_->irecv(lane, peer, tag, data, bytes);
  }
  bool test(int ticket) override {
    const Inside inside(*this);
    if (calls_.slow && std::this_thread::get_id() == calls_.maker) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
    }
    if (calls_.breaks.exchange(false)) throw Error("a cable is cut");
    if (calls_.lacks.exchange(false)) {
      throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
    }
    return inner_->test(ticket);
  }
  std::optional<Waiting> probe(int lane) override {
    const Inside inside(*this);
    return inner_->probe(lane);
  }
  void progress() override {
    const Inside inside(*this);
    inner_->progress();
  }
  void finish() override { inner_->finish(); }
  void end_job(const std::string& message, int code) override {
    if (calls_.ends++ == 0) calls_.last_words = message;
    inner_->end_job(message, code);
  }
  bool is_process() const override { return false; }
  bool any_thread() const override { return any_thread_; }

 private:
  struct Inside {
    explicit Inside(Observed& of) : of_(of) {
      if (of_.inside_.exchange(true)) ++of_.calls_.at_once;
    }
    ~Inside() { of_.inside_ = false; }
    Observed& of_;
  };
  std::unique_ptr<Transport> inner_;
  bool any_thread_;
  Calls& calls_;
  std::atomic<bool> inside_{false};
};

using Body = std::function<void(Collectives&, Calls&)>;

/// Runs ranks as threads and records their calls. Rethrows the error of the lowest rank.
void run_observed(int ranks, bool any_thread, const Body& body) {
  MemoryJob memory(ranks);
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      Calls calls;
      try {
        const auto device = make_cpu_device({.threads = 1});
        RankJob job({.engine = std::make_shared<MessageEngine>([&] {
                       return std::make_unique<Observed>(memory.make_transport(rank), any_thread, calls);
                     }),
                     .alive = [&memory] { memory.require_not_failed(); }});
        job.watch({.timeout_seconds = 10});
        const auto all =
            job.collectives({.name = "world", .ranks = all_ranks(ranks)}, *device, Carrier::messages);
        body(*all, calls);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
        memory.fail(error.what(), 1);
      }
      EXPECT_EQ(calls.at_once, 0) << "one thread at a time";
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

/// Gathers every rank's number on the stream.
void gather_numbers(Collectives& c, Stream& stream, std::int64_t round) {
  Values<std::int64_t> numbers(static_cast<std::size_t>(c.size()), -1);
  numbers[static_cast<std::size_t>(c.rank())] = round * 100 + c.rank();
  c.all_gather(stream, {.name = "numbers", .buffer = numbers.data(), .bytes = 8});
  stream.synchronize();
  for (int r = 0; r < c.size(); ++r) EXPECT_EQ(numbers[static_cast<std::size_t>(r)], round * 100 + r);
}

TEST(Serving, AThreadThatWaitsMakesTheCalls) {
  run_observed(3, true, [](Collectives& c, Calls& calls) {
    for (int round = 0; round < 200; ++round) gather_numbers(c, c.gather_stream(), round);
    EXPECT_GT(calls.by_others, 100) << "of 400 messages";
    const int before = calls.by_others;
    for (int round = 0; round < 200; ++round) EXPECT_EQ(c.channel().all_sum(1), 3);
    EXPECT_GT(calls.by_others - before, 100) << "of 800 messages";
  });
}

TEST(Serving, WhereOneThreadAloneMayCallNoOtherDoes) {
  run_observed(3, false, [](Collectives& c, Calls& calls) {
    for (int round = 0; round < 50; ++round) {
      gather_numbers(c, c.gather_stream(), round);
      EXPECT_EQ(c.channel().all_sum(1), 3);
    }
    EXPECT_EQ(calls.by_others, 0);
    EXPECT_GE(calls.by_maker, 100);
  });
}

TEST(Serving, ThreadsThatWaitAtTheSameTimeAreAllServed) {
  run_observed(3, true, [](Collectives& c, Calls&) {
    std::thread second([&] {
      for (int round = 0; round < 300; ++round) gather_numbers(c, c.reduce_stream(), round);
    });
    std::thread third([&] {
      for (int round = 0; round < 300; ++round) EXPECT_EQ(c.channel().all_sum(round), 3 * round);
    });
    for (int round = 0; round < 300; ++round) gather_numbers(c, c.gather_stream(), round);
    second.join();
    third.join();
  });
}

TEST(Serving, WhoComesWhileTheThreadIsAtItLetsItEnd) {
  std::atomic<int> gathered{0};
  run_observed(2, true, [&](Collectives& c, Calls& calls) {
    Values<float> sums(2, 1.0f);
    const auto sum = [&] {
      c.reduce_scatter(c.reduce_stream(),
                       {.name = "sum", .from = sums.data(), .to = sums.data() + c.rank(), .count = 1});
    };
    calls.slow = true;
    if (c.rank() == 0) sum();  // the communication thread of rank 0 polls it repeatedly
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    for (int round = 0; round < 5; ++round) {
      gather_numbers(c, c.gather_stream(), round);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ++gathered;
    while (gathered < 2) std::this_thread::yield();
    if (c.rank() == 1) sum();
    c.reduce_stream().synchronize();
    EXPECT_EQ(sums[static_cast<std::size_t>(c.rank())], 2.0f);
  });
}

TEST(Serving, WhoHasWhatItWaitsForLeavesAndOthersGoOn) {
  std::atomic<int> gathered{0};
  run_observed(2, true, [&](Collectives& c, Calls&) {
    Values<float> sums(2, 1.0f);
    // Rank 1 starts the sum only after the gathers have returned. A thread that waits for a gather must not
    // serve until all work is done. After that no thread waits for the sum, which must still complete.
    const auto sum = [&] {
      c.reduce_scatter(c.reduce_stream(),
                       {.name = "sum", .from = sums.data(), .to = sums.data() + c.rank(), .count = 1});
    };
    if (c.rank() == 0) sum();
    gather_numbers(c, c.gather_stream(), 7);
    ++gathered;
    while (gathered < 2) std::this_thread::yield();
    if (c.rank() == 1) sum();
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    bool summed = false;
    while (!summed && std::chrono::steady_clock::now() < late) {
      for (const Traffic& t : c.take_traffic())
        summed = summed || (t.kind == "reduce_scatter" && t.calls == 1);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_TRUE(summed);
    c.channel().barrier();
    c.reduce_stream().synchronize();
    EXPECT_EQ(sums[static_cast<std::size_t>(c.rank())], 2.0f);
  });
}

TEST(Serving, AnErrorReachesWhoWaitsAndEndsTheJob) {
  for (const bool any_thread : {true, false}) {
    std::string found;
    std::vector<Values<std::int64_t>> numbers(2, Values<std::int64_t>(2));  // must outlive both ranks
    const auto run = [&] {
      run_observed(2, any_thread, [&](Collectives& c, Calls& calls) {
        gather_numbers(c, c.gather_stream(), 1);
        c.channel().barrier();
        if (c.rank() == 0) calls.breaks = true;
        c.all_gather(c.gather_stream(),
                     {.buffer = numbers[static_cast<std::size_t>(c.rank())].data(), .bytes = 8});
        try {
          c.gather_stream().synchronize();
        } catch (const Error& error) {
          if (c.rank() == 0) found = error.what();
        }
        if (c.rank() == 0) {
          EXPECT_EQ(calls.ends, 1);
        }
        c.channel().barrier();
        ADD_FAILURE() << "rank " << c.rank() << " goes on";
      });
    };
    EXPECT_THROW(run(), Error);
    EXPECT_NE(found.find("a cable is cut"), std::string::npos) << found;
  }
}

TEST(Serving, AThreadThatTheSystemDoesNotGiveIsSaidInWordsOfOurs) {
  std::string said;
  const auto run = [&] {
    run_observed(2, true, [&](Collectives& c, Calls& calls) {
      if (c.rank() == 0) calls.lacks = true;
      try {
        c.channel().barrier();
        c.channel().barrier();
      } catch (const std::exception&) {
        if (c.rank() == 0) said = calls.last_words;
        throw;
      }
    });
  };
  EXPECT_ANY_THROW(run());
  EXPECT_NE(said.find("failed: the system refuses more threads or memory to this process"), std::string::npos)
      << said;
  EXPECT_NE(said.find("to do:    use fewer ranks on this node"), std::string::npos) << said;
}

TEST(Serving, AnEndThatNobodyElseAgreesToComesInTime) {
  MemoryJob memory(2);
  Calls calls;
  MessageEngine engine([&] { return std::make_unique<Observed>(memory.make_transport(0), true, calls); });
  const auto begun = std::chrono::steady_clock::now();
  engine.shutdown(std::chrono::seconds(1));
  EXPECT_GE(std::chrono::steady_clock::now() - begun, std::chrono::seconds(1));
  EXPECT_TRUE(engine.stopped());
  EXPECT_EQ(calls.at_once, 0);
}

}  // namespace
}  // namespace octet::comm::serving_test
