#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "loaded_values.h"
#include "nf4_loader.h"
#include "octet/comm/collectives.h"
#include "octet/precision/scaling.h"
#include "segments.h"

namespace octet::store {

/// What is not trained, on its way into the format in which it lies for good. The device makes that of
/// values, with little memory that is given back.
///
/// The scale of an FP8 weight is made once, from the amax of the values that were loaded, for delayed scaling
/// as for current scaling: what never changes has no history. (Scaled in blocks a weight lies in the compute
/// dtype, and becomes the same FP8 values at each use.)
class Fixed {
 public:
  Fixed(Segments& segments, Arena& arena, comm::Collectives& collectives, const Options& options);

  /// Loads all of it, kLoadedPiece elements at a time; FP8 weights are asked for twice. All ranks call it,
  /// and `values` and `stored` are called equally often on each. `stored` gives codes and scales of NF4;
  /// empty: they are made of values. Nothing else is under way; blocks.
  void load(const FixedValues& values, const Nf4Loader::Stored& stored = {});

  /// Whether all values that this rank loaded for FP8 or NF4 were finite: both formats would hide the others.
  bool finite() const { return finite_; }

  /// Null where no weight has a scale.
  const precision::ScaleSet* scales() const { return scales_ ? &*scales_ : nullptr; }

 private:
  /// Acts on every piece of the values that this rank keeps of a segment, which lies at `piece` then.
  template <typename Do>
  void each_piece(const FixedValues& values, const Segment& segment, float* piece, Do&& act) const;
  void load_nf4(const FixedValues& values, const Nf4Loader::Stored& stored, Nf4Loader& loader);
  void measure(const FixedValues& values, float* piece);
  void make_scales();
  void write(const FixedValues& values, Segment& segment, float* piece);
  /// Raises `most_` by the values of a piece.
  void look_at(float* piece, std::int64_t count);
  /// Notes whether `count` magnitudes in memory of the device are finite.
  void note_finite(const float* magnitudes, std::int64_t count);
  /// Of a segment with scales of rows.
  void write_rows(const FixedValues& values, const Segment& segment, float* piece);

  Segments& segments_;
  comm::Collectives& collectives_;
  Device& device_;
  bool stored_;  ///< codes of NF4 are there already
  bool at_use_;
  bool fp8_;  ///< GEMMs read weights in FP8
  bool finite_ = true;
  float* most_ = nullptr;           ///< the largest magnitude of values without an amax, during load()
  std::unique_ptr<Stream> stream_;  ///< where there is something to load
  std::optional<precision::ScaleSet> scales_;
};

}  // namespace octet::store
