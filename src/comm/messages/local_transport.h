// Transports without a network: for a single rank, and for ranks that are threads of one process.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "messages/transport.h"
#include "octet/base/error.h"

namespace octet::comm {

// Transport of a single rank, which has no peer.

class SelfTransport final : public Transport {
 public:
  SelfTransport();
  const Place& place() const override { return place_; }
  std::size_t max_message() const override { return 1; }
  int open_lane(Queue, const std::vector<int>&) override { return lanes_++; }
  int isend(int, int, int, const void*, std::size_t) override { return nobody(); }
  int irecv(int, int, int, void*, std::size_t) override { return nobody(); }
  bool test(int) override { return nobody() == 0; }
  std::optional<Waiting> probe(int) override { return std::nullopt; }
  void progress() override {}
  void finish() override {}
  void end_job(const std::string&, int) override {}
  bool is_process() const override { return true; }
  bool any_thread() const override { return true; }

 private:
  static int nobody() {
    check(false, "a world of one rank sends and receives nothing");
    return 0;
  }
  Place place_;
  int lanes_ = 0;
};

// Transport between ranks that are threads of one process, by memcpy. A send completes only when its receiver
// has the bytes. This is the strictest order that MPI allows, so a deadlock over MPI also occurs here.

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
