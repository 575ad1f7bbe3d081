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

namespace {

ops::Nf4Series distance_of(const Nf4Part& a, const Nf4Part& b) {
  return {.bytes = b.codes - a.codes,
          .elements = b.begin - a.begin,
          .transposed = b.flipped - a.flipped,
          .scale = b.scale - a.scale};
}
bool same_distance(const ops::Nf4Series& a, const ops::Nf4Series& b) {
  return a.bytes == b.bytes && a.elements == b.elements && a.transposed == b.transposed && a.scale == b.scale;
}
bool same_shape(const Nf4Part& a, const Nf4Part& b) {
  return a.quantised && b.quantised && a.count == b.count && a.cols == b.cols &&
         a.transposed_ld == b.transposed_ld && a.twice == b.twice && (a.scale < 0) == (b.scale < 0);
}

/// Returns the longest run that begins at a part, with a step of 1 to 3 parts: the gates of experts alternate
/// with the ups.
std::vector<std::size_t> longest_run(const std::vector<Nf4Part>& parts, const std::vector<bool>& used,
                                     std::size_t first) {
  constexpr std::size_t kMostSteps = 3;
  std::vector<std::size_t> longest{first};
  for (std::size_t step = 1; step <= kMostSteps; ++step) {
    std::vector<std::size_t> run{first};
    for (std::size_t next = first + step; next < parts.size(); next += step) {
      const Nf4Part& last = parts[run.back()];
      if (used[next] || !same_shape(last, parts[next])) break;
      if (run.size() > 1 &&
          !same_distance(distance_of(parts[run[0]], parts[run[1]]), distance_of(last, parts[next])))
        break;
      run.push_back(next);
    }
    if (run.size() > longest.size()) longest = std::move(run);
  }
  return longest;
}

}  // namespace

std::vector<Nf4Run> nf4_runs(const std::vector<Nf4Part>& parts) {
  std::vector<Nf4Run> runs;
  std::vector<bool> used(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (used[i]) continue;
    const std::vector<std::size_t> members = longest_run(parts, used, i);
    Nf4Run run{.first = i};
    if (members.size() > 1) run.series = distance_of(parts[i], parts[members[1]]);
    run.series.tensors = std::ssize(members);
    for (const std::size_t member : members) used[member] = true;
    runs.push_back(run);
  }
  return runs;
}

std::int64_t nf4_slice_bytes(const std::vector<Nf4Part>& parts, int world) {
  const std::int64_t bytes = parts.empty() ? 0 : parts.back().end;
  return up_to((bytes + world - 1) / world, kSliceUnit);
}

}  // namespace octet::store
