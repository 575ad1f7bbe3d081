// A job and the collectives of all its ranks in one object, for those who need both.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/comm/threads.h"

namespace octet::comm {

class Communicator final : public Channel {
 public:
  Communicator(std::unique_ptr<Job> job, std::unique_ptr<Collectives> collectives);
  /// What is given outlives it.
  Communicator(Job& job, Collectives& collectives) : job_(job), all_(collectives) {}

  Job& job() { return job_; }
  Collectives& collectives() { return all_; }
  const Place& place() const override { return job_.place(); }
  int rank_of_job(int rank) const override { return rank; }
  std::string broadcast(const std::string& bytes, int root) override { return job_.broadcast(bytes, root); }
  std::vector<std::string> all_gather_bytes(const std::string& bytes) override {
    return job_.all_gather_bytes(bytes);
  }
  Stream& gather_stream() { return all_.gather_stream(); }
  Stream& reduce_stream() { return all_.reduce_stream(); }
  void reduce_scatter(Stream& stream, const ReduceScatterArgs& args) { all_.reduce_scatter(stream, args); }
  void all_gather(Stream& stream, const AllGatherArgs& args) { all_.all_gather(stream, args); }
  void all_gather_values(Stream& stream, const AllGatherValuesArgs& args) {
    all_.all_gather_values(stream, args);
  }
  void all_reduce_max(Stream& stream, const char* name, float* values, std::int64_t count) {
    all_.all_reduce_max(stream, name, values, count);
  }
  void all_reduce_sum(Stream& stream, const char* name, std::int64_t* values, std::int64_t count) {
    all_.all_reduce_sum(stream, name, values, count);
  }
  void all_reduce_sum(Stream& stream, const char* name, double* values, std::int64_t count) {
    all_.all_reduce_sum(stream, name, values, count);
  }
  void share(const std::vector<SharedMemory>& memory) { all_.share(memory); }
  void unshare(const std::vector<SharedMemory>& memory) { all_.unshare(memory); }
  void watch(const WatchOptions& options) { job_.watch(options); }
  std::string trace() const { return job_.trace(); }
  std::vector<Traffic> take_traffic();
  double seconds_busy() { return all_.seconds_busy(); }
  std::string carrier() const { return all_.carrier(); }
  [[noreturn]] void abort(int code) { job_.abort(code); }

 private:
  std::unique_ptr<Job> own_job_;
  std::unique_ptr<Collectives> own_all_;
  Job& job_;
  Collectives& all_;
};

std::unique_ptr<Communicator> make_communicator(Device& device, Carrier carrier = Carrier::automatic);
std::unique_ptr<Communicator> make_self_communicator(Device& device);
std::unique_ptr<Communicator> make_dry_communicator(Device& device, const Place& place);
std::vector<std::string> exchange_facts(const std::string& mine);
void run_ranks_as_threads(const ThreadRanksOptions& options,
                          const std::function<void(Communicator&, Device&)>& body);

}  // namespace octet::comm
