#include "cuda/gemm/library.h"

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "cuda/gemm/autotune.h"
#include "cuda/gemm/call.h"
#include "gemm_autotune_cache.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/device/cuda.h"
#include "octet/device/gpu_choice.h"
#include "octet/ops/gemm.h"

namespace octet::ops::cuda {

bool capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  octet::cuda::check(cudaStreamIsCapturing(stream, &status), "asking whether a stream is captured");
  return status != cudaStreamCaptureStatusNone;
}

namespace {

/// The properties that determine algorithms.
using Key = GemmKey;

/// `most`: larger alignments count as `most`.
Key key_of(const LibraryGemm& p, std::uint32_t most = 256) {
  return {
      p.m,
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
      p.fast_accumulation + 2 * (p.bias != nullptr) + 4 * (p.factors != nullptr) + 8 * (p.addend != nullptr),
      std::min(most, alignment(p.a)),
      std::min(most, alignment(p.b)),
      std::min({most, alignment(p.d), alignment(p.addend)}),
      p.sums_tokens + 2 * (p.a_scaling != Scaling::tensor) + 8 * (p.a_scaling == Scaling::whole_rows)};
}

/// Returns the index of the number of tokens in a key.
std::size_t tokens_in_key(const LibraryGemm& p) {
  return p.sums_tokens ? 2 : 0;
}

/// Rounds a number of tokens up to a power of two. The best algorithm is nearly always the same within a
/// power-of-two range. Otherwise an LM head over the label rows of chats would be timed for most of an epoch.
std::int64_t about(std::int64_t tokens) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(tokens)));
}

/// Returns the key that is equal for all GEMMs that may share a timed choice.
Key similar_key_of(const LibraryGemm& p) {
  LibraryGemm like = p;
  // A row length that equals the number of tokens varies with it; only its alignment matters.
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
  Key key = key_of(like);
  key.back() += 4;  // never equal to the key of an exact shape
  return key;
}

/// The number of rows for which the algorithm with a fixed summation order is chosen: a decoding batch, which
/// should read its weights at full speed. The algorithm is also used for more rows.
constexpr std::int64_t kRowsOfOrder = 64;
/// Numbers of rows that the algorithm must support.
constexpr std::int64_t kRowsServed[] = {1, 8, kRowsOfOrder, 1000, 1 << 14};

/// Returns the key of GEMMs with a fixed summation order, for any number of rows.
Key order_key_of(const LibraryGemm& p) {
  LibraryGemm like = p;
  like.m = 0;
  return key_of(like, kOrderAlignment);
}

/// The library on one device.
class Library {
 public:
  explicit Library(int device) : handle_(start_library()) {
    octet::cuda::check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device),
                       "asking for multiprocessors");
    cudaDeviceProp properties{};
    octet::cuda::check(cudaGetDeviceProperties(&properties, device), "asking for the GPU's name");
    machine_ = std::string(properties.name) + ", " + std::to_string(multiprocessors_) +
               " multiprocessors, cuBLASLt " + std::to_string(library_version());
    book_.emplace(cache_folder(), machine_);
  }

  const std::string& machine() const { return machine_; }
  std::string choices() {
    const std::lock_guard lock(mutex_);
    return book_->text();
  }
  void learn(const std::string& text) {
    const std::lock_guard lock(mutex_);
    book_->learn(text);
  }
  void set_choosing(bool choosing) {
    const std::lock_guard lock(mutex_);
    choosing_ = choosing;
  }

  bool multiply(cudaStream_t stream, const LibraryGemm& p) {
    const Call call(p);
    const std::lock_guard lock(mutex_);
    const Key key = key_of(p);
    if (p.one_order) return multiply_in_order(call, stream, p);
    if (refused_.contains(key)) return false;
    if (p.timed && multiply_fastest(call, stream, p)) return true;
    if (const auto found = first_.find(key); found != first_.end()) {
      require(call.run(handle_, found->second, stream), "multiplying", p);
      return true;
    }
    return multiply_first(call, stream, p);
  }
  bool multiply_in_order_of(cudaStream_t stream, const LibraryGemm& like, const LibraryGemm& p) {
    const Call call(p);
    const std::lock_guard lock(mutex_);
    return call.run(handle_, in_order(like), stream) == CUBLAS_STATUS_SUCCESS;
  }
  std::vector<AlgorithmBits> proposals_in_order(const LibraryGemm& p) {
    LibraryGemm may_fail = p;
    may_fail.may_be_refused = true;
    const std::lock_guard lock(mutex_);
    std::vector<AlgorithmBits> all;
    for (const auto& algorithm : Call(may_fail).proposals_in_order(handle_))
      all.push_back(std::bit_cast<AlgorithmBits>(algorithm));
    return all;
  }
  bool multiply_by(cudaStream_t stream, const LibraryGemm& p, const AlgorithmBits& algorithm) {
    const Call call(p);
    const std::lock_guard lock(mutex_);
    return call.run(handle_, std::bit_cast<cublasLtMatmulAlgo_t>(algorithm), stream) == CUBLAS_STATUS_SUCCESS;
  }

 private:
  /// Multiplies with the fastest algorithm, if it is known or may be chosen.
  bool multiply_fastest(const Call& call, cudaStream_t stream, const LibraryGemm& p) {
    const Key exact = key_of(p), similar = similar_key_of(p);
    // Timing writes D several times, so it requires a GEMM that overwrites D.
    const bool may_choose = choosing_ && !p.accumulate && p.factors == nullptr && !capturing(stream);
    while (const auto known = book_->known(exact, similar, may_choose)) {
      const auto algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(known->algorithm);
      if (known->checked) {
        // The algorithm may be incompatible with this shape. Then the call fails before any work.
        if (call.run(handle_, algorithm, stream) == CUBLAS_STATUS_SUCCESS) return true;
        break;
      }
      const bool good = agrees_with_favourite(call, handle_, stream, p, algorithm);
      book_->checked(*known, similar, good);
      if (good) return true;  // D holds its result
    }
    if (!choosing_) return multiply_as_nearest(call, stream, p, similar);
    if (!may_choose) return false;
    if (takes_long(p)) say_once();
    const auto best = fastest_algorithm(call, handle_, stream, p, multiprocessors_);
    if (!best) return false;
    require(call.run(handle_, *best, stream), "multiplying", p);
    book_->choose(exact, similar, std::bit_cast<AlgorithmBits>(*best));
    return true;
  }
  /// Multiplies with the fastest algorithm of the nearest number of tokens.
  bool multiply_as_nearest(const Call& call, cudaStream_t stream, const LibraryGemm& p, const Key& similar) {
    const auto nearest = book_->nearest(similar, tokens_in_key(p));
    if (!nearest) return false;
    const auto algorithm = std::bit_cast<cublasLtMatmulAlgo_t>(nearest->algorithm);
    return call.run(handle_, algorithm, stream) == CUBLAS_STATUS_SUCCESS;
  }
  void say_once() {
    if (std::exchange(said_, true)) return;
    log::info("choosing the fastest algorithms of GEMMs takes up to a minute" +
              (book_->path().empty() ? std::string(" (not kept: OCTETRUN_CACHE is off, or there is no HOME)")
                                     : " (kept for the next run in " + book_->path() + ")"));
  }
  /// Multiplies with the common algorithm for all m. Its kernel steps through k from first to last, for each
  /// position of a row in a tile and for each set of other rows. So equal rows have equal bits.
  bool multiply_in_order(const Call& call, cudaStream_t stream, const LibraryGemm& p) {
    require(call.run(handle_, in_order(p), stream), "multiplying rows in one order", p);
    return true;
  }
  const cublasLtMatmulAlgo_t& in_order(const LibraryGemm& p) {
    const Key key = order_key_of(p);
    const auto found = in_order_.find(key);
    return found != in_order_.end() ? found->second
                                    : in_order_.emplace(key, algorithm_in_order(p)).first->second;
  }
  /// Returns the library's first proposal that does not split k and supports each number of rows. Uses only
  /// its heuristics, which are the same in every process; a timed choice would not be.
  cublasLtMatmulAlgo_t algorithm_in_order(const LibraryGemm& p) {
    LibraryGemm of_few = p;
    of_few.m = kRowsOfOrder;
    of_few.may_be_refused = true;
    for (const auto& candidate : Call(of_few).proposals_in_order(handle_)) {
      const bool serves = std::ranges::all_of(kRowsServed, [&](std::int64_t rows) {
        LibraryGemm of_rows = p;
        of_rows.m = rows;
        return Call(of_rows).accepts(handle_, candidate);
      });
      if (!serves) continue;
      log::debug("rows in one order: " + shown(of_few) + ": " + shown(candidate));
      return candidate;
    }
    throw Error({.what = "cuBLASLt has no algorithm that sums rows in one order",
                 .expected = "one that does not split the inner dimension, for any number of rows",
                 .where = "the product " + shown(p),
                 .fix = "set deterministic: true, or device: cpu"});
  }
  /// Multiplies with the library's first working proposal. Some combinations are refused only when they run.
  bool multiply_first(const Call& call, cudaStream_t stream, const LibraryGemm& p) {
    cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
    for (const auto& candidate : call.proposals(handle_)) {
      status = call.run(handle_, candidate, stream);
      if (status == CUBLAS_STATUS_SUCCESS) {
        first_.emplace(key_of(p), candidate);
        return true;
      }
    }
    if (!p.may_be_refused) require(status, "multiplying", p);
    refused_.insert(key_of(p));
    return false;
  }

  cublasLtHandle_t handle_ = nullptr;
  int multiprocessors_ = 0;
  std::string machine_;
  bool said_ = false;
  bool choosing_ = true;  ///< algorithms may be timed
  std::mutex mutex_;
  std::optional<AlgorithmBook> book_;
  std::map<Key, cublasLtMatmulAlgo_t> first_;     ///< the library's proposals for GEMMs that were not timed
  std::map<Key, cublasLtMatmulAlgo_t> in_order_;  ///< for GEMMs with a fixed summation order
  std::set<Key> refused_;                         ///< GEMMs that the library refuses
};

Library& library_of(int device) {
  // Never destroyed: the driver may be gone when static objects are destroyed.
  static std::mutex& mutex = *new std::mutex;
  static auto& libraries = *new std::map<int, std::unique_ptr<Library>>;
  const std::lock_guard lock(mutex);
  auto& library = libraries[device];
  if (!library) library = std::make_unique<Library>(device);
  return *library;
}

}  // namespace

bool multiply(cudaStream_t stream, int device, const LibraryGemm& library_gemm) {
  return library_of(device).multiply(stream, library_gemm);
}

bool multiply_in_order_of(cudaStream_t stream, int device, const LibraryGemm& like,
                          const LibraryGemm& library_gemm) {
  return library_of(device).multiply_in_order_of(stream, like, library_gemm);
}

std::vector<AlgorithmBits> proposals_in_order(int device, const LibraryGemm& library_gemm) {
  return library_of(device).proposals_in_order(library_gemm);
}

bool multiply_by(cudaStream_t stream, int device, const LibraryGemm& library_gemm,
                 const AlgorithmBits& algorithm) {
  return library_of(device).multiply_by(stream, library_gemm, algorithm);
}

std::string why_no_fp8_gemm(const Device& device) {
  return why_no_fp8(device.description(), octet::cuda::properties(device).compute_capability);
}

std::string gemm_machine(const Device& device) {
  return library_of(octet::cuda::properties(device).ordinal).machine();
}

std::string autotuned_gemms(const Device& device) {
  return library_of(octet::cuda::properties(device).ordinal).choices();
}

void learn_autotuned_gemms(const Device& device, const std::string& text) {
  library_of(octet::cuda::properties(device).ordinal).learn(text);
}

void set_gemm_choosing(const Device& device, bool choosing) {
  library_of(octet::cuda::properties(device).ordinal).set_choosing(choosing);
}

}  // namespace octet::ops::cuda
