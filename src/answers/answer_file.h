// Answers a file of questions on all ranks.
#pragma once

#include <chrono>

#include "answerer.h"
#include "octet/answers/generate_options.h"
#include "octet/runtime/session.h"

namespace octet::answers {

/// Answers or scores every row of options.file (of its shard). `ranks` are the ranks that answer: all ranks,
/// or the leaders of replicas with split layers. They take rows from one queue until it is empty. The first
/// of them prints. Answers are written to options.out in row order as they finish, or to standard output at
/// the end. `began` is the start of the command; the reported device time counts from it. Throws Error if
/// more than max_broken_rows rows cannot be answered; finished answers are kept.
void answer_file(runtime::Session& session, comm::Channel& ranks, Answerer& answerer,
                 const GenerateOptions& options, std::chrono::steady_clock::time_point began);

}  // namespace octet::answers
