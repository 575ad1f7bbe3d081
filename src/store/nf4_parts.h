#pragma once

#include <cstdint>
#include <vector>

#include "octet/model/layout.h"
#include "octet/ops/nf4.h"
#include "octet/store/options.h"

namespace octet::store {

/// Where a Hugging Face tensor lies in the bytes of a segment in NF4: codes, and behind them its scales, or,
/// with double quantisation, codes of scales, scales of scales, and their mean. A tensor that is not
/// quantised has its elements there, in the dtype that products read.
struct Nf4Part {
  const model::NamedPart* named = nullptr;
  std::int64_t begin = 0;  ///< first element, from the start of the segment
  std::int64_t count = 0;
  std::int64_t cols = 0;
  std::int64_t scale = -1;  ///< where products read FP8: its number among the scales of fixed weights
  /// Likewise, in the segment's transposed copies: its first element, and from one row to the next.
  std::int64_t turned = 0;
  std::int64_t turned_ld = 0;
  bool quantised = true;
  bool twice = false;  ///< double quantisation

  // Offsets in bytes, from the start of the segment.
  std::int64_t codes = 0;   ///< the part's first byte
  std::int64_t scales = 0;  ///< f32, or codes of scales
  std::int64_t nested = 0;
  std::int64_t mean = 0;
  std::int64_t end = 0;

  std::int64_t bytes() const { return end - codes; }
  /// The scales, where the segment's bytes begin at `stored`.
  ops::Nf4Scales scales_in(const std::uint8_t* stored) const;
};

/// A run of bytes of a part that has a tensor of its own in files of bitsandbytes.
struct Nf4Array {
  const char* suffix = "";  ///< behind the tensor's name; empty: the codes
  DType dtype = DType::u8;
  std::int64_t offset = 0;  ///< from the start of the segment
  std::int64_t count = 0;   ///< elements
};
std::vector<Nf4Array> arrays_of(const Nf4Part& part);

/// The parts of a segment whose products read `dtype`, each array on a boundary of 16 bytes.
std::vector<Nf4Part> nf4_parts(const model::SegmentSpec& spec, const Nf4Weights& how, DType dtype);

/// Bytes of one of `world` equal slices of the segment.
std::int64_t nf4_slice_bytes(const std::vector<Nf4Part>& parts, int world);

}  // namespace octet::store
