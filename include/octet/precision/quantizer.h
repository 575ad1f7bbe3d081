#pragma once

#include <memory>
#include <string>
#include <vector>

#include "octet/precision/casts.h"
#include "octet/precision/scaling.h"

namespace octet::precision {

/// Memory for the FP8 copy of a matrix [rows, cols]: one byte an element in each layout that is wanted, and
/// with scales of blocks ops::scale_count floats for each.
struct Fp8Copy {
  std::uint8_t* row = nullptr;         ///< [rows, cols]
  std::uint8_t* transposed = nullptr;  ///< [cols, rows]; null where products do not need it
  float* scales = nullptr;
  float* transposed_scales = nullptr;
};

/// What a tensor is to its product; decides its FP8 format.
enum class TensorRole { input, output_gradient };

struct QuantizedTensor {
  std::string name;  ///< "layers.0.qkv/input"
  TensorRole role = TensorRole::input;
  /// Columns with a scale each, in order, covering the tensor; empty: one scale. Copies of such columns lie
  /// one behind the other, each a dense matrix, and are made when the whole tensor is there.
  std::vector<std::int64_t> parts;
};

/// Turns activations and output gradients into operands as the recipe says. Tensors are known by their index
/// into the list given at construction; index kPlain stands for one that stays in the compute dtype.
///
/// A producer that can write FP8 itself asks `fuse` what to write while it makes the matrix and then calls
/// `finish` (`finish_parts` where a tensor may have several scales); for any other matrix, `prepare` does
/// both. `record` is false in recomputation and evaluation: amaxes then do not enter the histories of delayed
/// scaling.
class Quantizer {
 public:
  static constexpr std::int64_t kPlain = -1;

  /// `weights`: names of those that weight() makes.
  Quantizer(Arena& arena, const std::string& name, const Recipe& recipe,
            const std::vector<QuantizedTensor>& tensors, const std::vector<std::string>& weights = {});

  const Recipe& recipe() const { return recipe_; }
  /// True when products read transposed copies, so that Fp8Copy::transposed is needed: the device's do, or
  /// the copies differ.
  bool transposes() const { return transposes_; }
  /// True when tensor `i` must exist in the compute dtype before it is quantised: always but with delayed
  /// scaling of a tensor with one scale, and with scales of rows, whose producers may write FP8 alone.
  bool needs_values(std::int64_t i) const {
    return i == kPlain || (recipe_.kind != RecipeKind::delayed && !recipe_.rows()) || in_parts(i);
  }

  /// What a producer of tensor `i` writes beside (delayed: instead of) the matrix itself. Nothing for kPlain;
  /// the amax for current scaling; the FP8 copy and, with `record`, the amax for delayed scaling; the FP8
  /// copy and its scales with scales of rows.
  ops::QuantizeInto fuse(std::int64_t i, const Fp8Copy& copy, bool record) const;

  /// The operand of tensor `i` after its producer ran with fuse(i, copy, …). `x` [rows, cols], dense; its
  /// data may be null when needs_values(i) is false. The operand points into `copy`, or is `x` itself for
  /// kPlain.
  ops::Operand finish(Stream& stream, std::int64_t i, const ops::ConstMatrix& x, const Fp8Copy& copy);

  /// The same as one operand for each scale of tensor `i`, in the order of its columns; `x` has values where
  /// there are several.
  std::vector<ops::Operand> finish_parts(Stream& stream, std::int64_t i, const ops::ConstMatrix& x,
                                         const Fp8Copy& copy, bool record);

  /// The operand of a finished matrix: amax, scale and cast, or the cast alone, or nothing.
  ops::Operand prepare(Stream& stream, std::int64_t i, const ops::ConstMatrix& x, const Fp8Copy& copy,
                       bool record);

  /// The same as one operand for each scale of tensor `i`.
  std::vector<ops::Operand> prepare_parts(Stream& stream, std::int64_t i, const ops::ConstMatrix& x,
                                          const Fp8Copy& copy, bool record) {
    if (in_parts(i)) return finish_parts(stream, i, x, copy, record);
    return {prepare(stream, i, x, copy, record)};
  }

  /// The operand of a weight for a product, made now, with the recipe `block`; `copy` has the layouts that
  /// the product is to read. `i` is its index among the names of weights, where what the cast of its
  /// row copy meets is told; kPlain: nowhere.
  ops::Operand weight(Stream& stream, std::int64_t i, const ops::ConstMatrix& w, const Fp8Copy& copy) const;

  /// What casts of all tensors and weights meet while they are watched: those that are recorded, and with
  /// current scaling and scales of blocks those of recomputation again. Null without FP8.
  CastStatistics* casts() { return casts_.get(); }
  /// The same by name, as collected last.
  std::vector<CastRow> cast_rows() const;

  /// Scales of all tensors and parts, in their order; null when the recipe is not FP8 or has none to keep.
  /// With delayed scaling its owner reduces the amaxes over the ranks by MAX and calls update once a
  /// micro-batch.
  ScaleSet* scales() { return scales_.get(); }
  const ScaleSet* scales() const { return scales_.get(); }

 private:
  ops::Operand operand(std::int64_t scale, const ops::ConstMatrix& x, const Fp8Copy& copy) const;
  ops::QuantizeInto into(std::int64_t scale, const Fp8Copy& copy, bool record) const;
  ops::Operand finish_scale(Stream& stream, std::int64_t scale, const ops::ConstMatrix& x,
                            const Fp8Copy& copy);
  ops::Operand prepare_scale(Stream& stream, std::int64_t scale, const ops::ConstMatrix& x,
                             const Fp8Copy& copy, bool record);
  std::int64_t scale_of(std::int64_t i) const {
    return i == kPlain || recipe_.scales_with_values() ? i : first_[static_cast<std::size_t>(i)];
  }
  bool in_parts(std::int64_t i) const {
    return i != kPlain && !recipe_.scales_with_values() && !parts_[static_cast<std::size_t>(i)].empty();
  }
  ops::Operand in_blocks(Stream& stream, const ops::ConstMatrix& x, ops::Scaling scaling, const Fp8Copy& copy,
                         ops::Fp8Seen* seen) const;

  Recipe recipe_;
  bool transposes_ = false;
  std::unique_ptr<ScaleSet> scales_;
  /// By scale (of blocks: by tensor), and then by weight; the names alike.
  std::unique_ptr<CastStatistics> casts_;
  std::vector<std::string> cast_names_;
  std::int64_t first_weight_ = 0;
  std::vector<std::int64_t> first_;               ///< by tensor: its first scale
  std::vector<std::vector<std::int64_t>> parts_;  ///< by tensor: columns of each part; empty: one scale
};

}  // namespace octet::precision
