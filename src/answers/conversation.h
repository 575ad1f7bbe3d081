// Answers questions of the command line and of standard input.
#pragma once

#include "answerer.h"
#include "octet/answers/generate_options.h"

namespace octet::answers {

/// Prints the answers to options.questions while they are decoded. Without questions, runs a conversation in
/// a terminal. If standard input is not a terminal, each of its lines is a separate question.
void converse(Answerer& answerer, const GenerateOptions& options);

}  // namespace octet::answers
