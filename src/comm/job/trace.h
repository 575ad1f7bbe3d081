// The latest collectives of a rank, for diagnosing hangs: a ring of fixed length.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "messages/transport.h"

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

  /// Sets the folder for write() and lets SIGQUIT request a write. Empty folder: nothing is written.
  void open(const std::string& folder, int rank);
  /// Records an enqueued collective and returns its number.
  std::uint64_t posted(Trace trace);
  void begun(std::uint64_t which);
  void done(std::uint64_t which);

  std::string to_json() const;
  /// Writes collectives-rank<r>.json. A file that cannot be written is a warning.
  void write() const;
  /// Returns whether SIGQUIT arrived since the last call.
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
