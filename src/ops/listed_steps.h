// By what logits are listed, one text for both sides so that both list the same.
#pragma once

#include <limits>

namespace octet::ops {

inline constexpr int kListedSteps = 2048;

/// How far a logit lies below the largest one, which is finite, in steps of 1/32; the last step has all that
/// is further. A larger logit is in no later step.
[[gnu::always_inline]] constexpr int listed_step(float highest, float logit) {
  const float steps = (highest - logit) * 32.0f;
  const float last = kListedSteps - 1;
  return static_cast<int>(steps < last ? steps : last);
}

/// Whether a logit of a row whose largest is finite can be listed at all.
[[gnu::always_inline]] constexpr bool may_be_listed(float logit) {
  return logit > -std::numeric_limits<float>::infinity();
}

}  // namespace octet::ops
