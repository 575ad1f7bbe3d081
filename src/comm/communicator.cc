#include "octet/comm/communicator.h"

#include <algorithm>
#include <iterator>

#include "transport.h"

namespace octet::comm {
namespace {

std::unique_ptr<Job>& job_before_devices() {
  static std::unique_ptr<Job> job;
  return job;
}

}  // namespace

Communicator::Communicator(std::unique_ptr<Job> job, std::unique_ptr<Collectives> collectives)
    : own_job_(std::move(job)), own_all_(std::move(collectives)), job_(*own_job_), all_(*own_all_) {}

std::vector<Traffic> Communicator::take_traffic() {
  std::vector<Traffic> taken = all_.take_traffic();
  std::ranges::move(job_.take_traffic(), std::back_inserter(taken));
  return taken;
}

std::vector<std::string> exchange_facts(const std::string& mine) {
  if (!job_before_devices()) job_before_devices() = make_job();
  return job_before_devices()->all_gather_bytes(mine);
}

std::unique_ptr<Communicator> make_communicator(Device& device, Carrier carrier) {
  auto& job = job_before_devices();
  if (!job) job = make_job();
  auto all = job->collectives({.name = "world", .ranks = all_ranks(job->size())}, device, carrier);
  return std::make_unique<Communicator>(std::move(job), std::move(all));
}

std::unique_ptr<Communicator> make_self_communicator(Device& device) {
  auto job = make_self_job();
  auto all = job->collectives({.name = "world", .ranks = all_ranks(job->size())}, device, Carrier::messages);
  return std::make_unique<Communicator>(std::move(job), std::move(all));
}

std::unique_ptr<Communicator> make_dry_communicator(Device& device, const Place& place) {
  auto job = make_dry_job(place);
  auto all = job->collectives({.name = "world", .ranks = all_ranks(job->size())}, device, Carrier::messages);
  return std::make_unique<Communicator>(std::move(job), std::move(all));
}

void run_ranks_as_threads(const ThreadRanksOptions& options,
                          const std::function<void(Communicator&, Device&)>& body) {
  run_ranks_as_threads(options, [&](Job& job, Collectives& collectives, Device& device) {
    Communicator communicator(job, collectives);
    body(communicator, device);
  });
}

}  // namespace octet::comm
