// Threads that claim pieces of an op. The caller waits only for helpers that have claimed a piece. If another
// process takes a helper's core, the op loses this helper's share but does not wait for it.
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "octet/device/cpu.h"

namespace octet::cpu {

namespace {

thread_local bool by_claims = false;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// Spins until `done`, at most for the usual time between two ops.
template <typename Done>
bool spin_until(const Done& done) {
  constexpr auto most = std::chrono::microseconds(100);
  const auto begin = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() - begin < most);
  return done();
}

/// The helpers of one thread. One word holds the number of unclaimed pieces and the round, so that a late
/// helper cannot claim pieces of a round that has ended. A helper reads `pieces_` only after a claim, and a
/// round ends only when all claimed pieces are done.
class Helpers {
 public:
  /// Starts `count` threads, or fewer if the system refuses.
  explicit Helpers(int count) : wanted_(count) {
    try {
      for (int who = 1; who <= count; ++who) threads_.emplace_back([this, who] { serve(who); });
    } catch (const std::system_error&) {
      // The caller of run() and the threads that started take all pieces.
    }
  }
  ~Helpers() {
    closing_.store(true);
    ring();
    for (std::thread& thread : threads_) thread.join();
  }
  Helpers(const Helpers&) = delete;
  Helpers& operator=(const Helpers&) = delete;

  int wanted() const { return wanted_; }

  void run(const Pieces& pieces) {
    pieces_ = &pieces;
    undone_.store(pieces.count, std::memory_order_relaxed);
    round_ += std::uint64_t{1} << 32;
    unclaimed_.store(round_ + static_cast<std::uint32_t>(pieces.count), std::memory_order_release);
    ring();
    while (claim_one(0)) {
    }
    const auto done = [this] { return undone_.load(std::memory_order_acquire) == 0; };
    if (spin_until(done)) return;
    for (int left = undone_.load(std::memory_order_acquire); left != 0;
         left = undone_.load(std::memory_order_acquire)) {
      undone_.wait(left, std::memory_order_acquire);
    }
  }

 private:
  static bool any(std::uint64_t unclaimed) { return static_cast<std::uint32_t>(unclaimed) != 0; }

  bool claim_one(int who) {
    std::uint64_t seen = unclaimed_.load(std::memory_order_acquire);
    while (any(seen)) {
      if (!unclaimed_.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel)) continue;
      const Pieces& pieces = *pieces_;
      pieces.call(pieces.body, pieces.count - static_cast<int>(static_cast<std::uint32_t>(seen)), who);
      if (undone_.fetch_sub(1, std::memory_order_acq_rel) == 1 && who != 0) undone_.notify_one();
      return true;
    }
    return false;
  }

  void ring() {
    rings_.fetch_add(1);
    rings_.notify_all();
  }

  void serve(int who) {
    set_op_threads(1);  // for ops inside a piece
    while (!closing_.load()) {
      if (claim_one(who)) continue;
      const int heard = rings_.load();
      const auto more = [this, heard] { return rings_.load(std::memory_order_relaxed) != heard; };
      if (any(unclaimed_.load()) || closing_.load() || spin_until(more)) continue;
      rings_.wait(heard);
    }
  }

  const int wanted_;
  const Pieces* pieces_ = nullptr;
  std::uint64_t round_ = 0;                   ///< in the upper half
  std::atomic<std::uint64_t> unclaimed_ = 0;  ///< number of pieces in the lower half, round in the upper half
  alignas(64) std::atomic<int> undone_ = 0;
  alignas(64) std::atomic<int> rings_ = 0;
  std::atomic<bool> closing_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

void set_claims(bool on) {
  by_claims = on;
}

bool claims() {
  return by_claims;
}

void share(const Pieces& pieces) {
  thread_local bool sharing = false;
  const int helpers = op_threads() - 1;
  if (helpers < 1 || pieces.count < 2 || sharing) {
    for (int piece = 0; piece < pieces.count; ++piece) pieces.call(pieces.body, piece, 0);
    return;
  }
  thread_local std::unique_ptr<Helpers> mine;
  if (mine == nullptr || mine->wanted() != helpers) {
    mine.reset();
    mine = std::make_unique<Helpers>(helpers);
  }
  sharing = true;
  mine->run(pieces);
  sharing = false;
}

}  // namespace octet::cpu
