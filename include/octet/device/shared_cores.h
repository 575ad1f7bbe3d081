// How OpenMP's threads wait for each other at the end of an op. Spinning is fastest if the cores are not
// shared. If other programs use the cores, spinning threads use up their time slices and then wait for a
// core: short ops become up to a hundred times slower. This file therefore measures the time that threads
// wait for a core.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace octet::cpu {

/// Decides by measurements whether cores are shared.
class SharedCores {
 public:
  /// Adds a measurement: in `passed` seconds the threads together waited `waited` seconds for a core. Returns
  /// the new answer if it changes.
  std::optional<bool> add(double waited, double passed);
  bool shared() const { return shared_; }

 private:
  bool shared_ = false;
  int in_a_row_ = 0;      ///< consecutive measurements with waiting
  double quiet_ = 0;      ///< seconds without waiting
  double patience_ = 10;  ///< seconds after which cores count as quiet
};

/// Returns the variable by which the user lets waiting threads spin; "" if no variable is set, nullptr if the
/// user lets them sleep. The arguments are OMP_WAIT_POLICY and GOMP_SPINCOUNT, or nullptr.
const char* choice_to_spin(const char* policy, const char* spin_count);

struct SharedCoresFacts {
  int percent = 0;  ///< of the time that threads waited for a core
  int threads = 1, cores = 1;
  bool sleeps = false;        ///< waiting threads now sleep
  const char* variable = "";  ///< as in choice_to_spin()
};
/// Returns the warning that cores are shared.
std::string shared_cores_text(const SharedCoresFacts& facts);

/// Makes waiting OpenMP threads sleep soon during its lifetime. GNU's library spins 300 times less if it has
/// more threads than there are cores. This object therefore starts idle threads.
class SleepingThreads {
 public:
  SleepingThreads();
  ~SleepingThreads();
  SleepingThreads(const SleepingThreads&) = delete;
  SleepingThreads& operator=(const SleepingThreads&) = delete;
  /// Returns false if the system refused to start the threads.
  bool active() const { return idle_ != nullptr; }

 private:
  struct Idle;
  std::unique_ptr<Idle> idle_;
};

/// Measures the op threads of the calling thread and chooses how they wait.
class WaitingThreads {
 public:
  WaitingThreads();
  ~WaitingThreads();
  WaitingThreads(const WaitingThreads&) = delete;
  WaitingThreads& operator=(const WaitingThreads&) = delete;

  /// Call often, between ops, from one thread. Measures at most five times a second. Logs that cores are
  /// shared. Does nothing for a single thread, or if the user lets waiting threads sleep. Leaves the waiting
  /// as it is if OMP_WAIT_POLICY or GOMP_SPINCOUNT is set.
  void look();

 private:
  void measure(std::chrono::steady_clock::time_point now);

  const char* spins_;  ///< as in choice_to_spin()
  std::vector<int> threads_;
  std::chrono::steady_clock::time_point last_{};
  double waited_ = 0;
  SharedCores cores_;
  bool told_ = false;
  std::unique_ptr<SleepingThreads> sleeping_;
};

}  // namespace octet::cpu
