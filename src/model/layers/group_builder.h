// Layers declare the tensors that they read and get handles. All declared tensors form the layout of a model.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "octet/model/architecture.h"
#include "octet/model/parameter_source.h"

namespace octet::model {

/// The index of a declared tensor in its group.
struct TensorPlace {
  std::size_t segment = 0;
  std::size_t tensor = 0;
};

/// A declared vector, or none.
class VectorHandle {
 public:
  VectorHandle() = default;
  VectorHandle(TensorPlace place, bool trained) : declared_(true), trained_(trained), place_(place) {}
  explicit operator bool() const { return declared_; }
  bool trained() const { return trained_; }
  /// Returns its values in f32; null without a vector.
  const float* in(const GroupParameters& group) const;
  /// Returns the f32 buffer to add its gradient to; null without a vector and for a frozen vector.
  float* in(const GroupGradients& group) const;

 private:
  bool declared_ = false;
  bool trained_ = false;
  TensorPlace place_;
};

/// A declared matrix [rows, cols].
class MatrixHandle {
 public:
  MatrixHandle() = default;
  MatrixHandle(TensorPlace place, const TensorSpec& tensor, bool trained);
  bool trained() const { return trained_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  /// Returns its runs of rows, in order, with one scale each.
  std::span<const ops::Operand> in(const GroupParameters& group) const {
    return group.operands(place_.segment, place_.tensor);
  }
  /// Returns its gradient buffer; without data for a frozen matrix.
  const ops::Matrix& in(const GroupGradients& group) const {
    return group.gradients[place_.segment][place_.tensor];
  }
  /// Whether the first wgrad GEMM of this micro-batch overwrites its gradient.
  bool overwrites(const GroupGradients& group) const { return group.overwrite && gradient_by_gemm_; }
  /// Returns the number of rows of each run with one scale. Empty: one scale for the matrix.
  std::vector<std::int64_t> scaled_rows(bool each_part) const;

 private:
  TensorPlace place_;
  std::int64_t rows_ = 0, cols_ = 0;
  std::vector<std::int64_t> part_rows_;
  bool gradient_by_gemm_ = false;
  bool trained_ = false;
};

/// A run of rows of a stored tensor, with its Hugging Face name.
struct Part {
  /// Rows that ranks split apart from others.
  struct Run {
    std::int64_t rows = 0;
    SplitRule split = {};
  };
  std::string name;
  std::int64_t rows = 0;                 ///< rows in the whole model
  SplitRule split = {};                  ///< how ranks split the rows
  std::vector<Run> runs = {};            ///< in place of `split`: all rows, in order
  std::vector<std::int64_t> shape = {};  ///< of a vector in files; empty: [rows]
};

/// Returns one part with the rows of `parts`, which ranks split as before.
Part fused(const std::string& name, const std::vector<Part>& parts);

/// Properties of a matrix other than its name and shape.
struct MatrixTraits {
  double init_std = 0.02;
  bool fp8 = false;               ///< TensorSpec::fp8
  bool gradient_by_gemm = false;  ///< TensorSpec::gradient_by_gemm
  bool expert = false;            ///< of a mixture: in a later segment, because a segment has one format
  std::int64_t experts = 0;       ///< number of concatenated experts; each has an FP8 scale; 0: no mixture
  SplitRule columns = {};         ///< how ranks split its columns
};

/// The initial weight of a norm is a factor of one.
inline InitRule norm_init(const Architecture& architecture) {
  return architecture.one_plus_weight ? InitRule::zeros : InitRule::ones;
}

/// Prefixes of the stored and Hugging Face names of a group's tensors: "layers.0.", "model.layers.0.".
struct NamePrefixes {
  std::string stored;
  std::string hugging_face;
};

/// Collects the tensors that the layers of a group declare.
class GroupBuilder {
 public:
  /// `kinds`: the first segments of the group, in order. Experts, adapters, and tensors that differ from the
  /// first tensor of their kind in being trained or frozen get later segments. `tuning` selects the trained
  /// tensors and must outlive the builder. Layers declare names, parts and sizes of the whole model. The
  /// group has only the rows and columns of `share`.
  GroupBuilder(std::string name, NamePrefixes prefixes, std::initializer_list<ParameterKind> kinds,
               const Tuning& tuning, const Share& share = {});

  /// Declares a matrix of concatenated `parts` with `cols` columns.
  MatrixHandle matrix(const std::string& name, std::int64_t cols, const std::vector<Part>& parts,
                      const MatrixTraits& traits);
  /// `experts`: number of this rank's experts, if it is a vector of them; 0: no mixture. Like matrices of
  /// experts, it is then in a separate segment. `init_std`: TensorSpec::init_std.
  VectorHandle vector(const std::string& name, const std::vector<Part>& parts, InitRule init,
                      std::int64_t experts = 0, double init_std = 0.02);
  /// Declares a vector that is stored with the trained vectors, if modules around it are trained, and keeps
  /// its values. Its initial values are zero.
  VectorHandle constant(const std::string& name, const std::vector<Part>& parts);
  /// Declares a number that is stored like constant(). `module`: its Hugging Face name. `shape`: in files;
  /// empty: a tensor without dimensions.
  VectorHandle number(const std::string& name, const std::string& module, double initial,
                      const std::vector<std::int64_t>& shape = {});

  /// Returns the adapter of the group's module `module` ("mlp.up_proj"), or null.
  const AdapterShape* adapter(const std::string& module) const;
  /// Selects the segments of adapters that are declared from now on. `experts`: of this rank's experts, which
  /// other ranks of the expert group do not have.
  void set_adapters_of_experts(bool experts) { of_experts_ = experts; }
  /// Declares the concatenated A of modules with a common input, [rank, inputs] each. `name` is the name of
  /// the stored tensor, and `ranks` has the names and ranks of the modules. The initial values are uniform in
  /// ± 1 / sqrt(inputs).
  MatrixHandle adapter_inputs(const std::string& name, const std::vector<Part>& ranks, std::int64_t inputs);
  /// Declares the B of a module, [outputs, rank]. Its initial values are zero.
  MatrixHandle adapter_outputs(const std::string& module, std::int64_t outputs, std::int64_t rank);
  /// Declares the magnitude of a module, [rows]. Its initial values are the norms of the rows of the module's
  /// weight, or `norm` for a random weight.
  VectorHandle adapter_magnitude(const std::string& module, std::int64_t rows, double norm);
  /// Returns the Hugging Face name of a module of this group.
  std::string full_name(const std::string& module) const { return prefixes_.hugging_face + module; }
  /// Returns the group with the offsets of all tensors.
  GroupSpec finish() &&;

 private:
  TensorPlace add(SegmentSpec& segment, TensorSpec tensor);
  VectorHandle add_constant(TensorSpec tensor, const std::vector<Part>& parts);
  TensorSpec vector_of(const std::string& name, const std::vector<Part>& parts, InitRule init,
                       const std::string& prefix = "") const;
  /// Appends this rank's piece of a part to the tensor. The part has `cols` columns, split by `columns`.
  void append(TensorSpec& tensor, const Part& part, const std::string& name, std::int64_t cols,
              const SplitRule& columns) const;
  MatrixHandle add_adapter(TensorSpec tensor);
  /// Returns the segment of adapters or magnitudes: `suffix` " adapters" or " magnitudes".
  SegmentSpec& adapter_segment(const std::string& suffix, ParameterKind kind);
  /// Returns the segment of this name. Appends it if it is new.
  SegmentSpec& segment_named(const std::string& name, ParameterKind kind, bool trained);
  /// Returns the segment of the trained or of the frozen tensors of a kind.
  SegmentSpec& segment_of(ParameterKind kind, bool trained);
  /// Whether a stored tensor of these parts is trained. All parts must agree. Not for adapters.
  bool trains(const std::vector<Part>& parts) const;

  NamePrefixes prefixes_;
  const Tuning& tuning_;
  Share share_;
  GroupSpec group_;
  bool of_experts_ = false;
};

}  // namespace octet::model
