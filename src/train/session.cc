#include "octet/train/session.h"

#include <cstdlib>

#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/device/cpu.h"

namespace octet::train {
namespace {

// The GPU whose number is this rank's place on its node, or null where `device: auto` goes on without one.
std::unique_ptr<Device> open_gpu(bool insists, const comm::Place& place) {
  if (insists && place.size == 1) return make_cuda_device(place.local_rank);
  if (insists) {
    throw Error({.what = "ranks with GPUs cannot send messages to each other in this version",
                 .expected = "one rank with a GPU, or ranks on CPUs",
                 .found = std::to_string(place.size) + " ranks and device: cuda",
                 .fix = "start the program without mpirun to train on one GPU, or set device: cpu",
                 .code = ExitCode::usage});
  }
  if (!has_cuda_driver()) return nullptr;
  std::string why_not = "ranks with GPUs cannot send messages to each other in this version";
  if (place.size == 1 && cuda_available(place.local_rank, &why_not))
    return make_cuda_device(place.local_rank);
  if (place.rank == 0) log::warn("computing on the CPU: " + why_not);
  return nullptr;
}

std::unique_ptr<Device> open_device(const std::string& name, const comm::Place& place) {
  const int cores = cpu::claim_cores(place.local_rank, place.local_size);
  cpu::set_op_threads(cores);
  if (name != "cpu") {
    if (auto gpu = open_gpu(name == "cuda", place)) return gpu;
  }
  return make_cpu_device(
      {.threads = cores, .compute_worker = std::getenv("OCTET_COMPUTE_WORKER") != nullptr});
}

}  // namespace

Session::Session(const std::string& device, const std::exception_ptr& refusal) : place_(comm::find_place()) {
  log::set_rank(place_.rank, place_.rank == 0);
  std::exception_ptr refused = refusal;
  try {
    if (!refused) device_ = open_device(device, place_);
  } catch (const Error&) {
    refused = std::current_exception();
  }
  // The host's device is always there, and a refusal travels over it.
  if (refused) device_ = open_device("cpu", place_);
  communicator_ = comm::make_communicator(*device_);
  communicator_->together([&] {
    if (refused) std::rethrow_exception(refused);
  });
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
