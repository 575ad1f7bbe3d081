// The outputs of a chain of GEMMs (decode_chain.cu): sums that several blocks contribute to, and the ops
// after a GEMM.
#pragma once

#include "cuda/activations.cuh"
#include "cuda/decode/decode_chain_ring.cuh"
#include "cuda/row_quantize.cuh"
#include "cuda/streamed_reads.cuh"
#include "cuda/word_exchange.cuh"

namespace octet::ops::cuda::chain {

// The tokens of a chain of GEMMs (decode_chain.cu). Each block computes the operand of its products from the
// words that the blocks wrote in the previous GEMM.

/// Returns the four words of a pack of eight values.
__device__ inline const uint4* quad_of(const unsigned* words, int pack) {
  return reinterpret_cast<const uint4*>(words) + pack;
}
/// Packs two values of a token into a word that differs from kNothing. Two NaNs that equal kNothing become
/// other NaNs.
__device__ inline unsigned word_of(__nv_bfloat16 low, __nv_bfloat16 high) {
  const unsigned word = __bfloat16_as_ushort(low) | static_cast<unsigned>(__bfloat16_as_ushort(high)) << 16;
  return word == kNothing ? 0x7FFF7FFFu : word;
}

/// Order of the two values of a word. The output of a plain GEMM is read in the order of its tiles.
enum class Pairs {
  neighbours,
  of_tile  ///< the two outputs of a thread: values i and i + 8 of sixteen
};

/// Packs of a thread, and the number of packs in registers. Other packs are read again. A kernel with at most
/// kRegisterPacks packs is faster.
constexpr int kMostPacks = kMostInner / (kWorkers * kPack), kRegisterPacks = 4;
constexpr int kEarlyPacks = 1;  ///< packs with prefetched norm weights

/// Positions of the first and the last four values of a pack of four words.
struct PackPlace {
  int first, second;
  __device__ PackPlace(int pack, Pairs pairs)
      : first(pairs == Pairs::neighbours ? pack * kPack : pack / 2 * 16 + pack % 2 * 4),
        second(first + (pairs == Pairs::neighbours ? 4 : 8)) {}
};
__device__ inline int pack_of(int p) {
  return p * kWorkers + static_cast<int>(threadIdx.x);
}

/// Reads the norm weights for the values of a pack.
__device__ inline void read_norm(const Gemm& g, const PackPlace& place, float (&to)[kPack]) {
  *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(g.norm_weight + place.first);
  *reinterpret_cast<float4*>(to + 4) = *reinterpret_cast<const float4*>(g.norm_weight + place.second);
}
/// Norm weights of the first packs of a thread, loaded before the token is complete.
struct EarlyNorm {
  float of[kEarlyPacks][kPack];

  __device__ void read(const Gemm& g, Pairs pairs) {
    if (g.norm_weight == nullptr) return;
#pragma unroll
    for (int p = 0; p < kEarlyPacks; ++p) {
      const int pack = pack_of(p);
      if (pack * kPack < g.inner) read_norm(g, PackPlace(pack, pairs), of[p]);
    }
  }
};

/// Reads the token of a GEMM, applies the norm, and stores it in E4M3 with its own scale in operand order.
template <int PACKS>
class Taking {
 public:
  __device__ Taking(const Gemm& g, Pairs pairs) : g_(g), pairs_(pairs), packs_(g.inner / kPack) {}

  /// Reads a token that no kernel of the chain has written.
  __device__ void read() {
    each([&](int p, int pack) {
      if (p < kRegisterPacks) raw_[p] = made_before(pack);
    });
  }
  /// Waits for the output of the previous GEMM from all blocks, and reads it.
  __device__ void read_words(const unsigned* words) {
    words_ = words;
    // Other blocks still need the memory, so waiting warps poll only one word each.
    if (threadIdx.x % kWarp == 0) {
      const int last = min(packs_ - 1, (packs_ - 1) / kWorkers * kWorkers + static_cast<int>(threadIdx.x));
      while (look_at(words + last * 4) == kNothing) {
      }
    }
    __syncwarp();
    bool all;
    do {
      all = true;
      each([&](int p, int pack) {
        const uint4 x = look_at_quad(quad_of(words, pack));
        if (p < kRegisterPacks) raw_[p] = x;
        all = all && there(x);
      });
    } while (!all);
  }

  /// Stores the token. Called by all workers. A barrier of the workers must follow before products read the
  /// token.
  __device__ void leave(const EarlyNorm& early, std::uint8_t* token, Kept& kept) const {
    const bool normed = g_.norm_weight != nullptr;
    // The largest normed value is known up to the common factor of the norm.
    float squares = 0.0f;
    unsigned most = 0;
    each([&](int p, int pack) {
      float y[kPack];
      values(p, pack, y);
      if (!normed) return raise_most(y, kPack, most);
      float w[kPack];
      norm(early, p, pack, w);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        squares = __fmaf_rn(y[i], y[i], squares);
        y[i] *= w[i] + g_.one;
      }
      raise_most(y, kPack, most);
    });
    const float rstd = reduce(squares, most, normed, kept);
    const float largest = rounded_to<__nv_bfloat16>(__uint_as_float(most) * rstd);
    const std::int32_t e = block_exponent(__float_as_uint(largest));
    if (threadIdx.x == 0) kept.token_scale = power_of_two(e);
    each([&](int p, int pack) {
      float y[kPack];
      values(p, pack, y);
      if (normed) {
        float w[kPack];
        norm(early, p, pack, w);
#pragma unroll
        for (int i = 0; i < kPack; ++i) y[i] = y[i] * rstd * (w[i] + g_.one);
        round_pack<__nv_bfloat16>(y);
      }
      const uint2 codes = to_fp8_pack(y, power_of_two(-e), true);
      const PackPlace place(pack, pairs_);
      *reinterpret_cast<unsigned*>(token + place_of(place.first)) = codes.x;
      *reinterpret_cast<unsigned*>(token + place_of(place.second)) = codes.y;
    });
  }

 private:
  template <typename Act>
  __device__ void each(Act&& act) const {
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
      const int pack = pack_of(p);
      if (pack < packs_) act(p, pack);
    }
  }
  template <typename Act>
  __device__ void each(Act&& act) {
#pragma unroll
    for (int p = 0; p < PACKS; ++p) {
      const int pack = pack_of(p);
      if (pack < packs_) act(p, pack);
    }
  }
  __device__ void norm(const EarlyNorm& early, int p, int pack, float (&w)[kPack]) const {
    if (p >= kEarlyPacks) return read_norm(g_, PackPlace(pack, pairs_), w);
#pragma unroll
    for (int i = 0; i < kPack; ++i) w[i] = early.of[p < kEarlyPacks ? p : 0][i];
  }
  __device__ uint4 made_before(int pack) const {
    return read_often(reinterpret_cast<const std::uint8_t*>(g_.x + pack * kPack));
  }
  __device__ void values(int p, int pack, float (&y)[kPack]) const {
    uint4 raw;
    if (p < kRegisterPacks) {
      raw = raw_[p < kRegisterPacks ? p : 0];
    } else {
      raw = words_ != nullptr ? look_at_quad(quad_of(words_, pack)) : made_before(pack);
    }
    const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
    float x[kPack];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[2 * i] = low_half(words[i]);
      x[2 * i + 1] = high_half(words[i]);
    }
#pragma unroll
    for (int i = 0; i < kPack; ++i) y[i] = pairs_ == Pairs::neighbours ? x[i] : x[i % 4 * 2 + i / 4];
  }
  /// Reduces over all workers and returns the factor of a norm, or 1. All callers have finished their
  /// products with the previous token, which is overwritten next.
  __device__ float reduce(float squares, unsigned& most, bool normed, Kept& kept) const {
    constexpr int kWarps = kWorkers / kWarp;
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
    squares = warp_reduce(squares, Plus{});
    most = __reduce_max_sync(0xFFFFFFFFu, most);
    if (lane == 0) {
      kept.squares[warp] = squares;
      kept.most[warp] = most;
    }
    meet_workers();
    most = __reduce_max_sync(0xFFFFFFFFu, kept.most[lane % kWarps]);
    if (!normed) return 1.0f;
    float total = kept.squares[lane % kWarps];
#pragma unroll
    for (int offset = kWarps / 2; offset > 0; offset /= 2)
      total += __shfl_xor_sync(0xFFFFFFFFu, total, offset);
    return __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(total, static_cast<float>(g_.inner)) + g_.eps));
  }

  const Gemm& g_;
  const Pairs pairs_;
  const int packs_;
  const unsigned* words_ = nullptr;
  uint4 raw_[kRegisterPacks];
};

/// Resets this block's share of words that all blocks have read. Called by `threads` threads from `first` on.
__device__ inline void forget(unsigned* words, int count, int first, int threads) {
  const int packs = count / 4, blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  const int end = packs * (block + 1) / blocks;
  for (int i = packs * block / blocks + static_cast<int>(threadIdx.x) - first; i < end; i += threads)
    leave_quad(reinterpret_cast<uint4*>(words) + i, nothing_quad());
}

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
