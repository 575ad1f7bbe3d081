#pragma once

#include <cstdint>
#include <string>

#include "octet/config/config.h"
#include "octet/runtime/session.h"

namespace octet::train {

struct ProbeOptions {
  std::string model;  ///< Hugging Face folder
  std::string batch;  ///< safetensors with input_ids, labels and optionally document: [rows, length], or with
                      ///< `steps` [steps, rows, length]
  std::string out;    ///< safetensors to write
  std::int64_t steps = 0;  ///< 0: one batch, no update
};

/// Runs batches through the training code. Ranks get contiguous blocks of rows, one micro-batch per rank;
/// a rank without rows runs with no tokens. A new document begins at each change of `document` within a row.
/// Steps follow the configured schedule, by default constant. Rank 0 writes the results of the whole batch:
/// loss [1], logits [rows, length, vocabulary], grad.<Hugging Face name> of the mean loss over label tokens.
/// With steps: step_loss [steps], step_grad_norm [steps], final.<name>. Throws Error if the batch does not
/// fit the model or has another format.
void probe(runtime::Session& session, const config::Resolved& config, const ProbeOptions& options);

}  // namespace octet::train
