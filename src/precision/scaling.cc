#include "octet/precision/scaling.h"

#include <memory>
#include <utility>

#include "octet/base/error.h"
#include "octet/ops/quantize.h"

namespace octet::precision {

ScaleSet::ScaleSet(Arena& arena, const std::string& name, const Recipe& recipe, std::vector<DType> formats,
                   std::vector<std::string> tensor_names)
    : recipe_(recipe), name_(name), formats_(std::move(formats)), tensor_names_(std::move(tensor_names)) {
  check(formats_.size() == tensor_names_.size(), "every scaled tensor has a format and a name");
  check(recipe_.fp8(), "scales belong to an FP8 recipe");
  if (recipe_.kind == RecipeKind::delayed && recipe_.history_length < 1) {
    throw Error({.what = "the amax history of delayed scaling is empty",
                 .expected = "fp8_amax_history_len of at least 1",
                 .found = std::to_string(recipe_.history_length),
                 .fix = "set fp8_amax_history_len: 16",
                 .code = ExitCode::usage});
  }
  const auto n = formats_.size();
  if (n == 0) return;
  device_formats_ = arena.reserve_as<std::uint8_t>(name + "/formats", n);
  amax_ = arena.reserve_as<float>(name + "/amax", n);
  scale_ = arena.reserve_as<float>(name + "/scale", n);
  scale_inv_ = arena.reserve_as<float>(name + "/scale_inv", n * static_cast<std::size_t>(kInverseStride));
  if (recipe_.kind == RecipeKind::delayed) {
    const auto length = static_cast<std::size_t>(recipe_.history_length);
    check(length <= SIZE_MAX / sizeof(float) / n, "the amax history fits the address space");
    history_ = arena.reserve_as<float>(name + "/amax_history", length * n);
    aside_ = arena.reserve_as<float>(name + "/amax_aside", static_cast<std::size_t>(kParts) * n);
  }
  std::vector<std::uint8_t> codes(n);
  for (std::size_t i = 0; i < n; ++i) {
    check(is_fp8(formats_[i]), "a scaled tensor is in an FP8 format");
    codes[i] = static_cast<std::uint8_t>(formats_[i]);
  }
  const std::vector<float> ones(n * static_cast<std::size_t>(kInverseStride), 1.0f);
  Device& device = arena.device();
  const std::unique_ptr<Stream> stream = device.make_stream({.name = "scales at start"});
  device.copy_to_device(*stream, device_formats_, codes.data(), n);
  device.copy_to_device(*stream, scale_, ones.data(), n * sizeof(float));
  device.copy_to_device(*stream, scale_inv_, ones.data(),
                        n * static_cast<std::size_t>(kInverseStride) * sizeof(float));
  stream->synchronize();
}

void ScaleSet::update_delayed(Stream& stream, float* amaxes, std::int64_t first, std::int64_t count) {
  ops::delayed_scale(stream, {.amax = amaxes + first,
                              .history = history_ + first,
                              .formats = device_formats_ + first,
                              .scale = scale_ + first,
                              .scale_inv = scale_inv_ + first * kInverseStride,
                              .count = count,
                              .inverse_stride = kInverseStride,
                              .stride = this->count(),
                              .length = recipe_.history_length,
                              .margin = recipe_.margin,
                              .most_recent = recipe_.most_recent});
}

float* ScaleSet::set_aside(Stream& stream, int part) {
  check(recipe_.kind == RecipeKind::delayed && part >= 0 && part < kParts,
        "amaxes of delayed scaling have two parts");
  float* const slots = aside_ + part * count();
  const std::size_t bytes = formats_.size() * sizeof(float);
  stream.device().copy(stream, slots, amax_, bytes);
  stream.device().zero(stream, amax_, bytes);
  return slots;
}

void ScaleSet::update_from(Stream& stream, int part) {
  check(recipe_.kind == RecipeKind::delayed && part >= 0 && part < kParts,
        "amaxes of delayed scaling have two parts");
  if (count() > 0) update_delayed(stream, aside_ + part * count(), 0, count());
}

void ScaleSet::update(Stream& stream, std::int64_t first, std::int64_t count) {
  check(first >= 0 && count >= 0 && first + count <= this->count(), "only existing scales are updated");
  if (count == 0) return;
  if (recipe_.kind == RecipeKind::delayed) return update_delayed(stream, amax_, first, count);
  ops::current_scale(stream, {.amax = amax_ + first,
                              .formats = device_formats_ + first,
                              .scale = scale_ + first,
                              .scale_inv = scale_inv_ + first * kInverseStride,
                              .count = count,
                              .inverse_stride = kInverseStride});
  stream.device().zero(stream, amax_ + first, static_cast<std::size_t>(count) * sizeof(float));
}

void ScaleSet::update_one(Stream& stream, std::int64_t i) {
  check(recipe_.kind == RecipeKind::current, "one tensor's scale is set alone by current scaling only");
  update(stream, i, 1);
}

void ScaleSet::take(Stream& stream, const ScaleSet& from) {
  check(from.tensor_names_ == tensor_names_, "scales are taken from a set of the same tensors");
  if (count() == 0) return;
  const std::size_t bytes = formats_.size() * sizeof(float);
  stream.device().copy(stream, scale_, from.scale_, bytes);
  stream.device().copy(stream, scale_inv_, from.scale_inv_, bytes * static_cast<std::size_t>(kInverseStride));
}

void ScaleSet::restore(Stream& stream) {
  check(recipe_.kind == RecipeKind::delayed, "only scales of delayed scaling are read from a checkpoint");
  // Without an amax an update leaves histories and scales as they are, and makes the inverses.
  stream.device().zero(stream, amax_, formats_.size() * sizeof(float));
  update(stream);
}

std::vector<TensorSlice> ScaleSet::state() const {
  std::vector<TensorSlice> state;
  if (count() == 0) return state;
  const auto add = [&](const std::string& part, std::vector<std::int64_t> shape, float* data) {
    const std::int64_t elements = element_count(shape, name_ + part);
    state.push_back({.name = name_ + part,
                     .dtype = DType::f32,
                     .shape = std::move(shape),
                     .begin = 0,
                     .count = elements,
                     .data = data});
  };
  add("/scale", {count()}, scale_);
  if (history_ != nullptr) add("/amax_history", {recipe_.history_length, count()}, history_);
  return state;
}

}  // namespace octet::precision
