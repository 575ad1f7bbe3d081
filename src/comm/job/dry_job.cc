// A rank of a job that does not exist.
#include <cstdlib>
#include <utility>

#include "messages/transport.h"
#include "octet/base/error.h"
#include "octet/comm/collectives.h"
#include "octet/comm/job.h"

namespace octet::comm {
namespace {

class DryChannel final : public Channel {
 public:
  DryChannel(const Place& place, std::vector<int> ranks) : place_(place), ranks_(std::move(ranks)) {}
  const Place& place() const override { return place_; }
  int rank_of_job(int rank) const override { return ranks_.at(static_cast<std::size_t>(rank)); }
  std::string broadcast(const std::string& bytes, int) override { return bytes; }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    return std::vector<std::string>(static_cast<std::size_t>(place_.size), bytes);
  }
  // A plan may have a million ranks.
  std::vector<std::int64_t> all_gather_int(std::int64_t value) override {
    return std::vector<std::int64_t>(static_cast<std::size_t>(place_.size), value);
  }

 private:
  Place place_;
  std::vector<int> ranks_;
};

class DryCollectives final : public Collectives {
 public:
  DryCollectives(Device& device, const Place& job, const Group& group)
      : channel_(group.size() == job.size ? job : place_among(job, group.ranks), group.ranks),
        gather_(device.make_stream({.name = "gather"})),
        reduce_(device.make_stream({.name = "reduce"})) {
    check(device.kind() == DeviceKind::dry, "a planned rank has a dry device");
  }

  const Place& place() const override { return channel_.place(); }
  Channel& channel() override { return channel_; }
  Stream& gather_stream() override { return *gather_; }
  Stream& reduce_stream() override { return *reduce_; }

  void reduce_scatter(Stream&, const ReduceScatterArgs&) override {}
  void all_gather(Stream&, const AllGatherArgs&) override {}
  void all_gather_values(Stream&, const AllGatherValuesArgs&) override {}
  void all_to_all(Stream&, const AllToAllArgs&) override {}
  void all_reduce_max(Stream&, const char*, float*, std::int64_t) override {}
  void all_reduce_sum(Stream&, const char*, std::int64_t*, std::int64_t) override {}
  void all_reduce_sum(Stream&, const char*, double*, std::int64_t) override {}
  void share(const std::vector<SharedMemory>&) override {}
  void unshare(const std::vector<SharedMemory>&) override {}
  std::vector<Traffic> take_traffic() override { return {}; }
  void take_times(bool) override {}
  double seconds_busy() override { return 0; }
  std::string carrier() const override { return {}; }

 private:
  void pass(Stream&, const SendArgs*, const ReceiveArgs*) override {}

  DryChannel channel_;
  std::unique_ptr<Stream> gather_, reduce_;
};

class DryJob final : public Job {
 public:
  explicit DryJob(const Place& place) : main_(place, all_ranks(place.size)) {
    check(place.size >= 1 && place.rank >= 0 && place.rank < place.size, "a rank has a place in its job");
  }
  const Place& place() const override { return main_.place(); }
  std::string broadcast(const std::string& bytes, int root) override { return main_.broadcast(bytes, root); }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    return main_.all_gather_bytes(bytes);
  }
  std::vector<std::int64_t> all_gather_int(std::int64_t value) override {
    return main_.all_gather_int(value);
  }
  std::unique_ptr<Channel> channel(const std::string&) override {
    return std::make_unique<DryChannel>(main_);
  }
  std::unique_ptr<Channel> channel(const std::string&, const Group& group) override {
    return std::make_unique<DryChannel>(place_among(place(), group.ranks), group.ranks);
  }
  std::unique_ptr<Collectives> collectives(const Group& group, Device& device, Carrying) override {
    return std::make_unique<DryCollectives>(device, place(), group);
  }
  void watch(const WatchOptions&) override {}
  std::string trace() const override { return "[]"; }
  std::vector<Traffic> take_traffic() override { return {}; }
  void abort(int code) override { std::_Exit(code); }

 private:
  DryChannel main_;
};

}  // namespace

std::unique_ptr<Job> make_dry_job(const Place& place) {
  return std::make_unique<DryJob>(place);
}

}  // namespace octet::comm
