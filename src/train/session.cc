#include "octet/train/session.h"

#include <cstdlib>

#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/device/cpu.h"

namespace octet::train {
namespace {

std::unique_ptr<Device> open_device(const std::string& name, const comm::Place& place) {
  if (name == "cuda") {
    throw Error({.what = "this program was built without CUDA",
                 .expected = "a build with the CUDA toolkit for device: cuda",
                 .where = "configuration key 'device'",
                 .fix = "use device: cpu, or leave it auto",
                 .code = ExitCode::usage});
  }
  const int cores = cpu::claim_cores(place.local_rank, place.local_size);
  cpu::set_op_threads(cores);
  return make_cpu_device(
      {.threads = cores, .compute_worker = std::getenv("OCTET_COMPUTE_WORKER") != nullptr});
}

}  // namespace

Session::Session(const std::string& device) : place_(comm::find_place()) {
  log::set_rank(place_.rank, place_.rank == 0);
  device_ = open_device(device, place_);
  communicator_ = comm::make_communicator(*device_);
}

int Session::failed() {
  try {
    throw;
  } catch (const Error& e) {
    // A silent Error says that another rank has printed it; one thrown by together() is known to all.
    if (!e.problem().what.empty()) log::error(e.what());
    if (place_.size > 1 && !e.problem().agreed) communicator_->abort(static_cast<int>(e.code()));
    return static_cast<int>(e.code());
  } catch (const std::exception& e) {
    log::error("internal error on rank " + std::to_string(place_.rank) + ": " + e.what());
    if (place_.size > 1) communicator_->abort(static_cast<int>(ExitCode::failure));
    return static_cast<int>(ExitCode::failure);
  }
}

}  // namespace octet::train
