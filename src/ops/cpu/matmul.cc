#include "cpu/matmul.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <dnnl.hpp>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cpu/attention_amx.h"
#include "octet/base/error.h"

namespace octet::ops::cpu {

namespace {

using dnnl::memory;

dnnl::engine& engine() {
  static dnnl::engine one(dnnl::engine::kind::cpu, 0);
  return one;
}

memory::data_type type_of(DType dtype) {
  return dtype == DType::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

/// Describes [rows, cols], or its transpose in memory. ld 0: dense.
memory::desc operand_desc(std::int64_t rows, std::int64_t cols, bool transposed, std::int64_t ld,
                          DType dtype) {
  const std::int64_t dense = transposed ? rows : cols;
  const std::int64_t stride = ld == 0 ? dense : ld;
  const memory::dims strides = transposed ? memory::dims{1, stride} : memory::dims{stride, 1};
  return memory::desc({rows, cols}, type_of(dtype), strides);
}

/// A compiled GEMM and the descriptions of its arrays.
struct Compiled {
  dnnl::matmul primitive;
  memory::desc a, b, d, bias, scale, scratch;
  int scale_argument = 0;
  int bias_argument = 0;
  /// oneDNN has only its reference kernel, some hundred times slower than dnnl::sgemm(), which computes the
  /// same. Before AVX-512 this is true if a scaled product is added to D.
  bool by_sgemm = false;
};

std::shared_ptr<const Compiled> compile(const MatmulShape& shape) {
  // oneDNN writes code into memory that it allocates, and does not check the allocation.
  require_memory_for("the code of a GEMM", std::size_t{32} << 20);
  auto made = std::make_shared<Compiled>();
  made->a = operand_desc(shape.m, shape.k, shape.a_transposed, shape.lda, shape.operands);
  made->b = operand_desc(shape.k, shape.n, shape.b_transposed, shape.ldb, shape.operands);
  made->d = memory::desc({shape.m, shape.n}, type_of(shape.result), memory::dims{shape.ldd, 1});
  made->bias = memory::desc({1, shape.n}, memory::data_type::f32, memory::dims{shape.n, 1});
  made->scale = memory::desc({1, 1}, memory::data_type::f32, memory::dims{1, 1});
  // Uses post-operations instead of output scales: with output scales, oneDNN 2.6 does not use its fast
  // kernels.
  dnnl::post_ops after;
  if (shape.scaled) {
    made->scale_argument = DNNL_ARG_ATTR_MULTIPLE_POST_OP(after.len()) | DNNL_ARG_SRC_1;
    after.append_binary(dnnl::algorithm::binary_mul, made->scale);
  }
  if (shape.bias) {
    made->bias_argument = DNNL_ARG_ATTR_MULTIPLE_POST_OP(after.len()) | DNNL_ARG_SRC_1;
    after.append_binary(dnnl::algorithm::binary_add, made->bias);
  }
  if (shape.accumulate) after.append_sum(1.0f);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  attributes.set_post_ops(after);
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc description(engine(), made->a, made->b, made->d, attributes);
#else
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(made->a, made->b, made->d), attributes,
                                                 engine());
#endif
  made->by_sgemm = shape.operands == DType::f32 && shape.result == DType::f32 && !shape.bias &&
                   std::string_view(description.impl_info_str()).starts_with("ref");
  made->scratch = made->by_sgemm ? memory::desc() : description.scratchpad_desc();
  made->primitive = dnnl::matmul(description);
  return made;
}

/// Returns the compiled GEMM of a shape. Batches have many different sizes, so the store is cleared when it
/// is large: memory use stays bounded.
std::shared_ptr<const Compiled> compiled(const MatmulShape& shape) {
  static std::mutex mutex;
  static std::map<MatmulShape, std::shared_ptr<const Compiled>> store;
  constexpr std::size_t most = 1024;
  {
    const std::lock_guard lock(mutex);
    if (const auto found = store.find(shape); found != store.end()) return found->second;
  }
  auto made = compile(shape);
  const std::lock_guard lock(mutex);
  if (store.size() >= most) store.clear();
  return store.emplace(shape, std::move(made)).first->second;
}

/// Converts an exception of oneDNN into an Error that names the GEMM.
[[noreturn]] void rethrow(const dnnl::error& error, const MatmulShape& shape) {
  const bool memory = error.status == dnnl_out_of_memory;
  throw Error(Problem{.what = memory ? "out of memory" : "oneDNN cannot run a GEMM",
                      .expected = "a GEMM [" + std::to_string(shape.m) + ", " + std::to_string(shape.k) +
                                  "] x [" + std::to_string(shape.k) + ", " + std::to_string(shape.n) +
                                  "] in " + std::string(name_of(shape.operands)),
                      .found = std::string(error.what()) + " (status " + std::to_string(error.status) + ")",
                      .where = "gemm on the CPU",
                      .fix = memory
                                 ? "use fewer ranks on this node or a smaller model or batch, or raise the "
                                   "limit of a process (ulimit -v)"
                                 : "train with other sizes, or report this GEMM with the version of oneDNN "
                                   "(trainer --version)"});
}

struct Free {
  void operator()(void* address) const { std::free(address); }
};

void* own_scratch(std::size_t bytes) {
  thread_local std::unique_ptr<void, Free> held;
  thread_local std::size_t held_bytes = 0;
  if (held_bytes < bytes) {
    held_bytes = 0;
    const std::size_t rounded = (bytes + 4095) / 4096 * 4096;
    held.reset(std::aligned_alloc(4096, rounded));
    if (held == nullptr) throw Error("not enough memory for the scratch of a GEMM");
    held_bytes = rounded;
  }
  return held.get();  // NOLINT(clang-analyzer-unix.Malloc): what was freed is not held any more
}

/// Arrays that are one column of a wider matrix, with elements that are not adjacent. oneDNN ignores the
/// stride of a dimension of 1, and some of its kernels then treat the array as dense. The brgemm kernels of
/// 3.7 and 3.8, for every processor, do this if D has one column. Kernels from 3.7 on also do it if A has one
/// row and is transposed. 3.7.2 gave wrong sums in both cases and wrote between the rows of D; 2.6.3 is
/// correct. The layouts of B, and of A if k is 1, are ambiguous too. oneDNN of every version therefore
/// receives dense copies of these columns, which are small compared with the GEMM.
struct Columns {
  explicit Columns(const MatmulShape& shape)
      : a((shape.a_transposed ? shape.m : shape.k) == 1 && shape.lda > 1),
        b((shape.b_transposed ? shape.k : shape.n) == 1 && shape.ldb > 1),
        d(shape.n == 1 && shape.ldd > 1) {}
  bool a, b, d;
};

/// Returns the GEMM that oneDNN computes instead of a GEMM with columns.
MatmulShape without_columns(const MatmulShape& shape) {
  const Columns columns(shape);
  MatmulShape dense = shape;
  if (columns.a) dense.lda = 0;
  if (columns.b) dense.ldb = 0;
  if (columns.d) dense.ldd = 1;
  return dense;
}

/// Copies `count` elements with the given strides in elements.
void copy_column(const void* from, std::int64_t from_apart, void* to, std::int64_t to_apart,
                 std::int64_t count, DType dtype) {
  const std::size_t element = size_of(dtype);
  for (std::int64_t i = 0; i < count; ++i) {
    std::memcpy(static_cast<std::byte*>(to) + static_cast<std::size_t>(i * to_apart) * element,
                static_cast<const std::byte*>(from) + static_cast<std::size_t>(i * from_apart) * element,
                element);
  }
}

/// Allocates a dense copy of a column.
std::vector<std::byte> column_room(std::int64_t count, DType dtype) {
  return std::vector<std::byte>(static_cast<std::size_t>(count) * size_of(dtype));
}

/// D = scale * A · B, plus D with shape.accumulate. All arrays are f32; there is no bias.
void sgemm(const MatmulShape& shape, const MatmulData& data) {
  const auto stride = [](std::int64_t ld, std::int64_t dense) { return ld == 0 ? dense : ld; };
  const dnnl::status status = static_cast<dnnl::status>(dnnl::sgemm(
      shape.a_transposed ? 'T' : 'N', shape.b_transposed ? 'T' : 'N', shape.m, shape.n, shape.k,
      shape.scaled ? data.scale : 1.0f, static_cast<const float*>(data.a),
      stride(shape.lda, shape.a_transposed ? shape.m : shape.k), static_cast<const float*>(data.b),
      stride(shape.ldb, shape.b_transposed ? shape.k : shape.n), shape.accumulate ? 1.0f : 0.0f,
      static_cast<float*>(data.d), shape.ldd));
  if (status != dnnl::status::success) throw dnnl::error(static_cast<dnnl_status_t>(status), "sgemm failed");
}

void dense_matmul(const MatmulShape& shape, const MatmulData& data) {
  try {
    const auto compiled_gemm = compiled(shape);
    if (compiled_gemm->by_sgemm) return sgemm(shape, data);
    const std::size_t wanted = compiled_gemm->scratch.get_size();
    void* scratch = data.scratch;
    if (wanted > data.scratch_bytes) scratch = own_scratch(wanted);
    thread_local dnnl::stream stream(engine());
    const auto view = [](const memory::desc& desc, const void* address) {
      return memory(desc, engine(), const_cast<void*>(address));
    };
    std::unordered_map<int, memory> arguments = {{DNNL_ARG_SRC, view(compiled_gemm->a, data.a)},
                                                 {DNNL_ARG_WEIGHTS, view(compiled_gemm->b, data.b)},
                                                 {DNNL_ARG_DST, view(compiled_gemm->d, data.d)}};
    if (wanted > 0) arguments.emplace(DNNL_ARG_SCRATCHPAD, view(compiled_gemm->scratch, scratch));
    if (shape.scaled)
      arguments.emplace(compiled_gemm->scale_argument, view(compiled_gemm->scale, &data.scale));
    if (shape.bias) arguments.emplace(compiled_gemm->bias_argument, view(compiled_gemm->bias, data.bias));
    compiled_gemm->primitive.execute(stream, arguments);
    stream.wait();
  } catch (const dnnl::error& error) {
    rethrow(error, shape);
  }
}

/// Returns whether this machine and the loaded oneDNN have the fault of is_wrong_on_amx().
bool has_amx_fault() {
#if defined(__x86_64__)
  static const bool faulty =
      dnnl_version()->major < 3 && dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx512_core_amx;
  return faulty;
#else
  return false;
#endif
}

/// Returns the shape to compute instead of a shape that is_wrong_on_amx(): the inner dimension gets one more
/// element, which is zero.
MatmulShape padded(const MatmulShape& shape) {
  MatmulShape wider = shape;
  wider.k = shape.k + 1;
  wider.lda = wider.ldb = 0;
  return wider;
}

/// Copies bf16 rows with a stride of `apart` elements into dense rows of `to_cols` elements. All further
/// elements and rows are zero.
std::vector<std::uint16_t> padded_rows(const void* from, std::int64_t rows, std::int64_t cols,
                                       std::int64_t apart, std::int64_t to_rows, std::int64_t to_cols) {
  std::vector<std::uint16_t> copy(static_cast<std::size_t>(to_rows * to_cols), 0);
  const auto* values = static_cast<const std::uint16_t*>(from);
  for (std::int64_t r = 0; r < rows; ++r)
    std::memcpy(&copy[static_cast<std::size_t>(r * to_cols)], values + r * apart,
                static_cast<std::size_t>(cols) * 2);
  return copy;
}

std::size_t whole_matmul_scratch(const MatmulShape& shape) {
  try {
    return compiled(without_columns(shape))->scratch.get_size();
  } catch (const dnnl::error& error) {
    rethrow(error, shape);
  }
}

void whole_matmul(const MatmulShape& shape, const MatmulData& data) {
  const Columns columns(shape);
  MatmulData dense = data;
  std::vector<std::byte> a, b, d;
  if (columns.a) {
    const std::int64_t count = shape.a_transposed ? shape.k : shape.m;
    a = column_room(count, shape.operands);
    copy_column(data.a, shape.lda, a.data(), 1, count, shape.operands);
    dense.a = a.data();
  }
  if (columns.b) {
    const std::int64_t count = shape.b_transposed ? shape.n : shape.k;
    b = column_room(count, shape.operands);
    copy_column(data.b, shape.ldb, b.data(), 1, count, shape.operands);
    dense.b = b.data();
  }
  if (columns.d) {
    d = column_room(shape.m, shape.result);
    if (shape.accumulate) copy_column(data.d, shape.ldd, d.data(), 1, shape.m, shape.result);
    dense.d = d.data();
  }
  dense_matmul(without_columns(shape), dense);
  if (columns.d) copy_column(d.data(), 1, data.d, shape.ldd, shape.m, shape.result);
}

}  // namespace

bool is_wrong_on_amx(const MatmulShape& shape) {
  return shape.operands == DType::bf16 && shape.k == 63;
}

std::size_t matmul_scratch(const MatmulShape& shape) {
  return whole_matmul_scratch(has_amx_fault() && is_wrong_on_amx(shape) ? padded(shape) : shape);
}

void matmul(const MatmulShape& shape, const MatmulData& data) {
  if (!has_amx_fault() || !is_wrong_on_amx(shape)) return whole_matmul(shape, data);
  const auto apart = [](std::int64_t ld, std::int64_t dense) { return ld == 0 ? dense : ld; };
  const MatmulShape wider = padded(shape);
  MatmulData copies = data;
  const auto a = shape.a_transposed
                     ? padded_rows(data.a, shape.k, shape.m, apart(shape.lda, shape.m), wider.k, shape.m)
                     : padded_rows(data.a, shape.m, shape.k, apart(shape.lda, shape.k), shape.m, wider.k);
  const auto b = shape.b_transposed
                     ? padded_rows(data.b, shape.n, shape.k, apart(shape.ldb, shape.k), shape.n, wider.k)
                     : padded_rows(data.b, shape.k, shape.n, apart(shape.ldb, shape.n), wider.k, shape.n);
  copies.a = a.data();
  copies.b = b.data();
  whole_matmul(wider, copies);
}

bool has_amx_bf16() {
#if defined(__x86_64__) && defined(__linux__)
  // oneDNN's limit is used, so that ONEDNN_MAX_CPU_ISA controls both. The kernel then has to permit tile data
  // for the whole process.
  static const bool usable = [] {
    constexpr int request_permission = 0x1023, tile_data = 18;
    return dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx512_core_amx &&
           syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  }();
  return usable;
#else
  return false;
#endif
}

bool has_fast_bf16() {
#if defined(__x86_64__)
  static const bool fast = [] {
    switch (dnnl::get_effective_cpu_isa()) {
      case dnnl::cpu_isa::avx512_core_bf16:
      case dnnl::cpu_isa::avx512_core_amx:
        return true;
      default:
        return false;
    }
  }();
  return fast;
#else
  return false;
#endif
}

}  // namespace octet::ops::cpu
