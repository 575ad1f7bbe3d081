// The verify room: checks whether machines and their ranks can train. It has the checks of machines,
// messages, disks and a small step, and the removal of their files. The room train measures
// training steps, and the room cli prints.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "octet/base/error.h"
#include "octet/config/config.h"
#include "octet/runtime/session.h"
#include "octet/verify/leftovers.h"

namespace octet::verify {

/// Input of run_checks().
struct Wish {
  config::Resolved resolved;
  std::string folder;               ///< where checkpoints would be written
  std::optional<Problem> unopened;  ///< the error of opening the session, if any
};

/// The result of a check.
struct Result {
  std::string name;
  std::string found;  ///< findings of a check that passed
  std::optional<Problem> problem;
};

struct Summary {
  int checks = 0, wrong = 0;
  ExitCode code = ExitCode::ok;  ///< of the first check that failed
};

/// Runs all checks, one after the other, and calls `tell` with each result on the rank that prints. All ranks
/// call it. A failed check does not end the others. Throws an Error only if the ranks did not agree on it.
Summary run_checks(runtime::Session& session, const Wish& wish, Leftovers& leftovers,
                   const std::function<void(const Result&)>& tell);

}  // namespace octet::verify
