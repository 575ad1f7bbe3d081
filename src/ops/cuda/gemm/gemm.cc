// GEMMs on CUDA. cuBLASLt multiplies as planned by gemm_plan.h. Padded and decoded copies are made in pieces,
// so that their scratch is bounded.
#include "octet/ops/gemm.h"

#include <algorithm>

#include "cuda/gemm/few_tokens.h"
#include "cuda/gemm/gemm_kernels.h"
#include "cuda/gemm/in_order.h"
#include "cuda/gemm/library.h"
#include "cuda/gemm/streamed.h"
#include "cuda/scratch.h"
#include "gemm_plan.h"
#include "octet/base/error.h"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {

GemmOutcome gemm(Stream& stream, const GemmArgs& args);

namespace {

static_assert(sizeof(GemmScalars) <= kScalarBytes);

/// The parts of the workspace.
struct Room {
  GemmScalars* scalars = nullptr;
  void* bias = nullptr;
  std::uint8_t* copies = nullptr;
  std::size_t copies_bytes = 0;
  void* library = nullptr;
};

Room room_of(const GemmArgs& args) {
  check(args.workspace.bytes >= gemm_workspace(args), "gemm: the workspace holds gemm_workspace bytes");
  auto* at = static_cast<std::uint8_t*>(args.workspace.data);
  Room room{.scalars = reinterpret_cast<GemmScalars*>(at)};
  at += kScalarBytes;
  room.bias = at;
  at += bias_bytes(args);
  room.copies = at;
  room.copies_bytes = copy_bytes(args);
  room.library = at + room.copies_bytes;
  return room;
}

/// Copies `count` of the outer rows (or columns) of an operand from `begin` on. Returns the row pitch in
/// elements.
std::int64_t copy_piece(cudaStream_t stream, const GemmSide& side, std::int64_t k, std::int64_t begin,
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

/// Multiplies copies, one piece of A with one piece of B at a time. Returns the number of library calls.
std::int64_t multiply_copies(cudaStream_t stream, int device, const GemmArgs& args, const GemmPlan& plan,
                             const Room& room, LibraryGemm library_gemm) {
  const bool decode = plan.way == GemmWay::decoded;
  std::int64_t calls = 0;
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
  library_gemm.a = room.copies;
  library_gemm.b = b_room;
  library_gemm.k = decode ? plan.k : filled(plan.k);
  if (decode) library_gemm.a_type = library_gemm.b_type = DType::bf16;
  for (std::int64_t i = 0; i < plan.a.outer; i += a_rows) {
    library_gemm.m = std::min(a_rows, plan.a.outer - i);
    library_gemm.a_ld = copy_piece(stream, plan.a, plan.k, i, library_gemm.m, decode, room.copies);
    for (std::int64_t j = 0; j < plan.b.outer; j += b_rows) {
      library_gemm.n = std::min(b_rows, plan.b.outer - j);
      library_gemm.b_ld = copy_piece(stream, plan.b, plan.k, j, library_gemm.n, decode, b_room);
      const std::size_t at = static_cast<std::size_t>(i * args.d.ld + j) * size_of(args.d.dtype);
      library_gemm.d = static_cast<std::uint8_t*>(args.d.data) + at;
      if (args.addend.data != nullptr) {
        library_gemm.addend = static_cast<const std::uint8_t*>(args.addend.data) + at;
      }
      library_gemm.bias = args.bias != nullptr && args.d.dtype == DType::bf16
                              ? static_cast<const std::uint16_t*>(room.bias) + j
                              : nullptr;
      multiply(stream, device, library_gemm);
      ++calls;
    }
  }
  return calls;
}

/// Multiplies operands with scales of whole rows if the library does not support these scales: first the
/// codes are multiplied, then the result is scaled. Scales are powers of two, so only the sum with the addend
/// is rounded again.
GemmOutcome multiply_then_scale(cudaStream_t stream, int device, const GemmArgs& args,
                                LibraryGemm library_gemm) {
  library_gemm.a_scaling = library_gemm.b_scaling = Scaling::tensor;
  library_gemm.a_scale = library_gemm.b_scale = nullptr;
  library_gemm.bias = library_gemm.addend = nullptr;
  library_gemm.may_be_refused = false;
  multiply(stream, device, library_gemm);
  scale_gemm(stream, {.d = args.d,
                      .row_scales = args.a.scale_inv,
                      .col_scales = args.b.scale_inv,
                      .bias = args.bias,
                      .addend = args.addend.data});
  return outcome_of(args, GemmWay::fp8, GemmReason::none, 1);
}

}  // namespace

GemmOutcome gemm(Stream& stream, const GemmArgs& args) {
  check(args.a.dtype != DType::f32 || args.d.dtype == DType::f32,
        "gemm: on a GPU f32 operands give an f32 D");
  const GemmPlan plan = plan_gemm(args);
  cudaStream_t native = octet::cuda::native(stream);
  const bool adds = args.accumulate || args.addend.data != nullptr;
  if (plan.k == 0) {
    if (args.addend.data != nullptr) copy_rows(native, args.addend, args.d);
    if (!adds || args.bias != nullptr) add_bias(native, args.d, args.bias, !adds);
    return {};
  }
  const Room room = room_of(args);
  if ((plan.way == GemmWay::fp8 || plan.way == GemmWay::bf16) &&
      (multiply_streamed(stream, args) || multiply_few_tokens(stream, args))) {
    return outcome_of(args, plan.way, plan.reason, 1);
  }
  const int device = octet::cuda::properties(stream.device()).ordinal;
  LibraryGemm library_gemm{
      .m = args.d.rows,
      .n = args.d.cols,
      .k = plan.k,
      .a = plan.a.data,
      .b = plan.b.data,
      .d = args.d.data,
      .a_ld = args.a_ld != 0 ? args.a_ld
              : plan.a.inner ? plan.k
                             : plan.a.outer,
      .b_ld = args.b_ld != 0 ? args.b_ld
              : plan.b.inner ? plan.k
                             : plan.b.outer,
      .d_ld = args.d.ld,
      .a_inner = plan.a.inner,
      .b_inner = plan.b.inner,
      .a_type = args.a.dtype,
      .b_type = args.b.dtype,
      .d_type = args.d.dtype,
      .accumulate = args.accumulate,
      .factor = args.factor,
      .addend = args.addend.data,
      .sums_tokens = args.gemm_kind == GemmKind::wgrad,
      .timed = !stream.reproducible(),
      .one_order = args.fixed_order && args.gemm_kind == GemmKind::forward && !is_fp8(args.a.dtype),
      .workspace = room.library};
  const bool blocks = args.a.scaling != Scaling::tensor;
  if (blocks) {
    library_gemm.a_scaling = plan.a.scaling;
    library_gemm.b_scaling = plan.b.scaling;
    library_gemm.a_scale = plan.a.scale_inv;
    library_gemm.b_scale = plan.b.scale_inv;
    library_gemm.fast_accumulation = args.fast_accumulation && args.a.scaling == Scaling::whole_rows;
    library_gemm.may_be_refused = true;
  } else if (is_fp8(args.a.dtype)) {
    library_gemm.fast_accumulation = args.fast_accumulation && plan.way != GemmWay::decoded;
    library_gemm.a_scale = args.a.scale_inv;
    library_gemm.b_scale = args.b.scale_inv;
    // A null scale is 1, also in cuBLASLt. Other scales must be aligned to 16 bytes.
    if (plan.way == GemmWay::decoded || !on_boundary(args.a.scale_inv) || !on_boundary(args.b.scale_inv)) {
      gather_scalars(native, room.scalars, args.a.scale_inv, args.b.scale_inv, adds);
      library_gemm.a_scale = &room.scalars->a_scale;
      library_gemm.b_scale = &room.scalars->b_scale;
    }
    if (plan.way == GemmWay::decoded) library_gemm.factors = room.scalars->factors;
  }
  if (args.bias != nullptr && args.d.dtype == DType::bf16) {
    round_bias(native, args.bias, room.bias, args.d.cols);
    library_gemm.bias = room.bias;
  }
  const bool direct = plan.way != GemmWay::filled && plan.way != GemmWay::decoded;
  if (direct && library_gemm.one_order && multiply_in_order(stream, args, library_gemm)) {
    return outcome_of(args, plan.way, plan.reason, 1);
  }
  GemmOutcome outcome = outcome_of(args, plan.way, plan.reason, 1);
  // Scales of rows are not aligned if the rows do not start at the first row of their matrix.
  const bool readable = args.a.scaling != Scaling::whole_rows ||
                        (on_boundary(args.a.scale_inv) && on_boundary(args.b.scale_inv));
  const bool done = direct && readable && multiply(native, device, library_gemm);
  if (direct && !done && args.a.scaling == Scaling::whole_rows) {
    return multiply_then_scale(native, device, args, library_gemm);
  }
  if (!done) {
    GemmPlan copies = plan;
    if (blocks) {  // the scale factors are applied to the copies
      copies.way = GemmWay::decoded;
      if (direct) copies.reason = GemmReason::refused;
      library_gemm.a_scaling = library_gemm.b_scaling = Scaling::tensor;
      library_gemm.a_scale = library_gemm.b_scale = nullptr;
      library_gemm.may_be_refused = false;
    }
    const std::int64_t calls = multiply_copies(native, device, args, copies, room, library_gemm);
    outcome = outcome_of(args, copies.way, copies.reason, calls);
  }
  if (args.bias != nullptr && args.d.dtype == DType::f32) add_bias(native, args.d, args.bias, false);
  return outcome;
}

}  // namespace octet::ops::cuda
