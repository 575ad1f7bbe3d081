// The outputs of a chain of GEMMs (decode_chain.cu): sums that several blocks contribute to, and the ops
// after a GEMM.
#pragma once

#include "cuda/activations.cuh"
#include "cuda/decode/decode_chain_tokens.cuh"

namespace octet::ops::cuda::chain {

/// The two outputs of a thread in a tile. Their other inputs are loaded early.
class Outputs {
 public:
  /// `needed`: true for threads that will write the outputs.
  __device__ Outputs(const Gemm& g, int tile, bool needed) : g_(g), tile_(tile), row_(row_of(lane())) {
    const int in_tile = warp() * 8 + row_;
    if (g.end == End::plain) {
      first_ = tile * kOutputs + warp() * 16 + row_;
      second_ = first_ + 8;
    } else if (g.end == End::gated) {
      first_ = tile * (kOutputs / 2) + in_tile;
      second_ = first_ + g.outputs / 2;
    } else {
      first_ = tile / g.tiles_of_head * 2 * g.half_dim + tile % g.tiles_of_head * (kOutputs / 2) + in_tile;
      second_ = first_ + g.half_dim;
    }
    if (!needed || !has_sums()) return;
    scale_[0] = g.weight_scales[first_];
    scale_[1] = g.weight_scales[second_];
    if (g.bias != nullptr) {
      bias_[0] = g.bias[first_];
      bias_[1] = g.bias[second_];
    }
    if (g.end == End::plain && g.addend != nullptr) {
      addend_[0] = to_float(g.addend[first_]);
      addend_[1] = to_float(g.addend[second_]);
    }
    if (g.end != End::rotated || first_ / (2 * g.half_dim) >= g.rotated_heads) return;
    turns_ = true;
    const std::int64_t place = static_cast<std::int64_t>(*g.position) * g.half_dim + first_ % g.half_dim;
    cosine_ = g.cosine[place];
    sine_ = g.sine[place];
  }

  /// Called by all threads of the first warpgroup. `words`: output for the next GEMM of the chain, or null.
  __device__ void write(const Sums& sums, float token_scale, unsigned* words) const {
    const __nv_bfloat16 first = rounded(0, sums, token_scale), second = rounded(1, sums, token_scale);
    if (g_.end == End::plain) {
      if (has_sums()) write_plain(first, second, words);
    } else if (g_.end == End::gated) {
      write_gated(to_float(first), to_float(second), words);
    } else if (has_sums()) {
      write_rotated(first, second);
    }
  }

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kWarp; }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / kWarp % 4; }
  /// Column 0 of the products of the token is in every fourth lane.
  __device__ static bool has_sums() { return lane() % 4 == 0; }
  /// Returns the index of the first of a thread's two sums in a tile. The second is eight later.
  __device__ static int slot() { return warp() * 16 + lane() / 4; }

 private:
  __device__ __nv_bfloat16 rounded(int which, const Sums& sums, float token_scale) const {
    float x = sums[which] * (token_scale * scale_[which]);
    if (g_.bias != nullptr) x += bias_[which];
    return from_float<__nv_bfloat16>(x);
  }
  __device__ void write_plain(__nv_bfloat16 first, __nv_bfloat16 second, unsigned* words) const {
    if (g_.addend != nullptr) {
      first = from_float<__nv_bfloat16>(to_float(first) + addend_[0]);
      second = from_float<__nv_bfloat16>(to_float(second) + addend_[1]);
    }
    if (words != nullptr) leave(words + (tile_ * 4 + warp()) * 8 + row_, word_of(first, second));
    g_.y[first_] = first;
    g_.y[second_] = second;
  }
  __device__ void write_gated(float gate, float up, unsigned* words) const {
    float value, slope;
    if (g_.gelu) {
      GeluTanh::both(gate, value, slope);
    } else {
      Silu::both(gate, value, slope);
    }
    const __nv_bfloat16 mine = narrow<__nv_bfloat16>(value * up);
    // From the next row, which is two rows of lanes later (row_of()).
    const unsigned short other = __shfl_down_sync(0xFFFFFFFFu, __bfloat16_as_ushort(mine), 8);
    if (!has_sums()) return;
    if (words != nullptr && row_ % 2 == 0)
      leave(words + first_ / 2, word_of(mine, __ushort_as_bfloat16(other)));
    g_.y[first_] = mine;
  }
  __device__ void write_rotated(__nv_bfloat16 first, __nv_bfloat16 second) const {
    if (turns_) {
      const float x = to_float(first), y = to_float(second);
      first = narrow<__nv_bfloat16>(x * cosine_ - y * sine_);
      second = narrow<__nv_bfloat16>(y * cosine_ + x * sine_);
    }
    g_.y[first_] = first;
    g_.y[second_] = second;
  }

  const Gemm& g_;
  int tile_, row_, first_, second_;
  float scale_[2] = {}, bias_[2] = {}, addend_[2] = {}, cosine_ = 0, sine_ = 0;
  bool turns_ = false;
};

/// The sums of a tile by another block, for one thread.
struct Partials {
  unsigned first = kNothing, second = kNothing;
  __device__ static unsigned* of(const Chain& chain, int block) {
    return chain.partials + block * kOutputs + Outputs::slot();
  }
  __device__ void look(const unsigned* from) {
    first = look_at(from);
    second = look_at(from + 8);
  }
  __device__ void wait(const unsigned* from) {
    while (first == kNothing || second == kNothing) look(from);
  }
};
__device__ inline void leave_partials(const Chain& chain, const Sums& sums) {
  if (!Outputs::has_sums()) return;
  unsigned* const to = Partials::of(chain, static_cast<int>(blockIdx.x));
  leave(to, word_of_sum(sums[0]));
  leave(to + 8, word_of_sum(sums[1]));
}
/// Adds the sums of the following blocks for runs `run` to `tile_end`, in order. `early`: polled sums of the
/// first of these blocks.
__device__ inline void add_partials(const Chain& chain, const Gemm& g, int run, int tile_end, Partials early,
                                    Sums& sums) {
  for (int block = static_cast<int>(blockIdx.x) + 1; run < tile_end; ++block) {
    run = first_run(g, block + 1);
    if (Outputs::has_sums()) {
      unsigned* const from = Partials::of(chain, block);
      early.wait(from);
      leave(from, kNothing);
      leave(from + 8, kNothing);
      sums[0] += __uint_as_float(early.first);
      sums[1] += __uint_as_float(early.second);
    }
    early = {};
  }
}

}  // namespace octet::ops::cuda::chain
