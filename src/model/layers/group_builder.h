// Layers declare the tensors that they read, and get handles back: the layout of a model is what its layers
// declared.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "octet/model/architecture.h"
#include "octet/model/parameter_source.h"

namespace octet::model {

/// Where a declared tensor stands in its group.
struct TensorPlace {
  std::size_t segment = 0;
  std::size_t tensor = 0;
};

/// A vector that a layer declared, or none.
class VectorHandle {
 public:
  VectorHandle() = default;
  VectorHandle(TensorPlace place, bool trained) : declared_(true), trained_(trained), place_(place) {}
  explicit operator bool() const { return declared_; }
  bool trained() const { return trained_; }
  /// Its values, f32; null for none.
  const float* in(const GroupParameters& group) const;
  /// Where its gradient is added to, f32; null for none, and where it is not wanted.
  float* in(const GroupGradients& group) const;

 private:
  bool declared_ = false;
  bool trained_ = false;
  TensorPlace place_;
};

/// A matrix [rows, cols] that a layer declared.
class MatrixHandle {
 public:
  MatrixHandle() = default;
  MatrixHandle(TensorPlace place, const TensorSpec& tensor, bool trained);
  bool trained() const { return trained_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  /// Its runs of rows, in order, with a scale each.
  std::span<const ops::Operand> in(const GroupParameters& group) const {
    return group.operands(place_.segment, place_.tensor);
  }
  /// Its gradient; no data where that is not wanted.
  const ops::Matrix& in(const GroupGradients& group) const {
    return group.gradients[place_.segment][place_.tensor];
  }
  /// Whether the first product of this micro-batch into its gradient overwrites what lies there.
  bool overwrites(const GroupGradients& group) const { return group.overwrite && gradient_by_product_; }
  /// The rows of its runs that have a scale each; none: one scale.
  std::vector<std::int64_t> scaled_rows(bool each_part) const;

 private:
  TensorPlace place_;
  std::int64_t rows_ = 0, cols_ = 0;
  std::vector<std::int64_t> part_rows_;
  bool gradient_by_product_ = false;
  bool trained_ = false;
};

/// A run of rows of a stored tensor, by the name that Hugging Face has for it.
struct Part {
  std::string name;
  std::int64_t rows = 0;  ///< of the whole model
  SplitRule split = {};   ///< of its rows
};

/// What a matrix is besides its name and shape.
struct MatrixTraits {
  double init_std = 0.02;
  bool fp8 = false;                  ///< TensorSpec::fp8
  bool gradient_by_product = false;  ///< TensorSpec::gradient_by_product
  bool expert = false;       ///< of a mixture: in segments after the others, since a segment has one format
  std::int64_t experts = 1;  ///< that are stored one after the other: each has an FP8 scale
  SplitRule columns = {};    ///< how its columns are cut
};

/// The weight of a norm begins as the factor one.
inline InitRule norm_init(const Architecture& architecture) {
  return architecture.one_plus_weight ? InitRule::zeros : InitRule::ones;
}

/// What stored and Hugging Face names of a group's tensors begin with: "layers.0.", "model.layers.0.".
struct NamePrefixes {
  std::string stored;
  std::string hugging_face;
};

/// Collects what the layers of a group declare.
class GroupBuilder {
 public:
  /// `kinds`: the group's segments, in order; behind them come, where the group has some, those of tensors
  /// that differ from the first of their kind in whether they are trained, and one of its adapters.
  /// `tuning` decides what of it is trained, and must live as long as the builder. Of what is declared the
  /// group has what `share` holds; names, parts and numbers that layers declare are those of the whole model.
  GroupBuilder(std::string name, NamePrefixes prefixes, std::initializer_list<ParameterKind> kinds,
               const Tuning& tuning, const Share& share = {});

  /// `parts` lie one after the other and have `cols` columns.
  MatrixHandle matrix(const std::string& name, std::int64_t cols, const std::vector<Part>& parts,
                      const MatrixTraits& traits);
  VectorHandle vector(const std::string& name, const std::vector<Part>& parts, InitRule init);

  /// The adapter that module `module` of this group ("mlp.up_proj") has, or null.
  const AdapterShape* adapter(const std::string& module) const;
  /// The A of modules that read one input, [rank, inputs] each, one after the other: `name` is that of all,
  /// `ranks` has their modules' names. They begin uniform in ± 1 / sqrt(inputs).
  MatrixHandle adapter_inputs(const std::string& name, const std::vector<Part>& ranks, std::int64_t inputs);
  /// The B of a module, [outputs, rank], which begins at zero.
  MatrixHandle adapter_outputs(const std::string& module, std::int64_t outputs, std::int64_t rank);
  /// Its magnitude, [rows], which begins as the norms of the rows of the module's weight: of a new one
  /// `norm`.
  VectorHandle adapter_magnitude(const std::string& module, std::int64_t rows, double norm);
  /// What Hugging Face calls a module of this group.
  std::string full_name(const std::string& module) const { return prefixes_.hugging_face + module; }
  /// The group, every tensor in its place.
  GroupSpec finish() &&;

 private:
  TensorPlace add(SegmentSpec& segment, TensorSpec tensor);
  /// Puts what this rank has of a part, of `cols` columns cut by `columns`, behind the tensor's others.
  void append(TensorSpec& tensor, const Part& part, const std::string& name, std::int64_t cols,
              const SplitRule& columns) const;
  MatrixHandle add_adapter(TensorSpec tensor);
  /// The segment of this name, behind all others where it is new.
  SegmentSpec& segment_named(const std::string& name, ParameterKind kind, bool trained);
  /// The segment of tensors of this kind that are trained, or of those that are not.
  SegmentSpec& segment_of(ParameterKind kind, bool trained);
  /// Whether a stored tensor of these parts, which is no adapter's, is trained: all of it or nothing.
  bool trains(const std::vector<Part>& parts) const;

  NamePrefixes prefixes_;
  const Tuning& tuning_;
  Share share_;
  GroupSpec group_;
};

}  // namespace octet::model
