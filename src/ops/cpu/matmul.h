// oneDNN's matrix multiplication with a store of primitives: making a primitive compiles code, running it
// does not. Ranks may be threads of one process, so the store is shared and locked, and no primitive owns
// scratch memory.
#pragma once

#include <omp.h>

#include <compare>
#include <cstddef>
#include <cstdint>

#include "octet/base/dtype.h"

namespace octet::ops::cpu {

/// All properties that a compiled GEMM depends on. D [m, n] = A [m, k] · B [k, n]. A transposed operand is
/// stored as its transpose. lda, ldb and ldd are the row strides in elements; 0: dense operands.
struct MatmulShape {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  std::int64_t lda = 0;
  std::int64_t ldb = 0;
  std::int64_t ldd = 0;
  bool a_transposed = false;
  bool b_transposed = false;
  DType operands = DType::f32;  ///< f32 or bf16
  DType result = DType::f32;    ///< f32, or bf16 from bf16 operands
  bool scaled = false;          ///< the sum is multiplied by a scalar
  bool bias = false;            ///< then a row [n] f32 is added
  bool accumulate = false;      ///< then D is added
  int threads = 1;
  auto operator<=>(const MatmulShape&) const = default;
};

struct MatmulData {
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
  float scale = 1.0f;
  const float* bias = nullptr;
  void* scratch = nullptr;  ///< 64-byte aligned
  std::size_t scratch_bytes = 0;
};

/// Returns true for bf16 shapes with the inner dimension 63. Kernels of oneDNN 2.6 for AMX compute some of
/// them wrongly or with an illegal instruction. This also depends on the shapes that were computed before.
bool is_wrong_on_amx(const MatmulShape& shape);

/// Scratch bytes that `matmul` uses for this shape.
std::size_t matmul_scratch(const MatmulShape& shape);
/// Runs on the calling thread and its OpenMP team. All sizes must be above zero. If scratch_bytes is too
/// small (the number of threads differs from the plan), it allocates scratch, kept per thread.
void matmul(const MatmulShape& shape, const MatmulData& data);

/// Like matmul, but the bits do not depend on shape.threads. D is divided into pieces that depend only on m,
/// n and k. One thread computes each piece, and no sum is divided.
std::size_t fixed_matmul_scratch(const MatmulShape& shape);
void fixed_matmul(const MatmulShape& shape, const MatmulData& data);

/// Like fixed_matmul, but the bits of a row of D depend only on that row of A, on B and on n. They depend
/// neither on m nor on the row's place. A must not be transposed. Rows are multiplied in blocks of one
/// height, filled with zeros. Greater heights are used if they gave the same bits in a test on this
/// processor.
std::size_t fixed_rows_matmul_scratch(const MatmulShape& shape);
void fixed_rows_matmul(const MatmulShape& shape, const MatmulData& data);

/// Returns true if bf16 GEMMs run natively and are not slower than fp32 GEMMs.
bool has_fast_bf16();

// Limits the number of threads of oneDNN.

/// oneDNN uses one thread during the lifetime of this object, on the thread that created it.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

}  // namespace octet::ops::cpu
