#include "cuda/gemm/autotune.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cuda/gemm/autotune_score.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {

namespace {

/// Operations of a GEMM that justify a second of timing, and operations that justify several seconds.
constexpr double kHeavy = 1e11, kHeaviest = 5e11;
/// Milliseconds of multiplication until a GPU is at its power limit.
constexpr float kWarming = 150;
/// A candidate this much slower than the fastest will not become the fastest at the power limit.
constexpr double kRoom = 1.08;
constexpr std::size_t kMostCandidates = 12;
/// Number of tiles in the final, and their maximum time relative to the fastest.
constexpr std::size_t kFinalists = 4;
constexpr double kRoomOfFinalists = 1.025;

/// Rounds of turns: each candidate runs for some milliseconds, then the next candidate.
struct Rounds {
  int count;
  float untimed, timed;  ///< milliseconds of a turn
  int fewest_runs, most_runs;
};
constexpr Rounds kLight{.count = 3, .untimed = 0, .timed = 6, .fewest_runs = 1, .most_runs = 24};
/// Short turns, so that all turns of a round have about the same clock.
constexpr Rounds kShort{.count = 8, .untimed = 0, .timed = 4, .fewest_runs = 2, .most_runs = 1000};
/// A GPU at its power limit takes 100 to 200 ms to settle on a clock for a kernel. A kernel that needs less
/// energy runs at a higher clock, which only long turns show. But long turns vary by 1 to 2 percent (measured
/// on an H200), while short turns of a round share a clock. So both are used.
constexpr double kShareOfLong = 1.0 / 3;
constexpr Rounds kLong{.count = 2, .untimed = 100, .timed = 200, .fewest_runs = 2, .most_runs = 10000};

struct Candidate {
  cublasLtMatmulAlgo_t algorithm{};
  float once = 0;    ///< milliseconds of one run
  double score = 0;  ///< time relative to other candidates: less is faster
};

double operations_of(const LibraryGemm& p) {
  return 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
}

class Autotuning {
 public:
  Autotuning(const Call& call, cublasLtHandle_t handle, cudaStream_t stream, const LibraryGemm& p)
      : call_(call), handle_(handle), stream_(stream), p_(p) {
    octet::cuda::check(cudaEventCreate(&begin_), "timing a product");
    octet::cuda::check(cudaEventCreate(&end_), "timing a product");
  }
  ~Autotuning() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Autotuning(const Autotuning&) = delete;
  Autotuning& operator=(const Autotuning&) = delete;

  std::optional<cublasLtMatmulAlgo_t> fastest(int multiprocessors) {
    for (const auto& proposal : call_.proposals(handle_)) enter(proposal);
    if (candidates_.empty()) {
      if (!p_.may_be_refused) require(CUBLAS_STATUS_NOT_SUPPORTED, "finding an algorithm that runs", p_);
      return std::nullopt;
    }
    const Candidate favourite = candidates_.front();
    if (!takes_long(p_)) {
      compete(kLight);
      return candidates_.front().algorithm;
    }
    time_of(favourite.algorithm, runs_in(favourite, kWarming, 1, 100000));
    for (const auto& variant : call_.variants(handle_, favourite.algorithm, multiprocessors)) enter(variant);
    keep_quickest();
    compete(kShort);
    keep_finalists();
    Rounds final = kLong;
    if (operations_of(p_) < kHeaviest) final.count = 1;
    if (candidates_.size() > 1) compete(final, kShareOfLong);
    const Candidate& best = first_that_agrees(favourite);
    log::debug(shown(p_) + ": " + shown(best.algorithm) + ", where the library's favourite is " +
               shown(favourite.algorithm));
    return best.algorithm;
  }

  bool agrees(const cublasLtMatmulAlgo_t& algorithm) {
    for (const auto& proposal : call_.proposals(handle_)) {
      if (call_.run(handle_, proposal, stream_) == CUBLAS_STATUS_SUCCESS) {
        return gives(algorithm, sampled_rows());
      }
    }
    return false;
  }

 private:
  /// Returns the average milliseconds of several runs; infinite if the library refuses.
  float time_of(const cublasLtMatmulAlgo_t& algorithm, int runs) {
    octet::cuda::check(cudaEventRecord(begin_, stream_), "timing a product");
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    for (int i = 0; i < runs && status == CUBLAS_STATUS_SUCCESS; ++i) {
      status = call_.run(handle_, algorithm, stream_);
    }
    octet::cuda::check(cudaEventRecord(end_, stream_), "timing a product");
    octet::cuda::check(cudaEventSynchronize(end_), "timing a product");
    float time = 0.0f;
    octet::cuda::check(cudaEventElapsedTime(&time, begin_, end_), "timing a product");
    if (status != CUBLAS_STATUS_SUCCESS) return std::numeric_limits<float>::infinity();
    return time / static_cast<float>(runs);
  }
  static int runs_in(const Candidate& c, float milliseconds, int fewest, int most) {
    return std::clamp(static_cast<int>(milliseconds / std::max(c.once, 1e-3f)), fewest, most);
  }
  /// Runs an algorithm next to the first candidate, because the clock changes while candidates are collected.
  void enter(const cublasLtMatmulAlgo_t& algorithm) {
    time_of(algorithm, 1);  // loads the code
    const float once = time_of(algorithm, 1);
    if (!std::isfinite(once)) return;
    const float beside = candidates_.empty() ? once : time_of(candidates_.front().algorithm, 1);
    candidates_.push_back(
        {.algorithm = algorithm, .once = once, .score = static_cast<double>(once / beside)});
  }
  void sort_by_score() {
    std::stable_sort(candidates_.begin(), candidates_.end(),
                     [](const Candidate& x, const Candidate& y) { return x.score < y.score; });
  }
  void keep_quickest() {
    sort_by_score();
    while (candidates_.size() > kMostCandidates ||
           candidates_.back().score > kRoom * candidates_.front().score) {
      candidates_.pop_back();
    }
  }
  /// Keeps the fastest candidate of each tile, unless it is too slow for long turns to make it the fastest.
  /// Candidates with the same tile need about the same energy, so short turns suffice to compare them.
  void keep_finalists() {
    std::vector<Candidate> kept;
    for (const Candidate& c : candidates_) {
      const bool new_tile = std::none_of(kept.begin(), kept.end(), [&](const Candidate& other) {
        return tile_of(other.algorithm) == tile_of(c.algorithm);
      });
      const bool close = c.score <= kRoomOfFinalists * candidates_.front().score;
      if (new_tile && close && kept.size() < kFinalists) kept.push_back(c);
    }
    candidates_ = std::move(kept);
  }
  /// Sorts candidates, the fastest first, by the times of these rounds. If `share` is below 1, the earlier
  /// scores have the remaining weight.
  void compete(const Rounds& rounds, double share = 1) {
    std::vector<Round> times;
    for (int r = 0; r < rounds.count; ++r) {
      Round round(candidates_.size());
      for (std::size_t i = 0; i < candidates_.size(); ++i) {
        // The start of a turn has the clock of the previous turn. So each round begins with another
        // candidate, and every other round runs in reverse.
        const std::size_t place = (i + static_cast<std::size_t>(r) * 5) % candidates_.size();
        const std::size_t at = r % 2 == 0 ? place : candidates_.size() - 1 - place;
        const auto runs = [&](float milliseconds) {
          return runs_in(candidates_[at], milliseconds, rounds.fewest_runs, rounds.most_runs);
        };
        if (rounds.untimed > 0) time_of(candidates_[at].algorithm, runs(rounds.untimed));
        round[at] = time_of(candidates_[at].algorithm, runs(rounds.timed));
      }
      times.push_back(std::move(round));
    }
    const std::vector<double> now = scores(times);
    double before = 0;
    for (const Candidate& c : candidates_) before += c.score / static_cast<double>(candidates_.size());
    for (std::size_t i = 0; i < candidates_.size(); ++i) {
      Candidate& c = candidates_[i];
      c.score = share * now[i] + (1 - share) * c.score / before;
    }
    sort_by_score();
    while (candidates_.size() > 1 && !std::isfinite(candidates_.back().score)) candidates_.pop_back();
  }
  /// Reads some evenly spread rows of D. Waits for the stream.
  std::vector<float> sampled_rows() {
    const std::int64_t rows = std::min<std::int64_t>(p_.m, 64), step = p_.m / rows;
    const std::size_t size = size_of(p_.d_type), width = static_cast<std::size_t>(p_.n) * size;
    std::vector<std::byte> bytes(static_cast<std::size_t>(rows) * width);
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto* from =
          static_cast<const std::byte*>(p_.d) + static_cast<std::size_t>(r * step * p_.d_ld) * size;
      octet::cuda::check(cudaMemcpyAsync(bytes.data() + static_cast<std::size_t>(r) * width, from, width,
                                         cudaMemcpyDeviceToHost, stream_),
                         "reading a product");
    }
    octet::cuda::check(cudaStreamSynchronize(stream_), "reading a product");
    std::vector<float> values(bytes.size() / size);
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::uint16_t half = 0;
      if (p_.d_type == DType::bf16) {
        std::memcpy(&half, bytes.data() + i * size, size);
        values[i] = from_bf16(half);
      } else {
        std::memcpy(&values[i], bytes.data() + i * size, size);
      }
    }
    return values;
  }
  /// Returns the first candidate with the same result as the favourite. It checks variants, because the
  /// library did not propose them.
  Candidate first_that_agrees(const Candidate& favourite) {
    require(call_.run(handle_, favourite.algorithm, stream_), "multiplying", p_);
    const std::vector<float> want = sampled_rows();
    for (const Candidate& c : candidates_) {
      if (gives(c.algorithm, want)) return c;
    }
    return favourite;
  }
  bool gives(const cublasLtMatmulAlgo_t& algorithm, const std::vector<float>& want) {
    return call_.run(handle_, algorithm, stream_) == CUBLAS_STATUS_SUCCESS &&
           rows_agree(want, sampled_rows(), static_cast<std::size_t>(p_.n));
  }

  const Call& call_;
  cublasLtHandle_t handle_;
  cudaStream_t stream_;
  const LibraryGemm& p_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  std::vector<Candidate> candidates_;
};

}  // namespace

std::optional<cublasLtMatmulAlgo_t> fastest_algorithm(const Call& call, cublasLtHandle_t handle,
                                                      cudaStream_t stream, const LibraryGemm& p,
                                                      int multiprocessors) {
  return Autotuning(call, handle, stream, p).fastest(multiprocessors);
}

bool takes_long(const LibraryGemm& p) {
  return operations_of(p) >= kHeavy;
}

bool agrees_with_favourite(const Call& call, cublasLtHandle_t handle, cudaStream_t stream,
                           const LibraryGemm& p, const cublasLtMatmulAlgo_t& algorithm) {
  return call.accepts(handle, algorithm) && Autotuning(call, handle, stream, p).agrees(algorithm);
}

}  // namespace octet::ops::cuda
