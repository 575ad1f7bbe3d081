// The products of a mixture's experts with few tokens each, as one kernel: which rows belong to which expert
// is known on the device alone, so that no host waits for it.
#pragma once

#include <cstdint>

#include "octet/ops/gated_activation.h"
#include "octet/ops/types.h"

namespace octet::ops {

/// For every expert e and row r of begins[e] <= r < begins[e + 1]: d[r] = x[source[r]] · weight_eᵀ, summed in
/// fp32 (on a GPU in E4M3 with about 14 bits of each 128 values) and rounded once. Gated: the weight of an
/// expert is gate, then up, and d[r] = activation(gate) * up of what both give, rounded before.
struct GroupedGemmArgs {
  Operand weight;          ///< [experts * out, in], dense: bf16, or E4M3 with scales of whole rows
  std::int64_t count = 0;  ///< experts
  Operand x;               ///< [tokens, in] of the weight's kind
  const std::int32_t* source = nullptr;  ///< [rows]: rows of x; null: row r itself
  const std::int32_t* begins = nullptr;  ///< [count + 1], from 0 to the rows of d
  bool gated = false;
  Activation activation = Activation::silu;
  Matrix d;  ///< [rows, out], or of gated [rows, out / 2], bf16; apart from x
};

/// Whether grouped_gemm has a kernel for this: a GPU, and on other ones than Hopper's so few rows that their
/// products are bound by the bytes of the weights. Looks at dtypes, sizes and boundaries alone. A CPU has one
/// only where the environment says OCTETRUN_GROUPED_GEMM=always (tests: it has no gain of it).
bool has_grouped_gemm(const Device& device, const GroupedGemmArgs& args);

/// Whether x is better gathered before, so that `source` is null: a kernel for many rows wants it. Looks at
/// sizes alone. On a CPU from four rows an expert on average, so that tests have both ways.
bool wants_rows_in_order(const Device& device, const GroupedGemmArgs& args);

/// Enqueues the products: on a GPU what has_grouped_gemm() has said yes to. A CPU multiplies anything,
/// slowly: its GEMMs, one for each expert, are faster.
void grouped_gemm(Stream& stream, const GroupedGemmArgs& args);

}  // namespace octet::ops
