// Forward GEMMs with a fixed summation order. Uses the fastest method that gives the same bits as
// the common library algorithm for all numbers of rows.
#pragma once

#include "cuda/gemm/library.h"
#include "octet/ops/gemm.h"

namespace octet::ops::cuda {

/// The maximum number of rows of a GEMM for which methods are timed.
inline constexpr std::int64_t kRowsInOrder = 1 << 14;

/// Enqueues a GEMM with a fixed summation order and at most kRowsInOrder rows, and returns true. `library_gemm` is
/// the equivalent library call. It uses a method that was found to give the same bits and to be faster. This
/// is another algorithm of the library, or multiply_streamed_in_order() if GemmArgs::b_stands.
///
/// Methods are tried and timed once for each weight shape and each power-of-two range of rows. A trial uses
/// values with nearly cancelling sums, which reveal another order, and ordinary values. Timing writes D many
/// times. Trial and timing wait for the stream. They temporarily allocate GPU memory of twice the L2 cache
/// size plus about 50 MiB.
///
/// Returns false and enqueues nothing if no method is faster, or if there is no memory for a trial. Also
/// returns false if the stream is being captured before a trial was made.
bool multiply_in_order(Stream& stream, const GemmArgs& args, const LibraryGemm& library_gemm);

}  // namespace octet::ops::cuda
