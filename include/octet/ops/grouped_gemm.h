// The GEMMs of the experts of a mixture with few tokens each, as one kernel. The kernel reads the number of
// rows of each expert from device memory, so the host does not wait for it.
#pragma once

#include <cstdint>

#include "octet/ops/gated_activation.h"
#include "octet/ops/types.h"

namespace octet::ops {

/// For each expert e and row r with begins[e] <= r < begins[e + 1]: d[r] = x[source[r]] · weight_eᵀ, summed
/// in fp32 and rounded once. On a GPU in E4M3, sums of 128 values keep about 14 bits. Gated: the weight of an
/// expert is gate, then up. Both products are rounded, and d[r] = activation(gate) * up.
struct GroupedGemmArgs {
  Operand weight;          ///< [experts * out, in], dense: bf16, or E4M3 with scales of whole rows
  std::int64_t count = 0;  ///< number of experts
  Operand x;               ///< [tokens, in] of the same format as the weight
  const std::int32_t* source = nullptr;  ///< [rows]: row of x for each row of d; null: row r
  const std::int32_t* begins = nullptr;  ///< [count + 1], from 0 to the number of rows of d
  bool gated = false;
  Activation activation = Activation::silu;
  Matrix d;  ///< [rows, out], if gated [rows, out / 2], bf16; does not overlap x
};

/// True if grouped_gemm has a kernel for this on a GPU. GPUs other than Hopper need so few rows that memory
/// traffic of the weights determines the time. Checks only dtypes, sizes and alignment. A CPU has one only if
/// OCTETRUN_GROUPED_GEMM=always is set (for tests; a CPU gains nothing).
bool has_grouped_gemm(const Device& device, const GroupedGemmArgs& args);

/// True if x should be gathered before, with a null `source`: the kernel for many rows requires it. Checks
/// only sizes. On a CPU it is true from four rows per expert on average, so that tests cover both cases.
bool wants_rows_in_order(const Device& device, const GroupedGemmArgs& args);

/// Enqueues the GEMMs. On a GPU, requires has_grouped_gemm(). A CPU accepts all arguments, but one gemm() per
/// expert is faster.
void grouped_gemm(Stream& stream, const GroupedGemmArgs& args);

}  // namespace octet::ops
