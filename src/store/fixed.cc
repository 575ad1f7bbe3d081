#include "fixed.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gatherer.h"
#include "octet/base/error.h"
#include "octet/ops/block_quantize.h"
#include "octet/ops/elementwise.h"
#include "octet/ops/quantize.h"

namespace octet::store {
namespace {

precision::Recipe scaled_once(precision::Recipe recipe) {
  recipe.kind = precision::RecipeKind::current;
  return recipe;
}

/// Calls `act` for the scaled runs inside elements [begin, begin + count) of the kept elements. Passes the
/// values as matrices, their offset in that piece, and the number of their scale.
template <typename Do>
void each_scaled(const Segment& s, std::int64_t begin, std::int64_t count, float* values, Do&& act) {
  for (const ScaledRun& run : s.held) {
    const std::int64_t from = std::max(run.begin, begin);
    const std::int64_t to = std::min(run.begin + run.count, begin + count);
    if (from >= to) continue;
    as_matrices({.data = values + (from - begin)}, to - from,
                [&](const ops::ConstMatrix& x, std::int64_t at) { act(x, from - begin + at, run.scale); });
  }
}

/// Synchronises the stream at the end of a scope, also during stack unwinding, so that no work uses memory of
/// the scope.
class Waits {
 public:
  explicit Waits(Stream& stream) : stream_(stream) {}
  ~Waits() {
    try {
      stream_.synchronize();
    } catch (...) {  // another error is on its way
    }
  }
  Waits(const Waits&) = delete;
  Waits& operator=(const Waits&) = delete;

 private:
  Stream& stream_;
};

}  // namespace

Fixed::Fixed(Segments& segments, Arena& arena, const Axes& axes, const Options& options)
    : segments_(segments),
      axes_(axes),
      collectives_(axes.all),
      device_(arena.device()),
      stored_(options.fixed.nf4.stored),
      at_use_(options.transposed == TransposedWeights::at_use),
      fp8_(options.recipe.fp8()) {
  if (!segments.fixed) return;
  stream_ = device_.make_stream({.name = "fixed weights"});
  if (segments.fixed_scale_names.empty()) return;
  scales_.emplace(arena, "fixed_weights", scaled_once(options.recipe), segments.fixed_scale_formats,
                  segments.fixed_scale_names);
}

template <typename Do>
void Fixed::each_piece(const FixedValues& values, const Segment& s, float* piece, Do&& act) const {
  for (std::int64_t begin = 0; begin < s.state_count; begin += kLoadedPiece) {
    const std::int64_t count = std::min(kLoadedPiece, s.state_count - begin);
    values(*stream_, s, s.state_begin + begin, count, piece);
    act(begin, count);
  }
}

void Fixed::load_nf4(const FixedValues& values, const Nf4Loader::Stored& stored, Nf4Loader& loader) {
  segments_.each([&](Segment& s) {
    if (!s.row.decoded()) return;
    float* const amaxes = is_fp8(s.dtype) ? scales_->amaxes() : nullptr;
    loader.load(s, values, stored_ ? stored : nullptr, amaxes);
    if (amaxes != nullptr) loader.measure_whole(s, values, amaxes);
  });
}

void Fixed::measure(const FixedValues& values, float* piece) {
  segments_.each([&](Segment& s) {
    if (s.row.trained() || s.row.decoded() || !is_fp8(s.dtype) || s.row_scales != nullptr) return;
    each_piece(values, s, piece, [&](std::int64_t begin, std::int64_t count) {
      each_scaled(s, begin, count, piece, [&](const ops::ConstMatrix& x, std::int64_t, std::int64_t scale) {
        ops::amax(*stream_, x, scales_->amaxes() + scale);
      });
    });
  });
}

void Fixed::make_scales() {
  // A rank saw only a part of the values of sharded weights, and of weights that it quantised.
  bool cut = false;
  segments_.each([&](const Segment& s) {
    cut = cut || (!s.row.trained() && (s.row.axis != Axis::none || s.row.decoded()));
  });
  if (cut && collectives_.size() > 1) {
    stream_->synchronize();
    axes_.each([&](comm::Collectives& collectives) {
      if (collectives.size() == 1) return;
      Stream& stream = collectives.reduce_stream();
      each_run_of_scales(segments_, axes_, collectives, false, [&](std::int64_t first, std::int64_t count) {
        collectives.all_reduce_max(stream, "amaxes of fixed weights", scales_->amaxes() + first, count);
      });
      stream.synchronize();
    });
  }
  note_finite(scales_->amaxes(), scales_->count());
  scales_->update(*stream_);
}

void Fixed::look_at(float* piece, std::int64_t count) {
  as_matrices({.data = piece}, count,
              [&](const ops::ConstMatrix& x, std::int64_t) { ops::amax(*stream_, x, most_); });
}

void Fixed::note_finite(const float* magnitudes, std::int64_t count) {
  std::vector<float> host(static_cast<std::size_t>(count));
  device_.copy_to_host(*stream_, host.data(), magnitudes, host.size() * sizeof(float));
  stream_->synchronize();
  finite_ = finite_ && std::ranges::all_of(host, [](float value) { return std::isfinite(value); });
}

void Fixed::write(const FixedValues& values, Segment& s, float* piece) {
  const Array kept = s.kept();
  each_piece(values, s, piece, [&](std::int64_t begin, std::int64_t count) {
    if (fp8_ && s.spec->fp8 && !is_fp8(s.dtype)) look_at(piece, count);
    const Array to = kept.from(begin);
    if (!is_fp8(s.dtype)) return ops::convert(*stream_, piece, DType::f32, to.data, s.dtype, count);
    device_.zero(*stream_, to.data, to.bytes(count));
    each_scaled(s, begin, count, piece, [&](const ops::ConstMatrix& x, std::int64_t at, std::int64_t scale) {
      auto* const row = static_cast<std::uint8_t*>(to.data) + at;
      ops::quantize(*stream_, x, {.format = s.dtype, .row = row, .scale = scales_->scale(scale)});
    });
  });
  const bool whole = s.row.axis == Axis::none;
  if (whole && s.transposed != nullptr && !at_use_) Gatherer::transpose(s, *stream_);
}

void Fixed::write_rows(const FixedValues& values, const Segment& s, float* piece) {
  for (std::size_t t = 0; t < s.spec->tensors.size(); ++t) {
    const model::TensorSpec& tensor = s.spec->tensors[t];
    check(tensor.cols <= kLoadedPiece, "a row of a weight is loaded as a whole");
    const std::int64_t most = kLoadedPiece / tensor.cols;
    for (std::int64_t row = 0; row < tensor.rows; row += most) {
      const std::int64_t rows = std::min(most, tensor.rows - row);
      const std::int64_t begin = tensor.offset + row * tensor.cols;
      values(*stream_, s, begin, rows * tensor.cols, piece);
      look_at(piece, rows * tensor.cols);
      ops::block_quantize(*stream_, {.x = {piece, DType::f32, rows, tensor.cols, tensor.cols},
                                     .scaling = ops::Scaling::whole_rows,
                                     .row = s.copy + begin,
                                     .scale_inv = s.row_scales + row_scale_of(*s.spec, t) + row});
    }
  }
}

void Fixed::load(const FixedValues& values, const Nf4Loader::Stored& stored) {
  if (!segments_.fixed || !device_.traits().computes) return;
  Arena passing(device_);
  const Waits waits(*stream_);
  auto* const piece = passing.reserve_as<float>("values of weights", static_cast<std::size_t>(kLoadedPiece));
  most_ = passing.reserve_as<float>("largest magnitude of weights", 1);
  device_.zero(*stream_, most_, sizeof *most_);
  finite_ = true;
  Nf4Loader loader(segments_, axes_, *stream_, passing, {.values = piece, .most = most_});
  if (scales_) {
    device_.zero(*stream_, scales_->amaxes(), static_cast<std::size_t>(scales_->count()) * sizeof(float));
  }
  load_nf4(values, stored, loader);
  if (scales_) {
    measure(values, piece);
    make_scales();
  }
  segments_.each([&](Segment& s) {
    if (s.row.decoded()) {
      loader.write_whole(s, values, scales_ ? &*scales_ : nullptr);
    } else if (s.row_scales != nullptr) {
      write_rows(values, s, piece);
    } else if (!s.row.trained()) {
      write(values, s, piece);
    }
  });
  note_finite(most_, 1);
}

}  // namespace octet::store
