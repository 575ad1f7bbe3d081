// The runtime room: a process among the ranks, whatever it is there for. Its device and messages, the signals
// that reach it, the folders of models that it opens. It knows no configuration, no data set and no loop.
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

/// This process among the ranks: its place, its device, its messages. Opened once, before anything that may
/// fail on one rank alone, so that failures can be told to all.
class Session {
 public:
  /// Joins the job (MPI when a launcher started the process), divides the node's cores among its ranks, opens
  /// the device that is asked for (all ranks compute on GPUs or none does, and each on another one:
  /// gpu_choice.h) and decides who prints. When a rank cannot have its device, or comes with
  /// a reason to refuse (an Error met before the ranks knew each other: a wrong argument, a wrong
  /// configuration), all ranks throw as Channel::together does. `carrying`: who carries
  /// bytes between GPUs, and sums them. With `unopened` a device or carrier that cannot be had is told there,
  /// on all ranks, as an Error that they agree upon would be, and the session is one of CPUs.
  explicit Session(DeviceWish device, const std::exception_ptr& refusal = nullptr,
                   const comm::Carrying& carrying = {}, std::optional<Problem>* unopened = nullptr);

  const comm::Place& place() const { return place_; }
  Device& device() { return *device_; }
  /// All ranks of the program: where they stand, and what they tell each other.
  comm::Job& job() { return *job_; }
  /// What the ranks of this one's data axis compute together.
  comm::Collectives& data() { return *data_; }
  /// What this rank has sent since the last call, collectives first.
  std::vector<comm::Traffic> take_traffic();
  bool prints() const { return place_.rank == 0; }

  /// Where one rank uses one of several GPUs, says how to use all; `command` is what comes behind the
  /// program's name.
  void mention_idle_gpus(const std::string& command) const;

  /// Runs `body` and turns what it throws into the exit code of the job: an Error that all ranks know of is
  /// printed once; anything that only this rank met is printed here and ends all ranks. Throws RanksLost
  /// where the job did (octet/comm/job.h).
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
  std::size_t usable_gpus_ = 0;  ///< that this process sees
  std::unique_ptr<Device> device_;
  std::unique_ptr<comm::Collectives> data_;
};

/// A problem that one rank of several met alone, with who that is: rank, host and, where it is open, device.
Problem placed(Problem problem, const comm::Place& place, const std::string& device);

}  // namespace octet::runtime
