#pragma once

#include <cstdint>
#include <string>

#include "octet/config/config.h"
#include "octet/runtime/session.h"

namespace octet::train {

struct ProbeOptions {
  std::string model;  ///< Hugging Face folder
  std::string batch;  ///< safetensors with input_ids, labels and perhaps document, [rows, length] or with
                      ///< `steps` [steps, rows, length]
  std::string out;    ///< safetensors to write
  std::int64_t steps = 0;  ///< 0: one batch, no update
};

/// Runs batches through the code of training. Rows are dealt to the ranks in contiguous blocks, one
/// micro-batch a rank; a rank without rows takes part with no tokens. Where the number in `document` changes
/// inside a row, another document begins. Steps follow the schedule that the configuration asks for, constant
/// without a word from it. Rank 0 writes, for the whole batch: loss [1], logits [rows, length,
/// vocabulary], grad.<Hugging Face name> of the mean loss over label tokens; with steps: step_loss [steps],
/// step_grad_norm [steps], final.<name>. Throws Error for a batch that does not fit the model or is not what
/// is described here.
void probe(runtime::Session& session, const config::Resolved& config, const ProbeOptions& options);

}  // namespace octet::train
