// The checks of `trainer verify`: each is called by all ranks, says what it found, and throws an Error that
// all ranks know of when that will not do. What only one rank can meet ends the job.
#pragma once

#include <string>

#include "octet/base/error.h"
#include "octet/config/config.h"
#include "octet/runtime/session.h"

namespace octet::cli {

std::string check_ranks(runtime::Session& session);
/// The same build, configuration and variables on every rank.
std::string check_sameness(runtime::Session& session, const config::Config& config);
std::string check_cores(runtime::Session& session);
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
std::string check_disk(runtime::Session& session, const std::string& folder);
/// A checkpoint that all ranks write to `folder`, read and verify.
std::string check_checkpoint(runtime::Session& session, const std::string& folder);
std::string check_device(runtime::Session& session);
/// One step of a small model in FP8, against the CPU's and against bf16.
std::string check_step(runtime::Session& session);

/// "1.5 GiB a second".
std::string per_second(double bytes, double seconds);
Error failed(const std::string& what, const std::string& expected, const std::string& found,
             const std::string& fix);

}  // namespace octet::cli
