// The table of placements: a row a segment says how its weights lie and who has a part in them. What is
// gathered, reduced and updated follows from the row.
#pragma once

#include <cstdint>
#include <vector>

#include "octet/base/dtype.h"
#include "octet/model/layout.h"
#include "octet/store/options.h"

namespace octet::store {

/// What a segment is there for. What is not trained has no master, gradient or moment, sends nothing once it
/// was loaded, and has no place in a checkpoint: its weights lie once, in the format that products read.
enum class Role {
  trained,
  frozen,    ///< forward and backward passes read it
  inference  ///< forward passes alone read it
};

/// The ranks among which a segment is cut into equal slices.
enum class Axis { none, data };

/// A row of the table. Counts are elements, and `world` is the length of the data axis.
struct Placement {
  Role role = Role::trained;
  Format format = Format::f32;  ///< in which the weights lie
  DType weights = DType::f32;   ///< as products read them: f32, bf16, or the recipe's FP8
  Home home = Home::device;
  /// Axis of the weights that products read: cut, they are gathered before each use, byte for byte where
  /// nothing else is asked for.
  Axis axis = Axis::none;

  // Of trained segments alone.
  Axis state_axis =
      Axis::none;  ///< of master and moments; cut with whole weights, a gather follows each update
  Axis gradient_axis = Axis::none;  ///< cut, whole gradients live until their reduction only
  Home state_home = Home::device;   ///< of moments, and of a master that no pass reads
  DType master = DType::f32;
  DType gradient = DType::f32;
  DType moments = DType::f32;

  bool trained() const { return role == Role::trained; }
  /// Whether products read values that are made of the weights where a group is used.
  bool decoded() const { return format == Format::nf4; }
  /// Whether a backward pass reads the weights.
  bool backward() const { return role != Role::inference; }
  /// Axis of what is kept between steps: the state, or the only weights.
  Axis kept_axis() const { return trained() ? state_axis : axis; }
  /// Whether ranks send their slices of the weights to each other: after each update, or at each use.
  bool gathered() const { return kept_axis() == Axis::data; }
};

/// A row for each segment, by group. Throws Error (usage) for options that make no sense, and for homes and
/// formats that are not built.
using Placements = std::vector<std::vector<Placement>>;
Placements placements_of(const model::ParameterLayout& layout, const Options& options, int world);

}  // namespace octet::store
