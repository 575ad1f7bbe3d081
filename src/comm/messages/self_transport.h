// Transport of a single rank, which has no peer.
#pragma once

#include "messages/transport.h"
#include "octet/base/error.h"

namespace octet::comm {

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

}  // namespace octet::comm
