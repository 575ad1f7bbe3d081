#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "octet/ops/types.h"
#include "octet/precision/scaling.h"

namespace octet::precision {

/// Statistics of the casts of one tensor to FP8, under its name: "layers.0.qkv/input", "layers.0.qkv/weight",
/// "layers.0.qkv/output_gradient". Parts with separate scales have separate rows with the same name.
struct CastRow {
  std::string name;
  ops::Fp8Seen seen{};
};

/// What casts meet while they are watched, counted where values are cast (ops::Fp8Seen). Watching changes no
/// value that is cast.
class CastStatistics {
 public:
  /// Reserves memory for so many tensors under `name`, on the device and pinned. The arena outlives this.
  CastStatistics(Arena& arena, const std::string& name, std::int64_t count);
  CastStatistics(const CastStatistics&) = delete;
  CastStatistics& operator=(const CastStatistics&) = delete;

  std::int64_t count() const { return count_; }
  /// Starts to collect statistics of casts, on `stream`. Earlier statistics are reset.
  void watch(Stream& stream);
  void stop() { watching_ = false; }
  /// The statistics to which a cast of tensor `i` adds; null if none are collected.
  ops::Fp8Seen* of(std::int64_t i) const { return watching_ ? seen_ + i : nullptr; }

  /// Enqueues the copy of all to the host.
  void collect(Stream& stream);
  /// As collected last, once that stream was waited for; zero before, and on a dry device.
  std::span<const ops::Fp8Seen> collected() const { return {host_, static_cast<std::size_t>(count_)}; }

 private:
  std::size_t bytes() const { return static_cast<std::size_t>(count_) * sizeof(ops::Fp8Seen); }

  Device& device_;
  std::int64_t count_ = 0;
  bool watching_ = false;
  ops::Fp8Seen* seen_ = nullptr;  ///< [count], device
  ops::Fp8Seen* host_ = nullptr;  ///< [count], pinned
};

/// Memory for the FP8 copy of a matrix [rows, cols]: one byte an element in each layout that is wanted, and
/// with scales of blocks ops::scale_count floats for each.
struct Fp8Copy {
  std::uint8_t* row = nullptr;         ///< [rows, cols]
  std::uint8_t* transposed = nullptr;  ///< [cols, rows]; null if GEMMs do not need it
  float* scales = nullptr;
  float* transposed_scales = nullptr;
};

/// The role of a tensor in its GEMM; decides its FP8 format.
enum class TensorRole { input, output_gradient };

struct QuantizedTensor {
  std::string name;  ///< "layers.0.qkv/input"
  TensorRole role = TensorRole::input;
  /// Ranges of columns with one scale each, in order, covering the tensor; empty: one scale. Copies of the
  /// ranges are stored one after the other, each a dense matrix, and are made when the whole tensor exists.
  std::vector<std::int64_t> parts;
};

/// Quantises activations and output gradients into GEMM operands by the recipe. Tensors are identified by
/// their index in the list given to the constructor. Index kPlain means a tensor that stays in the compute
/// dtype.
///
/// A producer that can write FP8 itself asks `fuse` what to write while it makes the matrix and then calls
/// `finish` (`finish_parts` where a tensor may have several scales); for any other matrix, `prepare` does
/// both. `record` is false in recomputation and evaluation: amaxes then do not enter the histories of delayed
/// scaling.
class Quantizer {
 public:
  static constexpr std::int64_t kPlain = -1;

  /// `weights`: names of the weights that weight() quantises.
  Quantizer(Arena& arena, const std::string& name, const Recipe& recipe,
            const std::vector<QuantizedTensor>& tensors, const std::vector<std::string>& weights = {});

  const Recipe& recipe() const { return recipe_; }
  /// True when GEMMs read transposed copies, so that Fp8Copy::transposed is needed: the device's do, or
  /// the copies differ.
  bool transposes() const { return transposes_; }
  /// True if tensor `i` must exist in the compute dtype before it is quantised. False only with delayed
  /// scaling of a tensor with one scale, and with row scales: their producers may write only FP8.
  bool needs_values(std::int64_t i) const {
    return i == kPlain || (recipe_.kind != RecipeKind::delayed && !recipe_.rows()) || in_parts(i);
  }

  /// The outputs that a producer of tensor `i` writes in addition to the matrix (delayed: instead of it).
  /// None for kPlain; the amax for current scaling; the FP8 copy and, with `record`, the amax for delayed
  /// scaling; the FP8 copy and its scales for row scales.
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

  /// Quantises a weight now and returns it as an operand, with the recipe `block`. `copy` has the layouts
  /// that the GEMM reads. `i` is its index in the names of weights, for the statistics of the cast of its row
  /// copy; kPlain: no statistics.
  ops::Operand weight(Stream& stream, std::int64_t i, const ops::ConstMatrix& w, const Fp8Copy& copy) const;

  /// Statistics of the casts of all tensors and weights: recorded casts, and with current scaling and block
  /// scales also the casts of recomputation. Null without FP8.
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
