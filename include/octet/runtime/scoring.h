// How probable a model finds tokens: by the forward pass of training, whoever asks.
#pragma once

#include <span>
#include <vector>

#include "octet/model/transformer.h"

namespace octet::runtime {

/// The log-softmax of a row of logits in fp64, summed in their order: one function for the tokens that are
/// sampled and those that are trained, so that equal logits have equal log-probabilities.
struct LogSoftmax {
  double highest = 0.0;  ///< of the logits
  double log_sum = 0.0;  ///< logarithm of the sum of exponentials of logits less the highest

  /// `logits`: one or more; NaNs stay.
  static LogSoftmax of(std::span<const float> logits);
  /// Natural logarithm of the probability of a token with this logit.
  double log_probability(double logit) const { return logit - highest - log_sum; }
};

/// Natural logarithms of the probabilities of a batch's targets, [labels], 0 for those below 0. Runs the
/// core's forward pass (Transformer::evaluate, which adds the losses to *loss_sum, device memory), so that
/// bits are those that a training step sees; sums of a row in fp64, from its logits as they lie. `targets`:
/// [labels] as in the batch, in host memory. Waits for the stream. Between steps; where parameters are cut
/// (stage 3) all ranks call it, or pass by.
std::vector<double> log_probabilities(model::Transformer& core, model::ParameterSource& source,
                                      Stream& stream, const model::MicroBatch& batch,
                                      const std::vector<std::int32_t>& targets, double* loss_sum);

}  // namespace octet::runtime
