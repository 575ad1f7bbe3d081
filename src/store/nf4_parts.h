#pragma once

#include <cstdint>
#include <vector>

#include "octet/model/layout.h"
#include "octet/ops/nf4.h"
#include "octet/store/placement.h"

namespace octet::store {

/// Layout of a Hugging Face tensor in the bytes of an NF4 segment: codes, then scales. With double
/// quantisation: codes, then codes of scales, scales of scales, and the mean of the scales. A tensor that is
/// not quantised has its elements there, in the dtype that GEMMs read.
struct Nf4Part {
  const model::NamedPart* named = nullptr;
  std::int64_t begin = 0;  ///< first element, from the start of the segment
  std::int64_t count = 0;
  std::int64_t cols = 0;
  std::int64_t scale = -1;  ///< if GEMMs read FP8: its number among the scales of fixed weights
  /// If GEMMs read FP8: first element and row stride in the segment's transposed copies.
  std::int64_t flipped = 0;
  std::int64_t transposed_ld = 0;
  bool quantised = true;
  bool twice = false;  ///< double quantisation

  // Offsets in bytes, from the start of the segment.
  std::int64_t codes = 0;   ///< the part's first byte
  std::int64_t scales = 0;  ///< f32, or codes of scales
  std::int64_t nested = 0;
  std::int64_t mean = 0;
  std::int64_t end = 0;

  std::int64_t bytes() const { return end - codes; }
  /// Returns the scales. `stored` points to the segment's bytes.
  ops::Nf4Scales scales_in(const std::uint8_t* stored) const;
};

/// A run of bytes of a part. In files of bitsandbytes it is a separate tensor.
struct Nf4Array {
  const char* suffix = "";  ///< appended to the tensor's name; empty: the codes
  DType dtype = DType::u8;
  std::int64_t offset = 0;  ///< from the start of the segment
  std::int64_t count = 0;   ///< elements
};
std::vector<Nf4Array> arrays_of(const Nf4Part& part);

/// Returns the parts of a segment. `dtype` is what GEMMs read. Each array begins on a 16-byte boundary.
std::vector<Nf4Part> nf4_parts(const model::SegmentSpec& spec, const Nf4Weights& how, DType dtype);

/// Parts of one shape at equal distances, beginning with the part `first`.
struct Nf4Run {
  std::size_t first = 0;
  ops::Nf4Series series;
};
/// Returns all parts as few, long runs. The gates of experts are one run, for example.
std::vector<Nf4Run> nf4_runs(const std::vector<Nf4Part>& parts);

/// Returns the bytes of one of `world` equal slices of the segment.
std::int64_t nf4_slice_bytes(const std::vector<Nf4Part>& parts, int world);

}  // namespace octet::store
