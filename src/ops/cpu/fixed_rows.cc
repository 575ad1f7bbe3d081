// Forward GEMMs with independent rows: a token has the same bits in single-token decoding, in a decoding
// batch and in a training micro-batch. oneDNN chooses its kernel, and thereby the order of each sum, by the
// shape. It therefore receives only blocks of a few heights, packed alike, with a number of columns that
// depends on n and k only. Missing rows are filled with zeros. oneDNN guarantees nothing about rows inside a
// block. Two assumptions are therefore tested when a shape first comes, on random values that give different
// bits for different orders of summation. First, a row's bits do not depend on its place in a block of kLeast
// rows; otherwise rows are computed one by one. Second, higher blocks, which are faster, give the bits of the
// lowest blocks.
#include <omp.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <vector>

#include "cpu/matmul.h"
#include "octet/base/error.h"

namespace octet::ops::cpu {
namespace {

/// Heights of blocks in rows, lowest first.
constexpr std::array<std::int64_t, 3> kHeights{16, 64, 256};
constexpr std::int64_t kLeast = kHeights.front();
constexpr std::int64_t kColumnUnit = 64;  ///< a block's columns are a multiple of it, except the last block's
constexpr std::int64_t kMostColumns = 1024;
/// Least multiplications per call of the lowest block, to amortise the call.
constexpr double kBlockWork = 1.6e7;

std::size_t aligned(std::int64_t count, DType dtype) {
  const auto bytes = static_cast<std::size_t>(count) * size_of(dtype);
  return (bytes + 255) / 256 * 256;
}

/// Returns the columns of a block of D. They depend on n and k only, so that threads can share the work even
/// if there are few rows.
std::int64_t columns_of(const MatmulShape& shape) {
  const double worth = kBlockWork / static_cast<double>(kLeast * shape.k);
  const auto units = static_cast<std::int64_t>(worth / static_cast<double>(kColumnUnit)) + 1;
  return std::min({units * kColumnUnit, kMostColumns, shape.n});
}

/// Returns the shape of a block: `rows` dense rows of A and `cols` columns of B.
MatmulShape block_shape(const MatmulShape& whole, std::int64_t rows, std::int64_t cols) {
  MatmulShape block = whole;
  block.m = rows;
  block.n = cols;
  block.lda = 0;
  block.ldb = whole.ldb != 0 ? whole.ldb : whole.b_transposed ? whole.k : whole.n;
  block.ldd = cols;
  block.threads = 1;
  return block;
}

/// Returns pseudo-random values between -1 and 1 in fp32 or bf16.
std::vector<std::byte> random_values(std::int64_t count, DType dtype, std::uint64_t seed) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count) * size_of(dtype));
  std::uint64_t state = seed;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX
    const float x = static_cast<float>(static_cast<std::int32_t>(state >> 32)) * 0x1p-31f;
    if (dtype == DType::bf16) {
      const std::uint16_t narrow = to_bf16(x);
      std::memcpy(bytes.data() + 2 * i, &narrow, 2);
    } else {
      std::memcpy(bytes.data() + 4 * i, &x, 4);
    }
  }
  return bytes;
}

/// A block's GEMM on random values, computed in blocks of a given height.
class Trial {
 public:
  explicit Trial(const MatmulShape& block) : block_(block) {
    const std::int64_t b_rows = block.b_transposed ? block.n : block.k;
    a_ = random_values(kHeights.back() * block.k, block.operands, 1);
    b_ = random_values(b_rows * block.ldb, block.operands, 2);
    bias_.assign(static_cast<std::size_t>(block.n), 0.25f);
    // Some kernels start a sum with the old value, others add it at the end.
    if (block.accumulate) before_ = random_values(kHeights.back() * block.n, block.result, 3);
  }
  /// Returns rows [first, first + height) of the result, computed in blocks of `by` rows.
  std::vector<std::byte> rows(std::int64_t first, std::int64_t height, std::int64_t by) const {
    MatmulShape shape = block_;
    shape.m = by;
    const std::size_t a_row = static_cast<std::size_t>(block_.k) * size_of(block_.operands);
    const std::size_t d_row = static_cast<std::size_t>(block_.n) * size_of(block_.result);
    std::vector<std::byte> d(static_cast<std::size_t>(height) * d_row);
    if (block_.accumulate) {
      const auto begin = before_.begin() + first * static_cast<std::int64_t>(d_row);
      d.assign(begin, begin + std::ssize(d));
    }
    for (std::int64_t row = 0; row < height; row += by) {
      matmul(shape, {.a = a_.data() + static_cast<std::size_t>(first + row) * a_row,
                     .b = b_.data(),
                     .d = d.data() + static_cast<std::size_t>(row) * d_row,
                     .scale = 0.75f,
                     .bias = bias_.data()});
    }
    return d;
  }
  /// Returns whether a row has the same bits at each place of a block of kLeast rows: each row is shifted to
  /// each place.
  bool places_are_alike() const {
    const std::size_t d_row = static_cast<std::size_t>(block_.n) * size_of(block_.result);
    const std::vector<std::byte> whole = rows(0, 2 * kLeast, kLeast);
    for (std::int64_t shift = 1; shift < kLeast; ++shift) {
      const std::vector<std::byte> shifted = rows(shift, kLeast, kLeast);
      if (std::memcmp(shifted.data(), whole.data() + static_cast<std::size_t>(shift) * d_row,
                      shifted.size()) != 0)
        return false;
    }
    return true;
  }
  bool height_is_alike(std::int64_t height) const {
    return rows(0, height, height) == rows(0, height, kLeast);
  }

 private:
  MatmulShape block_;
  std::vector<std::byte> a_, b_, before_;
  std::vector<float> bias_;
};

/// Test results of a block's shape: whether each height may be used.
struct Alike {
  bool places = false;
  std::array<bool, kHeights.size()> tried{}, good{};
};

/// Returns the greatest usable block height for up to `rows` rows that preserves the order of sums. Returns 1
/// if rows must be computed one by one. Tests shapes that come for the first time.
std::int64_t height_for(const MatmulShape& block, std::int64_t rows) {
  static std::mutex mutex;
  static std::map<MatmulShape, Alike> known;
  const std::lock_guard lock(mutex);
  MatmulShape key = block;
  key.m = 0;
  auto found = known.find(key);
  if (found == known.end()) {
    const OneThread one;
    Alike alike{.places = Trial(block).places_are_alike()};
    alike.tried.front() = alike.good.front() = true;
    found = known.emplace(key, alike).first;
  }
  Alike& alike = found->second;
  if (!alike.places) return 1;
  std::int64_t height = kLeast;
  for (std::size_t i = 1; i < kHeights.size() && kHeights[i] <= rows; ++i) {
    if (!alike.tried[i]) {
      const OneThread one;
      alike.good[i] = Trial(block).height_is_alike(kHeights[i]);
      alike.tried[i] = true;
    }
    if (alike.good[i]) height = kHeights[i];
  }
  return height;
}

/// A block of D: rows [row, row + rows), computed by a GEMM of `height` rows, and columns [col, col + cols).
struct Block {
  std::int64_t row = 0, rows = 0, height = 0;
  std::int64_t col = 0, cols = 0;
};

std::vector<Block> blocks_of(const MatmulShape& shape) {
  std::vector<Block> blocks;
  const std::int64_t width = columns_of(shape);
  for (std::int64_t col = 0; col < shape.n; col += width) {
    const std::int64_t cols = std::min(width, shape.n - col);
    const MatmulShape block = block_shape(shape, kLeast, cols);
    for (std::int64_t row = 0; row < shape.m;) {
      const std::int64_t height = height_for(block, shape.m - row), rows = std::min(height, shape.m - row);
      blocks.push_back({row, rows, height, col, cols});
      row += rows;
    }
  }
  return blocks;
}

/// Scratch of a thread: a packed block of A, a block of D, and oneDNN's scratch.
struct Room {
  std::size_t a_bytes = 0, d_bytes = 0, library_bytes = 0;
  std::size_t bytes() const { return a_bytes + d_bytes + library_bytes; }
};

Room room_of(const MatmulShape& shape) {
  const OneThread one;
  const std::int64_t width = columns_of(shape), last = (shape.n - 1) % width + 1;
  Room room{.a_bytes = aligned(kHeights.back() * shape.k, shape.operands),
            .d_bytes = aligned(kHeights.back() * width, shape.result)};
  for (const std::int64_t cols : {width, last}) {
    for (const std::int64_t height : kHeights) {
      room.library_bytes = std::max(room.library_bytes, matmul_scratch(block_shape(shape, height, cols)));
    }
  }
  room.library_bytes = (room.library_bytes + 255) / 256 * 256;
  return room;
}

/// A copy of rows from one array into another. The arrays must not overlap.
struct Copy {
  const void* from;
  std::int64_t from_ld;
  void* to;
  std::int64_t to_ld;
  DType dtype;
};
void copy_rows(const Copy& c, std::int64_t rows, std::int64_t cols) {
  const std::size_t size = size_of(c.dtype), bytes = static_cast<std::size_t>(cols) * size;
  for (std::int64_t r = 0; r < rows; ++r) {
    std::memcpy(static_cast<std::byte*>(c.to) + static_cast<std::size_t>(r * c.to_ld) * size,
                static_cast<const std::byte*>(c.from) + static_cast<std::size_t>(r * c.from_ld) * size,
                bytes);
  }
}

void multiply_block(const MatmulShape& shape, const MatmulData& data, const Block& block, const Room& room,
                    std::byte* scratch) {
  const MatmulShape piece = block_shape(shape, block.height, block.cols);
  const std::int64_t lda = shape.lda != 0 ? shape.lda : shape.k;
  const auto* a = static_cast<const std::byte*>(data.a) +
                  static_cast<std::size_t>(block.row * lda) * size_of(shape.operands);
  auto* d = static_cast<std::byte*>(data.d) +
            static_cast<std::size_t>(block.row * shape.ldd + block.col) * size_of(shape.result);
  const std::int64_t b_at = shape.b_transposed ? block.col * piece.ldb : block.col;
  MatmulData of{
      .a = a,
      .b = static_cast<const std::byte*>(data.b) + static_cast<std::size_t>(b_at) * size_of(shape.operands),
      .d = scratch + room.a_bytes,
      .scale = data.scale,
      .bias = data.bias != nullptr ? data.bias + block.col : nullptr,
      .scratch = scratch + room.a_bytes + room.d_bytes,
      .scratch_bytes = room.library_bytes};
  if (lda != shape.k || block.rows < block.height) {
    const auto row_bytes = static_cast<std::size_t>(shape.k) * size_of(shape.operands);
    copy_rows({a, lda, scratch, shape.k, shape.operands}, block.rows, shape.k);
    std::memset(scratch + static_cast<std::size_t>(block.rows) * row_bytes, 0,
                static_cast<std::size_t>(block.height - block.rows) * row_bytes);
    of.a = scratch;
  }
  const bool in_place = shape.ldd == block.cols && block.rows == block.height;
  if (in_place) {
    of.d = d;
  } else if (shape.accumulate) {
    std::memset(of.d, 0, static_cast<std::size_t>(block.height * block.cols) * size_of(shape.result));
    copy_rows({d, shape.ldd, of.d, block.cols, shape.result}, block.rows, block.cols);
  }
  matmul(piece, of);
  if (!in_place) copy_rows({of.d, block.cols, d, shape.ldd, shape.result}, block.rows, block.cols);
}

/// Returns the most threads that share the GEMM.
int team(const MatmulShape& shape, std::size_t blocks) {
  return static_cast<int>(std::clamp<std::int64_t>(
      shape.threads, 1, static_cast<std::int64_t>(std::max<std::size_t>(1, blocks))));
}

}  // namespace

std::size_t fixed_rows_matmul_scratch(const MatmulShape& shape) {
  return room_of(shape).bytes() * static_cast<std::size_t>(std::max(1, shape.threads));
}

void fixed_rows_matmul(const MatmulShape& shape, const MatmulData& data) {
  check(!shape.a_transposed, "rows that are summed in one order lie in rows");
  const std::vector<Block> blocks = blocks_of(shape);
  const Room room = room_of(shape);
  const int threads = team(shape, blocks.size());
  std::vector<std::byte> own;
  auto* scratch = static_cast<std::byte*>(data.scratch);
  if (data.scratch_bytes < room.bytes() * static_cast<std::size_t>(threads)) {  // more threads than planned
    own.resize(room.bytes() * static_cast<std::size_t>(threads) + 256);
    scratch = own.data() + (256 - reinterpret_cast<std::uintptr_t>(own.data()) % 256) % 256;
  }
  std::exception_ptr failure;
#pragma omp parallel num_threads(threads) if (threads > 1)
  {
    const OneThread one;
    std::byte* mine = scratch + room.bytes() * static_cast<std::size_t>(omp_get_thread_num());
#pragma omp for schedule(dynamic, 1)
    for (std::size_t index = 0; index < blocks.size(); ++index) {
      try {
        multiply_block(shape, data, blocks[index], room, mine);
      } catch (...) {
#pragma omp critical
        failure = std::current_exception();
      }
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace octet::ops::cpu
