// The placement table. A row describes how the weights of a segment are stored and sharded. It determines
// which segments are gathered, reduced and updated.
#pragma once

#include <cstdint>
#include <vector>

#include "octet/base/dtype.h"
#include "octet/model/layout.h"
#include "octet/store/store_options.h"

namespace octet::store {

/// Use of a segment. A segment that is not trained has no master, gradient or moment. It sends nothing after
/// loading, except gathers of sharded weights, and is not in checkpoints. Its weights are stored once, in the
/// format of the row.
enum class Role {
  trained,
  frozen,    ///< read by forward and backward passes
  inference  ///< read by forward passes only
};

/// The ranks over which a segment is sharded into equal slices.
enum class Axis { none, data };

/// A row of the table, for one segment.
struct Placement {
  Role role = Role::trained;
  Format format = Format::f32;  ///< storage format of the weights
  DType weights = DType::f32;   ///< dtype that GEMMs read: f32, bf16, or the recipe's FP8
  /// Axis of the weights that GEMMs read. Sharded weights are gathered before each use, unconverted unless
  /// Options::gather_wire selects a narrower format.
  Axis axis = Axis::none;

  // Trained segments only.
  Axis state_axis =
      /// Axis of master and moments. If it is `data` and the weights are whole, a gather follows each update.
      Axis::none;
  Axis gradient_axis = Axis::none;  ///< if `data`, whole gradients exist only until their reduction
  Home state_home = Home::device;   ///< of moments, and of masters that no pass reads
  DType master = DType::f32;
  DType gradient = DType::f32;
  DType moments = DType::f32;

  bool trained() const { return role == Role::trained; }
  /// Returns whether the weights are decoded for GEMMs when a group is acquired.
  bool decoded() const { return format == Format::nf4; }
  /// Returns whether a backward pass reads the weights.
  bool backward() const { return role != Role::inference; }
  /// Returns the axis of the memory kept between steps: the state, or the weights if not trained.
  Axis kept_axis() const { return trained() ? state_axis : axis; }
  /// Returns whether the weights are gathered, after each update or at each use.
  bool gathered() const { return kept_axis() == Axis::data; }
};

/// Returns one row per segment, by group. Throws as policy_of() does. Throws Error (usage) for formats
/// that GEMMs cannot read.
using Placements = std::vector<std::vector<Placement>>;
/// `same_experts`: number of ranks that share segments with SegmentSpec::split_experts.
Placements placements_of(const model::ParameterLayout& layout, const Options& options, int world,
                         int same_experts = 1);

}  // namespace octet::store
