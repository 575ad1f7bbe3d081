// Memory of activations, all of it reserved before the first micro-batch.
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

/// Bytes of a [rows, cols] matrix; throws Error where no memory has them.
std::size_t bytes_of(std::int64_t rows, std::int64_t cols, DType dtype);

/// Until when what a block leaves in a buffer is read. Where that is past the next block's turn, every block
/// has a buffer of its own; else all blocks use one, as large as the largest of them needs.
enum class Kept {
  stream,       ///< until backward at every level of recomputation
  activations,  ///< until backward, but not with Recompute::full
  qkv,          ///< the same, but not with Recompute::qkv either
  never,        ///< not when the next block begins
};

/// Hands out the buffers of blocks.
class BlockBuffers {
 public:
  BlockBuffers(Arena& arena, const TransformerOptions& options, DType dtype)
      : arena_(arena), options_(options), dtype_(dtype) {}

  /// Of the block whose turn it is: whether a backward pass reads anything of it. Where it does not, all such
  /// blocks share their buffers.
  void set_kept(bool kept) { kept_ = kept; }

  /// Calls `reserve(block)` for the blocks [first, last), which takes that block's buffers, the same ones
  /// each time: first to learn what the largest one needs of what they share, then to hand them out.
  void reserve(int first, int last, const std::function<void(int)>& reserve);

  /// Null while the needs are being learned.
  void* take(const char* name, std::size_t bytes, Kept kept);
  /// Dense, in the compute dtype, of the most tokens of a micro-batch.
  ops::Matrix matrix(const char* name, std::int64_t cols, Kept kept);
  /// A number for each token and column.
  float* floats(const char* name, std::int64_t cols, Kept kept);

 private:
  bool own(Kept kept) const;

  /// What all blocks use under one name.
  struct Region {
    std::size_t used = 0;     ///< by the block whose turn it is
    std::size_t largest = 0;  ///< that a block uses
    std::byte* data = nullptr;
  };

  Arena& arena_;
  const TransformerOptions& options_;
  DType dtype_;
  bool learning_ = true;
  bool kept_ = true;
  std::map<std::string, Region> regions_;
};

/// What an FP8 copy of at most [rows, cols] is to hold.
struct CopyShape {
  std::int64_t rows = 0, cols = 0;
  bool row = true, transposed = true;
  ops::Scaling scaling = ops::Scaling::tensor;
};

/// Its memory, of which `take` gives so many bytes a call.
precision::Fp8Copy take_copy(const CopyShape& shape, const std::function<void*(std::size_t)>& take);

}  // namespace octet::model
