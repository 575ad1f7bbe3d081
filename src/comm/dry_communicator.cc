// A rank of a job that does not exist.
#include <cstdlib>

#include "octet/base/error.h"
#include "octet/comm/communicator.h"

namespace octet::comm {
namespace {

class DryChannel final : public Channel {
 public:
  explicit DryChannel(const Place& place) : place_(place) {}
  const Place& place() const override { return place_; }
  int rank_of_job(int rank) const override { return rank; }
  std::string broadcast(const std::string& bytes, int) override { return bytes; }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    return std::vector<std::string>(static_cast<std::size_t>(place_.size), bytes);
  }

 private:
  Place place_;
};

class DryCommunicator final : public Communicator {
 public:
  DryCommunicator(Device& device, const Place& place)
      : place_(place),
        gather_(device.make_stream({.name = "gather"})),
        reduce_(device.make_stream({.name = "reduce"})) {
    check(device.kind() == DeviceKind::dry, "a rank that does not exist has a dry device");
    check(place.size >= 1 && place.rank >= 0 && place.rank < place.size, "a rank has a place in its job");
  }

  const Place& place() const override { return place_; }
  Stream& gather_stream() override { return *gather_; }
  Stream& reduce_stream() override { return *reduce_; }

  void reduce_scatter(Stream&, const ReduceScatterArgs&) override {}
  void all_gather(Stream&, const AllGatherArgs&) override {}
  void all_gather_values(Stream&, const AllGatherValuesArgs&) override {}
  void all_reduce_max(Stream&, const char*, float*, std::int64_t) override {}
  void all_reduce_sum(Stream&, const char*, std::int64_t*, std::int64_t) override {}
  void all_reduce_sum(Stream&, const char*, double*, std::int64_t) override {}

  std::unique_ptr<Channel> channel(const std::string&) override {
    return std::make_unique<DryChannel>(place_);
  }
  std::string broadcast(const std::string& bytes, int) override { return bytes; }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    return std::vector<std::string>(static_cast<std::size_t>(place_.size), bytes);
  }
  void watch(const WatchOptions&) override {}
  std::string trace() const override { return "[]"; }
  std::vector<Traffic> take_traffic() override { return {}; }
  double seconds_busy() override { return 0; }
  void share(const std::vector<SharedMemory>&) override {}
  void unshare(const std::vector<SharedMemory>&) override {}
  std::string carrier() const override { return {}; }
  void abort(int code) override { std::_Exit(code); }

 private:
  Place place_;
  std::unique_ptr<Stream> gather_, reduce_;
};

}  // namespace

std::unique_ptr<Communicator> make_dry_communicator(Device& device, const Place& place) {
  return std::make_unique<DryCommunicator>(device, place);
}

}  // namespace octet::comm
