#include "octet/checkpoint/coverage.h"

#include <algorithm>
#include <map>

#include "octet/base/error.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/checkpoint/packer.h"

namespace octet::checkpoint {
namespace {

/// Elements that a rank contributes: `rows` runs of `count` elements, `stride` apart.
struct Piece {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  std::size_t rank = 0;
  std::int64_t rows = 1;
  std::int64_t stride = 0;
};

/// Returns the runs of all pieces, in the order of the tensor.
std::vector<Piece> runs_of(const std::vector<Piece>& pieces) {
  std::vector<Piece> runs;
  for (const Piece& piece : pieces) {
    for (std::int64_t row = 0; row < piece.rows; ++row) {
      runs.push_back({.begin = piece.begin + row * piece.stride, .count = piece.count, .rank = piece.rank});
    }
  }
  std::sort(runs.begin(), runs.end(), [](const Piece& a, const Piece& b) { return a.begin < b.begin; });
  return runs;
}

struct Given {
  weights::TensorHeader header;
  std::size_t rank = 0;  ///< the first rank with this tensor
  std::vector<Piece> pieces;
};

void check_cover(const Given& given, const std::vector<Piece>& pieces) {
  const std::string tensor = "tensor '" + given.header.name + "' " + weights::shape_text(given.header.shape);
  std::int64_t at = 0;
  std::size_t before = 0;
  for (const Piece& piece : pieces) {
    if (piece.begin < at) {
      throw Error({.what = "elements of a tensor are given to a checkpoint twice",
                   .found = "from element " + std::to_string(piece.begin) + ", by ranks " +
                            std::to_string(before) + " and " + std::to_string(piece.rank),
                   .where = tensor});
    }
    if (piece.begin > at) break;
    at += piece.count;
    before = piece.rank;
  }
  const std::int64_t count = element_count(given.header.shape, given.header.name);
  if (at != count) {
    throw Error({.what = "elements of a tensor are given to a checkpoint by no rank",
                 .expected = std::to_string(count) + " elements",
                 .found = "none from element " + std::to_string(at),
                 .where = tensor});
  }
}

}  // namespace

std::string describe(const std::vector<TensorSlice>& slices) {
  Packer packer;
  for (const auto& slice : slices) {
    check_inside(slice);
    check(slice.count == 0 || slice.data != nullptr, "a slice has no data");
    packer.header({slice.name, slice.dtype, slice.shape}).number(slice.begin);
    // Uses the runs of each_run, because save() writes and hashes the chunks inside these runs.
    const bool one = slice.one_run();
    packer.number(one ? slice.elements() : slice.count).number(one ? 1 : slice.rows).number(slice.stride);
  }
  return packer.packed();
}

Coverage cover(const std::vector<std::string>& descriptions) {
  std::map<std::string, Given> by_name;
  for (std::size_t rank = 0; rank < descriptions.size(); ++rank) {
    for (Unpacker unpacker(descriptions[rank]); !unpacker.done();) {
      weights::TensorHeader header = unpacker.header();
      const std::int64_t begin = unpacker.number(), count = unpacker.number();
      const std::int64_t rows = unpacker.number(), stride = unpacker.number();
      Given& given = by_name.try_emplace(header.name, Given{header, rank, {}}).first->second;
      if (given.header.shape != header.shape || given.header.dtype != header.dtype) {
        const auto text = [](const weights::TensorHeader& h) {
          return std::string(name_of(h.dtype)) + weights::shape_text(h.shape);
        };
        throw Error({.what = "ranks disagree about a tensor of a checkpoint",
                     .expected = text(given.header) + " as on rank " + std::to_string(given.rank),
                     .found = text(header) + " on rank " + std::to_string(rank),
                     .where = "tensor '" + header.name + "'"});
      }
      if (count > 0) given.pieces.push_back({begin, count, rank, rows, stride});
    }
  }
  Coverage coverage;
  for (auto& [name, given] : by_name) {
    const std::vector<Piece> runs = runs_of(given.pieces);
    check_cover(given, runs);
    const auto width = static_cast<std::int64_t>(size_of(given.header.dtype));
    for (std::size_t i = 1; i < runs.size(); ++i) {
      const std::int64_t boundary = runs[i].begin * width;
      const std::pair chunk(coverage.tensors.size(), boundary / kChunkBytes);
      if (boundary % kChunkBytes != 0 && (coverage.cut_chunks.empty() || coverage.cut_chunks.back() != chunk))
        coverage.cut_chunks.push_back(chunk);
    }
    coverage.tensors.push_back(std::move(given.header));
  }
  return coverage;
}

}  // namespace octet::checkpoint
