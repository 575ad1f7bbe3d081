// Model FLOP utilisation by one written formula, so that runs can be compared.
#pragma once

#include <cstdint>

namespace octet::report {

/// What the formula needs to know of a model.
struct ModelNumbers {
  std::int64_t parameters = 0;  ///< all but the input embedding; a tied head counts (it is multiplied)
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
};

/// Dense bf16 rate of an H100/H200 (SXM) in FLOP/s: the yardstick whatever the precision and the device.
inline constexpr double kYardstick = 989.4e12;

/// FLOPs of training on one token: 6 x parameters + 6 x layers x sequence x heads x head_dim (causal
/// attention). Recomputation does not count. (The counting of PaLM, appendix B, with the causal half of
/// attention.)
double flops_per_token(const ModelNumbers& model, double sequence);

/// Share of the yardstick: tokens_per_second over all devices. 0 when a number is missing.
double flop_utilisation(double flops_per_token, double tokens_per_second, std::int64_t devices,
                        double peak = kYardstick);

}  // namespace octet::report
