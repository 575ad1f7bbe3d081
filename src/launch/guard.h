// A process that ends mpirun and its ranks if launch/mpirun is killed.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>

namespace octet::launch {

class Guard {
 public:
  /// Starts the process in a new session. It waits for mpirun's process id.
  Guard(const std::string& sessions, std::chrono::system_clock::time_point began);
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  /// Called in mpirun's process before exec, because launch/mpirun may be killed at any moment.
  void watch(pid_t mpirun) const;
  /// Ends the guard. mpirun has ended, and this process has cleared up.
  void dismiss();

 private:
  pid_t process_ = -1;
  int words_ = -1;  ///< a pipe to the guard; its end tells the guard that this process is gone
};

}  // namespace octet::launch
