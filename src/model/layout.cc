#include "octet/model/layout.h"

#include <algorithm>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/model/build.h"
#include "octet/ops/elementwise.h"
#include "octet/ops/random.h"

namespace octet::model {
std::vector<ScaledPart> scaled_parts(const TensorSpec& tensor, bool each_part) {
  if (!each_part || tensor.parts.size() < 2) {
    return {{.name = tensor.name, .begin = 0, .count = tensor.count()}};
  }
  std::vector<ScaledPart> parts;
  for (const NamedPart& part : tensor.parts) {
    parts.push_back({.name = part.name, .begin = part.begin, .count = part.count});
  }
  return parts;
}

std::int64_t padded_count(const SegmentSpec& segment, int world) {
  check(world >= 1, "a segment is cut for at least one rank");
  const std::int64_t unit = kTensorAlignment * world;
  return (segment.used + unit - 1) / unit * unit;
}

std::int64_t ParameterLayout::parameter_count() const {
  std::int64_t count = 0;
  for (const GroupSpec& group : groups) {
    for (const SegmentSpec& segment : group.segments) {
      for (const TensorSpec& t : segment.tensors) count += t.count();
    }
  }
  return count;
}

std::set<std::string> tensor_names(const ParameterLayout& layout) {
  std::set<std::string> names;
  for (const GroupSpec& group : layout.groups) {
    for (const SegmentSpec& segment : group.segments) {
      for (const TensorSpec& tensor : segment.tensors) {
        for (const NamedPart& part : tensor.parts) names.insert(part.name);
      }
    }
  }
  return names;
}

void initialise(Stream& stream, const TensorSpec& tensor, const Initialisation& what) {
  check(what.begin >= 0 && what.count >= 0 && what.begin <= tensor.count() - what.count,
        "a range lies inside its tensor");
  for (const NamedPart& part : tensor.parts) {
    const std::int64_t from = std::max(what.begin, part.begin);
    const std::int64_t to = std::min(what.begin + what.count, part.begin + part.count);
    if (from >= to) continue;
    auto* out =
        static_cast<std::byte*>(what.out) + static_cast<std::size_t>(from - what.begin) * size_of(what.dtype);
    if (tensor.init == InitRule::normal) {
      ops::random_normal(stream, {.seed = hash64(part.name, what.seed),
                                  .first = static_cast<std::uint64_t>(from - part.begin),
                                  .deviation = tensor.init_std,
                                  .out = out,
                                  .dtype = what.dtype,
                                  .count = to - from});
    } else if (tensor.init == InitRule::ones) {
      check(what.dtype == DType::f32, "what begins at one is stored in f32");
      ops::fill(stream, reinterpret_cast<float*>(out), 1.0f, to - from);
    } else {
      stream.device().zero(stream, out, static_cast<std::size_t>(to - from) * size_of(what.dtype));
    }
  }
}

double flops_per_token(const Architecture& a, double length) {
  // Gradients of matrices alone are counted in most formulas; vectors are negligible and included in the
  // parameters here.
  const ParameterLayout layout = build_layout(a);
  double parameters = static_cast<double>(layout.parameter_count());
  if (!a.tied) parameters -= static_cast<double>(a.vocabulary) * static_cast<double>(a.hidden);
  return 6.0 * parameters + 6.0 * static_cast<double>(a.layers) * length * static_cast<double>(a.q_width());
}

}  // namespace octet::model
