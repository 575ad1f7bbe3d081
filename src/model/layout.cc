#include "octet/model/layout.h"

#include <algorithm>
#include <cmath>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/random.h"
#include "octet/ops/elementwise.h"

namespace octet::model {

std::vector<ScaledPart> scaled_parts(const TensorSpec& tensor, bool each_part) {
  if (tensor.scaled_rows > 0) {
    std::vector<ScaledPart> runs;
    const std::int64_t count = tensor.scaled_rows * tensor.cols;
    for (std::int64_t begin = 0; begin < tensor.count(); begin += count) {
      const std::string number = std::to_string((tensor.before + begin) / count);
      runs.push_back({.name = tensor.name + "." + number, .begin = begin, .count = count});
    }
    return runs;
  }
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

std::int64_t trained_parameters(const ParameterLayout& layout) {
  std::int64_t count = 0;
  for (const GroupSpec& group : layout.groups) {
    for (const SegmentSpec& segment : group.segments) {
      for (const TensorSpec& t : segment.tensors) count += segment.trainable && t.rate > 0 ? t.count() : 0;
    }
  }
  return count;
}

bool is_trained(const GroupSpec& group) {
  return std::ranges::any_of(group.segments,
                             [](const SegmentSpec& s) { return s.trainable && !s.tensors.empty(); });
}

int lowest_trained_group(const ParameterLayout& layout) {
  return static_cast<int>(std::ranges::find_if(layout.groups, is_trained) - layout.groups.begin());
}

bool Tuning::drops() const {
  return std::ranges::any_of(modules, [](const auto& module) { return module.second.dropout > 0; });
}

bool Tuning::trains(const std::string& tensor) const {
  if (adapters) return whole.contains(tensor.substr(0, tensor.rfind('.')));
  if (!only) return true;
  // Looks for the tensor's module and all enclosing modules.
  for (std::size_t dot = tensor.rfind('.'); dot != std::string::npos && dot > 0;
       dot = tensor.rfind('.', dot - 1)) {
    if (only->contains(tensor.substr(0, dot))) return true;
  }
  return false;
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

std::vector<float> uniform_values(const NamedPart& part, std::uint64_t seed, std::int64_t begin,
                                  std::int64_t count) {
  const std::uint64_t key = hash64(part.name, seed);
  const float bound = 1.0f / std::sqrt(static_cast<float>(part.shape.back()));
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = philox(key, RandomUse::init, static_cast<std::uint64_t>(begin + i));
    values[static_cast<std::size_t>(i)] = bound * (2.0f * uniform(bits[0]) - 1.0f);
  }
  return values;
}

namespace {

/// The InitRule::log_uniform values of elements [begin, begin + count) of a vector.
std::vector<float> log_uniform_values(const NamedPart& part, std::uint64_t seed, float low,
                                      std::int64_t begin, std::int64_t count) {
  const std::uint64_t key = hash64(part.name, seed);
  constexpr float kHigh = 16.0f, kLeast = 1e-6f;  // not zero, which has no logarithm
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = philox(key, RandomUse::init, static_cast<std::uint64_t>(begin + i));
    values[static_cast<std::size_t>(i)] = std::log(std::max(kLeast, low + (kHigh - low) * uniform(bits[0])));
  }
  return values;
}

/// Copies values to device memory. Adapters are small, so the host computes their values.
void put(Stream& stream, const std::vector<float>& values, DType dtype, void* out) {
  Device& device = stream.device();
  if (dtype == DType::f32) {
    device.copy_to_device(stream, out, values.data(), values.size() * sizeof(float));
    return stream.synchronize();
  }
  std::vector<std::uint16_t> narrow;
  for (const float value : values) narrow.push_back(to_bf16(value));
  device.copy_to_device(stream, out, narrow.data(), narrow.size() * sizeof(std::uint16_t));
  stream.synchronize();
}

/// Sets the indices, in the Hugging Face tensor of `part`, of the stored elements from `from` on. In a cut
/// tensor, the columns of other ranks are between the stored rows.
void number(ops::RandomNormalArgs& args, const NamedPart& part, std::int64_t from) {
  const std::int64_t at = from - part.begin;
  args.first = static_cast<std::uint64_t>(at);
  if (!part.cut) return;
  const auto& [rows, cols] = *part.cut;
  const std::int64_t row = at / cols.count;
  args.column = at % cols.count;
  args.width = cols.count;
  args.pitch = cols.of;
  args.first = static_cast<std::uint64_t>((rows.begin + row) * cols.of + cols.begin + args.column);
}

}  // namespace

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
      ops::RandomNormalArgs args = {.seed = hash64(part.name, what.seed),
                                    .deviation = tensor.init_std,
                                    .out = out,
                                    .dtype = what.dtype,
                                    .count = to - from};
      number(args, part, from);
      ops::random_normal(stream, args);
    } else if (tensor.init == InitRule::uniform) {
      put(stream, uniform_values(part, what.seed, from - part.begin, to - from), what.dtype, out);
    } else if (tensor.init == InitRule::log_uniform) {
      put(stream, log_uniform_values(part, what.seed, tensor.init_std, from - part.begin, to - from),
          what.dtype, out);
    } else if (tensor.init != InitRule::zeros) {
      check(what.dtype == DType::f32, "a tensor with one initial value is stored in f32");
      ops::fill(stream, reinterpret_cast<float*>(out), tensor.init == InitRule::ones ? 1.0f : tensor.init_std,
                to - from);
    } else {
      stream.device().zero(stream, out, static_cast<std::size_t>(to - from) * size_of(what.dtype));
    }
  }
}

double flops_per_token(const Architecture& architecture, double length) {
  Architecture a = architecture;  // with the experts of all ranks
  a.share.expert_rank = 0;
  a.share.expert_size = 1;
  // Most formulas count only matrices. Vectors are negligible and are included here.
  const ParameterLayout layout = build_layout(a);
  const auto lowest = static_cast<std::size_t>(lowest_trained_group(layout));
  double gemms = 0, attention = 0, states = 0;
  for (std::size_t g = a.tied ? 0 : 1; g < layout.groups.size(); ++g) {
    // A tied table counts as the head's weight.
    const bool passes_back = g >= lowest || g == 0;
    for (const SegmentSpec& segment : layout.groups[g].segments) {
      const double frozen = passes_back ? 4.0 : 2.0;
      // A token uses only some of the experts.
      const double taken = segment.expert && segment.fp8
                               ? static_cast<double>(a.experts.taken) / static_cast<double>(a.experts.count)
                               : 1.0;
      for (const TensorSpec& t : segment.tensors)
        gemms += taken * (segment.trainable ? 6.0 : frozen) * static_cast<double>(t.count());
    }
    if (g == 0 || g + 1 == layout.groups.size()) continue;
    const std::int64_t layer = static_cast<std::int64_t>(g) - 1;
    const double passes = passes_back ? 6.0 : 2.0;
    if (a.block(layer).delta_rule) {
      states += passes;
    } else {
      const std::int64_t queries = a.heads.q_heads * a.heads_of(layer).head_dim;
      attention += passes * static_cast<double>(queries + (a.has_latents() ? a.attended_width() : queries));
    }
  }
  const double state = 3 * static_cast<double>(a.delta.heads.values() * a.delta.heads.key_dim);
  return gemms + attention * length / 2 + states * state;
}

}  // namespace octet::model
