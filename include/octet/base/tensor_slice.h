// A piece of a named tensor in host memory: the currency between parameter stores, checkpoints and exports.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/base/dtype.h"

namespace octet {

/// Elements of the tensor `name`: `rows` runs of `count` elements each. The first run starts at element
/// `begin` (row-major order) and at `data` (host memory). Each further run starts `stride` elements later in
/// the tensor and `pitch` elements later in memory. One run is any range of the flat tensor, independent of
/// its rows (a slice of a segment, an expert, a block of 64 elements). Several runs are a block of rows and
/// columns.
struct TensorSlice {
  std::string name;  ///< "model.layers.0.mlp.down_proj.weight", "exp_avg/…"
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  ///< of the whole tensor
  std::int64_t begin = 0;
  std::int64_t count = 0;
  void* data = nullptr;
  std::int64_t rows = 1;
  std::int64_t stride = 0;  ///< of several runs: at least count
  std::int64_t pitch = 0;   ///< of several runs: at least count

  std::int64_t elements() const { return rows * count; }
  /// Its runs have no gaps between them, neither in the tensor nor in memory.
  bool one_run() const { return rows <= 1 || (stride == count && pitch == count); }
  /// No gaps between its elements in memory.
  bool dense() const { return rows <= 1 || pitch == count; }
};

/// act(begin, count, data) for every run, in order; runs without gaps between them are one.
template <typename Do>
void each_run(const TensorSlice& slice, Do&& act) {
  if (slice.one_run()) {
    act(slice.begin, slice.elements(), slice.data);
    return;
  }
  auto* data = static_cast<std::byte*>(slice.data);
  for (std::int64_t row = 0; row < slice.rows; ++row) {
    act(slice.begin + row * slice.stride, slice.count, static_cast<void*>(data));
    if (data != nullptr) data += static_cast<std::size_t>(slice.pitch) * size_of(slice.dtype);
  }
}

/// The block of a tensor that takes `sizes[d]` indices from `starts[d]` on of its dimension d, dense in
/// row-major order at `data`: one slice for each two-dimensional part of it, which is one slice for any block
/// of a matrix. Throws std::logic_error for a block outside of the tensor. `tensor`: name, dtype, shape.
std::vector<TensorSlice> block_of(const TensorSlice& tensor, const std::vector<std::int64_t>& starts,
                                  const std::vector<std::int64_t>& sizes, void* data);

/// Throws std::logic_error for a slice that exceeds its tensor, or has overlapping runs.
void check_inside(const TensorSlice& slice);

/// Product of the extents; throws Error when one is negative or the product overflows.
std::int64_t element_count(const std::vector<std::int64_t>& shape, const std::string& name);

}  // namespace octet
