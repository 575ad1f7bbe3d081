// The checks of `trainer verify`: each is called by all ranks, says what it found, and throws an Error that
// all ranks know of when that will not do. What only one rank can meet ends the job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/config/config.h"
#include "octet/runtime/session.h"
#include "verify/leftovers.h"

namespace octet::cli {

/// How many there are, and whether their MPI allows the threads that they need.
std::string check_ranks(runtime::Session& session);
/// The same build, configuration and variables on every rank.
std::string check_sameness(runtime::Session& session, const config::Config& config);
std::string check_cores(runtime::Session& session);
/// Room in the memory of the host, for the ranks on it.
std::string check_memory(runtime::Session& session);
/// What the system allows a process: shared memory, open files, stack.
std::string check_limits(runtime::Session& session);
/// `notes`: what the configuration says of variables that are set.
std::string check_environment(runtime::Session& session, const config::Strings& notes);
/// A sum of all ranks.
std::string check_messages(runtime::Session& session);
std::string check_carrier(runtime::Session& session);
/// The rate between every two ranks, by every carrier that there can be.
std::string check_links(runtime::Session& session);
/// A file of each rank in `folder`, and room there.
std::string check_disk(runtime::Session& session, const std::string& folder, Leftovers& leftovers);
/// A checkpoint that all ranks write to `folder`, read and verify.
std::string check_checkpoint(runtime::Session& session, const std::string& folder, Leftovers& leftovers);
/// `unopened`: why the session has not the device, or the carrier, that was asked for.
std::string check_device(runtime::Session& session, const std::optional<Problem>& unopened);
/// NCCL and its version, of ranks on GPUs.
std::string check_nccl(runtime::Session& session);
/// One step of a small model in FP8, against the CPU's and against bf16.
std::string check_step(runtime::Session& session);

/// How one carrier did between every two ranks.
struct LinkTrial {
  std::string carrier;
  bool expected = true;  ///< it works on such a machine
  std::string rates;     ///< a table; empty where it does not work
  std::string trouble;   ///< why not
};
/// What is said of them. Throws Error where one that is expected to work does not.
std::string links_text(const std::string& head, const std::vector<LinkTrial>& trials);

/// "1.5 GiB per second".
std::string per_second(double bytes, double seconds);
Error failed(const std::string& what, const std::string& expected, const std::string& found,
             const std::string& fix);

}  // namespace octet::cli
