// Memory of activations. All of it is reserved before the first micro-batch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "octet/model/transformer.h"
#include "octet/ops/types.h"
#include "octet/precision/quantizer.h"

namespace octet::model {

/// Returns the bytes of a [rows, cols] matrix. Throws Error if they exceed the address space.
std::size_t bytes_of(std::int64_t rows, std::int64_t cols, DType dtype);

/// How long the contents of a block's buffer are needed. If they are needed after the next block begins,
/// every block has its buffer. Otherwise all blocks share one buffer with the largest size.
enum class Kept {
  stream,       ///< until backward at every level of recomputation
  activations,  ///< until backward, except with Recompute::full
  qkv,          ///< until backward, except with Recompute::full and Recompute::qkv
  never,        ///< until the next block begins
};

/// Reserves the buffers of blocks.
class BlockBuffers {
 public:
  BlockBuffers(Arena& arena, const TransformerOptions& options, DType dtype)
      : arena_(arena), options_(options), dtype_(dtype) {}

  const Device& device() const { return arena_.device(); }
  /// Sets whether backward reads activations of the current block. All blocks with false share their buffers.
  void set_kept(bool kept) { kept_ = kept; }

  /// Calls `reserve(block)` twice for each of the blocks [first, last). It takes the buffers of the block,
  /// and must take the same buffers each time. The first round finds the sizes of the shared buffers. The
  /// second round returns the buffers.
  void reserve(int first, int last, const std::function<void(int)>& reserve);

  /// Returns a buffer; null in the first round.
  void* take(const char* name, std::size_t bytes, Kept kept);
  /// Returns a dense matrix [max_tokens, cols] in the compute dtype.
  ops::Matrix matrix(const char* name, std::int64_t cols, Kept kept);
  /// Returns a dense matrix [rows, cols] in the compute dtype.
  ops::Matrix rows(const char* name, std::int64_t rows, std::int64_t cols, Kept kept);
  /// Returns an array of `count` elements.
  template <typename T>
  T* array(const char* name, std::int64_t count, Kept kept) {
    return static_cast<T*>(take(name, static_cast<std::size_t>(count) * sizeof(T), kept));
  }
  /// Returns floats [max_tokens, cols].
  float* floats(const char* name, std::int64_t cols, Kept kept);

 private:
  bool own(Kept kept) const;

  /// A buffer that all blocks share under one name.
  struct Region {
    std::size_t used = 0;     ///< bytes of the current block
    std::size_t largest = 0;  ///< most bytes of a block
    std::byte* data = nullptr;
  };

  Arena& arena_;
  const TransformerOptions& options_;
  DType dtype_;
  bool learning_ = true;
  bool kept_ = true;
  std::map<std::string, Region> regions_;
};

/// The shape of an FP8 copy of up to [rows, cols] elements.
struct CopyShape {
  std::int64_t rows = 0, cols = 0;
  bool row = true, transposed = true;
  ops::Scaling scaling = ops::Scaling::tensor;
};

/// Returns a copy with memory from `take`, which returns that many bytes per call.
precision::Fp8Copy take_copy(const CopyShape& shape, const std::function<void*(std::size_t)>& take);

}  // namespace octet::model
