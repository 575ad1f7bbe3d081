#include "nf4_loader.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "octet/base/error.h"
#include "octet/ops/elementwise.h"
#include "octet/ops/nf4.h"
#include "octet/ops/quantize.h"

namespace octet::store {

Departures::~Departures() {
  for (const Piece& piece : pieces_) device_.release_host(piece.data, piece.bytes);
}

void Departures::send(Stream& stream, float* out, std::int64_t count,
                      const std::function<void(float*)>& make) {
  if (device_.host_reaches_memory()) {
    stream.synchronize();  // earlier work may still read `out`
    return make(out);
  }
  // The send of the other piece waited for the stream, so the copy from this piece is complete.
  Piece& piece = pieces_[turn_++ % pieces_.size()];
  const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(float);
  if (piece.bytes < bytes) {
    device_.release_host(std::exchange(piece.data, nullptr), std::exchange(piece.bytes, 0));
    piece.data = static_cast<float*>(device_.allocate_host(bytes));
    piece.bytes = bytes;
  }
  make(piece.data);
  stream.synchronize();
  if (bytes > 0) device_.copy_to_device(stream, out, piece.data, bytes);
}

namespace {

/// The elements of a tensor that a rank quantises in its piece number `piece`. Whole blocks, except at the
/// end.
struct Share {
  std::int64_t begin = 0, end = 0;
  std::int64_t blocks() const { return ops::nf4_blocks(end - begin); }
  std::int64_t code_bytes() const { return ops::nf4_code_bytes(end - begin); }
};

std::int64_t blocks_of_rank(std::int64_t count, int world) {
  return (ops::nf4_blocks(count) + world - 1) / world;
}

std::int64_t pieces_of(std::int64_t count, int world) {
  constexpr std::int64_t kBlocks = kLoadedPiece / ops::kNf4Block;
  return (blocks_of_rank(count, world) + kBlocks - 1) / kBlocks;
}

Share share_of(std::int64_t count, int world, int rank, std::int64_t piece) {
  const std::int64_t all = blocks_of_rank(count, world) * ops::kNf4Block;
  const std::int64_t first = std::min(count, rank * all), last = std::min(count, first + all);
  const std::int64_t begin = std::min(last, first + piece * kLoadedPiece);
  return {.begin = begin, .end = std::min(last, begin + kLoadedPiece)};
}

}  // namespace

Nf4Loader::Nf4Loader(const Segments& segments, const Axes& axes, Stream& stream, Arena& arena,
                     const Memory& memory)
    : segments_(segments),
      axes_(axes),
      device_(arena.device()),
      stream_(stream),
      values_(memory.values),
      most_(memory.most) {
  std::int64_t bytes = 0, blocks = 0;
  bool any = false;
  for (const auto& group : segments.groups) {
    for (const Segment& s : group) {
      for (const Nf4Part& part : s.nf4) {
        any = true;
        if (!part.quantised) {
          bytes = std::max(bytes, std::min(part.count, kLoadedPiece) * std::int64_t{4});
          continue;
        }
        if (s.row.axis != Axis::none) bytes = std::max(bytes, part.bytes());
        if (part.twice) blocks = std::max(blocks, ops::nf4_blocks(part.count));
      }
    }
  }
  bytes_ = arena.reserve_as<std::uint8_t>("bytes of a tensor", static_cast<std::size_t>(bytes));
  scales_ = arena.reserve_as<float>("scales of a tensor", static_cast<std::size_t>(blocks));
  if (any && segments.compute == DType::bf16) {
    narrow_ = arena.reserve_as<std::uint16_t>("values in bf16", static_cast<std::size_t>(kLoadedPiece));
  }
}

void Nf4Loader::load(const Segment& s, const FixedValues& values, const Stored& stored, float* amaxes) {
  const bool whole = s.row.axis == Axis::none;
  for (const Nf4Part& part : s.nf4) {
    if (!part.quantised) continue;
    std::uint8_t* const bytes = whole ? s.stored + part.codes : bytes_;
    device_.zero(stream_, bytes, static_cast<std::size_t>(part.bytes()));
    if (stored) {
      read_stored(part, stored, bytes);
    } else {
      quantise(s, part, values, bytes);
    }
    if (amaxes != nullptr) raise(s, part, bytes, amaxes);
    if (!whole) keep(s, part.codes, bytes, part.bytes());
  }
}

void Nf4Loader::quantise(const Segment& s, const Nf4Part& part, const FixedValues& values,
                         std::uint8_t* bytes) {
  comm::Collectives& sharers = axes_.of(s);
  const int world = sharers.size();
  auto* const in_place = reinterpret_cast<float*>(bytes + (part.scales - part.codes));
  float* const scales = part.twice ? scales_ : in_place;
  for (std::int64_t piece = 0; piece < pieces_of(part.count, world); ++piece) {
    const Share own = share_of(part.count, world, sharers.rank(), piece);
    const std::int64_t count = own.end - own.begin;
    values(stream_, s, part.begin + own.begin, count, values_);
    if (count > 0) {
      as_matrices({.data = values_}, count,
                  [&](const ops::ConstMatrix& x, std::int64_t) { ops::amax(stream_, x, most_); });
      const void* x = values_;
      if (narrow_ != nullptr) {
        ops::convert(stream_, values_, DType::f32, narrow_, DType::bf16, count);
        x = narrow_;
      }
      ops::nf4_quantize(stream_, {.x = x,
                                  .dtype = segments_.compute,
                                  .count = count,
                                  .codes = bytes + own.begin / 2,
                                  .scales = scales + own.begin / ops::kNf4Block});
    }
    exchange(sharers, part, piece, bytes, scales);
  }
  if (!part.twice) return;
  ops::nf4_quantize_scales(stream_, {.scales = scales,
                                     .blocks = ops::nf4_blocks(part.count),
                                     .codes = bytes + (part.scales - part.codes),
                                     .nested = reinterpret_cast<float*>(bytes + (part.nested - part.codes)),
                                     .mean = reinterpret_cast<float*>(bytes + (part.mean - part.codes))});
}

void Nf4Loader::exchange(comm::Collectives& sharers, const Nf4Part& part, std::int64_t piece,
                         std::uint8_t* bytes, float* scales) {
  const int world = sharers.size();
  if (world == 1) return;
  const auto act = [&](int rank, const auto& on) {
    const Share share = share_of(part.count, world, rank, piece);
    on(bytes + share.begin / 2, static_cast<std::size_t>(share.code_bytes()));
    on(scales + share.begin / ops::kNf4Block, static_cast<std::size_t>(share.blocks()) * sizeof(float));
  };
  std::string mine;
  act(sharers.rank(), [&](const void*, std::size_t count) { mine.resize(mine.size() + count); });
  std::size_t at = 0;
  act(sharers.rank(), [&](const void* from, std::size_t count) {
    if (count > 0) device_.copy_to_host(stream_, mine.data() + at, from, count);
    at += count;
  });
  stream_.synchronize();
  const std::vector<std::string> all = sharers.channel().all_gather_bytes(mine);
  for (int rank = 0; rank < world; ++rank) {
    const std::string& theirs = all[static_cast<std::size_t>(rank)];
    at = 0;
    act(rank, [&](void* to, std::size_t count) {
      check(at + count <= theirs.size(), "every rank sends its share of a tensor");
      if (rank != sharers.rank() && count > 0) device_.copy_to_device(stream_, to, theirs.data() + at, count);
      at += count;
    });
  }
  stream_.synchronize();  // before the received data is freed
}

void Nf4Loader::read_stored(const Nf4Part& part, const Stored& stored, std::uint8_t* bytes) {
  std::vector<std::uint8_t> read(static_cast<std::size_t>(part.bytes()));
  std::vector<TensorSlice> slices;
  for (const Nf4Array& array : arrays_of(part)) {
    slices.push_back({.name = part.named->name + array.suffix,
                      .dtype = array.dtype,
                      .shape = {array.count},
                      .count = array.count,
                      .data = read.data() + (array.offset - part.codes)});
  }
  stored(slices);
  device_.copy_to_device(stream_, bytes, read.data(), read.size());
  stream_.synchronize();
}

void Nf4Loader::raise(const Segment& s, const Nf4Part& part, const std::uint8_t* bytes, float* amaxes) {
  const comm::Collectives& sharers = axes_.of(s);
  const int world = sharers.size();
  for (std::int64_t piece = 0; piece < pieces_of(part.count, world); ++piece) {
    const Share own = share_of(part.count, world, sharers.rank(), piece);
    const std::int64_t count = own.end - own.begin;
    if (count == 0) continue;
    ops::nf4_decode(stream_, {.codes = bytes,
                              .scales = part.scales_in(bytes - part.codes),
                              .begin = own.begin,
                              .count = count,
                              .to = values_,
                              .dtype = segments_.compute});
    as_matrices({.data = values_, .dtype = segments_.compute}, count,
                [&](const ops::ConstMatrix& x, std::int64_t) { ops::amax(stream_, x, amaxes + part.scale); });
  }
}

Nf4Loader::Run Nf4Loader::kept_of(const Segment& s, const Nf4Part& part) const {
  if (s.row.axis == Axis::none) return {0, part.count};
  // Includes elements that are only partly in this rank's bytes; a neighbour may have the other part.
  const auto size = static_cast<std::int64_t>(size_of(s.dtype));
  const std::int64_t from = s.rank * s.stored_slice - part.codes;
  const std::int64_t begin = std::clamp<std::int64_t>(from / size, 0, part.count);
  return {begin, std::clamp<std::int64_t>((from + s.stored_slice + size - 1) / size, begin, part.count)};
}

template <typename Do>
void Nf4Loader::each_whole(const Segment& s, const FixedValues& values, Do&& act) {
  for (const Nf4Part& part : s.nf4) {
    if (part.quantised) continue;
    for (std::int64_t at = 0; at < part.count; at += kLoadedPiece) {
      // Iterates over pieces of the tensor, not of the kept run, so that every rank requests values equally
      // often.
      const Run kept = kept_of(s, part);
      const std::int64_t begin = std::clamp(kept.begin, at, at + kLoadedPiece);
      const std::int64_t end = std::clamp(kept.end, begin, std::min(part.count, at + kLoadedPiece));
      values(stream_, s, part.begin + begin, end - begin, values_);
      if (begin < end) act(part, begin, end - begin);
    }
  }
}

void Nf4Loader::measure_whole(const Segment& s, const FixedValues& values, float* amaxes) {
  each_whole(s, values, [&](const Nf4Part& part, std::int64_t, std::int64_t count) {
    as_matrices({.data = values_}, count,
                [&](const ops::ConstMatrix& x, std::int64_t) { ops::amax(stream_, x, amaxes + part.scale); });
  });
}

void Nf4Loader::write_whole(const Segment& s, const FixedValues& values, const precision::ScaleSet* scales) {
  const auto size = static_cast<std::int64_t>(size_of(s.dtype));
  each_whole(s, values, [&](const Nf4Part& part, std::int64_t begin, std::int64_t count) {
    if (is_fp8(s.dtype)) {
      as_matrices({.data = values_}, count, [&](const ops::ConstMatrix& x, std::int64_t from) {
        ops::quantize(stream_, x,
                      {.format = s.dtype, .row = bytes_ + from, .scale = scales->scale(part.scale)});
      });
    } else {
      ops::convert(stream_, values_, DType::f32, bytes_, s.dtype, count);
    }
    keep(s, part.codes + begin * size, bytes_, count * size);
  });
}

void Nf4Loader::keep(const Segment& s, std::int64_t begin, const std::uint8_t* bytes, std::int64_t count) {
  const bool whole = s.row.axis == Axis::none;
  const std::int64_t own = whole ? 0 : s.rank * s.stored_slice;
  const std::int64_t end = whole ? begin + count : own + s.stored_slice;
  const std::int64_t from = std::max(begin, own), to = std::min(begin + count, end);
  if (from >= to) return;
  std::uint8_t* const kept = whole ? s.stored : s.stored_shard;
  device_.copy(stream_, kept + (from - own), bytes + (from - begin), static_cast<std::size_t>(to - from));
}

}  // namespace octet::store
