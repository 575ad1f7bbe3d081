#include "nf4_loader.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "octet/base/error.h"
#include "octet/ops/elementwise.h"
#include "octet/ops/nf4.h"
#include "octet/ops/quantize.h"

namespace octet::store {
namespace {

/// Elements of a tensor that rank `rank` quantises in its turn `piece`; whole blocks, but at the end.
struct Share {
  std::int64_t begin = 0, end = 0;
  std::int64_t blocks() const { return ops::nf4_blocks(end - begin); }
  std::int64_t code_bytes() const { return ops::nf4_code_bytes(end - begin); }
};

std::int64_t blocks_of_rank(std::int64_t count, int world) {
  return (ops::nf4_blocks(count) + world - 1) / world;
}

std::int64_t pieces_of(std::int64_t count, int world) {
  constexpr std::int64_t kBlocks = Nf4Loader::kPiece / ops::kNf4Block;
  return (blocks_of_rank(count, world) + kBlocks - 1) / kBlocks;
}

Share share_of(std::int64_t count, int world, int rank, std::int64_t piece) {
  const std::int64_t all = blocks_of_rank(count, world) * ops::kNf4Block;
  const std::int64_t first = std::min(count, rank * all), last = std::min(count, first + all);
  const std::int64_t begin = std::min(last, first + piece * Nf4Loader::kPiece);
  return {.begin = begin, .end = std::min(last, begin + Nf4Loader::kPiece)};
}

}  // namespace

void Nf4Loader::load(const Segment& s, const Values& values, const Stored& stored, float* amaxes) {
  for (const Nf4Part& part : s.nf4) {
    if (!part.quantised) continue;
    bytes_.assign(static_cast<std::size_t>(part.bytes()), 0);
    if (stored) {
      read_stored(part, stored);
    } else {
      quantise(s, part, values);
    }
    if (amaxes != nullptr) raise(part, amaxes);
    keep(s, part.codes, bytes_.data(), part.bytes());
  }
}

void Nf4Loader::quantise(const Segment& s, const Nf4Part& part, const Values& values) {
  const int world = collectives_.size();
  scales_.assign(static_cast<std::size_t>(ops::nf4_blocks(part.count)), 0.0f);
  for (std::int64_t piece = 0; piece < pieces_of(part.count, world); ++piece) {
    const Share own = share_of(part.count, world, collectives_.rank(), piece);
    const std::int64_t count = own.end - own.begin;
    values_.assign(static_cast<std::size_t>(count), 0.0f);
    values(s, part.begin + own.begin, count, values_.data());
    const bool narrow = segments_.compute == DType::bf16;
    if (narrow && count > 0) {
      narrow_.resize(static_cast<std::size_t>(count));
      ops::convert(kernels_, values_.data(), DType::f32, narrow_.data(), DType::bf16, count);
    }
    ops::nf4_quantize(kernels_, {.x = narrow ? static_cast<const void*>(narrow_.data()) : values_.data(),
                                 .dtype = segments_.compute,
                                 .count = count,
                                 .codes = bytes_.data() + own.begin / 2,
                                 .scales = scales_.data() + own.begin / ops::kNf4Block});
    kernels_.synchronize();
    exchange(part, piece);
  }
  std::uint8_t* const scales = bytes_.data() + (part.scales - part.codes);
  if (!part.twice) {
    std::memcpy(scales, scales_.data(), scales_.size() * sizeof(float));
    return;
  }
  ops::nf4_quantize_scales(kernels_,
                           {.scales = scales_.data(),
                            .blocks = std::ssize(scales_),
                            .codes = scales,
                            .nested = reinterpret_cast<float*>(bytes_.data() + (part.nested - part.codes)),
                            .mean = reinterpret_cast<float*>(bytes_.data() + (part.mean - part.codes))});
  kernels_.synchronize();
}

void Nf4Loader::exchange(const Nf4Part& part, std::int64_t piece) {
  const int world = collectives_.size();
  if (world == 1) return;
  const auto act = [&](int rank, const auto& on) {
    const Share share = share_of(part.count, world, rank, piece);
    on(bytes_.data() + share.begin / 2, static_cast<std::size_t>(share.code_bytes()));
    on(scales_.data() + share.begin / ops::kNf4Block,
       static_cast<std::size_t>(share.blocks()) * sizeof(float));
  };
  std::string mine;
  act(collectives_.rank(),
      [&](const void* from, std::size_t count) { mine.append(static_cast<const char*>(from), count); });
  const std::vector<std::string> all = collectives_.channel().all_gather_bytes(mine);
  for (int rank = 0; rank < world; ++rank) {
    std::size_t at = 0;
    act(rank, [&](void* to, std::size_t count) {
      check(at + count <= all[static_cast<std::size_t>(rank)].size(),
            "every rank sends its share of a tensor");
      std::memcpy(to, all[static_cast<std::size_t>(rank)].data() + at, count);
      at += count;
    });
  }
}

void Nf4Loader::read_stored(const Nf4Part& part, const Stored& stored) {
  std::vector<TensorSlice> slices;
  for (const Nf4Array& array : arrays_of(part)) {
    slices.push_back({.name = part.named->name + array.suffix,
                      .dtype = array.dtype,
                      .shape = {array.count},
                      .count = array.count,
                      .data = bytes_.data() + (array.offset - part.codes)});
  }
  stored(slices);
}

void Nf4Loader::raise(const Nf4Part& part, float* amaxes) {
  const int world = collectives_.size();
  for (std::int64_t piece = 0; piece < pieces_of(part.count, world); ++piece) {
    const Share own = share_of(part.count, world, collectives_.rank(), piece);
    const std::int64_t count = own.end - own.begin;
    if (count == 0) continue;
    values_.resize(static_cast<std::size_t>(count));
    ops::nf4_decode(kernels_, {.codes = bytes_.data(),
                               .scales = part.scales_in(bytes_.data() - part.codes),
                               .begin = own.begin,
                               .count = count,
                               .to = values_.data(),
                               .dtype = segments_.compute});
    as_matrices(
        {.data = values_.data(), .dtype = segments_.compute}, count,
        [&](const ops::ConstMatrix& x, std::int64_t) { ops::amax(kernels_, x, amaxes + part.scale); });
    kernels_.synchronize();
  }
}

Nf4Loader::Run Nf4Loader::kept_of(const Segment& s, const Nf4Part& part) const {
  if (s.row.axis == Axis::none) return {0, part.count};
  // Whole elements that reach into the own bytes: a neighbour may have another part of one.
  const auto size = static_cast<std::int64_t>(size_of(s.dtype));
  const std::int64_t from = segments_.rank * s.stored_slice - part.codes;
  const std::int64_t begin = std::clamp<std::int64_t>(from / size, 0, part.count);
  return {begin, std::clamp<std::int64_t>((from + s.stored_slice + size - 1) / size, begin, part.count)};
}

void Nf4Loader::measure_whole(const Segment& s, const Values& values, float* amaxes) {
  for (const Nf4Part& part : s.nf4) {
    if (part.quantised) continue;
    for (std::int64_t at = 0; at < part.count; at += kPiece) {
      // Pieces of the tensor, not of the run, so that every rank asks equally often.
      const Run kept = kept_of(s, part);
      const std::int64_t begin = std::clamp(kept.begin, at, at + kPiece);
      const std::int64_t end = std::clamp(kept.end, begin, std::min(part.count, at + kPiece));
      values_.assign(static_cast<std::size_t>(end - begin), 0.0f);
      values(s, part.begin + begin, end - begin, values_.data());
      as_matrices({.data = values_.data()}, end - begin, [&](const ops::ConstMatrix& x, std::int64_t) {
        ops::amax(kernels_, x, amaxes + part.scale);
      });
      kernels_.synchronize();
    }
  }
}

void Nf4Loader::write_whole(const Segment& s, const Values& values, const float* scales) {
  const auto size = static_cast<std::int64_t>(size_of(s.dtype));
  for (const Nf4Part& part : s.nf4) {
    if (part.quantised) continue;
    for (std::int64_t at = 0; at < part.count; at += kPiece) {
      const Run kept = kept_of(s, part);
      const std::int64_t begin = std::clamp(kept.begin, at, at + kPiece);
      const std::int64_t end = std::clamp(kept.end, begin, std::min(part.count, at + kPiece));
      const std::int64_t count = end - begin;
      values_.assign(static_cast<std::size_t>(count), 0.0f);
      values(s, part.begin + begin, count, values_.data());
      bytes_.resize(static_cast<std::size_t>(count * size));
      if (is_fp8(s.dtype)) {
        as_matrices({.data = values_.data()}, count, [&](const ops::ConstMatrix& x, std::int64_t from) {
          ops::quantize(kernels_, x,
                        {.format = s.dtype, .row = bytes_.data() + from, .scale = scales + part.scale});
        });
      } else if (count > 0) {
        ops::convert(kernels_, values_.data(), DType::f32, bytes_.data(), s.dtype, count);
      }
      kernels_.synchronize();
      keep(s, part.codes + begin * size, bytes_.data(), count * size);
    }
  }
}

void Nf4Loader::keep(const Segment& s, std::int64_t begin, const void* bytes, std::int64_t count) {
  const bool whole = s.row.axis == Axis::none;
  const std::int64_t own = whole ? 0 : segments_.rank * s.stored_slice;
  const std::int64_t end = whole ? begin + count : own + s.stored_slice;
  const std::int64_t from = std::max(begin, own), to = std::min(begin + count, end);
  if (from >= to) return;
  std::uint8_t* const kept = whole ? s.stored : s.stored_shard;
  device_.copy_to_device(copies_, kept + (from - own),
                         static_cast<const std::uint8_t*>(bytes) + (from - begin),
                         static_cast<std::size_t>(to - from));
  copies_.synchronize();
}

}  // namespace octet::store
