#include "cuda/gemm_library.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/scratch.h"
#include "octet/base/error.h"
#include "octet/device/cuda.h"
#include "octet/ops/gemm.h"

namespace octet::ops::cuda {

namespace {

constexpr int kCandidates = 10;

/// The functions of libcublasLt.
struct Functions {
  decltype(&::cublasLtCreate) create;
  decltype(&::cublasLtMatmul) matmul;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) heuristic;
  decltype(&::cublasLtMatmulDescCreate) desc_create;
  decltype(&::cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&::cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&::cublasLtMatrixLayoutCreate) layout_create;
  decltype(&::cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&::cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&::cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&::cublasLtGetStatusString) status_string;
};

Functions load_functions() {
  void* library = nullptr;
  std::string why;
  for (const char* name :
       {"libcublasLt.so.13", "libcublasLt.so", "/usr/local/cuda/lib64/libcublasLt.so.13"}) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    if (why.empty()) why = dlerror();
  }
  if (library == nullptr) {
    throw Error(
        Problem{.what = "the library for matrix products on the GPU cannot be loaded",
                .expected = "libcublasLt.so.13 of the CUDA 13 toolkit",
                .found = why,
                .fix = "install cuBLAS 13 and name its folder in LD_LIBRARY_PATH, or set device: cpu"});
  }
  Functions f{};
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) {
      throw Error(Problem{.what = std::string("libcublasLt has no function ") + name,
                          .expected = "cuBLASLt of the CUDA 13 toolkit",
                          .fix = "install cuBLAS 13"});
    }
  };
  find(f.create, "cublasLtCreate");
  find(f.matmul, "cublasLtMatmul");
  find(f.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(f.desc_create, "cublasLtMatmulDescCreate");
  find(f.desc_destroy, "cublasLtMatmulDescDestroy");
  find(f.desc_set, "cublasLtMatmulDescSetAttribute");
  find(f.layout_create, "cublasLtMatrixLayoutCreate");
  find(f.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(f.preference_create, "cublasLtMatmulPreferenceCreate");
  find(f.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(f.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  find(f.status_string, "cublasLtGetStatusString");
  return f;
}

const Functions& functions() {
  static const Functions loaded = load_functions();
  return loaded;
}

std::string shown(const LibraryProduct& p) {
  return "[" + std::to_string(p.m) + ", " + std::to_string(p.n) + ", " + std::to_string(p.k) + "] of " +
         std::string(name_of(p.a_type)) + (p.a_inner ? "" : " transposed") + " and " +
         std::string(name_of(p.b_type)) + (p.b_inner ? "" : " transposed") + " into " +
         std::string(name_of(p.d_type));
}

void require(cublasStatus_t status, const char* what, const LibraryProduct& p) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(Problem{.what = std::string("cuBLASLt failed at ") + what,
                      .found = functions().status_string(status),
                      .where = "the product " + shown(p)});
}

cudaDataType_t type_of(DType t) {
  switch (t) {
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::e4m3:
      return CUDA_R_8F_E4M3;
    case DType::e5m2:
      return CUDA_R_8F_E5M2;
    default:
      return CUDA_R_32F;
  }
}

std::int32_t scale_mode(Scaling scaling) {
  return scaling == Scaling::rows ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F
                                  : CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
}

/// The largest power of two up to 256 that divides an address.
std::uint32_t alignment(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | 256u;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

/// Descriptors of one product. cuBLASLt counts by columns: its D is ours transposed, its A our B.
class Call {
 public:
  explicit Call(const LibraryProduct& p) : f_(functions()), p_(p) {
    require(f_.desc_create(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing", p);
    set(CUBLASLT_MATMUL_DESC_TRANSA, p.b_inner ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, p.a_inner ? CUBLAS_OP_N : CUBLAS_OP_T);
    if (is_fp8(p.a_type)) {
      set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.b_scale);
      set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.a_scale);
      set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(p.fast_accumulation));
      if (p.a_scaling != Scaling::tensor) {
        set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode(p.b_scaling));
        set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(p.a_scaling));
      }
    }
    if (p.factors != nullptr) set(CUBLASLT_MATMUL_DESC_POINTER_MODE, CUBLASLT_POINTER_MODE_DEVICE);
    if (p.bias != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF);
    }
    layout(a_, p.b_type, p.b_inner ? p.k : p.n, p.b_inner ? p.n : p.k, p.b_ld);
    layout(b_, p.a_type, p.a_inner ? p.k : p.m, p.a_inner ? p.m : p.k, p.a_ld);
    layout(d_, p.d_type, p.n, p.m, p.d_ld);
  }
  ~Call() {
    for (const auto layout : {a_, b_, d_}) {
      if (layout != nullptr) f_.layout_destroy(layout);
    }
    if (desc_ != nullptr) f_.desc_destroy(desc_);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  std::vector<cublasLtMatmulAlgo_t> candidates(cublasLtHandle_t handle) const {
    cublasLtMatmulPreference_t preference = nullptr;
    require(f_.preference_create(&preference), "describing", p_);
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
      require(f_.preference_set(preference, attribute, &value, sizeof value), "describing", p_);
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kLibraryWorkspace);
    // Pieces of a split sum stay in fp32 and are added in a fixed order.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(p_.b));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(p_.a));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(p_.d));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(p_.d));
    std::array<cublasLtMatmulHeuristicResult_t, kCandidates> found{};
    int count = 0;
    const cublasStatus_t status =
        f_.heuristic(handle, desc_, a_, b_, d_, d_, preference, kCandidates, found.data(), &count);
    f_.preference_destroy(preference);
    std::vector<cublasLtMatmulAlgo_t> result;
    if (status == CUBLAS_STATUS_SUCCESS) {
      for (int i = 0; i < count; ++i) {
        const auto& one = found[static_cast<std::size_t>(i)];
        if (one.state == CUBLAS_STATUS_SUCCESS && one.workspaceSize <= kLibraryWorkspace) {
          result.push_back(one.algo);
        }
      }
    }
    if (result.empty() && !p_.may_be_refused) {
      require(CUBLAS_STATUS_NOT_SUPPORTED, "finding an algorithm", p_);
    }
    return result;
  }

  cublasStatus_t run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
                     cudaStream_t stream) const {
    const float one = 1.0f, before = p_.accumulate ? 1.0f : 0.0f;
    const float* alpha = p_.factors != nullptr ? p_.factors : &one;
    const float* beta = p_.factors != nullptr ? p_.factors + 1 : &before;
    return f_.matmul(handle, desc_, alpha, p_.b, a_, p_.a, b_, beta, p_.d, d_, p_.d, d_, &algorithm,
                     p_.workspace, kLibraryWorkspace, stream);
  }

 private:
  template <typename T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    require(f_.desc_set(desc_, attribute, &value, sizeof value), "describing", p_);
  }
  void layout(cublasLtMatrixLayout_t& to, DType type, std::int64_t rows, std::int64_t cols, std::int64_t ld) {
    require(f_.layout_create(&to, type_of(type), static_cast<std::uint64_t>(rows),
                             static_cast<std::uint64_t>(cols), ld),
            "describing", p_);
  }

  const Functions& f_;
  const LibraryProduct& p_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, d_ = nullptr;
};

bool capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  octet::cuda::check(cudaStreamIsCapturing(stream, &status), "asking whether a stream is captured");
  return status != cudaStreamCaptureStatusNone;
}

/// Milliseconds of `runs` runs one behind the other; infinite when the library refuses.
float time_of(const Call& call, cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
              cudaStream_t stream, int runs) {
  cudaEvent_t begin = nullptr, end = nullptr;
  octet::cuda::check(cudaEventCreate(&begin), "timing a product");
  octet::cuda::check(cudaEventCreate(&end), "timing a product");
  octet::cuda::check(cudaEventRecord(begin, stream), "timing a product");
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  for (int i = 0; i < runs && status == CUBLAS_STATUS_SUCCESS; ++i) {
    status = call.run(handle, algorithm, stream);
  }
  octet::cuda::check(cudaEventRecord(end, stream), "timing a product");
  octet::cuda::check(cudaEventSynchronize(end), "timing a product");
  float time = 0.0f;
  octet::cuda::check(cudaEventElapsedTime(&time, begin, end), "timing a product");
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return status == CUBLAS_STATUS_SUCCESS ? time : std::numeric_limits<float>::infinity();
}

/// What algorithms depend on.
using Key = std::array<std::int64_t, 16>;

Key key_of(const LibraryProduct& p) {
  return {p.m,
          p.n,
          p.k,
          p.a_ld,
          p.b_ld,
          p.d_ld,
          p.a_inner,
          p.b_inner,
          static_cast<std::int64_t>(p.a_type),
          static_cast<std::int64_t>(p.b_type),
          static_cast<std::int64_t>(p.d_type),
          p.fast_accumulation + 2 * (p.bias != nullptr) + 4 * (p.factors != nullptr),
          alignment(p.a),
          alignment(p.b),
          alignment(p.d),
          p.sums_tokens + 2 * (p.a_scaling != Scaling::tensor)};
}

/// A number of tokens, rounded up to a power of two: inside an octave the best algorithm is nearly always the
/// same, and a head over the label rows of chats would be timed for most of an epoch otherwise.
std::int64_t about(std::int64_t tokens) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(tokens)));
}

/// The same of all products that share a choice made by timing: packed documents and labels come in ever
/// other numbers, and timing each would cost more than it gains.
Key timed_key_of(const LibraryProduct& p) {
  LibraryProduct like = p;
  // Rows as long as there are tokens differ with their number; what matters of them is their alignment.
  const auto ld = [&](std::int64_t& length, DType type) {
    if (length == p.k) {
      length = -static_cast<std::int64_t>(
          alignment(reinterpret_cast<const void*>(length * static_cast<std::int64_t>(size_of(type)))));
    }
  };
  if (p.sums_tokens) {
    ld(like.a_ld, p.a_type);
    ld(like.b_ld, p.b_type);
    like.k = about(p.k);
  } else {
    like.m = about(p.m);
  }
  return key_of(like);
}

struct Choice {
  cublasLtMatmulAlgo_t algorithm{};
  bool timed = false;
  bool none = false;  ///< the library does not multiply this
};

/// The library on one device.
class Library {
 public:
  Library() {
    const cublasStatus_t status = functions().create(&handle_);
    if (status != CUBLAS_STATUS_SUCCESS) {
      throw Error(Problem{.what = "cuBLASLt does not start", .found = functions().status_string(status)});
    }
  }

  bool multiply(cudaStream_t stream, const LibraryProduct& p) {
    const Call call(p);
    const Key key = key_of(p);
    const std::lock_guard lock(mutex_);
    // Timing writes D several times, which only a product that overwrites D bears.
    const bool times = gemm_timing();
    const bool may_time = times && !p.accumulate && p.factors == nullptr && !capturing(stream);
    const Key like = timed_key_of(p);
    if (const auto near = timed_.find(like); times && near != timed_.end()) {
      // It may need what this shape lacks; then it says so before it does anything.
      if (call.run(handle_, near->second, stream) == CUBLAS_STATUS_SUCCESS) return true;
    }
    const auto found = choices_.find(key);
    if (found != choices_.end() && found->second.none) return false;
    if (found != choices_.end() && (found->second.timed || !may_time)) {
      require(call.run(handle_, found->second.algorithm, stream), "multiplying", p);
      return true;
    }
    const Choice choice = may_time ? fastest(call, stream, p) : first_that_runs(call, stream, p);
    if (choice.timed) timed_.try_emplace(like, choice.algorithm);
    choices_.insert_or_assign(key, choice);
    return !choice.none;
  }

 private:
  /// Leaves D written. Candidates take turns, each for some milliseconds at a time: a large product draws so
  /// much power that the GPU lowers its clock, and what is fastest then is not what is fastest on a cold one.
  Choice fastest(const Call& call, cudaStream_t stream, const LibraryProduct& p) {
    constexpr float turn = 6.0f;  // milliseconds
    constexpr int turns = 3, most_runs = 24;
    const std::vector<cublasLtMatmulAlgo_t> candidates = call.candidates(handle_);
    std::vector<int> runs;
    for (const auto& candidate : candidates) {
      time_of(call, handle_, candidate, stream, 1);  // loads its code
      const float once = time_of(call, handle_, candidate, stream, 1);
      runs.push_back(
          std::isfinite(once) ? std::clamp(static_cast<int>(turn / std::max(once, 1e-3f)), 1, most_runs) : 0);
    }
    std::vector<float> times(candidates.size(), 0.0f);
    for (int round = 0; round < turns; ++round) {
      for (std::size_t i = 0; i < candidates.size(); ++i) {
        times[i] += runs[i] == 0 ? std::numeric_limits<float>::infinity()
                                 : time_of(call, handle_, candidates[i], stream, runs[i]) /
                                       static_cast<float>(runs[i]);
      }
    }
    const auto best = std::min_element(times.begin(), times.end()) - times.begin();
    if (p.may_be_refused && (candidates.empty() || !std::isfinite(times[static_cast<std::size_t>(best)]))) {
      return {.none = true};
    }
    const Choice choice{.algorithm = candidates[static_cast<std::size_t>(best)], .timed = true};
    require(call.run(handle_, choice.algorithm, stream), "multiplying", p);
    return choice;
  }
  /// Some combinations are refused only when they are run.
  Choice first_that_runs(const Call& call, cudaStream_t stream, const LibraryProduct& p) {
    cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
    for (const auto& candidate : call.candidates(handle_)) {
      status = call.run(handle_, candidate, stream);
      if (status == CUBLAS_STATUS_SUCCESS) return {.algorithm = candidate, .timed = false};
    }
    if (!p.may_be_refused) require(status, "multiplying", p);
    return {.none = true};
  }

  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::map<Key, Choice> choices_;              ///< by exact shape
  std::map<Key, cublasLtMatmulAlgo_t> timed_;  ///< by about the shape
};

Library& library_of(int device) {
  // Never destroyed: the driver may be gone when static objects are.
  static std::mutex& mutex = *new std::mutex;
  static auto& libraries = *new std::map<int, std::unique_ptr<Library>>;
  const std::lock_guard lock(mutex);
  auto& library = libraries[device];
  if (!library) library = std::make_unique<Library>();
  return *library;
}

}  // namespace

bool multiply(cudaStream_t stream, int device, const LibraryProduct& product) {
  return library_of(device).multiply(stream, product);
}

}  // namespace octet::ops::cuda
