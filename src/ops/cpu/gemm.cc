// GEMMs on the CPU. Operands are converted to the type that oneDNN multiplies fast on this processor (see
// Plan), then one oneDNN primitive runs. FP8 values are exact in bf16 and in f32, so their products are too.
#include "octet/ops/gemm.h"

#include <algorithm>

#include "cpu/convert_arrays.h"
#include "cpu/few_rows.h"
#include "cpu/matmul.h"
#include "cpu/simd.h"
#include "octet/base/error.h"

namespace octet::ops::cpu {

void gemm(const GemmArgs& args);
std::size_t gemm_workspace(const GemmArgs& args);

namespace {

std::size_t aligned(std::int64_t count, DType dtype) {
  const auto bytes = static_cast<std::size_t>(count) * size_of(dtype);
  return (bytes + 255) / 256 * 256;
}

/// The conversions and the GEMM. The workspace holds converted A, converted B, D in f32 and oneDNN's scratch.
struct Plan {
  MatmulShape shape;
  bool convert = false;     ///< operands are decoded or widened to shape.operands
  bool b_flipped = false;   ///< B is read from its transposed copy
  bool result_f32 = false;  ///< the GEMM writes an f32 array, which is then rounded into D
  std::size_t a_bytes = 0;
  std::size_t b_bytes = 0;
  std::size_t d_bytes = 0;
};

/// Returns whether operands have block scales. They are applied when values are decoded.
bool in_blocks(const GemmArgs& args) {
  return args.a.scaling == Scaling::rows;
}

/// Returns whether each row and each column of D has a scale, by which sums are multiplied afterwards.
bool by_whole_rows(const GemmArgs& args) {
  return args.a.scaling == Scaling::whole_rows;
}

Plan plan_of(const GemmArgs& args) {
  Plan plan;
  MatmulShape& shape = plan.shape;
  shape.m = args.d.rows;
  shape.n = args.d.cols;
  shape.k = args.gemm_kind == GemmKind::wgrad ? args.a.rows : args.a.cols;
  // Sums over tokens read the transposed copies if these have different scales. A weight is read in the
  // layout that exists.
  const bool flipped = in_blocks(args) && args.gemm_kind == GemmKind::wgrad;
  plan.b_flipped =
      flipped || (in_blocks(args) && args.gemm_kind == GemmKind::dgrad && args.b.data == nullptr);
  shape.a_transposed = args.gemm_kind == GemmKind::wgrad && !flipped;
  shape.b_transposed = args.gemm_kind == GemmKind::forward || plan.b_flipped;
  shape.operands = args.a.dtype == DType::f32 || !has_fast_bf16() ? DType::f32 : DType::bf16;
  plan.convert = args.a.dtype != shape.operands;
  plan.result_f32 = by_whole_rows(args) || (args.d.dtype == DType::bf16 && shape.operands == DType::f32);
  shape.result = plan.result_f32 ? DType::f32 : args.d.dtype;
  shape.ldd = plan.result_f32 ? args.d.cols : args.d.ld;
  if (args.a_ld != 0 && args.a.dtype == shape.operands) shape.lda = args.a_ld;
  if (args.b_ld != 0 && args.b.dtype == shape.operands) shape.ldb = args.b_ld;
  shape.accumulate = args.accumulate && !plan.result_f32;
  shape.bias = args.bias != nullptr && !by_whole_rows(args);
  shape.scaled = args.factor != 1.0f || (is_fp8(args.a.dtype) && args.a.scaling == Scaling::tensor &&
                                         (args.a.scale_inv != nullptr || args.b.scale_inv != nullptr));
  shape.threads = octet::cpu::op_threads();
  if (plan.convert) {
    plan.a_bytes = aligned(args.a.rows * args.a.cols, shape.operands);
    plan.b_bytes = aligned(args.b.rows * args.b.cols, shape.operands);
  }
  if (plan.result_f32) plan.d_bytes = aligned(args.d.rows * args.d.cols, DType::f32);
  return plan;
}

template <typename T>
OCTET_SIMD void decode_row(const Operand& x, std::int64_t row, T* to) {
  const auto* codes = static_cast<const std::uint8_t*>(x.data) + row * x.cols;
  float chunk[kScaleBlock];
  for (std::int64_t c = 0; c < x.cols; c += kScaleBlock) {
    const std::int64_t n = std::min(kScaleBlock, x.cols - c);
    const float scale = x.scale_inv[scale_index(x.scaling, x.rows, x.cols, row, c)];
    to_f32(codes + c, x.dtype, chunk, n);
    for (std::int64_t i = 0; i < n; ++i) simd::store(to[row * x.cols + c + i], chunk[i] * scale);
  }
}

/// Returns the decoded values of an operand with block scales. f32 and bf16 hold them exactly.
const void* decoded(const Operand& x, bool flipped, DType to, void* room) {
  Operand from = x;
  if (flipped) {
    from = {.data = x.transposed,
            .dtype = x.dtype,
            .rows = x.cols,
            .cols = x.rows,
            .scale_inv = x.transposed_scale_inv,
            .scaling = x.scaling};
  }
  simd::parallel_rows(from.rows, from.cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      if (to == DType::f32) {
        decode_row(from, row, static_cast<float*>(room));
      } else {
        decode_row(from, row, static_cast<Bf16*>(room));
      }
    }
  });
  return room;
}

/// Decodes an FP8 operand from its transposed copy, which a GPU reads.
template <typename T>
void from_transposed(const Operand& x, T* to) {
  const auto* from = static_cast<const std::uint8_t*>(x.transposed);
  for (std::int64_t row = 0; row < x.rows; ++row) {
    for (std::int64_t col = 0; col < x.cols; ++col) {
      const float value = from_fp8(from[col * x.rows + row], x.dtype);
      if constexpr (std::is_same_v<T, float>) {
        to[row * x.cols + col] = value;
      } else {
        simd::store(to[row * x.cols + col], value);
      }
    }
  }
}

/// `inner`: the GEMM sums over the columns. `ld`: GemmArgs::a_ld or b_ld.
const void* converted(const Operand& x, bool inner, DType to, void* room, std::int64_t ld = 0) {
  const std::int64_t count = x.rows * x.cols;
  if (ld != 0) {
    const auto* from = static_cast<const std::uint8_t*>(x.data);
    for (std::int64_t row = 0; row < x.rows; ++row) {
      to_f32(from + static_cast<std::size_t>(row * ld) * size_of(x.dtype), x.dtype,
             static_cast<float*>(room) + row * x.cols, x.cols);
    }
    return room;
  }
  if (x.transposed != nullptr && !inner) {
    to == DType::f32 ? from_transposed(x, static_cast<float*>(room))
                     : from_transposed(x, static_cast<Bf16*>(room));
    return room;
  }
  if (to == DType::f32) {
    to_f32(x.data, x.dtype, static_cast<float*>(room), count);
  } else {
    fp8_to_bf16(static_cast<const std::uint8_t*>(x.data), x.dtype, static_cast<Bf16*>(room), count);
  }
  return room;
}

OCTET_SIMD void round_row(const float* from, Bf16* to, std::int64_t count, bool accumulate) {
  if (accumulate) {
    for (std::int64_t i = 0; i < count; ++i) simd::store(to[i], from[i] + simd::load(to[i]));
  } else {
    for (std::int64_t i = 0; i < count; ++i) simd::store(to[i], from[i]);
  }
}

template <typename T>
OCTET_SIMD void add_bias_row(T* d, const float* bias, std::int64_t count, bool accumulate) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float add = bias != nullptr ? bias[i] : 0.0f;
    simd::store(d[i], accumulate ? simd::load(d[i]) + add : add);
  }
}

template <typename T>
OCTET_SIMD void add_row(T* d, const T* addend, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) simd::store(d[i], simd::load(d[i]) + simd::load(addend[i]));
}
template <typename T>
void add_addend(const GemmArgs& args) {
  auto* d = static_cast<T*>(args.d.data);
  const auto* addend = static_cast<const T*>(args.addend.data);
  simd::parallel_rows(args.d.rows, args.d.cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      add_row(d + row * args.d.ld, addend + row * args.d.ld, args.d.cols);
    }
  });
}

/// Writes a row of D: sums times the scales of row and column.
template <typename T>
OCTET_SIMD void scale_row(const GemmArgs& args, const float* sums, std::int64_t row) {
  T* d = static_cast<T*>(args.d.data) + row * args.d.ld;
  const float scale = args.a.scale_inv[row];
  for (std::int64_t i = 0; i < args.d.cols; ++i) {
    const float bias = args.bias != nullptr ? args.bias[i] : 0.0f;
    simd::store(d[i], sums[i] * (scale * args.b.scale_inv[i]) + bias);
  }
}

/// A GEMM with an inner dimension of zero: zeros plus the bias.
template <typename T>
void gemm_of_nothing(const GemmArgs& args) {
  if (args.accumulate && args.bias == nullptr) return;
  T* d = static_cast<T*>(args.d.data);
  for (std::int64_t row = 0; row < args.d.rows; ++row) {
    add_bias_row(d + row * args.d.ld, args.bias, args.d.cols, args.accumulate);
  }
}

std::size_t library_scratch(const GemmArgs& args, const MatmulShape& shape) {
  if (!args.fixed_order) return octet::cpu::claims() ? fixed_matmul_scratch(shape) : matmul_scratch(shape);
  return args.gemm_kind == GemmKind::forward ? fixed_rows_matmul_scratch(shape) : fixed_matmul_scratch(shape);
}

}  // namespace

std::size_t gemm_workspace(const GemmArgs& args) {
  const Plan plan = plan_of(args);
  if (plan.shape.m == 0 || plan.shape.n == 0 || plan.shape.k == 0) return 0;
  // Planning does not always know whether there are scales and a bias. They do not change the scratch.
  const std::size_t scratch = (library_scratch(args, plan.shape) + 255) / 256 * 256;
  return plan.a_bytes + plan.b_bytes + plan.d_bytes + scratch;
}

namespace {

void multiply_in_order(const GemmArgs& args, const MatmulShape& shape, const MatmulData& data) {
  if (!args.fixed_order) return octet::cpu::claims() ? fixed_matmul(shape, data) : matmul(shape, data);
  args.gemm_kind == GemmKind::forward ? fixed_rows_matmul(shape, data) : fixed_matmul(shape, data);
}

void multiply(const GemmArgs& args) {
  const Plan plan = plan_of(args);
  const MatmulShape& shape = plan.shape;
  if (shape.k == 0) {
    return args.d.dtype == DType::f32 ? gemm_of_nothing<float>(args) : gemm_of_nothing<Bf16>(args);
  }
  const std::size_t needed = plan.a_bytes + plan.b_bytes + plan.d_bytes;
  check(args.workspace.bytes >= needed, "gemm: the workspace holds gemm_workspace bytes");
  auto* room = static_cast<std::uint8_t*>(args.workspace.data);
  MatmulData data{.a = args.a.data, .b = args.b.data, .d = args.d.data, .bias = args.bias};
  if (in_blocks(args)) {
    data.a = decoded(args.a, args.gemm_kind == GemmKind::wgrad, shape.operands, room);
    data.b = decoded(args.b, plan.b_flipped, shape.operands, room + plan.a_bytes);
  } else if (plan.convert) {
    data.a = converted(args.a, !shape.a_transposed, shape.operands, room, args.a_ld);
    data.b = converted(args.b, shape.b_transposed, shape.operands, room + plan.a_bytes, args.b_ld);
  }
  auto* wide = reinterpret_cast<float*>(room + plan.a_bytes + plan.b_bytes);
  if (plan.result_f32) data.d = wide;
  if (by_whole_rows(args)) data.bias = nullptr;
  if (shape.scaled) {
    data.scale = args.factor * (args.a.scale_inv != nullptr ? *args.a.scale_inv : 1.0f) *
                 (args.b.scale_inv != nullptr ? *args.b.scale_inv : 1.0f);
  }
  if (args.workspace.bytes > needed) {
    data.scratch = room + needed;
    data.scratch_bytes = args.workspace.bytes - needed;
  }
  multiply_in_order(args, shape, data);
  if (by_whole_rows(args)) {
    simd::parallel_rows(shape.m, shape.n, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        args.d.dtype == DType::f32 ? scale_row<float>(args, wide + row * shape.n, row)
                                   : scale_row<Bf16>(args, wide + row * shape.n, row);
      }
    });
  } else if (plan.result_f32) {
    auto* d = static_cast<Bf16*>(args.d.data);
    simd::parallel_rows(shape.m, shape.n, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        round_row(wide + row * shape.n, d + row * args.d.ld, shape.n, args.accumulate);
      }
    });
  }
}

}  // namespace

void gemm(const GemmArgs& args) {
  if (suits_few_rows(args)) {
    few_rows(args);
  } else {
    multiply(args);
  }
  if (args.addend.data == nullptr) return;
  args.d.dtype == DType::f32 ? add_addend<float>(args) : add_addend<Bf16>(args);
}

}  // namespace octet::ops::cpu
