// oneDNN's matrix product with its primitives kept: making one compiles code, running it does not. Ranks may
// be threads of one process, so the store is shared and guarded, and no primitive owns scratch memory.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

#include "octet/base/dtype.h"

namespace octet::ops::cpu {

/// Everything that a compiled product depends on. D [m, n] = A [m, k] · B [k, n]; a transposed operand lies
/// in memory as its transpose. Rows in memory are lda, ldb and ldd elements apart; 0: dense operands.
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
  bool accumulate = false;      ///< then D
  int threads = 1;
  auto operator<=>(const MatmulShape&) const = default;
};

struct MatmulData {
  const void* a = nullptr;
  const void* b = nullptr;
  void* d = nullptr;
  float scale = 1.0f;
  const float* bias = nullptr;
  void* scratch = nullptr;  ///< on a 64-byte boundary
  std::size_t scratch_bytes = 0;
};

/// Returns true for bf16 shapes with the inner dimension 63. Kernels of oneDNN 2.6 for AMX compute some of
/// them wrongly or with an illegal instruction, which also depends on the shapes that were computed before.
bool is_wrong_on_amx(const MatmulShape& shape);

/// Scratch bytes that `matmul` uses for this shape.
std::size_t matmul_scratch(const MatmulShape& shape);
/// Runs on the calling thread and its OpenMP team; all sizes above zero. With less scratch than it needs (a
/// thread count other than the planned one) it takes memory of its own, kept per thread.
void matmul(const MatmulShape& shape, const MatmulData& data);

/// The same product with bits that do not depend on shape.threads: D is cut into pieces that follow from m
/// and n alone, each piece is made by one thread, and no sum is shared out.
std::size_t fixed_matmul_scratch(const MatmulShape& shape);
void fixed_matmul(const MatmulShape& shape, const MatmulData& data);

/// As fixed_matmul, and the bits of a row of D depend on that row of A, on B and on n alone: not on m, nor on
/// the row's place. A is not transposed. Rows are multiplied in blocks of one height, filled up with zeros,
/// or of greater heights that were seen to give the same bits on this processor.
std::size_t fixed_rows_matmul_scratch(const MatmulShape& shape);
void fixed_rows_matmul(const MatmulShape& shape, const MatmulData& data);

/// True where bf16 products run natively and not slower than fp32 ones.
bool has_fast_bf16();

}  // namespace octet::ops::cpu
