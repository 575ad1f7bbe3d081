// The rule of listing logits. CPU and CUDA compile the same code, so that both list the same logits.
#pragma once

#include <limits>

namespace octet::ops {

inline constexpr int kListedSteps = 2048;

/// Returns the difference between the largest logit, which is finite, and a logit, in steps of 1/32. Larger
/// differences are clamped to the last step. A larger logit is never in a later step.
[[gnu::always_inline]] constexpr int listed_step(float highest, float logit) {
  const float steps = (highest - logit) * 32.0f;
  const float last = kListedSteps - 1;
  return static_cast<int>(steps < last ? steps : last);
}

/// Returns whether a logit can be listed. The largest logit of its row must be finite.
[[gnu::always_inline]] constexpr bool may_be_listed(float logit) {
  return logit > -std::numeric_limits<float>::infinity();
}

}  // namespace octet::ops
