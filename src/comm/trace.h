// What a rank's collectives did lately, for whoever asks why a job hangs: a ring of fixed length.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "transport.h"

namespace octet::comm {

struct Trace {
  Kind kind{};
  std::string name;
  std::string queue;  ///< the name of its lane
  unsigned sequence = 0;
  std::int64_t bytes = 0;
  double posted = 0, begun = -1, done = -1;  ///< seconds since the ring was made; negative: not yet
};

class TraceRing {
 public:
  static constexpr std::size_t length = 1024;

  /// From now on write() writes to this folder, and SIGQUIT asks for it. An empty folder: to none.
  void open(const std::string& folder, int rank);
  /// Notes a collective that was enqueued, and returns what to call it from now on.
  std::uint64_t posted(Trace trace);
  void begun(std::uint64_t which);
  void done(std::uint64_t which);

  std::string to_json() const;
  /// Writes collectives-rank<r>.json. A file that cannot be written is a warning.
  void write() const;
  /// Somebody sent SIGQUIT to this process since the last call.
  static bool take_request();

 private:
  double now() const;

  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  mutable std::mutex mutex_;
  std::uint64_t count_ = 0;
  std::vector<Trace> ring_;
  std::string folder_;
  int rank_ = 0;
};

}  // namespace octet::comm
