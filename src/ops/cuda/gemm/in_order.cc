#include "cuda/gemm/in_order.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "cuda/gemm/streamed.h"
#include "cuda/scratch.h"
#include "octet/base/dtype.h"
#include "octet/base/log.h"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {
namespace {

/// Outputs of a trial: several tiles of each kernel. A trial has kStreamedTokens rows.
constexpr std::int64_t kTrialOutputs = 256;

/// A method of a GEMM: streamed, or an algorithm of the library. If both are empty, the algorithm for all
/// numbers of rows.
struct Way {
  std::optional<Addition> streamed;
  std::optional<AlgorithmBits> algorithm;
};

/// The properties that determine the best method.
using Kind = std::array<std::int64_t, 9>;
Kind kind_of(int device, const GemmArgs& args, const LibraryGemm& p) {
  return {device,
          static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(p.m))),
          p.n,
          p.k,
          static_cast<std::int64_t>(p.d_type),
          p.bias != nullptr,
          p.addend != nullptr,
          args.b_stands,
          p.a_ld};
}

/// GPU memory, split into aligned parts. Empty if there is too little memory.
class TrialMemory {
 public:
  explicit TrialMemory(std::size_t bytes) {
    if (cudaMalloc(&data_, bytes) == cudaSuccess) return;
    cudaGetLastError();  // clears the error
    data_ = nullptr;
  }
  ~TrialMemory() { cudaFree(data_); }
  TrialMemory(const TrialMemory&) = delete;
  TrialMemory& operator=(const TrialMemory&) = delete;

  explicit operator bool() const { return data_ != nullptr; }
  void* data() const { return data_; }
  void* take(std::size_t bytes) {
    void* const at = static_cast<std::uint8_t*>(data_) + used_;
    used_ += rounded(bytes);
    return at;
  }
  static std::size_t rounded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

 private:
  void* data_ = nullptr;
  std::size_t used_ = 0;
};

/// Random operands and addends of a trial, from -1 to 1 times `scale`.
class TrialValues {
 public:
  explicit TrialValues(float scale) : scale_(scale) {}
  std::vector<float> operator()(std::int64_t count) {
    std::vector<float> all(static_cast<std::size_t>(count));
    for (float& x : all) x = scale_ * value_(random_);
    return all;
  }

 private:
  float scale_;
  std::mt19937 random_{1};
  std::uniform_real_distribution<float> value_{-1.0f, 1.0f};
};

std::vector<std::uint16_t> in_bf16(const std::vector<float>& values) {
  std::vector<std::uint16_t> all(values.size());
  std::ranges::transform(values, all.begin(), [](float x) { return to_bf16(x); });
  return all;
}

/// Sets the second half of each row to the first half times `sign`. If A uses 1 and B uses -1, all sums
/// consist of rounding errors, which depend on their order.
void fold_rows(std::vector<std::uint16_t>& rows, std::int64_t k, float sign) {
  const std::int64_t half = k / 2, count = std::ssize(rows) / k;
  for (std::int64_t row = 0; row < count; ++row) {
    std::uint16_t* const x = rows.data() + row * k;
    for (std::int64_t i = 0; i < half; ++i) x[half + i] = to_bf16(sign * from_bf16(x[i]));
  }
}

/// A smaller GEMM with the properties of `like` and fewer outputs, multiplied with both methods.
class Trial {
 public:
  Trial(Stream& stream, const LibraryGemm& like)
      : stream_(stream),
        native_(octet::cuda::native(stream)),
        like_(like),
        outputs_(std::min(like.n, kTrialOutputs)),
        memory_(bytes()) {
    if (!memory_) return;
    a_ = take(kStreamedTokens * like.k, 2);
    b_ = take(outputs_ * like.k, 2);
    bias_ = take(outputs_, 4);
    rounded_bias_ = take(outputs_, 2);
    addend_ = take(kStreamedTokens * outputs_, size_of(like.d_type));
    by_library_ = take(kStreamedTokens * outputs_, size_of(like.d_type));
    tried_ = take(kStreamedTokens * outputs_, size_of(like.d_type));
    workspace_ = take(static_cast<std::int64_t>(kLibraryWorkspace), 1);
  }

  explicit operator bool() const { return static_cast<bool>(memory_); }

  /// Keeps only the methods that give the bits of the algorithm for all numbers of rows.
  void keep_right(std::vector<Way>& ways) {
    // Nearly cancelling sums reveal their order. Ordinary sums reveal the rounding of the addition.
    for (const bool folded : {true, false}) {
      set_values(folded);
      const LibraryGemm library_gemm = gemm_into(by_library_);
      if (!multiply_in_order_of(native_, device(), like_, library_gemm)) return ways.clear();
      const std::vector<std::uint8_t> want = read(by_library_, kStreamedTokens);
      std::erase_if(ways, [&](const Way& way) { return !gives(way, want); });
    }
  }

 private:
  std::size_t bytes() const {
    const auto part = [](std::int64_t count, std::size_t size) {
      return TrialMemory::rounded(static_cast<std::size_t>(count) * size);
    };
    return part(kStreamedTokens * like_.k, 2) + part(outputs_ * like_.k, 2) + part(outputs_, 4) +
           part(outputs_, 2) + 3 * part(kStreamedTokens * outputs_, size_of(like_.d_type)) +
           part(static_cast<std::int64_t>(kLibraryWorkspace), 1);
  }
  void* take(std::int64_t count, std::size_t size) {
    return memory_.take(static_cast<std::size_t>(count) * size);
  }

  void set_values(bool folded) {
    TrialValues values(1.0f);
    std::vector<std::uint16_t> a = in_bf16(values(kStreamedTokens * like_.k)),
                               b = in_bf16(values(outputs_ * like_.k));
    if (folded) {
      fold_rows(a, like_.k, 1.0f);
      fold_rows(b, like_.k, -1.0f);
    }
    put(a_, a);
    put(b_, b);
    // As large as the sums, or zero.
    TrialValues added(folded ? 0.0f : std::sqrt(static_cast<float>(like_.k)));
    const std::vector<float> bias = added(outputs_), addend = added(kStreamedTokens * outputs_);
    put(bias_, bias);
    put(rounded_bias_, in_bf16(bias));
    like_.d_type == DType::bf16 ? put(addend_, in_bf16(addend)) : put(addend_, addend);
  }
  template <typename T>
  void put(void* to, const std::vector<T>& values) {
    octet::cuda::check(
        cudaMemcpyAsync(to, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, native_),
        "copying the operands of a trial GEMM");
    octet::cuda::check(cudaStreamSynchronize(native_), "copying the operands of a trial GEMM");
  }
  std::vector<std::uint8_t> read(const void* from, std::int64_t rows) {
    std::vector<std::uint8_t> all(static_cast<std::size_t>(rows * outputs_) * size_of(like_.d_type));
    octet::cuda::check(cudaMemcpyAsync(all.data(), from, all.size(), cudaMemcpyDeviceToHost, native_),
                       "reading a trial's product");
    octet::cuda::check(cudaStreamSynchronize(native_), "multiplying for a trial");
    return all;
  }

  int device() const { return octet::cuda::properties(stream_.device()).ordinal; }
  LibraryGemm gemm_into(void* d) const {
    LibraryGemm library_gemm = like_;
    library_gemm.m = kStreamedTokens;
    library_gemm.n = outputs_;
    library_gemm.a = a_, library_gemm.b = b_, library_gemm.d = d;
    library_gemm.a_ld = library_gemm.b_ld = like_.k;
    library_gemm.d_ld = outputs_;
    if (like_.bias != nullptr) library_gemm.bias = rounded_bias_;
    if (like_.addend != nullptr) library_gemm.addend = addend_;
    library_gemm.workspace = workspace_;
    return library_gemm;
  }
  bool gives(const Way& way, const std::vector<std::uint8_t>& want) {
    const auto right = [&](std::int64_t rows) {
      const std::vector<std::uint8_t> got = read(tried_, rows);
      return std::equal(got.begin(), got.end(), want.begin());
    };
    if (way.algorithm) {
      return multiply_by(native_, device(), gemm_into(tried_), *way.algorithm) && right(kStreamedTokens);
    }
    // Test each split of the work, which depends on the number of tokens.
    return std::ranges::all_of(
        std::array<std::int64_t, 4>{1, 16, 32, kStreamedTokens}, [&](std::int64_t rows) {
          return multiply_streamed_in_order(stream_, streamed_args(rows), *way.streamed) && right(rows);
        });
  }
  GemmArgs streamed_args(std::int64_t rows) const {
    GemmArgs args{.a = {.data = a_, .dtype = DType::bf16, .rows = rows, .cols = like_.k},
                  .b = {.data = b_, .dtype = DType::bf16, .rows = outputs_, .cols = like_.k},
                  .d = {tried_, like_.d_type, rows, outputs_, outputs_},
                  .b_stands = true,
                  .fixed_order = true};
    if (like_.bias != nullptr) args.bias = static_cast<const float*>(bias_);
    if (like_.addend != nullptr) args.addend = {addend_, like_.d_type, rows, outputs_, outputs_};
    return args;
  }

  Stream& stream_;
  cudaStream_t native_;
  const LibraryGemm& like_;
  std::int64_t outputs_;
  TrialMemory memory_;
  void *a_ = nullptr, *b_ = nullptr, *bias_ = nullptr, *rounded_bias_ = nullptr, *addend_ = nullptr;
  void *by_library_ = nullptr, *tried_ = nullptr, *workspace_ = nullptr;
};

bool multiply(Stream& stream, const GemmArgs& args, const LibraryGemm& library_gemm, const Way& way) {
  if (way.streamed) return multiply_streamed_in_order(stream, args, *way.streamed);
  const int device = octet::cuda::properties(stream.device()).ordinal;
  cudaStream_t native = octet::cuda::native(stream);
  return way.algorithm ? multiply_by(native, device, library_gemm, *way.algorithm)
                       : multiply_in_order_of(native, device, library_gemm, library_gemm);
}

/// Times methods of a GEMM, with a weight that is not in the L2 cache.
class Race {
 public:
  explicit Race(Stream& stream)
      : stream_(stream),
        native_(octet::cuda::native(stream)),
        bytes_(2 * octet::cuda::properties(stream.device()).l2_bytes),
        memory_(bytes_) {
    octet::cuda::check(cudaEventCreate(&begin_), "timing a product");
    octet::cuda::check(cudaEventCreate(&end_), "timing a product");
  }
  ~Race() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Race(const Race&) = delete;
  Race& operator=(const Race&) = delete;

  explicit operator bool() const { return static_cast<bool>(memory_); }

  /// Returns the milliseconds of the fastest of several runs; infinite if refused.
  float time_of(const GemmArgs& args, const LibraryGemm& library_gemm, const Way& way) {
    constexpr int kRuns = 7, kRunsOfLong = 3;
    constexpr float kLong = 2;
    float least = std::numeric_limits<float>::infinity();
    if (!multiply(stream_, args, library_gemm, way)) return least;  // loads the code
    for (int i = 0; i < (least < kLong || i == 0 ? kRuns : kRunsOfLong); ++i) {
      octet::cuda::check(cudaMemsetAsync(memory_.data(), i, bytes_, native_), "emptying the cache");
      octet::cuda::check(cudaEventRecord(begin_, native_), "timing a product");
      multiply(stream_, args, library_gemm, way);
      octet::cuda::check(cudaEventRecord(end_, native_), "timing a product");
      octet::cuda::check(cudaEventSynchronize(end_), "timing a product");
      float time = 0.0f;
      octet::cuda::check(cudaEventElapsedTime(&time, begin_, end_), "timing a product");
      least = std::min(least, time);
    }
    return least;
  }

 private:
  Stream& stream_;
  cudaStream_t native_;
  std::size_t bytes_;
  TrialMemory memory_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

/// Returns methods that may give the same bits.
std::vector<Way> ways_of(Stream& stream, const GemmArgs& args, const LibraryGemm& library_gemm) {
  std::vector<Way> ways;
  if (args.b_stands && library_gemm.m <= kStreamedTokens && octet::cuda::code_here() == 90) {
    ways.push_back({.streamed = Addition::of_rounded});
    if (library_gemm.addend != nullptr) ways.push_back({.streamed = Addition::at_once});
  }
  for (const AlgorithmBits& algorithm :
       proposals_in_order(octet::cuda::properties(stream.device()).ordinal, library_gemm)) {
    ways.push_back({.algorithm = algorithm});
  }
  return ways;
}

/// Stores the fastest method of each kind of GEMM.
class Ways {
 public:
  /// Returns nothing if the method is unknown and cannot be determined now. Returns the algorithm for all
  /// numbers of rows if there is no memory for a trial.
  std::optional<Way> of(Stream& stream, const GemmArgs& args, const LibraryGemm& library_gemm) {
    const std::lock_guard lock(mutex_);
    const Kind kind = kind_of(octet::cuda::properties(stream.device()).ordinal, args, library_gemm);
    const auto known = ways_.find(kind);
    if (known != ways_.end()) return known->second;
    if (capturing(octet::cuda::native(stream))) return std::nullopt;
    Trial trial(stream, library_gemm);
    Race race(stream);
    if (!trial || !race) return ways_.emplace(kind, Way{}).first->second;
    std::vector<Way> ways = ways_of(stream, args, library_gemm);
    trial.keep_right(ways);
    Way best;
    float least = race.time_of(args, library_gemm, best);
    const float before = least;
    for (const Way& way : ways) {
      const float time = race.time_of(args, library_gemm, way);
      if (time >= least) continue;
      least = time;
      best = way;
    }
    log::debug("rows in one order of " + std::to_string(library_gemm.n) + " x " +
               std::to_string(library_gemm.k) + ", up to " + std::to_string(kind[1]) + ": " +
               std::to_string(ways.size()) + " ways have the bits, the fastest " +
               (best.streamed ? "streams" : "is the library's") + " and takes " +
               std::to_string(1e3f * least) + " us in place of " + std::to_string(1e3f * before));
    return ways_.emplace(kind, best).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<Kind, Way> ways_;
};

}  // namespace

bool multiply_in_order(Stream& stream, const GemmArgs& args, const LibraryGemm& library_gemm) {
  if (library_gemm.m > kRowsInOrder || args.a.dtype != DType::bf16 || args.accumulate) return false;
  static auto& ways = *new Ways;  // never destroyed, like the library
  const std::optional<Way> way = ways.of(stream, args, library_gemm);
  return way && (way->streamed || way->algorithm) && multiply(stream, args, library_gemm, *way);
}

}  // namespace octet::ops::cuda
