// Probabilities that a model assigns to tokens, by the forward pass of training.
#pragma once

#include <span>
#include <vector>

#include "octet/model/transformer.h"

namespace octet::runtime {

/// The log-softmax of a row of logits in fp64, summed in their order. Sampling and training share this
/// function, so equal logits give equal log-probabilities.
struct LogSoftmax {
  double highest = 0.0;  ///< of the logits
  double log_sum = 0.0;  ///< logarithm of the sum of exp(logit - highest)

  /// `logits`: at least one; NaNs propagate.
  static LogSoftmax of(std::span<const float> logits);
  /// Returns the natural logarithm of the probability of a token with this logit.
  double log_probability(double logit) const { return logit - highest - log_sum; }
};

/// Returns the natural log-probabilities of a batch's targets, [labels], 0 for targets below 0. Runs the
/// module's forward pass (Transformer::evaluate, which adds the losses to *loss_sum, device memory), so the
/// bits equal a training step's. Sums of a row are fp64, from unconverted logits. `targets`: [labels] as in
/// the batch, in host memory. Waits for the stream. Call between steps. If parameters are sharded (stage 3),
/// all ranks must call it or pass().
std::vector<double> log_probabilities(model::Transformer& core, model::ParameterSource& source,
                                      Stream& stream, const model::MicroBatch& batch,
                                      const std::vector<std::int32_t>& targets, double* loss_sum);

}  // namespace octet::runtime
