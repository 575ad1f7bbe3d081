// Shared code of the two grouped GEMM kernels (expert_gemm.h): the row ranges of experts.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "cuda/activations.cuh"
#include "cuda/rows.cuh"
#include "octet/ops/expert_gemm.h"
#include "octet/ops/routing.h"

namespace octet::ops::cuda {

/// GroupedGemmArgs for kernels.
struct Grouped {
  const std::uint8_t* weight;
  const float* weight_scales;  ///< null: the weight is in bf16
  const std::uint8_t* x;
  const float* x_scales;
  const std::int32_t* source;
  const std::int32_t* begins;
  int count;
  __nv_bfloat16* d;
  std::int64_t d_ld;
  int inner_bytes;  ///< row bytes of the weight, and of x
  int outputs;      ///< outputs of an expert
  bool gelu;
};
Grouped grouped_of(const GroupedGemmArgs& args);

/// The work item of a block: a tile of the outputs for some rows of an expert.
struct Item {
  int expert, first_row, rows, tile;
};

/// The rows of experts in groups of at most `ROWS`: the index of the first group of each expert. Stored in
/// shared memory.
template <int ROWS>
class Groups {
 public:
  /// Called by all threads of the block. A barrier must follow.
  __device__ void find(const Grouped& a) {
    const int thread = static_cast<int>(threadIdx.x);
    if (thread >= kWarp) return;
    int before = 0;
    for (int first = 0; first < a.count; first += kWarp) {
      const int e = first + thread;
      int groups = e < a.count ? (a.begins[e + 1] - a.begins[e] + ROWS - 1) / ROWS : 0;
#pragma unroll
      for (int step = 1; step < kWarp; step *= 2) {
        const int lower = __shfl_up_sync(0xFFFFFFFFu, groups, step);
        if (thread >= step) groups += lower;
      }
      if (e < a.count) ends_[e] = before + groups;
      before += __shfl_sync(0xFFFFFFFFu, groups, kWarp - 1);
    }
  }
  __device__ int count(const Grouped& a) const {
    return ends_[a.count - 1];
  }
  /// Returns item `i`. All tiles of a group are consecutive items.
  __device__ Item item(const Grouped& a, int tiles, int i) const {
    const int group = i / tiles;
    int low = 0, high = a.count - 1;  // finds the first expert with a group end above `group`
    while (low < high) {
      const int middle = (low + high) / 2;
      ends_[middle] > group ? high = middle : low = middle + 1;
    }
    const int before = low > 0 ? ends_[low - 1] : 0;
    const int first = a.begins[low] + (group - before) * ROWS;
    return {low, first, min(ROWS, a.begins[low + 1] - first), i % tiles};
  }

 private:
  int ends_[kMostExperts];
};

/// activation(gate) * up, of rounded values.
__device__ inline float gated_value(bool gelu, float gate, float up) {
  float value, slope;
  if (gelu) {
    GeluTanh::both(gate, value, slope);
  } else {
    Silu::both(gate, value, slope);
  }
  return value * up;
}

}  // namespace octet::ops::cuda
