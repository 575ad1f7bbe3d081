#include <algorithm>
#include <cmath>
#include <numbers>

#include "octet/model/architecture.h"

namespace octet::model {
namespace {

// Long wavelengths are scaled, short wavelengths are kept, and wavelengths between them are interpolated
// (transformers, modeling_rope_utils.py, _compute_llama3_parameters).
float llama3_frequency(const Rope& rope, float f) {
  const double wavelength = 2.0 * std::numbers::pi / static_cast<double>(f);
  const auto old = static_cast<double>(rope.original_max_positions);
  if (wavelength > old / rope.low_freq_factor)
    return static_cast<float>(static_cast<double>(f) / rope.factor);
  if (wavelength < old / rope.high_freq_factor) return f;
  const double smooth =
      (old / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return static_cast<float>((1.0 - smooth) * static_cast<double>(f) / rope.factor +
                            smooth * static_cast<double>(f));
}

// Returns the fraction of each frequency that YaRN divides by the factor ("NTK by parts", section 3.2 of the
// paper). It is 0 up to the dimension with beta_fast rotations within the original context. It is 1 from the
// dimension with beta_slow rotations on, and linear between them.
std::vector<float> yarn_ramp(const Rope& rope, std::int64_t head_dim) {
  const auto dimension_of = [&](double rotations) {
    const double turns = static_cast<double>(rope.original_max_positions) / (2.0 * std::numbers::pi);
    return static_cast<double>(head_dim) * std::log(turns / rotations) / (2.0 * std::log(rope.theta));
  };
  double low = dimension_of(rope.beta_fast), high = dimension_of(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  if (low == high) high += 0.001;
  std::vector<float> ramp(static_cast<std::size_t>(head_dim / 2));
  for (std::size_t i = 0; i < ramp.size(); ++i) {
    const float x = (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    ramp[i] = std::clamp(x, 0.0f, 1.0f);
  }
  return ramp;
}

}  // namespace

std::vector<float> inverse_frequencies(const Rope& rope, std::int64_t head_dim) {
  std::vector<float> frequencies(static_cast<std::size_t>(head_dim / 2));
  const std::vector<float> ramp =
      rope.kind == RopeKind::yarn ? yarn_ramp(rope, head_dim) : std::vector<float>();
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    const float power = std::pow(static_cast<float>(rope.theta), exponent);
    float f = 1.0f / power;
    switch (rope.kind) {
      case RopeKind::standard:
        break;
      case RopeKind::linear:
        f /= static_cast<float>(rope.factor);
        break;
      case RopeKind::llama3:
        f = llama3_frequency(rope, f);
        break;
      case RopeKind::yarn: {
        const float stretched = 1.0f / (static_cast<float>(rope.factor) * power);
        const float kept = 1.0f - ramp[i];
        f = stretched * (1.0f - kept) + f * kept;
        break;
      }
    }
    frequencies[i] = f;
  }
  return frequencies;
}

}  // namespace octet::model
