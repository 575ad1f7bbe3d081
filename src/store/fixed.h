#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "nf4_loader.h"
#include "octet/comm/collectives.h"
#include "octet/precision/scaling.h"
#include "segments.h"

namespace octet::store {

/// What is not trained, on its way into the format in which it lies for good.
///
/// The scale of an FP8 weight is made once, from the amax of the values that were loaded, for delayed scaling
/// as for current scaling: what never changes has no history. (Scaled in blocks a weight lies in the compute
/// dtype, and becomes the same FP8 values at each use.)
class Fixed {
 public:
  /// Writes elements [begin, begin + count) of a segment, f32, at `out` in host memory, which is zero before
  /// where no tensor lies: padding may be left alone.
  using Values =
      std::function<void(const Segment& segment, std::int64_t begin, std::int64_t count, float* out)>;

  /// Makes the first values of what this rank keeps of a segment, in its dtype, where it lies.
  using InPlace = std::function<void(Stream& stream, const Segment& segment, const Array& kept)>;

  Fixed(Segments& segments, Arena& arena, comm::Collectives& collectives, const Options& options);

  /// Loads all of it. The host holds a piece of kPiece elements at a time; FP8 weights are read twice. All
  /// ranks call it, and `values` and `stored` are called equally often on each. `stored` gives codes and
  /// scales of NF4; empty: they are made of values. `in_place`, where there is one, makes what lies neither
  /// in NF4 nor in FP8: the device is faster than the host, and nothing has to travel. Nothing else is under
  /// way; blocks.
  void load(const Values& values, const Nf4Loader::Stored& stored = {}, const InPlace& in_place = {});

  static constexpr std::int64_t kPiece = std::int64_t{1} << 24;

  /// Null where no weight has a scale.
  const precision::ScaleSet* scales() const { return scales_ ? &*scales_ : nullptr; }

 private:
  struct Host;
  /// Acts on every piece of the values that this rank keeps of a segment.
  template <typename Do>
  void each_piece(const Values& values, const Segment& segment, Host& host, Do&& act) const;
  void load_nf4(const Values& values, const Nf4Loader::Stored& stored, Host& host);
  void measure(const Values& values, Host& host);
  void make_scales(Host& host);
  void write(const Values& values, Segment& segment, Host& host);

  Segments& segments_;
  comm::Collectives& collectives_;
  Device& device_;
  bool stored_;  ///< codes of NF4 are there already
  bool at_use_;
  std::unique_ptr<Stream> stream_;  ///< of the device; where there is something to load
  std::optional<precision::ScaleSet> scales_;
};

}  // namespace octet::store
