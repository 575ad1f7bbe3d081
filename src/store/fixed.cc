#include "fixed.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "gatherer.h"
#include "octet/ops/elementwise.h"
#include "octet/ops/quantize.h"

namespace octet::store {
namespace {

precision::Recipe scaled_once(precision::Recipe recipe) {
  recipe.kind = precision::RecipeKind::current;
  return recipe;
}

}  // namespace

namespace {

/// Host memory from which copies go on while the next piece is made: two pieces of it take turns.
class Departures {
 public:
  explicit Departures(Device& device) : device_(device) {}
  ~Departures() {
    for (const Piece& piece : pieces_) device_.release_host(piece.data, piece.bytes);
  }
  Departures(const Departures&) = delete;
  Departures& operator=(const Departures&) = delete;

  /// The memory of the copy before the last one, which `copies` has passed then.
  std::uint8_t* next(std::size_t bytes, Stream& copies) {
    copies.synchronize();
    Piece& piece = pieces_[turn_++ % pieces_.size()];
    if (piece.bytes >= bytes) return piece.data;
    device_.release_host(std::exchange(piece.data, nullptr), std::exchange(piece.bytes, 0));
    piece.data = static_cast<std::uint8_t*>(device_.allocate_host(bytes));
    piece.bytes = bytes;
    return piece.data;
  }

 private:
  struct Piece {
    std::uint8_t* data = nullptr;
    std::size_t bytes = 0;
  };
  Device& device_;
  std::array<Piece, 2> pieces_;
  std::size_t turn_ = 0;
};

/// Zeros where no tensor lies.
void clear_gaps(const Segment& s, std::int64_t begin, std::vector<float>& values) {
  std::int64_t at = 0;
  for (const TensorRun& run : runs_within(*s.spec, begin, std::ssize(values))) {
    std::fill(values.begin() + at, values.begin() + run.begin, 0.0f);
    at = run.begin + run.count;
  }
  std::fill(values.begin() + at, values.end(), 0.0f);
}

}  // namespace

// What values become is computed on the host, by the ops of a CPU: nothing is reserved on the device for it.
struct Fixed::Host {
  explicit Host(Device& to) : departures(to) {}

  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<Stream> stream = device->make_stream({.name = "weights"});
  std::vector<float> values;
  Departures departures;
  std::vector<float> amaxes, scales;  ///< by number of the scale
};

Fixed::Fixed(Segments& segments, Arena& arena, comm::Collectives& collectives, const Options& options)
    : segments_(segments),
      collectives_(collectives),
      device_(arena.device()),
      stored_(options.fixed.nf4.stored),
      at_use_(options.transposed == TransposedWeights::at_use) {
  if (!segments.fixed) return;
  stream_ = device_.make_stream({.name = "fixed weights"});
  if (segments.fixed_scale_names.empty()) return;
  scales_.emplace(arena, "fixed_weights", scaled_once(options.recipe), segments.fixed_scale_formats,
                  segments.fixed_scale_names);
}

template <typename Do>
void Fixed::each_piece(const Values& values, const Segment& s, Host& host, Do&& act) const {
  for (std::int64_t begin = 0; begin < s.state_count; begin += kPiece) {
    const std::int64_t count = std::min(kPiece, s.state_count - begin);
    host.values.resize(static_cast<std::size_t>(count));
    clear_gaps(s, s.state_begin + begin, host.values);
    values(s, s.state_begin + begin, count, host.values.data());
    act(begin, count);
  }
}

namespace {

/// Acts on the runs with a scale inside elements [begin, begin + count) of what is kept, as matrices: their
/// values, their place in that piece, and the number of their scale.
template <typename Do>
void each_scaled(const Segment& s, std::int64_t begin, std::int64_t count, std::vector<float>& values,
                 Do&& act) {
  for (const ScaledRun& run : s.held) {
    const std::int64_t from = std::max(run.begin, begin);
    const std::int64_t to = std::min(run.begin + run.count, begin + count);
    if (from >= to) continue;
    as_matrices({.data = values.data() + (from - begin)}, to - from,
                [&](const ops::ConstMatrix& x, std::int64_t at) {
                  act(x, from - begin + at, static_cast<std::size_t>(run.scale));
                });
  }
}

}  // namespace

void Fixed::load_nf4(const Values& values, const Nf4Loader::Stored& stored, Host& host) {
  Nf4Loader loader(segments_, collectives_, device_, *host.stream, *stream_);
  segments_.each([&](Segment& s) {
    if (!s.row.decoded()) return;
    float* const amaxes = is_fp8(s.dtype) ? host.amaxes.data() : nullptr;
    loader.load(s, values, stored_ ? stored : nullptr, amaxes);
    if (amaxes != nullptr) loader.measure_whole(s, values, amaxes);
  });
}

void Fixed::measure(const Values& values, Host& host) {
  segments_.each([&](Segment& s) {
    if (s.row.trained() || s.row.decoded() || !is_fp8(s.dtype)) return;
    each_piece(values, s, host, [&](std::int64_t begin, std::int64_t count) {
      each_scaled(s, begin, count, host.values,
                  [&](const ops::ConstMatrix& x, std::int64_t, std::size_t scale) {
                    ops::amax(*host.stream, x, &host.amaxes[scale]);
                  });
      host.stream->synchronize();
    });
  });
}

void Fixed::make_scales(Host& host) {
  // Every rank saw a part of the values: of weights that are cut, and of those that it quantised.
  bool cut = false;
  segments_.each([&](const Segment& s) {
    cut = cut || (!s.row.trained() && (s.row.axis != Axis::none || s.row.decoded()));
  });
  host.scales.resize(host.amaxes.size());
  const std::size_t bytes = host.amaxes.size() * sizeof(float);
  device_.copy_to_device(*stream_, scales_->amaxes(), host.amaxes.data(), bytes);
  stream_->synchronize();
  if (cut && collectives_.size() > 1) {
    Stream& stream = collectives_.reduce_stream();
    collectives_.all_reduce_max(stream, "amaxes of fixed weights", scales_->amaxes(), scales_->count());
    stream.synchronize();
  }
  scales_->update(*stream_);
  device_.copy_to_host(*stream_, host.scales.data(), scales_->scale(0), bytes);
  stream_->synchronize();
}

void Fixed::write(const Values& values, Segment& s, Host& host) {
  const Array kept = s.kept();
  each_piece(values, s, host, [&](std::int64_t begin, std::int64_t count) {
    std::uint8_t* const to = host.departures.next(kept.bytes(count), *stream_);
    if (is_fp8(s.dtype)) {
      std::memset(to, 0, kept.bytes(count));
      each_scaled(
          s, begin, count, host.values, [&](const ops::ConstMatrix& x, std::int64_t at, std::size_t scale) {
            ops::quantize(*host.stream, x, {.format = s.dtype, .row = to + at, .scale = &host.scales[scale]});
          });
    } else {
      ops::convert(*host.stream, host.values.data(), DType::f32, to, s.dtype, count);
    }
    host.stream->synchronize();
    device_.copy_to_device(*stream_, kept.from(begin).data, to, kept.bytes(count));
  });
  const bool whole = s.row.axis == Axis::none;
  if (whole && s.transposed != nullptr && !at_use_) Gatherer::transpose(s, *stream_);
}

void Fixed::load(const Values& values, const Nf4Loader::Stored& stored, const InPlace& in_place) {
  if (!segments_.fixed || device_.kind() == DeviceKind::dry) return;
  Host host(device_);
  if (scales_) host.amaxes.assign(static_cast<std::size_t>(scales_->count()), 0.0f);
  load_nf4(values, stored, host);
  if (scales_) {
    measure(values, host);
    make_scales(host);
  }
  Nf4Loader loader(segments_, collectives_, device_, *host.stream, *stream_);
  segments_.each([&](Segment& s) {
    if (s.row.decoded()) {
      loader.write_whole(s, values, host.scales.data());
    } else if (!s.row.trained() && in_place && !is_fp8(s.dtype)) {
      const Array kept = s.kept();
      device_.zero(*stream_, kept.data, kept.bytes(s.state_count));  // what pads it, too
      in_place(*stream_, s, kept);
    } else if (!s.row.trained()) {
      write(values, s, host);
    }
  });
  stream_->synchronize();
}

}  // namespace octet::store
