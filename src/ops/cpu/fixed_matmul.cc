// GEMMs with bits that do not depend on the number of threads. oneDNN divides the inner dimension by this
// number, which changes the order of sums. Each call of oneDNN therefore uses one thread and a piece of D
// with a size that depends only on D and the inner dimension. Threads share the pieces.
#include <omp.h>

#include <algorithm>
#include <exception>
#include <mutex>

#include "cpu/matmul.h"
#include "octet/device/cpu.h"

namespace octet::ops::cpu {
namespace {

constexpr std::int64_t kRows = 256;  ///< most rows of a piece
/// Least columns of a piece if D is divided by columns. Pieces begin at multiples.
constexpr std::int64_t kMinCols = 64;
constexpr std::int64_t kPieces = 16;  ///< wanted number of pieces, so that threads can share the work
constexpr double kPieceWork = 4e6;    ///< least multiplications of a piece, to amortise the call

/// Division of D into pieces: by rows, and also by columns if there would be too few pieces or very wide
/// ones.
struct Grid {
  std::int64_t m = 0, n = 0;        ///< size of D
  std::int64_t rows = 0, cols = 0;  ///< size of a piece; smaller at the edges
  std::int64_t down() const { return (m + rows - 1) / rows; }
  std::int64_t across() const { return (n + cols - 1) / cols; }
  std::int64_t pieces() const { return down() * across(); }
};

Grid grid_of(const MatmulShape& shape) {
  Grid grid{.m = shape.m, .n = shape.n, .rows = std::min(kRows, shape.m)};
  const double work =
      static_cast<double>(shape.m) * static_cast<double>(shape.n) * static_cast<double>(shape.k);
  const auto worth = static_cast<std::int64_t>(std::min(work / kPieceWork, double{kPieces}));
  const std::int64_t wanted = std::max<std::int64_t>(1, worth / grid.down());
  const std::int64_t width = (shape.n + wanted - 1) / wanted;
  grid.cols = std::clamp((width + kMinCols - 1) / kMinCols * kMinCols, kMinCols, 16 * kMinCols);
  return grid;
}

std::int64_t stride_of(std::int64_t ld, std::int64_t dense) {
  return ld == 0 ? dense : ld;
}

const void* element(const void* data, DType dtype, std::int64_t index) {
  return static_cast<const std::uint8_t*>(data) + static_cast<std::size_t>(index) * size_of(dtype);
}

/// The GEMM of rows [row, row + m) and columns [col, col + n) of D.
struct Piece {
  MatmulShape shape;
  MatmulData data;
};
Piece piece_of(const MatmulShape& whole, const MatmulData& data, const Grid& grid, std::int64_t index) {
  const std::int64_t row = index / grid.across() * grid.rows, col = index % grid.across() * grid.cols;
  Piece piece{whole, data};
  piece.shape.m = std::min(grid.rows, whole.m - row);
  piece.shape.n = std::min(grid.cols, whole.n - col);
  piece.shape.lda = stride_of(whole.lda, whole.a_transposed ? whole.m : whole.k);
  piece.shape.ldb = stride_of(whole.ldb, whole.b_transposed ? whole.k : whole.n);
  piece.shape.threads = 1;
  piece.data.a = element(data.a, whole.operands, whole.a_transposed ? row : row * piece.shape.lda);
  piece.data.b = element(data.b, whole.operands, whole.b_transposed ? col * piece.shape.ldb : col);
  piece.data.d = const_cast<void*>(element(data.d, whole.result, row * whole.ldd + col));
  if (data.bias != nullptr) piece.data.bias = data.bias + col;
  return piece;
}

std::size_t scratch_of_piece(const MatmulShape& shape, const Grid& grid) {
  const OneThread one;
  std::size_t most = 0;
  // Each of the four piece sizes occurs in the first or last row and column of pieces.
  for (const std::int64_t down : {std::int64_t{0}, grid.down() - 1}) {
    for (const std::int64_t across : {std::int64_t{0}, grid.across() - 1}) {
      const Piece piece = piece_of(shape, {}, grid, down * grid.across() + across);
      most = std::max(most, matmul_scratch(piece.shape));
    }
  }
  return (most + 255) / 256 * 256;
}

/// Returns the number of threads that may take pieces.
int team(const MatmulShape& shape, const Grid& grid) {
  if (octet::cpu::claims()) return std::max({1, shape.threads, octet::cpu::op_threads()});
  return static_cast<int>(std::min<std::int64_t>(std::max(1, shape.threads), grid.pieces()));
}

}  // namespace

std::size_t fixed_matmul_scratch(const MatmulShape& shape) {
  const Grid grid = grid_of(shape);
  return scratch_of_piece(shape, grid) * static_cast<std::size_t>(team(shape, grid));
}

void fixed_matmul(const MatmulShape& shape, const MatmulData& data) {
  const Grid grid = grid_of(shape);
  const int threads = team(shape, grid);
  const std::size_t each = data.scratch_bytes / static_cast<std::size_t>(threads) / 256 * 256;
  std::exception_ptr failure;
  std::mutex failing;
  const auto work = [&](std::int64_t index, int who) {
    const OneThread one;
    Piece piece = piece_of(shape, data, grid, index);
    piece.data.scratch = static_cast<std::uint8_t*>(data.scratch) + each * static_cast<std::size_t>(who);
    piece.data.scratch_bytes = data.scratch == nullptr ? 0 : each;
    try {
      matmul(piece.shape, piece.data);
    } catch (...) {
      const std::lock_guard lock(failing);
      failure = std::current_exception();
    }
  };
  if (octet::cpu::claims()) {
    octet::cpu::share(static_cast<int>(grid.pieces()), work);
  } else {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
    for (std::int64_t index = 0; index < grid.pieces(); ++index) work(index, omp_get_thread_num());
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace octet::ops::cpu
