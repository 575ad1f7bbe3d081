// The short convolution of a delta rule on the CPU. Channels are processed in pieces. The channels of a piece
// have adjacent columns in the projection.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/simd.h"
#include "octet/ops/delta_inputs.h"

namespace octet::ops::cpu {

/// Most channels of a piece.
inline constexpr std::int64_t kConvPiece = 128;

/// Adjacent channels of queries, keys or values.
struct ConvPiece {
  std::int64_t channel = 0;  ///< first column in qkv
  std::int64_t column = 0;   ///< first column in the projection
  std::int64_t count = 0;
};

/// Returns pieces that cover all channels.
std::vector<ConvPiece> conv_pieces(const DeltaColumns& columns);

/// Taps of a piece, [kDeltaTaps][kConvPiece]: row s is multiplied by the input s tokens ago.
struct ConvTaps {
  OCTET_INLINE ConvTaps(const float* taps, const ConvPiece& piece) {
    for (std::int64_t s = 0; s < kDeltaTaps; ++s) {
      for (std::int64_t i = 0; i < piece.count; ++i) {
        ago[s][i] = taps[(piece.channel + i) * kDeltaTaps + kDeltaTaps - 1 - s];
      }
    }
  }
  float ago[kDeltaTaps][kConvPiece];
};

/// sum += taps * x
template <typename T>
OCTET_INLINE void add_tap(const float* __restrict taps, const T* __restrict x, std::int64_t n,
                          float* __restrict sum) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] = simd::fmadd(taps[i], simd::load(x[i]), sum[i]);
}

/// Returns the document of a token, or `count` if the token is outside of all documents.
std::int64_t document_of(const Documents& documents, std::int64_t token);

}  // namespace octet::ops::cpu
