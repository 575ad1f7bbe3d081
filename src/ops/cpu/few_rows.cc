// Compiled with contraction of a * b + c into one fused operation (see src/CMakeLists.txt).
#include "cpu/few_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/attention_amx.h"
#include "cpu/levels.h"
#include "cpu/simd.h"

namespace octet::ops::cpu {

namespace {

constexpr std::int64_t kMostRowsOfF32 = 64;       // with more rows oneDNN is as fast
constexpr std::int64_t kMostRowsOfBf16 = 512;     // with bf16, oneDNN is slower here up to this limit
constexpr std::int64_t kMostRowsBesideTiles = 8;  // limit if the processor has bf16 tiles
constexpr std::int64_t kStep = 32;                ///< elements of the widest bf16 vectors
/// Elements of the inner dimension that are summed at once: a group of tokens stays in the first-level cache.
constexpr std::int64_t kFewInner = 1536;
/// Bytes of a weight that a thread processes at once: they stay in its second-level cache for all groups of
/// tokens.
constexpr std::int64_t kPanelBytes = std::int64_t{128} << 10;

/// A panel: outputs [first, last) of all tokens.
struct FewRows {
  const float* x = nullptr;  ///< [tokens][inner] with stride x_ld; for a bf16 weight in the order of few_pack
  std::int64_t x_ld = 0;
  std::int64_t tokens = 0;
  std::int64_t inner = 0;
  const void* weight = nullptr;  ///< [last - first][inner] with stride weight_ld
  std::int64_t weight_ld = 0;
  std::int64_t first = 0, last = 0;
  const void* next = nullptr;  ///< address to prefetch from during the computation
  bool cold = false;           ///< this panel was not prefetched
  float* y = nullptr;          ///< [tokens][last - first] with stride y_ld
  std::int64_t y_ld = 0;
};

namespace generic {
#define OCTET_FEW_TARGET
#define OCTET_FEW_LANES 4
#define OCTET_FEW_TOKENS 2
#include "cpu/few_rows_kernel.h"
#undef OCTET_FEW_TARGET
#undef OCTET_FEW_LANES
#undef OCTET_FEW_TOKENS
}  // namespace generic

#if defined(__x86_64__)
namespace v3 {
#define OCTET_FEW_TARGET __attribute__((target("arch=x86-64-v3")))
#define OCTET_FEW_LANES 8
#define OCTET_FEW_TOKENS 2
#include "cpu/few_rows_kernel.h"
#undef OCTET_FEW_TARGET
#undef OCTET_FEW_LANES
#undef OCTET_FEW_TOKENS
}  // namespace v3

namespace v4 {
#define OCTET_FEW_TARGET __attribute__((target("arch=x86-64-v4")))
#define OCTET_FEW_LANES 16
#define OCTET_FEW_TOKENS 6
#include "cpu/few_rows_kernel.h"
#undef OCTET_FEW_TARGET
#undef OCTET_FEW_LANES
#undef OCTET_FEW_TOKENS
}  // namespace v4
#endif

struct Kernels {
  void (*run)(const FewRows&, bool bf16);
  CachedKernels cached;
};

Kernels best() {
#if defined(__x86_64__)
  if (has_v4()) return {v4::few_run, {v4::few_keys, v4::few_sums, v4::few_pack, v4::few_unpack}};
  if (has_v3()) return {v3::few_run, {v3::few_keys, v3::few_sums, v3::few_pack, v3::few_unpack}};
#endif
  return {generic::few_run, {generic::few_keys, generic::few_sums, generic::few_pack, generic::few_unpack}};
}

const Kernels& kernels() {
  static const Kernels found = best();
  return found;
}

std::int64_t stride_of(std::int64_t ld, std::int64_t cols) {
  return ld == 0 ? cols : ld;
}

template <typename T>
OCTET_SIMD void store_panel(const GemmArgs& args, const FewRows& f) {
  for (std::int64_t row = 0; row < f.tokens; ++row) {
    const float* y = f.y + row * f.y_ld;
    T* d = static_cast<T*>(args.d.data) + row * args.d.ld;
    for (std::int64_t i = f.first; i < f.last; ++i) {
      const float bias = args.bias != nullptr ? args.bias[i] : 0.0f;
      simd::store(d[i], y[i - f.first] * args.factor + bias);
    }
  }
}

/// Divides the outputs into panels, which threads take dynamically.
void in_panels(const GemmArgs& args, const FewRows& whole) {
  const bool bf16 = args.b.dtype == DType::bf16;
  const std::int64_t row_bytes = whole.inner * static_cast<std::int64_t>(size_of(args.b.dtype));
  const std::int64_t outputs = args.d.cols, threads = octet::cpu::op_threads();
  const std::int64_t height = std::max<std::int64_t>(1, kPanelBytes / row_bytes / 16) * 16;
  const std::int64_t panels = (outputs + height - 1) / height;
  const auto row = [&](std::int64_t output) {
    return static_cast<const std::byte*>(whole.weight) +
           static_cast<std::size_t>(std::min(outputs, output) * whole.weight_ld) * size_of(args.b.dtype);
  };
  simd::parallel_pieces(panels, height * whole.inner * whole.tokens, [&](std::int64_t panel) {
    thread_local std::vector<float> sums;
    FewRows f = whole;
    f.first = panel * height;
    f.last = std::min(outputs, f.first + height);
    f.weight = row(f.first);
    f.next = row(f.first + threads * height);  // approximately: threads take panels in turns
    f.cold = panel < threads;
    f.y_ld = height;
    sums.resize(static_cast<std::size_t>(f.tokens * f.y_ld));
    f.y = sums.data();
    kernels().run(f, bf16);
    if (args.d.dtype == DType::bf16) {
      store_panel<Bf16>(args, f);
    } else {
      store_panel<float>(args, f);
    }
  });
}

}  // namespace

const CachedKernels& cached_kernels() {
  return kernels().cached;
}

bool suits_few_rows(const GemmArgs& args) {
  const DType dtype = args.b.dtype;
  if (!octet::cpu::claims() || !args.b_stands || args.gemm_kind != GemmKind::forward) return false;
  if (args.fixed_order || args.accumulate) return false;
  if (args.a.dtype != dtype || (dtype != DType::f32 && dtype != DType::bf16)) return false;
  const std::int64_t most = dtype == DType::f32 ? kMostRowsOfF32
                            : has_amx_bf16()    ? kMostRowsBesideTiles
                                                : kMostRowsOfBf16;
  return args.a.rows > 0 && args.a.rows <= most && args.d.cols > 0 && args.a.cols > 0 &&
         args.a.cols % kStep == 0;
}

void few_rows(const GemmArgs& args) {
  FewRows f{.tokens = args.a.rows,
            .inner = args.a.cols,
            .weight = args.b.data,
            .weight_ld = stride_of(args.b_ld, args.b.cols)};
  const std::int64_t a_ld = stride_of(args.a_ld, args.a.cols);
  if (args.a.dtype == DType::f32) {
    f.x = static_cast<const float*>(args.a.data);
    f.x_ld = a_ld;
    return in_panels(args, f);
  }
  thread_local std::vector<float> packed;
  packed.resize(static_cast<std::size_t>(f.tokens * f.inner));
  for (std::int64_t row = 0; row < f.tokens; ++row) {
    kernels().cached.pack(static_cast<const Bf16*>(args.a.data) + row * a_ld, f.inner,
                          packed.data() + row * f.inner);
  }
  f.x = packed.data();
  f.x_ld = f.inner;
  in_panels(args, f);
}

}  // namespace octet::ops::cpu
