#include "nf4_parts.h"

namespace octet::store {
namespace {

constexpr std::int64_t kAlignment = 16;
/// Slices are multiples of the unit in which memory is reserved.
constexpr std::int64_t kSliceUnit = 256;

std::int64_t up_to(std::int64_t bytes, std::int64_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

ops::Nf4Scales Nf4Part::scales_in(const std::uint8_t* stored) const {
  const auto floats = [&](std::int64_t at) { return reinterpret_cast<const float*>(stored + at); };
  if (!twice) return {.plain = floats(scales)};
  return {.codes = stored + scales, .nested = floats(nested), .mean = floats(mean)};
}

std::vector<Nf4Array> arrays_of(const Nf4Part& part) {
  const std::int64_t blocks = ops::nf4_blocks(part.count);
  std::vector<Nf4Array> arrays{{.offset = part.codes, .count = ops::nf4_code_bytes(part.count)}};
  if (!part.twice) {
    arrays.push_back({.suffix = ".absmax", .dtype = DType::f32, .offset = part.scales, .count = blocks});
    return arrays;
  }
  arrays.push_back({.suffix = ".absmax", .offset = part.scales, .count = blocks});
  arrays.push_back({.suffix = ".nested_absmax",
                    .dtype = DType::f32,
                    .offset = part.nested,
                    .count = ops::nf4_scale_blocks(part.count)});
  arrays.push_back({.suffix = ".nested_offset", .dtype = DType::f32, .offset = part.mean, .count = 1});
  return arrays;
}

std::vector<Nf4Part> nf4_parts(const model::SegmentSpec& spec, const Nf4Weights& how, DType dtype) {
  std::vector<Nf4Part> parts;
  std::int64_t at = 0;
  const auto take = [&](std::int64_t bytes) {
    const std::int64_t offset = at;
    at = up_to(at + bytes, kAlignment);
    return offset;
  };
  for (const model::TensorSpec& tensor : spec.tensors) {
    for (const model::NamedPart& named : tensor.parts) {
      Nf4Part part{.named = &named,
                   .begin = tensor.offset + named.begin,
                   .count = named.count,
                   .cols = tensor.cols,
                   .quantised = !how.unquantised.contains(named.name)};
      part.twice = part.quantised && how.double_quantization;
      const std::int64_t blocks = ops::nf4_blocks(part.count);
      if (!part.quantised) {
        part.codes = take(part.count * static_cast<std::int64_t>(size_of(dtype)));
      } else {
        part.codes = take(ops::nf4_code_bytes(part.count));
        part.scales = take(part.twice ? blocks : 4 * blocks);
      }
      if (part.twice) {
        part.nested = take(4 * ops::nf4_scale_blocks(part.count));
        part.mean = take(4);
      }
      part.end = at;
      parts.push_back(part);
    }
  }
  return parts;
}

std::int64_t nf4_slice_bytes(const std::vector<Nf4Part>& parts, int world) {
  const std::int64_t bytes = parts.empty() ? 0 : parts.back().end;
  return up_to((bytes + world - 1) / world, kSliceUnit);
}

}  // namespace octet::store
