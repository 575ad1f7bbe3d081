// Model FLOP utilisation by one written formula, so that runs can be compared.
#pragma once

#include <cstdint>

namespace octet::report {

/// Dense bf16 rate of an H100/H200 (SXM) in FLOP/s: the reference for all GPUs and precisions. CPUs have no
/// reference: their peak rate is not known, and a share of a GPU's rate has no meaning.
inline constexpr double kYardstick = 989.4e12;

/// Share of the yardstick: tokens_per_second over all devices, of model::flops_per_token each (recomputation
/// does not count). 0 when a number is missing.
double flop_utilisation(double flops_per_token, double tokens_per_second, std::int64_t devices,
                        double peak = kYardstick);

}  // namespace octet::report
