#include "layers/experts.h"

#include <algorithm>
#include <string>

#include "layers/gated_mlp.h"
#include "octet/base/error.h"
#include "octet/device/profile.h"
#include "octet/ops/block_quantize.h"
#include "octet/ops/embedding.h"
#include "octet/ops/gated_activation.h"
#include "octet/ops/routing.h"

namespace octet::model {
namespace {

std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

std::vector<Part> parts_of(const ExpertShape& shape, const std::vector<Part>& of_one) {
  std::vector<Part> parts;
  for (std::int64_t e = 0; e < shape.count; ++e) {
    for (const Part& part : of_one)
      parts.push_back(
          {"mlp.experts." + std::to_string(e) + "." + part.name + ".weight", part.rows, part.split});
  }
  return parts;
}

ExpertShape shape_of_share(const Architecture& a) {
  ExpertShape shape = a.experts;
  shape.width = piece_of(kEven, shape.width, a.share).count;
  return shape;
}

/// A buffer of `factor` times as many rows as there are tokens.
ops::Matrix rows_matrix(BlockBuffers& buffers, const char* name, std::int64_t factor, std::int64_t cols) {
  ops::Matrix m = buffers.matrix(name, factor * cols, Kept::never);
  return {.data = m.data, .dtype = m.dtype, .rows = m.rows * factor, .cols = cols, .ld = cols};
}

ops::Matrix rows_from(ops::Matrix m, std::int64_t begin, std::int64_t count) {
  m.data = static_cast<std::byte*>(m.data) + index(begin * m.ld) * size_of(m.dtype);
  m.rows = count;
  return m;
}
ops::Operand rows_from(ops::Operand x, std::int64_t begin, std::int64_t count) {
  x.data = static_cast<const std::byte*>(x.data) + index(begin * x.cols) * size_of(x.dtype);
  if (x.scaling == ops::Scaling::whole_rows) x.scale_inv += begin;
  x.rows = count;
  return x;
}

/// A matrix as products read it: its FP8 copy, where it has one.
ops::Operand operand_of(const ops::Matrix& values, const precision::Fp8Copy& copy) {
  if (copy.row == nullptr)
    return {.data = values.data, .dtype = values.dtype, .rows = values.rows, .cols = values.cols};
  return {.data = copy.row,
          .dtype = DType::e4m3,
          .rows = values.rows,
          .cols = values.cols,
          .scale_inv = copy.scales,
          .scaling = ops::Scaling::whole_rows};
}

/// What a producer of the values writes for it.
ops::QuantizeInto into(const precision::Fp8Copy& copy) {
  return {.row = copy.row, .row_scale_inv = copy.scales};
}

/// Enqueues that the copy of finished values is made, where there is one.
void fill_copy(const Call& call, const ops::Matrix& values, const precision::Fp8Copy& copy) {
  if (copy.row == nullptr) return;
  ops::block_quantize(
      call.stream,
      {.x = values, .scaling = ops::Scaling::whole_rows, .row = copy.row, .scale_inv = copy.scales});
}

/// A grouped product of so many rows, by its sizes alone.
ops::GroupedGemmArgs grouped_shape(const ExpertShape& shape, const precision::Recipe& recipe,
                                   std::int64_t rows, std::int64_t out, std::int64_t in) {
  const DType dtype = recipe.rows() ? DType::e4m3 : recipe.compute;
  return {.weight = {.dtype = dtype, .rows = shape.count * out, .cols = in},
          .count = shape.count,
          .x = {.dtype = dtype, .rows = rows, .cols = in},
          .d = {nullptr, recipe.compute, rows, out, out}};
}

}  // namespace

Experts::Experts(GroupBuilder& group, const Architecture& a)
    : shape_(shape_of_share(a)),
      sums_(a.share.sums()),
      hidden_(a.hidden),
      activation_(a.activation),
      norm_(group, "mlp_norm", mlp_norm_name(a), a.hidden, a),
      router_(group.matrix("router", a.hidden, {{"mlp.gate.weight", shape_.count}},
                           {.init_std = a.initializer_range, .expert = true})),
      gate_up_(group.matrix(
          "experts_gate_up", a.hidden,
          parts_of(shape_, {{"gate_proj", a.experts.width, kEven}, {"up_proj", a.experts.width, kEven}}),
          {.init_std = a.initializer_range, .fp8 = true, .expert = true})),
      down_(group.matrix("experts_down", a.experts.width, parts_of(shape_, {{"down_proj", a.hidden}}),
                         {.init_std = a.initializer_range, .fp8 = true, .expert = true, .columns = kEven})) {}

void Experts::reserve(BlockBuffers& buffers, const Common& common) {
  check(!common.options.training, "models with experts are not trained");
  const std::int64_t taken = shape_.taken;
  norm_.reserve(buffers);
  normed_ = buffers.matrix("activations/experts' input", hidden_, Kept::never);
  made_ = rows_matrix(buffers, "activations/experts' rows", taken, hidden_);
  gated_ = rows_matrix(buffers, "activations/experts' gate and up", taken, 2 * shape_.width);
  activated_ = rows_matrix(buffers, "activations/experts' activations", taken, shape_.width);
  logits_ = buffers.floats("activations/router", shape_.count, Kept::never);
  const auto numbers = [&](const char* name) {
    return reinterpret_cast<std::int32_t*>(buffers.floats(name, taken, Kept::never));
  };
  taken_ = numbers("activations/taken experts");
  shares_ = buffers.floats("activations/shares of experts", taken, Kept::never);
  begins_ = static_cast<std::int32_t*>(buffers.take(
      "activations/experts' first rows", index(shape_.count + 1) * sizeof(std::int32_t), Kept::never));
  row_tokens_ = numbers("activations/tokens of experts");
  places_ = numbers("activations/rows of tokens");
  weights_ = buffers.floats("activations/weights of experts", taken, Kept::never);
  host_begins_.resize(index(shape_.count + 1));
  fp8_ = common.recipe().rows();
  if (!fp8_) return;
  const auto copy = [&](std::int64_t factor, std::int64_t cols) {
    return take_copy(
        {.rows = factor * common.options.max_tokens,
         .cols = cols,
         .transposed = false,
         .scaling = ops::Scaling::whole_rows},
        [&](std::size_t bytes) { return buffers.take("activations/experts' FP8 rows", bytes, Kept::never); });
  };
  normed_copy_ = copy(1, hidden_);
  made_copy_ = copy(taken, hidden_);
  activated_copy_ = copy(taken, shape_.width);
}

std::size_t Experts::workspace(const Device& device, const Common& common) const {
  const std::int64_t rows = common.options.max_tokens;
  const auto product = [&](std::int64_t of, std::int64_t out, std::int64_t in, DType dtype, bool fp8) {
    ops::Operand a{.dtype = common.dtype, .rows = of, .cols = in};
    if (fp8) a = {.dtype = DType::e4m3, .rows = of, .cols = in, .scaling = ops::Scaling::whole_rows};
    ops::Operand b = a;
    b.rows = out;
    return ops::gemm_workspace(
        device,
        {.a = a, .b = b, .d = {nullptr, dtype, of, out, out}, .fixed_order = common.options.fixed_order});
  };
  const bool fp8 = common.recipe().rows();
  return std::max({product(rows, shape_.count, hidden_, DType::f32, false),
                   product(rows * shape_.taken, 2 * shape_.width, hidden_, common.dtype, fp8),
                   product(rows * shape_.taken, hidden_, shape_.width, common.dtype, fp8)});
}

std::vector<Operation> Experts::operations(std::int64_t tokens) const {
  std::vector<Operation> all = norm_.operations(tokens, {});
  std::erase_if(all, [](const Operation& operation) { return operation.backward; });
  const std::int64_t rows = tokens * shape_.taken;
  const auto product = [&](const char* name, std::int64_t of, std::int64_t out, std::int64_t in, bool fp8) {
    all.push_back(
        {.kind = OperationKind::product,
         .layer = {.name = name, .title = name, .rows = out, .cols = in, .fp8 = fp8},
         .m = of,
         .n = out,
         .k = in,
         .flops = 2.0 * static_cast<double>(of) * static_cast<double>(out) * static_cast<double>(in)});
  };
  product("router", tokens, shape_.count, hidden_, false);
  product("experts' gate, up", rows, 2 * shape_.width, hidden_, true);
  all.push_back(moves(OperationKind::activation,
                      3 * static_cast<double>(rows) * static_cast<double>(shape_.width), {}));
  product("experts' down", rows, hidden_, shape_.width, true);
  return all;
}

void Experts::multiply(const Call& call, const ops::Operand& a, const ops::Operand& b,
                       const ops::Matrix& d) const {
  ops::gemm(call.stream, {.a = a,
                          .b = b,
                          .d = d,
                          .b_stands = !call.common.options.fixed_order,
                          .fixed_order = call.common.options.fixed_order,
                          .fast_accumulation = true,
                          .workspace = call.common.scratch.workspace});
}

void Experts::pick(const Call& call) {
  const ProfileLabel label(call.stream, "router");
  const ops::Matrix logits{
      .data = logits_, .dtype = DType::f32, .rows = call.tokens, .cols = shape_.count, .ld = shape_.count};
  multiply(call, operand_of(top(normed_, call.tokens), {}), router_.in(call.parameters).front(), logits);
  ops::route(call.stream, {.logits = logits,
                           .taken = shape_.taken,
                           .normalised = shape_.normalised,
                           .experts = taken_,
                           .weights = shares_});
  ops::deal(call.stream, {.experts = taken_,
                          .weights = shares_,
                          .tokens = call.tokens,
                          .taken = shape_.taken,
                          .count = shape_.count,
                          .begins = begins_,
                          .row_tokens = row_tokens_,
                          .places = places_,
                          .place_weights = weights_});
}

ops::GroupedGemmArgs Experts::gate_up_of(const Call& call, Way way) const {
  const std::int64_t rows = call.tokens * shape_.taken;
  const bool gathered = way == Way::gathered;
  return {.weight = gate_up_.in(call.parameters).front(),
          .count = shape_.count,
          .x = gathered ? operand_of(top(made_, rows), made_copy_)
                        : operand_of(top(normed_, call.tokens), normed_copy_),
          .source = gathered ? nullptr : row_tokens_,
          .begins = begins_,
          .gated = true,
          .activation = activation_,
          .d = top(activated_, rows)};
}

ops::GroupedGemmArgs Experts::down_of(const Call& call) const {
  const std::int64_t rows = call.tokens * shape_.taken;
  return {.weight = down_.in(call.parameters).front(),
          .count = shape_.count,
          .x = operand_of(top(activated_, rows), activated_copy_),
          .begins = begins_,
          .d = top(made_, rows)};
}

Experts::Way Experts::way_of(const Call& call) const {
  if (call.common.options.fixed_order) return Way::each;
  const Device& device = call.stream.device();
  const Way way =
      ops::wants_rows_in_order(device, gate_up_of(call, Way::gathered)) ? Way::gathered : Way::by_number;
  const bool grouped =
      ops::has_grouped_gemm(device, gate_up_of(call, way)) && ops::has_grouped_gemm(device, down_of(call));
  return grouped ? way : Way::each;
}

void Experts::gather(const Call& call) {
  const ops::Matrix rows = top(made_, call.tokens * shape_.taken);
  ops::gather_rows(call.stream, top(normed_, call.tokens), row_tokens_, rows);
  fill_copy(call, rows, made_copy_);
}

void Experts::compute(const Call& call, Way way) {
  const ProfileLabel label(call.stream, "experts");
  if (way == Way::each) return compute_each(call);
  if (way == Way::gathered) gather(call);
  ops::grouped_gemm(call.stream, gate_up_of(call, way));
  fill_copy(call, top(activated_, call.tokens * shape_.taken), activated_copy_);
  ops::grouped_gemm(call.stream, down_of(call));
}

void Experts::compute_each(const Call& call) {
  const std::int64_t rows = call.tokens * shape_.taken;
  call.stream.device().copy_to_host(call.stream, host_begins_.data(), begins_,
                                    host_begins_.size() * sizeof(std::int32_t));
  call.stream.synchronize();
  gather(call);
  const auto each = [&](const MatrixHandle& weight, const ops::Operand& x, const ops::Matrix& d) {
    const ops::Operand all = weight.in(call.parameters).front();
    const std::int64_t outputs = all.rows / shape_.count;
    for (std::int64_t e = 0; e < shape_.count; ++e) {
      const std::int64_t begin = host_begins_[index(e)], count = host_begins_[index(e + 1)] - begin;
      if (count == 0) continue;
      multiply(call, rows_from(x, begin, count), rows_from(all, e * outputs, outputs),
               rows_from(d, begin, count));
    }
  };
  each(gate_up_, operand_of(top(made_, rows), made_copy_), top(gated_, rows));
  ops::gated_activation(call.stream, {.gate_up = top(gated_, rows),
                                      .activation = activation_,
                                      .out = fp8_ ? ops::Matrix{} : top(activated_, rows),
                                      .quantize = into(activated_copy_)});
  each(down_, operand_of(top(activated_, rows), activated_copy_), top(made_, rows));
}

bool Experts::unwatched(const Device& device, const Architecture& a, const precision::Recipe& recipe,
                        bool fixed_order, std::int64_t tokens) {
  const ExpertShape shape = shape_of_share(a);
  const std::int64_t rows = tokens * shape.taken;
  return !fixed_order &&
         ops::has_grouped_gemm(device, grouped_shape(shape, recipe, rows, 2 * shape.width, a.hidden)) &&
         ops::has_grouped_gemm(device, grouped_shape(shape, recipe, rows, a.hidden, shape.width));
}

void Experts::forward(const Call& call, const NormInput& before, const ops::Matrix& stream,
                      const ops::Matrix& after) {
  const Way way = way_of(call);
  call.settle();
  norm_.forward(call, before,
                {.values = top(normed_, call.tokens),
                 .quantize = way == Way::by_number ? into(normed_copy_) : ops::QuantizeInto{}});
  if (call.tokens == 0) return;
  pick(call);
  compute(call, way);
  const ops::Matrix made = sums_ ? top(call.common.scratch.delta, call.tokens) : after;
  ops::weighted_rows(call.stream, {.x = top(made_, call.tokens * shape_.taken),
                                   .taken = shape_.taken,
                                   .places = places_,
                                   .weights = weights_,
                                   .addend = sums_ ? ops::Matrix{} : stream,
                                   .out = made});
  if (sums_) reduce_partial(call, "experts", made);
}

void Experts::backward(const Call&, const ops::Matrix&, const ops::QuantizeInto&) {
  check(false, "models with experts are not trained");
}

NormInput Experts::sum(const Call& call, const ops::Matrix& before, const ops::Matrix& after) const {
  if (!sums_) return {.residual = after};
  return {.residual = before, .delta = top(call.common.scratch.delta, call.tokens), .sum = after};
}

void Experts::settle(const Call& call, const ops::Matrix& before, const ops::Matrix& after) const {
  if (sums_) norm_.add(call, sum(call, before, after));
}

}  // namespace octet::model
