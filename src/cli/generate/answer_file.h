// Answers to a file of questions, by all ranks.
#pragma once

#include <chrono>

#include "generate/answerer.h"
#include "generate/generate_options.h"
#include "octet/runtime/session.h"

namespace octet::cli {

/// Answers every row of options.file (of its shard), or scores it. `ranks`, those that answer (of a model
/// whose layers are split the leaders), take rows from one queue until it is empty; the one that prints is
/// their first. Lines go to options.out as rows are done, in their order, else to standard output at the end.
/// `began`: when the command did; devices are paid for from there. Throws Error when more rows than
/// max_broken_rows cannot be answered: what was answered is kept.
void answer_file(runtime::Session& session, comm::Channel& ranks, Answerer& answerer,
                 const GenerateOptions& options, std::chrono::steady_clock::time_point began);

}  // namespace octet::cli
