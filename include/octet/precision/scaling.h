// The precision room: number formats and scales of GEMM operands. FP8 is a property of operands, not of
// layers. A recipe turns a tensor into an FP8 operand with its scale. The core multiplies operands and does
// not depend on the recipe. The formats of all GEMMs are counted (audit.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/base/tensor_slice.h"
#include "octet/device/device.h"
#include "octet/ops/types.h"

namespace octet::precision {

/// none: GEMMs in the compute dtype. delayed: scale from a history of amaxes (Micikevicius et al. 2022;
/// the update rule of TransformerEngine). current: scale from the tensor itself. block: E4M3 throughout,
/// scales for 1 x 128 elements of activations and gradients and for 128 x 128 elements of weights
/// (ops::Scaling), computed when a GEMM reads them. There is no state, and weights are stored and sent in the
/// compute dtype. rows: E4M3 with one scale per token of activations, computed with them, and one per output
/// of weights, computed when they are loaded. All scales are powers of two. Only for forward passes.
enum class RecipeKind { none, delayed, current, block, rows };

struct Recipe {
  RecipeKind kind = RecipeKind::none;
  DType compute = DType::f32;           ///< of activations and of GEMMs that are not FP8: f32 or bf16
  DType forward_format = DType::e4m3;   ///< inputs and weights
  DType gradient_format = DType::e5m2;  ///< output gradients (HYBRID)
  std::int64_t history_length = 1024;
  bool most_recent = false;  ///< amax_compute_algo: most_recent instead of max
  int margin = 0;
  /// true: matrices that are multiplied in one GEMM (q, k and v; gate and up) have separate scales for
  /// weights and output gradients. false: they share one scale.
  bool scale_parts = false;
  /// GEMMs of gradients also use ops::GemmArgs::fast_accumulation, not only forward GEMMs.
  bool fast_gradients = false;
  bool fp8() const { return kind != RecipeKind::none; }
  bool blocks() const { return kind == RecipeKind::block; }
  bool rows() const { return kind == RecipeKind::rows; }
  /// Whether scales of activations are computed together with their FP8 values. No ScaleSet then has them.
  bool scales_with_values() const { return blocks() || rows(); }
  /// Returns the scaling of FP8 activations and gradients.
  ops::Scaling scaling() const {
    if (rows()) return ops::Scaling::whole_rows;
    return blocks() ? ops::Scaling::rows : ops::Scaling::tensor;
  }
};

/// The scales of a set of tensors that are updated at the same times: weights once per optimizer step,
/// activations and gradients once per micro-batch. All arrays are in device memory, with one entry per
/// tensor.
class ScaleSet {
 public:
  /// Reserves the arrays under `name`. Scales start at 1, histories at 0.
  ScaleSet(Arena& arena, const std::string& name, const Recipe& recipe, std::vector<DType> formats,
           std::vector<std::string> tensor_names);

  std::int64_t count() const { return static_cast<std::int64_t>(formats_.size()); }
  DType format(std::int64_t i) const { return formats_[static_cast<std::size_t>(i)]; }
  const float* scale(std::int64_t i) const { return scale_ + i; }
  /// Aligned to 16 bytes, as GEMMs on a GPU require.
  const float* scale_inv(std::int64_t i) const { return scale_inv_ + i * kInverseStride; }
  /// Staging slots. Producers raise them, they are MAX-reduced over the ranks as one array, and update()
  /// reads them.
  float* amax(std::int64_t i) const { return amax_ + i; }
  float* amaxes() const { return amax_; }

  /// Delayed scaling: the amaxes of one part of a micro-batch may be reduced over the ranks while the next
  /// part collects more. Part 0 is the forward pass, part 1 the rest.
  static constexpr int kParts = 2;
  /// Moves the amaxes raised so far to the slots of a part, and zeroes the staging slots. Returns the slots
  /// of the part, [count].
  float* set_aside(Stream& stream, int part);
  /// Like update(), but reads the slots of a part. Tensors without an amax there are not written, because
  /// work in flight may read their scales.
  void update_from(Stream& stream, int part);

  /// delayed: takes the amaxes into the histories and sets the scales. current: sets the scales from the
  /// amaxes. Both zero the amaxes.
  void update(Stream& stream) { update(stream, 0, count()); }
  /// The same for the tensors [first, first + count) alone.
  void update(Stream& stream, std::int64_t first, std::int64_t count);
  /// current: sets scale and scale_inv of one tensor from its staging slot, and zeroes the slot.
  void update_one(Stream& stream, std::int64_t i);

  /// delayed: copies the scales of `from`, a set of the same tensors, without amaxes and histories. `from`
  /// must not be written meanwhile.
  void take(Stream& stream, const ScaleSet& from);

  /// delayed: state() was read from a checkpoint.
  void restore(Stream& stream);

  /// Scales and histories as named tensors for checkpoints: "<name>/scale", and "<name>/amax_history"
  /// [length, count] if the recipe has a history. The data pointers are device memory.
  std::vector<TensorSlice> state() const;
  const std::vector<std::string>& tensor_names() const { return tensor_names_; }

 private:
  static constexpr std::int64_t kInverseStride = 4;  ///< 16 bytes

  void update_delayed(Stream& stream, float* amaxes, std::int64_t first, std::int64_t count);

  Recipe recipe_;
  std::string name_;
  std::vector<DType> formats_;
  std::vector<std::string> tensor_names_;
  std::uint8_t* device_formats_ = nullptr;
  float* amax_ = nullptr;
  float* aside_ = nullptr;    ///< [kParts, count], with delayed scaling
  float* history_ = nullptr;  ///< [history_length, count]
  float* scale_ = nullptr;
  float* scale_inv_ = nullptr;  ///< [count, kInverseStride], the first of each row
};

}  // namespace octet::precision
