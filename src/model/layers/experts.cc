#include "layers/experts.h"

#include <algorithm>
#include <string>

#include "layers/gated_mlp.h"
#include "octet/base/error.h"
#include "octet/device/profile.h"
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
          {.init_std = a.initializer_range, .expert = true})),
      down_(group.matrix("experts_down", a.experts.width, parts_of(shape_, {{"down_proj", a.hidden}}),
                         {.init_std = a.initializer_range, .expert = true, .columns = kEven})) {}

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
}

std::size_t Experts::workspace(const Device& device, const Common& common) const {
  const std::int64_t rows = common.options.max_tokens;
  const auto product = [&](std::int64_t of, std::int64_t out, std::int64_t in, DType dtype) {
    const ops::Operand a{.dtype = common.dtype, .rows = of, .cols = in};
    const ops::Operand b{.dtype = common.dtype, .rows = out, .cols = in};
    return ops::gemm_workspace(
        device,
        {.a = a, .b = b, .d = {nullptr, dtype, of, out, out}, .fixed_order = common.options.fixed_order});
  };
  return std::max({product(rows, shape_.count, hidden_, DType::f32),
                   product(rows * shape_.taken, 2 * shape_.width, hidden_, common.dtype),
                   product(rows * shape_.taken, hidden_, shape_.width, common.dtype)});
}

std::vector<Operation> Experts::operations(std::int64_t tokens) const {
  std::vector<Operation> all = norm_.operations(tokens, {});
  std::erase_if(all, [](const Operation& operation) { return operation.backward; });
  const std::int64_t rows = tokens * shape_.taken;
  const auto product = [&](const char* name, std::int64_t of, std::int64_t out, std::int64_t in) {
    all.push_back(
        {.kind = OperationKind::product,
         .layer = {.name = name, .title = name, .rows = out, .cols = in},
         .m = of,
         .n = out,
         .k = in,
         .flops = 2.0 * static_cast<double>(of) * static_cast<double>(out) * static_cast<double>(in)});
  };
  product("router", tokens, shape_.count, hidden_);
  product("experts' gate, up", rows, 2 * shape_.width, hidden_);
  all.push_back(moves(OperationKind::activation,
                      3 * static_cast<double>(rows) * static_cast<double>(shape_.width), {}));
  product("experts' down", rows, hidden_, shape_.width);
  return all;
}

ops::Operand Experts::rows_of(const Call& call, const MatrixHandle& weight, std::int64_t begin,
                              std::int64_t count) {
  ops::Operand rows = weight.in(call.parameters).front();
  rows.data = static_cast<const std::byte*>(rows.data) + index(begin * rows.cols) * size_of(rows.dtype);
  rows.rows = count;
  return rows;
}

void Experts::multiply(const Call& call, const ops::Matrix& a, const ops::Operand& b,
                       const ops::Matrix& d) const {
  ops::gemm(call.stream, {.a = {.data = a.data, .dtype = a.dtype, .rows = a.rows, .cols = a.cols},
                          .b = b,
                          .d = d,
                          .fixed_order = call.common.options.fixed_order,
                          .workspace = call.common.scratch.workspace});
}

void Experts::pick(const Call& call) {
  const ProfileLabel label(call.stream, "router");
  const ops::Matrix logits{
      .data = logits_, .dtype = DType::f32, .rows = call.tokens, .cols = shape_.count, .ld = shape_.count};
  multiply(call, top(normed_, call.tokens), rows_of(call, router_, 0, shape_.count), logits);
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

ops::GroupedGemmArgs Experts::gate_up_of(const Call& call) const {
  return {.weight = gate_up_.in(call.parameters).front(),
          .count = shape_.count,
          .x = top(normed_, call.tokens),
          .source = row_tokens_,
          .begins = begins_,
          .gated = true,
          .activation = activation_,
          .d = top(activated_, call.tokens * shape_.taken)};
}

ops::GroupedGemmArgs Experts::down_of(const Call& call) const {
  const std::int64_t rows = call.tokens * shape_.taken;
  return {.weight = down_.in(call.parameters).front(),
          .count = shape_.count,
          .x = top(activated_, rows),
          .begins = begins_,
          .d = top(made_, rows)};
}

void Experts::compute(const Call& call) {
  const ProfileLabel label(call.stream, "experts");
  const ops::GroupedGemmArgs gate_up = gate_up_of(call), down = down_of(call);
  const Device& device = call.stream.device();
  if (call.common.options.fixed_order || !ops::has_grouped_gemm(device, gate_up) ||
      !ops::has_grouped_gemm(device, down)) {
    return compute_each(call);
  }
  ops::grouped_gemm(call.stream, gate_up);
  ops::grouped_gemm(call.stream, down);
}

void Experts::compute_each(const Call& call) {
  const std::int64_t rows = call.tokens * shape_.taken, width = shape_.width;
  call.stream.device().copy_to_host(call.stream, host_begins_.data(), begins_,
                                    host_begins_.size() * sizeof(std::int32_t));
  call.stream.synchronize();
  ops::gather_rows(call.stream, top(normed_, call.tokens), row_tokens_, top(made_, rows));
  const auto each = [&](const auto& of_expert) {
    for (std::int64_t e = 0; e < shape_.count; ++e) {
      const std::int64_t begin = host_begins_[index(e)], count = host_begins_[index(e + 1)] - begin;
      if (count > 0) of_expert(e, begin, count);
    }
  };
  each([&](std::int64_t e, std::int64_t begin, std::int64_t count) {
    multiply(call, rows_from(made_, begin, count), rows_of(call, gate_up_, 2 * width * e, 2 * width),
             rows_from(gated_, begin, count));
  });
  ops::gated_activation(
      call.stream, {.gate_up = top(gated_, rows), .activation = activation_, .out = top(activated_, rows)});
  each([&](std::int64_t e, std::int64_t begin, std::int64_t count) {
    multiply(call, rows_from(activated_, begin, count), rows_of(call, down_, hidden_ * e, hidden_),
             rows_from(made_, begin, count));
  });
}

bool Experts::unwatched(const Device& device, const Architecture& a, DType compute, bool fixed_order,
                        std::int64_t tokens) {
  const ExpertShape shape = shape_of_share(a);
  const std::int64_t rows = tokens * shape.taken;
  const auto grouped = [&](std::int64_t out, std::int64_t in) {
    return ops::has_grouped_gemm(device, {.weight = {.dtype = compute, .rows = shape.count * out, .cols = in},
                                          .count = shape.count,
                                          .x = ops::ConstMatrix(nullptr, compute, rows, in, in),
                                          .d = {nullptr, compute, rows, out, out}});
  };
  return !fixed_order && grouped(2 * shape.width, a.hidden) && grouped(a.hidden, shape.width);
}

void Experts::forward(const Call& call, const NormInput& before, const ops::Matrix& stream,
                      const ops::Matrix& after) {
  norm_.forward(call, before, {.values = top(normed_, call.tokens)});
  if (call.tokens == 0) return;
  pick(call);
  compute(call);
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
