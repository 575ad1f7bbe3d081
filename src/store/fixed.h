#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "nf4_loader.h"
#include "octet/comm/collectives.h"
#include "octet/precision/scaling.h"
#include "segments.h"

namespace octet::store {

/// Loads weights that are not trained and converts them to their storage format. The device converts values,
/// with little temporary memory.
///
/// The scale of an FP8 weight is made once, from the amax of the loaded values, with delayed scaling too: a
/// constant weight needs no history. A weight with block scaling is stored in the compute dtype, and is cast
/// to the same FP8 values at each use.
class Fixed {
 public:
  Fixed(Segments& segments, Arena& arena, const Axes& axes, const Options& options);

  /// Loads all weights that are not trained, kLoadedPiece elements at a time. Values of FP8 weights are
  /// requested twice. All ranks must call it; `values` and `stored` are called equally often on each rank.
  /// `stored` supplies codes and scales of NF4. If it is empty, they are made from values. Blocks; no other
  /// work may be pending.
  void load(const FixedValues& values, const Nf4Loader::Stored& stored = {});

  /// Returns whether all values were finite that this rank loaded for FP8 or NF4. Neither format can
  /// represent other values.
  bool finite() const { return finite_; }

  /// Returns null if no weight has a scale.
  const precision::ScaleSet* scales() const { return scales_ ? &*scales_ : nullptr; }

 private:
  /// Calls `act` for every piece of the values of a segment that this rank keeps. `piece` then holds the
  /// values.
  template <typename Do>
  void each_piece(const FixedValues& values, const Segment& segment, float* piece, Do&& act) const;
  void load_nf4(const FixedValues& values, const Nf4Loader::Stored& stored, Nf4Loader& loader);
  void measure(const FixedValues& values, float* piece);
  void make_scales();
  void write(const FixedValues& values, Segment& segment, float* piece);
  /// Raises `most_` to the largest magnitude of a piece.
  void look_at(float* piece, std::int64_t count);
  /// Clears `finite_` unless `count` magnitudes in device memory are finite.
  void note_finite(const float* magnitudes, std::int64_t count);
  /// Writes a segment with one scale per row.
  void write_rows(const FixedValues& values, const Segment& segment, float* piece);

  Segments& segments_;
  Axes axes_;
  comm::Collectives& collectives_;  ///< of all ranks
  Device& device_;
  bool stored_;  ///< the checkpoint has NF4 codes
  bool at_use_;
  bool fp8_;  ///< GEMMs read weights in FP8
  bool finite_ = true;
  float* most_ = nullptr;           ///< the largest magnitude of values without an amax; valid during load()
  std::unique_ptr<Stream> stream_;  ///< null if there is nothing to load
  std::optional<precision::ScaleSet> scales_;
};

}  // namespace octet::store
