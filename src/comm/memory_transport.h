// Ranks as threads of one process: the same messages as over MPI, by memcpy. A send is through only when its
// receiver has it, which is the strictest order that MPI allows; so what would deadlock there deadlocks here.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "transport.h"

namespace octet::comm {

/// State shared by the ranks of one job.
class MemoryJob {
 public:
  /// `node_of` and `bytes_per_second` as in ThreadRanksOptions.
  explicit MemoryJob(int size, std::vector<int> node_of = {}, double bytes_per_second = 0);
  ~MemoryJob();
  int size() const { return size_; }
  const std::vector<int>& node_of() const { return node_of_; }
  std::unique_ptr<Transport> make_transport(int rank);
  /// All ranks' later test() throw this. The first message stays.
  void fail(const std::string& message, int code);
  /// Throws what fail() was told, once it was.
  void require_not_failed() const;

 private:
  friend class MemoryTransport;
  struct State;
  int size_;
  std::vector<int> node_of_;
  double bytes_per_second_;
  std::unique_ptr<State> state_;
};

}  // namespace octet::comm
