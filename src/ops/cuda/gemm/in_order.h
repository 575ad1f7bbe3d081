// Forward GEMMs in one order of sums, in the fastest way that gives the bits of the library's one
// algorithm for all rows.
#pragma once

#include "cuda/gemm/library.h"
#include "octet/ops/gemm.h"

namespace octet::ops::cuda {

/// The most rows of a product whose ways are timed.
inline constexpr std::int64_t kRowsInOrder = 1 << 14;

/// Enqueues a product in one order of up to kRowsInOrder rows (`product` is what the library would be asked
/// for), and returns true, in a way that was found to give the same bits and to be faster: by another
/// algorithm of the library, or streamed (multiply_streamed_in_order()) where the weight stands. Ways are
/// tried and timed once for each shape of a weight and octave of rows. A trial multiplies values whose sums
/// nearly cancel, so that another order shows, and ordinary ones; timing writes D many times. Both wait for
/// the stream, and take twice the GPU's cache and some 50 MiB of its memory meanwhile. False, and nothing is
/// enqueued, where no way is faster, where there is no memory to try, and while the stream's work is recorded
/// before it was tried.
bool multiply_in_order(Stream& stream, const GemmArgs& args, const LibraryProduct& product);

}  // namespace octet::ops::cuda
