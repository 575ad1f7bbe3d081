// The checks. All ranks call each check. It returns its findings. If they are not
// acceptable it throws an Error that all ranks agreed on. An error of a single rank ends the job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/config/config.h"
#include "octet/runtime/session.h"
#include "octet/verify/run_checks.h"

namespace octet::verify {

/// Number of ranks, and whether their MPI supports the required thread level.
std::string check_ranks(runtime::Session& session);
/// Whether build, configuration and variables are the same on every rank.
std::string check_sameness(runtime::Session& session, const config::Config& config);
std::string check_cores(runtime::Session& session);
/// Whether the host has enough memory for its ranks.
std::string check_memory(runtime::Session& session);
/// Limits of the system for a process: shared memory, open files, stack.
std::string check_limits(runtime::Session& session);
/// `notes` are notes of the configuration about set variables.
std::string check_environment(runtime::Session& session, const config::Strings& notes);
/// A sum over all ranks.
std::string check_messages(runtime::Session& session);
std::string check_carrier(runtime::Session& session);
/// Measures the rate between every two ranks with every possible transport.
std::string check_links(runtime::Session& session);
/// Writes a file of each rank in `folder`, and checks free space there.
std::string check_disk(runtime::Session& session, const std::string& folder, Leftovers& leftovers);
/// Writes a checkpoint of all ranks to `folder`, reads it and verifies it.
std::string check_checkpoint(runtime::Session& session, const std::string& folder, Leftovers& leftovers);
/// `unopened` says why the session has not the requested device or transport.
std::string check_device(runtime::Session& session, const std::optional<Problem>& unopened);
/// NCCL and its version, for ranks on GPUs.
std::string check_nccl(runtime::Session& session);
/// Compares one FP8 step of a small model with the CPU's step and with bf16.
std::string check_step(runtime::Session& session);

/// Result of one transport between all pairs of ranks.
struct LinkTrial {
  std::string carrier;
  bool expected = true;  ///< it should work on such a machine
  std::string rates;     ///< a table; "" if it does not work
  std::string trouble;   ///< the reason
};
/// Returns a report of the trials. Throws Error if a transport that is expected to work does not.
std::string links_text(const std::string& head, const std::vector<LinkTrial>& trials);

/// Returns "1.5 GiB per second".
std::string per_second(double bytes, double seconds);
Error failed(const std::string& what, const std::string& expected, const std::string& found,
             const std::string& fix);

}  // namespace octet::verify
