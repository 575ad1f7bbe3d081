#include "cuda/gemm/call.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <string>

#include "cuda/gemm/gemm_tiles.h"
#include "cuda/scratch.h"
#include "octet/base/error.h"
#include "octet/base/strings.h"

namespace octet::ops::cuda {

namespace {

constexpr int kProposals = 10;
/// Number of tiles for which variants are made.
constexpr int kTilesTried = 12;
/// Elements of the largest tile with promoted partial sums.
constexpr int kLargestPromoted = 23000;

/// The functions of libcublasLt.
struct Functions {
  decltype(&::cublasLtCreate) create;
  decltype(&::cublasLtGetVersion) version;
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
  decltype(&::cublasLtMatmulAlgoCheck) algorithm_check;
  decltype(&::cublasLtMatmulAlgoConfigSetAttribute) algorithm_set;
  decltype(&::cublasLtMatmulAlgoConfigGetAttribute) algorithm_get;
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
        Problem{.what = "the library for GEMMs on the GPU cannot be loaded",
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
  find(f.version, "cublasLtGetVersion");
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
  find(f.algorithm_check, "cublasLtMatmulAlgoCheck");
  find(f.algorithm_set, "cublasLtMatmulAlgoConfigSetAttribute");
  find(f.algorithm_get, "cublasLtMatmulAlgoConfigGetAttribute");
  return f;
}

const Functions& functions() {
  static const Functions loaded = load_functions();
  return loaded;
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

/// Returns a setting of an algorithm, or `none` if it has no such setting.
template <typename T>
T setting(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute, T none) {
  std::size_t written = 0;
  functions().algorithm_get(&algorithm, attribute, &none, sizeof none, &written);
  return none;
}

std::int32_t scale_mode(Scaling scaling) {
  if (scaling == Scaling::whole_rows) return CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  return scaling == Scaling::rows ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F
                                  : CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
}

/// Tiles of kernels that split a GEMM among thread blocks, in elements of the library's D.
struct KnownTile {
  Tile tile;
  cublasLtMatmulTile_t id;
};
#define T(rows, cols)                                  \
  KnownTile {                                          \
    {rows, cols}, CUBLASLT_MATMUL_TILE_##rows##x##cols \
  }
constexpr KnownTile kTiles[] = {
    // clang-format off
    T(64, 256), T(72, 256), T(80, 256), T(88, 192), T(88, 256), T(96, 192), T(96, 256), T(104, 192),
    T(104, 256), T(112, 192), T(112, 256), T(120, 192), T(120, 256), T(128, 128), T(128, 136), T(128, 144),
    T(128, 152), T(128, 160), T(128, 168), T(128, 176), T(128, 184), T(128, 192), T(128, 200), T(128, 208),
    T(128, 216), T(128, 224), T(128, 232), T(128, 240), T(128, 248), T(128, 256), T(128, 264), T(128, 272),
    T(128, 280), T(128, 288), T(128, 296), T(128, 304), T(128, 312), T(128, 320), T(136, 128), T(136, 192),
    T(136, 256), T(144, 128), T(144, 192), T(144, 256), T(152, 128), T(152, 192), T(152, 256), T(160, 128),
    T(160, 192), T(160, 256), T(168, 128), T(168, 192), T(168, 256), T(176, 128), T(176, 192), T(176, 256),
    T(184, 128), T(184, 192), T(192, 88), T(192, 96), T(192, 104), T(192, 112), T(192, 120), T(192, 128),
    T(192, 136), T(192, 144), T(192, 152), T(192, 160), T(192, 168), T(192, 176), T(192, 184), T(192, 192),
    T(192, 200), T(192, 208), T(192, 216), T(192, 224), T(192, 232), T(200, 128), T(200, 192), T(208, 128),
    T(208, 192), T(216, 128), T(216, 192), T(224, 128), T(224, 192), T(232, 128), T(232, 192), T(240, 128),
    T(248, 128), T(256, 64), T(256, 72), T(256, 80), T(256, 88), T(256, 96), T(256, 104), T(256, 112),
    T(256, 120), T(256, 128), T(256, 136), T(256, 144), T(256, 152), T(256, 160), T(256, 168), T(256, 176),
    T(264, 128), T(272, 128), T(280, 128), T(288, 128), T(296, 128), T(304, 128), T(312, 128), T(320, 128),
    // clang-format on
};
#undef T

}  // namespace

cublasLtHandle_t start_library() {
  cublasLtHandle_t handle = nullptr;
  const cublasStatus_t status = functions().create(&handle);
  if (status != CUBLAS_STATUS_SUCCESS) {
    throw Error(Problem{.what = "cuBLASLt does not start",
                        .found = functions().status_string(status),
                        .fix = "check the free memory and the driver of the GPU with nvidia-smi"});
  }
  return handle;
}

std::string shown(const LibraryGemm& p) {
  return "[" + std::to_string(p.m) + ", " + std::to_string(p.n) + ", " + std::to_string(p.k) + "] of " +
         std::string(name_of(p.a_type)) + (p.a_inner ? "" : " transposed") + " and " +
         std::string(name_of(p.b_type)) + (p.b_inner ? "" : " transposed") + " into " +
         std::string(name_of(p.d_type));
}

std::string shown(const cublasLtMatmulAlgo_t& algorithm) {
  std::string tile = "number " + std::to_string(tile_of(algorithm));
  for (const KnownTile& known : kTiles) {
    if (known.id == tile_of(algorithm)) {
      tile = std::to_string(known.tile.rows) + " x " + std::to_string(known.tile.cols);
    }
  }
  return "tile " + tile + ", cluster " +
         std::to_string(setting(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, std::uint16_t{0})) +
         ", option " + std::to_string(setting(algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, 0));
}

std::size_t library_version() {
  return functions().version();
}

std::uint32_t tile_of(const cublasLtMatmulAlgo_t& algorithm) {
  return setting(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID, std::uint32_t{0});
}

void require(cublasStatus_t status, const char* what, const LibraryGemm& p) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  Problem problem{.what = std::string("cuBLASLt failed at ") + what,
                  .found = functions().status_string(status),
                  .where = "the product " + shown(p)};
  // A kernel is loaded when it first runs. If there is no memory for it, the library reports an unrelated
  // reason.
  constexpr std::size_t kRoomOfKernels = std::size_t{256} << 20;
  std::size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) == cudaSuccess && free < kRoomOfKernels) {
    problem.what += ", and the GPU's memory is nearly full";
    problem.found += "; " + human_bytes(static_cast<double>(free)) + " of " +
                     human_bytes(static_cast<double>(total)) + " are free";
    problem.fix =
        "end other programs that hold the GPU's memory (nvidia-smi lists them), or lower what the run "
        "takes: per_device_train_batch_size, cutoff_len, recompute: full";
  }
  throw Error(std::move(problem));
}

std::uint32_t alignment(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address) | 256u;
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

Call::Call(const LibraryGemm& p) : p_(p) {
  require(functions().desc_create(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing", p);
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

Call::~Call() {
  for (const auto layout : {a_, b_, d_}) {
    if (layout != nullptr) functions().layout_destroy(layout);
  }
  if (desc_ != nullptr) functions().desc_destroy(desc_);
}

template <typename T>
void Call::set(cublasLtMatmulDescAttributes_t attribute, T value) {
  require(functions().desc_set(desc_, attribute, &value, sizeof value), "describing", p_);
}

void Call::layout(cublasLtMatrixLayout_t& to, DType type, std::int64_t rows, std::int64_t cols,
                  std::int64_t ld) {
  require(functions().layout_create(&to, type_of(type), static_cast<std::uint64_t>(rows),
                                    static_cast<std::uint64_t>(cols), ld),
          "describing", p_);
}

std::vector<cublasLtMatmulAlgo_t> Call::proposals(cublasLtHandle_t handle) const {
  // Partial sums of a split k stay in fp32 and are added in a fixed order.
  auto found = proposals(handle, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 256);
  if (found.empty() && !p_.may_be_refused) {
    require(CUBLAS_STATUS_NOT_SUPPORTED, "finding an algorithm", p_);
  }
  return found;
}

std::vector<cublasLtMatmulAlgo_t> Call::proposals_in_order(cublasLtHandle_t handle) const {
  auto found = proposals(handle, CUBLASLT_REDUCTION_SCHEME_NONE, kOrderAlignment);
  std::erase_if(found, [](const cublasLtMatmulAlgo_t& algorithm) {
    return setting(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, std::int32_t{1}) > 1 ||
           setting(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, std::uint32_t{0}) !=
               CUBLASLT_REDUCTION_SCHEME_NONE;
  });
  return found;
}

std::vector<cublasLtMatmulAlgo_t> Call::proposals(cublasLtHandle_t handle, std::uint32_t reductions,
                                                  std::uint32_t most_alignment) const {
  cublasLtMatmulPreference_t preference = nullptr;
  require(functions().preference_create(&preference), "describing", p_);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    require(functions().preference_set(preference, attribute, &value, sizeof value), "describing", p_);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kLibraryWorkspace);
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
  const auto aligned = [&](const void* address) { return std::min(most_alignment, alignment(address)); };
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, aligned(p_.b));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, aligned(p_.a));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, aligned(p_.addend != nullptr ? p_.addend : p_.d));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, aligned(p_.d));
  std::array<cublasLtMatmulHeuristicResult_t, kProposals> found{};
  int count = 0;
  const cublasStatus_t status =
      functions().heuristic(handle, desc_, a_, b_, d_, d_, preference, kProposals, found.data(), &count);
  functions().preference_destroy(preference);
  std::vector<cublasLtMatmulAlgo_t> result;
  if (status == CUBLAS_STATUS_SUCCESS) {
    for (int i = 0; i < count; ++i) {
      const auto& one = found[static_cast<std::size_t>(i)];
      if (one.state == CUBLAS_STATUS_SUCCESS && one.workspaceSize <= kLibraryWorkspace) {
        result.push_back(one.algo);
      }
    }
  }
  return result;
}

std::vector<cublasLtMatmulAlgo_t> Call::variants(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& of,
                                                 int multiprocessors) const {
  // FP8 with promotion of partial sums to fp32 keeps two sets of sums in registers, which halves the largest
  // tile.
  const bool promoted = is_fp8(p_.a_type) && !p_.fast_accumulation;
  std::vector<Tile> tiles;
  for (const KnownTile& known : kTiles) {
    if (!promoted || known.tile.rows * known.tile.cols <= kLargestPromoted) tiles.push_back(known.tile);
  }
  keep_fitting_tiles(tiles, {.rows = p_.n, .cols = p_.m}, multiprocessors, kTilesTried);
  std::vector<cublasLtMatmulAlgo_t> result;
  for (const Tile& tile : tiles) {
    const auto* known = std::find_if(std::begin(kTiles), std::end(kTiles), [&](const KnownTile& k) {
      return k.tile.rows == tile.rows && k.tile.cols == tile.cols;
    });
    // Pairs of blocks fetch shared data once. Single blocks are only equally fast in short turns.
    for (const auto cluster : {CUBLASLT_CLUSTER_SHAPE_2x1x1, CUBLASLT_CLUSTER_SHAPE_1x2x1}) {
      // The library's kernels differ in an option without a name.
      for (const std::int32_t option : {1, 2, 3, 4, 5, 6, 7}) {
        cublasLtMatmulAlgo_t algorithm = of;
        const auto change = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto value) {
          return functions().algorithm_set(&algorithm, attribute, &value, sizeof value) ==
                 CUBLAS_STATUS_SUCCESS;
        };
        if (!change(CUBLASLT_ALGO_CONFIG_TILE_ID, static_cast<std::uint32_t>(known->id)) ||
            !change(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, static_cast<std::uint16_t>(cluster)) ||
            !change(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, std::int32_t{1}) ||
            !change(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                    static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE)) ||
            !change(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, option)) {
          continue;
        }
        if (accepts(handle, algorithm)) result.push_back(algorithm);
      }
    }
  }
  return result;
}

bool Call::accepts(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t found{};
  const cublasStatus_t status =
      functions().algorithm_check(handle, desc_, a_, b_, d_, d_, &algorithm, &found);
  return status == CUBLAS_STATUS_SUCCESS && found.workspaceSize <= kLibraryWorkspace;
}

cublasStatus_t Call::run(cublasLtHandle_t handle, const cublasLtMatmulAlgo_t& algorithm,
                         cudaStream_t stream) const {
  const float before = p_.accumulate || p_.addend != nullptr ? 1.0f : 0.0f;
  const float* alpha = p_.factors != nullptr ? p_.factors : &p_.factor;
  const float* beta = p_.factors != nullptr ? p_.factors + 1 : &before;
  const void* c = p_.addend != nullptr ? p_.addend : p_.d;
  return functions().matmul(handle, desc_, alpha, p_.b, a_, p_.a, b_, beta, c, d_, p_.d, d_, &algorithm,
                            p_.workspace, kLibraryWorkspace, stream);
}

}  // namespace octet::ops::cuda
