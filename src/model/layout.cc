#include "octet/model/layout.h"

#include <algorithm>
#include <initializer_list>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/model/build.h"
#include "octet/ops/elementwise.h"
#include "octet/ops/random.h"

namespace octet::model {
namespace {

struct PartSize {
  std::string name;
  std::int64_t rows;
};

TensorSpec matrix(std::string name, std::int64_t cols, std::initializer_list<PartSize> parts, SplitRule split,
                  double std) {
  TensorSpec t{.name = std::move(name),
               .cols = cols,
               .split = split,
               .init = InitRule::normal,
               .init_std = static_cast<float>(std)};
  for (const PartSize& part : parts) {
    t.parts.push_back(
        {.name = part.name, .shape = {part.rows, cols}, .begin = t.rows * cols, .count = part.rows * cols});
    t.rows += part.rows;
  }
  return t;
}

TensorSpec vector(std::string name, std::initializer_list<PartSize> parts, SplitRule split, InitRule init) {
  TensorSpec t{.name = std::move(name), .cols = 1, .split = split, .init = init, .decay = false};
  for (const PartSize& part : parts) {
    t.parts.push_back({.name = part.name, .shape = {part.rows}, .begin = t.rows, .count = part.rows});
    t.rows += part.rows;
  }
  return t;
}

void place(SegmentSpec& segment) {
  std::int64_t end = 0;
  for (TensorSpec& t : segment.tensors) {
    t.offset = (end + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
    end = t.offset + t.count();
  }
  segment.used = end;
}

GroupSpec block_group(const Architecture& a, std::int64_t layer) {
  const std::string name = "layers." + std::to_string(layer);
  const std::string hf = a.tensor_prefix + name + ".";
  const std::int64_t q = a.q_width(), kv = a.heads.kv_heads * a.heads.head_dim;
  const double std = a.initializer_range;
  const std::string attn = hf + "self_attn.", mlp = hf + "mlp.";

  SegmentSpec matrices{.name = name + " matrices", .kind = ParameterKind::matrix, .fp8 = true};
  const std::initializer_list<PartSize> qkv = {
      {attn + "q_proj.weight", q}, {attn + "k_proj.weight", kv}, {attn + "v_proj.weight", kv}};
  const std::initializer_list<PartSize> gate_up = {{mlp + "gate_proj.weight", a.intermediate},
                                                   {mlp + "up_proj.weight", a.intermediate}};
  matrices.tensors = {
      matrix(name + ".qkv", a.hidden, qkv, SplitRule::rows, std),
      matrix(name + ".output", q, {{attn + "o_proj.weight", a.hidden}}, SplitRule::columns, std),
      matrix(name + ".gate_up", a.hidden, gate_up, SplitRule::rows, std),
      matrix(name + ".down", a.intermediate, {{mlp + "down_proj.weight", a.hidden}}, SplitRule::columns,
             std)};
  for (TensorSpec& t : matrices.tensors) t.fp8 = t.gradient_by_product = true;

  const InitRule norm = a.one_plus_weight ? InitRule::zeros : InitRule::ones;
  SegmentSpec vectors{.name = name + " vectors", .kind = ParameterKind::vector};
  const auto norm_of = [&](const char* tensor, const std::string& part, std::int64_t width) {
    vectors.tensors.push_back(vector(name + tensor, {{part + ".weight", width}}, SplitRule::none, norm));
  };
  norm_of(".input_norm", hf + "input_layernorm", a.hidden);
  // Families with norms of what sublayers add call the norm before the MLP by another name.
  norm_of(".mlp_norm", hf + (a.sublayer_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm"),
          a.hidden);
  if (a.sublayer_norms) {
    norm_of(".attention_output_norm", hf + "post_attention_layernorm", a.hidden);
    norm_of(".mlp_output_norm", hf + "post_feedforward_layernorm", a.hidden);
  }
  if (a.qk_norm) {
    norm_of(".q_norm", attn + "q_norm", a.heads.head_dim);
    norm_of(".k_norm", attn + "k_norm", a.heads.head_dim);
  }
  const auto bias = [&](bool wanted, const std::string& tensor, std::initializer_list<PartSize> parts,
                        SplitRule split) {
    if (wanted) vectors.tensors.push_back(vector(name + tensor, parts, split, InitRule::zeros));
  };
  bias(a.qkv_bias, ".qkv_bias",
       {{attn + "q_proj.bias", q}, {attn + "k_proj.bias", kv}, {attn + "v_proj.bias", kv}}, SplitRule::rows);
  bias(a.output_bias, ".output_bias", {{attn + "o_proj.bias", a.hidden}}, SplitRule::none);
  bias(a.mlp_bias, ".gate_up_bias",
       {{mlp + "gate_proj.bias", a.intermediate}, {mlp + "up_proj.bias", a.intermediate}}, SplitRule::rows);
  bias(a.mlp_bias, ".down_bias", {{mlp + "down_proj.bias", a.hidden}}, SplitRule::none);

  GroupSpec group{.name = name, .segments = {std::move(matrices), std::move(vectors)}};
  for (SegmentSpec& segment : group.segments) place(segment);
  return group;
}

}  // namespace

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

ParameterLayout build_layout(const Architecture& a) {
  ParameterLayout layout;
  SegmentSpec table{.name = "embedding matrices", .kind = ParameterKind::matrix};
  table.tensors = {matrix("embed", a.hidden, {{a.tensor_prefix + "embed_tokens.weight", a.vocabulary}},
                          SplitRule::rows, a.embedding_initializer_range)};
  // The head's backward pass comes first: when tied, its product may overwrite what the embedding adds to.
  table.tensors[0].gradient_by_product = a.tied;
  layout.groups.push_back({.name = "embedding", .segments = {std::move(table)}});

  for (std::int64_t i = 0; i < a.layers; ++i) layout.groups.push_back(block_group(a, i));

  GroupSpec head{.name = "head", .segments = {}};
  if (!a.tied) {
    SegmentSpec matrices{.name = "head matrices", .kind = ParameterKind::matrix};
    matrices.tensors = {
        matrix("lm_head", a.hidden, {{a.head_name, a.vocabulary}}, SplitRule::rows, a.initializer_range)};
    matrices.tensors[0].gradient_by_product = true;
    head.segments.push_back(std::move(matrices));
  }
  SegmentSpec vectors{.name = "head vectors", .kind = ParameterKind::vector};
  vectors.tensors = {vector("norm", {{a.tensor_prefix + "norm.weight", a.hidden}}, SplitRule::none,
                            a.one_plus_weight ? InitRule::zeros : InitRule::ones)};
  head.segments.push_back(std::move(vectors));
  layout.groups.push_back(std::move(head));

  place(layout.groups.front().segments.front());
  for (SegmentSpec& segment : layout.groups.back().segments) place(segment);
  return layout;
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
