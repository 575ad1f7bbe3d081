// How probable a model finds tokens: by the forward pass of training, whoever asks.
#pragma once

#include <vector>

#include "octet/model/transformer.h"

namespace octet::runtime {

/// Natural logarithms of the probabilities of a batch's targets, [labels], 0 for those below 0. Runs the
/// core's forward pass (Transformer::evaluate, which adds the losses to *loss_sum, device memory), so that
/// bits are those that a training step sees; sums of a row in fp64, from its logits as they lie. `targets`:
/// [labels] as in the batch, in host memory. Waits for the stream. Between steps; where parameters are cut
/// (stage 3) all ranks call it, or pass by.
std::vector<double> log_probabilities(model::Transformer& core, model::ParameterSource& source,
                                      Stream& stream, const model::MicroBatch& batch,
                                      const std::vector<std::int32_t>& targets, double* loss_sum);

}  // namespace octet::runtime
