// Transport between ranks that are threads of one process, by memcpy. A send completes only when its receiver
// has the bytes. This is the strictest order that MPI allows, so a deadlock over MPI also occurs here.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "messages/transport.h"

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
  /// Makes all later calls of test() throw this on all ranks. Later calls do not replace the first message.
  void fail(const std::string& message, int code);
  /// Throws the error of fail(), if it was called.
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
