// Numbers as Python prints them, in logs and messages.
#pragma once

#include <cstdint>
#include <string>

namespace octet::report {

/// A float as Python prints it after rounding to `digits` significant digits: "1.234", "1e-05", "2.0", "nan".
std::string python_number(double value, int digits);

// Model FLOP utilisation by one written formula, so that runs can be compared.

/// Dense bf16 rate of an H100/H200 (SXM) in FLOP/s: the reference for all GPUs and precisions. CPUs have no
/// reference: their peak rate is not known, and a share of a GPU's rate has no meaning.
inline constexpr double kYardstick = 989.4e12;

/// Share of the yardstick: tokens_per_second over all devices, of model::flops_per_token each (recomputation
/// does not count). 0 when a number is missing.
double flop_utilisation(double flops_per_token, double tokens_per_second, std::int64_t devices,
                        double peak = kYardstick);

}  // namespace octet::report
