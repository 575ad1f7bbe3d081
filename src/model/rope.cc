#include <cmath>
#include <numbers>

#include "octet/model/architecture.h"

namespace octet::model {

std::vector<float> inverse_frequencies(const Rope& rope, std::int64_t head_dim) {
  std::vector<float> frequencies(static_cast<std::size_t>(head_dim / 2));
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    float f = 1.0f / std::pow(static_cast<float>(rope.theta), exponent);
    if (rope.kind == RopeKind::linear) f /= static_cast<float>(rope.factor);
    if (rope.kind == RopeKind::llama3) {
      // Long wavelengths are stretched, short ones kept, those between mixed (transformers,
      // modeling_rope_utils.py, _compute_llama3_parameters).
      const double wavelength = 2.0 * std::numbers::pi / static_cast<double>(f);
      const auto old = static_cast<double>(rope.original_max_positions);
      if (wavelength > old / rope.low_freq_factor) {
        f = static_cast<float>(static_cast<double>(f) / rope.factor);
      } else if (wavelength >= old / rope.high_freq_factor) {
        const double smooth =
            (old / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
        f = static_cast<float>((1.0 - smooth) * static_cast<double>(f) / rope.factor +
                               smooth * static_cast<double>(f));
      }
    }
    frequencies[i] = f;
  }
  return frequencies;
}

}  // namespace octet::model
