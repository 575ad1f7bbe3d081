#include "cuda/gemm_library.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/gemm_call.h"
#include "cuda/gemm_sample.h"
#include "cuda/scratch.h"
#include "octet/base/error.h"
#include "octet/device/cuda.h"
#include "octet/ops/gemm.h"

namespace octet::ops::cuda {

namespace {

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

/// Some rows of D, evenly spread. Waits for the stream.
std::vector<float> sampled_rows(cudaStream_t stream, const LibraryProduct& p) {
  const std::int64_t rows = std::min<std::int64_t>(p.m, 64), step = p.m / rows;
  const std::size_t size = size_of(p.d_type), width = static_cast<std::size_t>(p.n) * size;
  std::vector<std::byte> bytes(static_cast<std::size_t>(rows) * width);
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto* from =
        static_cast<const std::byte*>(p.d) + static_cast<std::size_t>(r * step * p.d_ld) * size;
    octet::cuda::check(cudaMemcpyAsync(bytes.data() + static_cast<std::size_t>(r) * width, from, width,
                                       cudaMemcpyDeviceToHost, stream),
                       "reading a product");
  }
  octet::cuda::check(cudaStreamSynchronize(stream), "reading a product");
  std::vector<float> values(bytes.size() / size);
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint16_t half = 0;
    if (p.d_type == DType::bf16) {
      std::memcpy(&half, bytes.data() + i * size, size);
      values[i] = from_bf16(half);
    } else {
      std::memcpy(&values[i], bytes.data() + i * size, size);
    }
  }
  return values;
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

struct Candidate {
  cublasLtMatmulAlgo_t algorithm{};
  float once = 0;  ///< milliseconds of one run
  float time = 0;  ///< what it is judged by
};

/// How candidates are timed, in milliseconds: in each round, one after the other.
struct Turn {
  float untimed, timed;
  int rounds, most_runs;
  std::size_t kept;  ///< candidates that go on after the first round
};
constexpr Turn kTurn{.untimed = 0, .timed = 6, .rounds = 3, .most_runs = 24, .kept = 100};
constexpr Turn kHeavyTurn{.untimed = 10, .timed = 40, .rounds = 2, .most_runs = 1000, .kept = 3};
/// Operations of a product that is worth half a second of timing.
constexpr double kHeavy = 5e11;

struct Choice {
  cublasLtMatmulAlgo_t algorithm{};
  bool timed = false;
  bool none = false;  ///< the library does not multiply this
};

/// The library on one device.
class Library {
 public:
  explicit Library(int device) : handle_(start_library()) {
    octet::cuda::check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device),
                       "asking for multiprocessors");
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
  /// Leaves D written.
  Choice fastest(const Call& call, cudaStream_t stream, const LibraryProduct& p) {
    std::vector<Candidate> candidates;
    const auto add = [&](const cublasLtMatmulAlgo_t& algorithm) {
      time_of(call, handle_, algorithm, stream, 1);  // loads its code
      const float once = time_of(call, handle_, algorithm, stream, 1);
      if (std::isfinite(once)) candidates.push_back({algorithm, once, once});
    };
    const std::vector<cublasLtMatmulAlgo_t> proposals = call.proposals(handle_);
    for (const auto& proposal : proposals) add(proposal);
    if (p.may_be_refused && candidates.empty()) return {.none = true};
    if (candidates.empty()) require(CUBLAS_STATUS_NOT_SUPPORTED, "finding an algorithm that runs", p);
    const cublasLtMatmulAlgo_t favourite = candidates.front().algorithm;
    const bool heavy =
        2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) > kHeavy;
    if (heavy) {
      for (const auto& variant : call.variants(handle_, favourite, multiprocessors_)) add(variant);
      keep_quickest(candidates);
    }
    take_turns(call, stream, heavy ? kHeavyTurn : kTurn, candidates);
    const cublasLtMatmulAlgo_t best =
        heavy ? first_that_agrees(call, stream, p, favourite, candidates) : candidates.front().algorithm;
    require(call.run(handle_, best, stream), "multiplying", p);
    return {.algorithm = best, .timed = true};
  }
  /// The first candidate whose product is the favourite's: variants are made here, and nobody else runs them.
  cublasLtMatmulAlgo_t first_that_agrees(const Call& call, cudaStream_t stream, const LibraryProduct& p,
                                         const cublasLtMatmulAlgo_t& favourite,
                                         const std::vector<Candidate>& candidates) {
    const auto product_of = [&](const cublasLtMatmulAlgo_t& algorithm) {
      require(call.run(handle_, algorithm, stream), "multiplying", p);
      return sampled_rows(stream, p);
    };
    const std::vector<float> want = product_of(favourite);
    for (const Candidate& c : candidates) {
      if (rows_agree(want, product_of(c.algorithm), static_cast<std::size_t>(p.n))) return c.algorithm;
    }
    return favourite;
  }
  static void sort_by_time(std::vector<Candidate>& candidates) {
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Candidate& x, const Candidate& y) { return x.time < y.time; });
  }
  /// Leaves out what is so slow on a card that is not yet at its limit that it will not be the fastest there.
  static void keep_quickest(std::vector<Candidate>& candidates) {
    constexpr float room = 1.08f;
    constexpr std::size_t most = 8;
    sort_by_time(candidates);
    while (candidates.size() > most || candidates.back().time > room * candidates.front().time) {
      candidates.pop_back();
    }
  }
  /// Times each candidate for some milliseconds at a time; the fastest comes first. Products draw so much
  /// power that the GPU lowers its clock: what is fastest then is not what is fastest on a cold card. Heavy
  /// products make up most of a step, so their turns are long enough for the clock to follow what the
  /// candidate itself draws.
  void take_turns(const Call& call, cudaStream_t stream, const Turn& turn,
                  std::vector<Candidate>& candidates) {
    const auto runs_in = [&](const Candidate& c, float milliseconds) {
      return std::clamp(static_cast<int>(milliseconds / std::max(c.once, 1e-3f)), 1, turn.most_runs);
    };
    for (int round = 0; round < turn.rounds; ++round) {
      for (Candidate& c : candidates) {
        if (round == 0) c.time = 0;
        if (turn.untimed > 0) time_of(call, handle_, c.algorithm, stream, runs_in(c, turn.untimed));
        const int runs = runs_in(c, turn.timed);
        c.time += time_of(call, handle_, c.algorithm, stream, runs) / static_cast<float>(runs);
      }
      sort_by_time(candidates);
      if (candidates.size() > turn.kept) candidates.resize(turn.kept);
    }
  }
  /// Some combinations are refused only when they are run.
  Choice first_that_runs(const Call& call, cudaStream_t stream, const LibraryProduct& p) {
    cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
    for (const auto& candidate : call.proposals(handle_)) {
      status = call.run(handle_, candidate, stream);
      if (status == CUBLAS_STATUS_SUCCESS) return {.algorithm = candidate, .timed = false};
    }
    if (!p.may_be_refused) require(status, "multiplying", p);
    return {.none = true};
  }

  cublasLtHandle_t handle_ = nullptr;
  int multiprocessors_ = 0;
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
  if (!library) library = std::make_unique<Library>(device);
  return *library;
}

}  // namespace

bool multiply(cudaStream_t stream, int device, const LibraryProduct& product) {
  return library_of(device).multiply(stream, product);
}

}  // namespace octet::ops::cuda
