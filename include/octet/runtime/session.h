// The runtime module: a process as one of the ranks, for any command. It holds the device, the messages, the
// signals and the opened model folders. It contains no configuration, no data set and no loop.
#pragma once

#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "octet/base/error.h"
#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/comm/mesh.h"
#include "octet/device/device.h"
#include "octet/device/gpu_choice.h"

namespace octet::runtime {

/// This process as one of the ranks: its place, device and channels. Opened before any operation that may
/// fail on one rank alone, so that failures can be reported to all ranks.
class Session {
 public:
  /// Joins the job (MPI if a launcher started the process), divides the node's cores among its ranks and
  /// opens the requested device. Either all ranks compute on GPUs, each on a different GPU, or none does
  /// (gpu_choice.h). Also decides which rank prints. All ranks throw like Channel::together if a rank cannot
  /// open its device or passes a `refusal`. A refusal is an Error from before the ranks were connected: a
  /// wrong argument or configuration. `carrying` selects the carrier and the sums between GPUs. With
  /// `unopened`, an unavailable device or carrier is reported there on all ranks, as an agreed Error, and the
  /// session uses CPUs.
  explicit Session(DeviceWish device, const std::exception_ptr& refusal = nullptr,
                   const comm::Carrying& carrying = {}, std::optional<Problem>* unopened = nullptr);

  const comm::Place& place() const { return place_; }
  Device& device() { return *device_; }
  /// Returns the job of all ranks of the program: places and channels.
  comm::Job& job() { return *job_; }
  /// Returns the collectives of this rank's data axis.
  comm::Collectives& data() { return *data_; }
  /// Returns the traffic of this rank since the last call, collectives first.
  std::vector<comm::Traffic> take_traffic();
  bool prints() const { return place_.rank == 0; }

  /// If one rank uses one of several GPUs, prints how to use all. `command` is the command line after the
  /// program's name.
  void mention_idle_gpus(const std::string& command) const;

  /// Runs `body` and turns its exceptions into the exit code of the job. An Error known to all ranks is
  /// printed once. Any other exception is printed on this rank and ends all ranks. Throws RanksLost if the
  /// job threw it (octet/comm/job.h).
  template <typename Body>
  int run(const Body& body) {
    try {
      return body();
    } catch (...) {
      return failed();
    }
  }

 private:
  int failed();

  std::unique_ptr<comm::Job> job_;
  comm::Place place_;
  std::size_t usable_gpus_ = 0;  ///< visible to this process
  std::unique_ptr<Device> device_;
  std::unique_ptr<comm::Collectives> data_;
};

/// Adds the rank, its host and, if open, its device to a problem that only one of several ranks met.
Problem placed(Problem problem, const comm::Place& place, const std::string& device);

}  // namespace octet::runtime
