// Products on CUDA: cuBLASLt multiplies. FP8 goes there as it is when its rules hold (both operands with the
// inner dimension in rows, that and the columns of D multiples of 16, everything on 16-byte boundaries); an
// inner dimension that is no multiple of 16 is filled up with zeros; anything else is decoded into bf16,
// which is exact. Filled and decoded copies are made in pieces, so that their scratch is bounded.
#include "octet/ops/gemm.h"

#include <algorithm>

#include "cuda/gemm_kernels.h"
#include "cuda/gemm_library.h"
#include "cuda/scratch.h"
#include "octet/base/error.h"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {

void gemm(Stream& stream, const GemmArgs& args);
bool gemm_multiplies_fp8(const GemmArgs& args);

namespace {

bool on_boundary(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % 16 == 0;
}

/// An operand as the product reads it: [outer, k] when inner, else [k, outer]; dense.
struct Side {
  const void* data = nullptr;
  bool inner = true;
  DType dtype = DType::f32;
  std::int64_t outer = 0;
  const float* scale_inv = nullptr;
  Scaling scaling = Scaling::tensor;
};

/// FP8 takes the copy whose rows hold the inner dimension, where there is one.
Side side_of(const Operand& x, bool inner) {
  Side side{.data = x.data,
            .inner = inner,
            .dtype = x.dtype,
            .outer = inner ? x.rows : x.cols,
            .scale_inv = x.scale_inv,
            .scaling = x.scaling};
  if (is_fp8(x.dtype) && !inner && x.transposed != nullptr) {
    side.data = x.transposed;
    side.inner = true;
    if (x.scaling != Scaling::tensor) side.scale_inv = x.transposed_scale_inv;
  }
  return side;
}

/// How a product is done.
enum class Way { direct, filled, decoded };

struct Plan {
  Side a, b;
  std::int64_t k = 0;
  Way way = Way::direct;
};

Plan plan_of(const GemmArgs& args) {
  Plan plan{.a = side_of(args.a, args.product != Product::wgrad),
            .b = side_of(args.b, args.product == Product::forward),
            .k = args.product == Product::wgrad ? args.a.rows : args.a.cols};
  if (!is_fp8(args.a.dtype)) return plan;
  const auto row_bytes = static_cast<std::size_t>(args.d.ld) * size_of(args.d.dtype);
  // Scales of blocks are read where they lie; nothing can be filled in between.
  const bool blocks = plan.a.scaling != Scaling::tensor;
  if (blocks &&
      (plan.a.outer % 4 != 0 || plan.k % kUnit != 0 || !on_boundary(plan.a.data) ||
       !on_boundary(plan.b.data) || !on_boundary(plan.a.scale_inv) || !on_boundary(plan.b.scale_inv))) {
    plan.way = Way::decoded;
    return plan;
  }
  const bool possible = plan.a.inner && plan.b.inner && plan.b.outer % kUnit == 0 && row_bytes % 16 == 0 &&
                        on_boundary(args.d.data);
  if (!possible) {
    plan.way = Way::decoded;
  } else if (plan.k % kUnit != 0 || !on_boundary(plan.a.data) || !on_boundary(plan.b.data)) {
    plan.way = Way::filled;
  }
  return plan;
}

static_assert(sizeof(ProductScalars) <= kScalarBytes);

/// The parts of the workspace.
struct Room {
  ProductScalars* scalars = nullptr;
  void* bias = nullptr;
  std::uint8_t* copies = nullptr;
  std::size_t copies_bytes = 0;
  void* library = nullptr;
};

Room room_of(const GemmArgs& args) {
  check(args.workspace.bytes >= gemm_workspace(args), "gemm: the workspace holds gemm_workspace bytes");
  auto* at = static_cast<std::uint8_t*>(args.workspace.data);
  Room room{.scalars = reinterpret_cast<ProductScalars*>(at)};
  at += kScalarBytes;
  room.bias = at;
  at += bias_bytes(args);
  room.copies = at;
  room.copies_bytes = copy_bytes(args);
  room.library = at + room.copies_bytes;
  return room;
}

/// Copies `count` of the outer rows (or columns) of an operand from `begin` on; returns elements a row.
std::int64_t copy_piece(cudaStream_t stream, const Side& side, std::int64_t k, std::int64_t begin,
                        std::int64_t count, bool decode, void* to) {
  const auto* from = static_cast<const std::uint8_t*>(side.data);
  Widening w{.from = side.inner ? from + begin * k : from + begin,
             .from_type = side.dtype,
             .rows = side.inner ? count : k,
             .cols = side.inner ? k : count,
             .ld = side.inner ? k : side.outer,
             .to = to,
             .decode = decode};
  w.to_ld = filled(w.cols);
  if (decode && side.scaling != Scaling::tensor) {
    w.scales = side.scale_inv;
    w.scaling = side.scaling;
    w.scale_rows = side.inner ? side.outer : k;
    (side.inner ? w.first_row : w.first_col) = begin;
  }
  widen(stream, w);
  return w.to_ld;
}

void copy_rows(cudaStream_t stream, const ConstMatrix& from, const Matrix& to) {
  const std::size_t size = size_of(to.dtype), pitch = static_cast<std::size_t>(to.ld) * size;
  octet::cuda::check(
      cudaMemcpy2DAsync(to.data, pitch, from.data, pitch, static_cast<std::size_t>(to.cols) * size,
                        static_cast<std::size_t>(to.rows), cudaMemcpyDeviceToDevice, stream),
      "copying what is added to an empty product");
}

/// Multiplies copies, a piece of A with a piece of B at a time.
void multiply_copies(cudaStream_t stream, int device, const GemmArgs& args, const Plan& plan,
                     const Room& room, LibraryProduct product) {
  const bool decode = plan.way == Way::decoded;
  const std::size_t element = decode ? 2 : 1;
  const auto row_bytes = element * static_cast<std::size_t>(filled(plan.k));
  // Rows of both pieces together.
  const auto rows = static_cast<std::int64_t>((room.copies_bytes - kSlack) / row_bytes);
  check(rows >= 2 * kUnit, "gemm: scratch holds 16 rows of both operands");
  std::int64_t a_rows = filled(plan.a.outer), b_rows = filled(plan.b.outer);
  if (a_rows + b_rows > rows) {
    const std::int64_t half = rows / 2 / kUnit * kUnit;
    a_rows = std::min(a_rows, std::max(half, (rows - b_rows) / kUnit * kUnit));
    b_rows = std::min(b_rows, (rows - a_rows) / kUnit * kUnit);
  }
  std::uint8_t* b_room = room.copies + aligned(static_cast<std::size_t>(a_rows) * row_bytes);
  product.a = room.copies;
  product.b = b_room;
  product.k = decode ? plan.k : filled(plan.k);
  if (decode) product.a_type = product.b_type = DType::bf16;
  for (std::int64_t i = 0; i < plan.a.outer; i += a_rows) {
    product.m = std::min(a_rows, plan.a.outer - i);
    product.a_ld = copy_piece(stream, plan.a, plan.k, i, product.m, decode, room.copies);
    for (std::int64_t j = 0; j < plan.b.outer; j += b_rows) {
      product.n = std::min(b_rows, plan.b.outer - j);
      product.b_ld = copy_piece(stream, plan.b, plan.k, j, product.n, decode, b_room);
      const std::size_t at = static_cast<std::size_t>(i * args.d.ld + j) * size_of(args.d.dtype);
      product.d = static_cast<std::uint8_t*>(args.d.data) + at;
      if (args.addend.data != nullptr) {
        product.addend = static_cast<const std::uint8_t*>(args.addend.data) + at;
      }
      product.bias = args.bias != nullptr && args.d.dtype == DType::bf16
                         ? static_cast<const std::uint16_t*>(room.bias) + j
                         : nullptr;
      multiply(stream, device, product);
    }
  }
}

}  // namespace

bool gemm_multiplies_fp8(const GemmArgs& args) {
  return is_fp8(args.a.dtype) && plan_of(args).way != Way::decoded;
}

void gemm(Stream& stream, const GemmArgs& args) {
  check(args.a.dtype != DType::f32 || args.d.dtype == DType::f32,
        "gemm: on a GPU f32 operands give an f32 D");
  const Plan plan = plan_of(args);
  cudaStream_t native = octet::cuda::native(stream);
  const bool adds = args.accumulate || args.addend.data != nullptr;
  if (plan.k == 0) {
    if (args.addend.data != nullptr) copy_rows(native, args.addend, args.d);
    if (!adds || args.bias != nullptr) add_bias(native, args.d, args.bias, !adds);
    return;
  }
  const Room room = room_of(args);
  const int device = octet::cuda::properties(stream.device()).ordinal;
  LibraryProduct product{.m = args.d.rows,
                         .n = args.d.cols,
                         .k = plan.k,
                         .a = plan.a.data,
                         .b = plan.b.data,
                         .d = args.d.data,
                         .a_ld = plan.a.inner ? plan.k : plan.a.outer,
                         .b_ld = plan.b.inner ? plan.k : plan.b.outer,
                         .d_ld = args.d.ld,
                         .a_inner = plan.a.inner,
                         .b_inner = plan.b.inner,
                         .a_type = args.a.dtype,
                         .b_type = args.b.dtype,
                         .d_type = args.d.dtype,
                         .accumulate = args.accumulate,
                         .addend = args.addend.data,
                         .sums_tokens = args.product == Product::wgrad,
                         .workspace = room.library};
  const bool blocks = args.a.scaling != Scaling::tensor;
  if (blocks) {
    product.a_scaling = plan.a.scaling;
    product.b_scaling = plan.b.scaling;
    product.a_scale = plan.a.scale_inv;
    product.b_scale = plan.b.scale_inv;
    product.may_be_refused = true;
  } else if (is_fp8(args.a.dtype)) {
    product.fast_accumulation = args.fast_accumulation && plan.way != Way::decoded;
    product.a_scale = args.a.scale_inv;
    product.b_scale = args.b.scale_inv;
    // A null scale counts as one, in cuBLASLt too; others must lie on 16-byte boundaries.
    if (plan.way == Way::decoded || !on_boundary(args.a.scale_inv) || !on_boundary(args.b.scale_inv)) {
      gather_scalars(native, room.scalars, args.a.scale_inv, args.b.scale_inv, adds);
      product.a_scale = &room.scalars->a_scale;
      product.b_scale = &room.scalars->b_scale;
    }
    if (plan.way == Way::decoded) product.factors = room.scalars->factors;
  }
  if (args.bias != nullptr && args.d.dtype == DType::bf16) {
    round_bias(native, args.bias, room.bias, args.d.cols);
    product.bias = room.bias;
  }
  if (plan.way != Way::direct || !multiply(native, device, product)) {
    Plan copies = plan;
    if (blocks) {  // their values go into the copies
      copies.way = Way::decoded;
      product.a_scaling = product.b_scaling = Scaling::tensor;
      product.a_scale = product.b_scale = nullptr;
      product.may_be_refused = false;
    }
    multiply_copies(native, device, args, copies, room, product);
  }
  if (args.bias != nullptr && args.d.dtype == DType::f32) add_bias(native, args.d, args.bias, false);
}

}  // namespace octet::ops::cuda
