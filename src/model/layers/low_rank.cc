#include "layers/low_rank.h"

#include <algorithm>
#include <cmath>

#include "layers/linear_operands.h"
#include "layers/work_list.h"
#include "octet/base/files.h"
#include "octet/device/profile.h"
#include "octet/ops/dora.h"
#include "octet/ops/dropout.h"
#include "octet/ops/elementwise.h"

namespace octet::model {
namespace {

/// Bundles begin at multiples of this number of columns of the scratch.
constexpr std::int64_t kColumns = 16;
/// Ranks that are multiples of this number may share a matrix.
constexpr std::int64_t kAlignedRank = 8;

std::int64_t whole_columns(std::int64_t rank) {
  return (rank + kColumns - 1) / kColumns * kColumns;
}

std::int64_t stored_rows(const std::vector<Part>& parts) {
  std::int64_t rows = 0;
  for (const Part& part : parts) rows += part.rows;
  return rows;
}

}  // namespace

LowRank::LowRank(GroupBuilder& group, const Shape& shape) : inputs_(shape.inputs), remade_(shape.remade) {
  std::int64_t scratch = 0;
  std::vector<Part> ranks;
  const double norm = shape.init_std * std::sqrt(static_cast<double>(inputs_));
  for (const Part& module : shape.modules) {
    if (const AdapterShape* of = group.adapter(module.name)) {
      if (bundles_.empty() || !joins(bundles_.back(), *of)) {
        if (!bundles_.empty()) scratch += whole_columns(bundles_.back().rank);
        bundles_.push_back({.adapters = {},
                            .key = hash64(group.full_name(module.name)),
                            .dropout = static_cast<float>(of->dropout),
                            .factor = static_cast<float>(of->factor),
                            .row = stored_rows(ranks),
                            .inner = {},
                            .scratch = scratch});
      }
      Bundle& bundle = bundles_.back();
      bundle.adapters.push_back(
          {.b = group.adapter_outputs(module.name, module.rows, of->rank),
           .magnitude = of->dora ? group.adapter_magnitude(module.name, module.rows, norm) : VectorHandle(),
           .column = outputs_,
           .row = stored_rows(ranks)});
      bundle.rank += of->rank;
      ranks.push_back({.name = module.name, .rows = of->rank});
    }
    outputs_ += module.rows;
  }
  if (!ranks.empty()) a_ = group.adapter_inputs(shape.name, ranks, inputs_);
}

bool LowRank::joins(const Bundle& bundle, const AdapterShape& adapter) {
  // GEMMs need columns of a shared matrix that begin at multiples of 16 bytes.
  return bundle.dropout == 0.0f && adapter.dropout == 0 &&
         bundle.factor == static_cast<float>(adapter.factor) && bundle.rank % kAlignedRank == 0 &&
         adapter.rank % kAlignedRank == 0;
}

bool LowRank::scales() const {
  return std::ranges::any_of(bundles_, [](const Bundle& bundle) {
    return std::ranges::any_of(bundle.adapters,
                               [](const Adapter& a) { return static_cast<bool>(a.magnitude); });
  });
}

bool LowRank::drops() const {
  return std::ranges::any_of(bundles_, [](const Bundle& bundle) { return bundle.dropout > 0; });
}

std::int64_t LowRank::scratch_columns() const {
  if (bundles_.empty()) return 0;
  return bundles_.back().scratch + whole_columns(bundles_.back().rank);
}

void LowRank::reserve(BlockBuffers& buffers, const ops::Matrix& unscaled, const ops::Matrix& inner) {
  for (Bundle& bundle : bundles_) {
    bundle.inner = inner.cols > 0 ? bundle_in(inner, bundle.scratch)
                                  : buffers.matrix("activations/adapters", bundle.rank,
                                                   remade_ ? Kept::never : Kept::activations);
  }
  if (!scales()) return;
  unscaled_ =
      unscaled.cols > 0 ? unscaled : buffers.matrix("activations/adapters", outputs_, Kept::activations);
  const auto vector = [&] {
    const std::size_t bytes = bytes_of(outputs_, 1, DType::f32);
    return static_cast<float*>(buffers.take("activations/adapters", bytes, Kept::activations));
  };
  scale_ = vector();
  norm_ = vector();
}

std::size_t LowRank::workspace(const Device& device, const Common& common) const {
  std::size_t bytes = 0;
  const std::int64_t rows = common.options.max_tokens;
  const auto cover = [&](std::int64_t out, std::int64_t in) {
    bytes = std::max(bytes,
                     workspace_of_gemm(device, common, {.rows = rows, .out = out, .in = in, .pitch = out}));
  };
  for (const Bundle& bundle : bundles_) {
    cover(bundle.rank, inputs_);
    for (const Adapter& adapter : bundle.adapters) cover(adapter.b.rows(), adapter.rank());
  }
  return bytes;
}

std::vector<Operation> LowRank::values_of(const Bundle& bundle, std::int64_t tokens, const Repeats& again,
                                          bool passes_on) const {
  std::vector<Operation> all;
  const auto t = static_cast<double>(tokens), in = static_cast<double>(inputs_);
  if (bundle.dropout > 0) {
    all.push_back(moves(OperationKind::adapters, 2 * t * in, again));
    all.push_back(moves_back(OperationKind::adapters, (passes_on ? 5 : 2) * t * in));
  }
  for (const Adapter& adapter : bundle.adapters) {
    if (!adapter.magnitude) continue;
    // The norms read the weight.
    const auto out = static_cast<double>(adapter.b.rows());
    all.push_back(moves(OperationKind::adapters, 3 * t * out + in * out, again));
    all.push_back(moves_back(OperationKind::adapters, 4 * t * out));
  }
  return all;
}

std::vector<Operation> LowRank::operations(std::int64_t tokens, const Repeats& forward_again,
                                           bool passes_on) const {
  std::vector<Operation> all;
  for (const Bundle& bundle : bundles_) {
    // Full recomputation repeats A x even if backward does not read the layer's output.
    Repeats again = forward_again;
    again.back() = 1;
    std::vector<Operation> a = gemms_of(
        {.name = "adapter A", .title = "adapters", .rows = bundle.rank, .cols = inputs_}, tokens, again);
    if (!passes_on) std::erase_if(a, [](const Operation& o) { return o.gemm_kind == ops::GemmKind::dgrad; });
    append(all, std::move(a));
    for (const Adapter& adapter : bundle.adapters) {
      append(all,
             gemms_of(
                 {.name = "adapter B", .title = "adapters", .rows = adapter.b.rows(), .cols = adapter.rank()},
                 tokens, forward_again));
    }
    append(all, values_of(bundle, tokens, again, passes_on));
  }
  return all;
}

precision::AuditRow LowRank::audit_row(const char* title) const {
  return {.name = std::string(title) + ": adapters",
          .layers = 1,
          .rows = a_.rows(),
          .cols = inputs_,
          .reason = "adapters are multiplied in the compute dtype"};
}

ops::Operand LowRank::a_rows(const Call& call, std::int64_t row, std::int64_t count) const {
  ops::Operand a = a_.in(call.parameters).front();
  a.data = static_cast<const std::byte*>(a.data) + static_cast<std::size_t>(row * inputs_) * size_of(a.dtype);
  a.rows = count;
  return a;
}

ops::Matrix LowRank::input(const Call& call, const Bundle& bundle, const ops::Matrix& x) const {
  if (bundle.dropout == 0.0f || call.names == nullptr) return x;
  const ops::Matrix dropped = narrowed(call.common.scratch.dropped, call.tokens, inputs_);
  ops::dropout(call.stream,
               {.x = x, .names = call.names, .key = bundle.key, .rate = bundle.dropout, .out = dropped});
  return dropped;
}

void LowRank::project(const Call& call, const Bundle& bundle, const ops::Matrix& x) const {
  multiply(call, place_,
           {.gemm_kind = ops::GemmKind::forward,
            .a = operand_of(input(call, bundle, x)),
            .b = a_rows(call, bundle.row, bundle.rank),
            .d = narrowed(bundle.inner, call.tokens, bundle.rank),
            .factor = bundle.factor});
}

void LowRank::forward(const Call& call, const ops::Matrix& x, const ops::Matrix& out) const {
  const ProfileLabel label(call.stream, "adapters");
  for (const Bundle& bundle : bundles_) {
    project(call, bundle, x);
    const ops::Matrix inner = narrowed(bundle.inner, call.tokens, bundle.rank);
    for (const Adapter& adapter : bundle.adapters) {
      multiply(call, place_,
               {.gemm_kind = ops::GemmKind::forward,
                .a = operand_of(columns_of(inner, adapter.row - bundle.row, adapter.rank())),
                .b = adapter.b.in(call.parameters).front(),
                .d = columns_of(out, adapter.column, adapter.b.rows()),
                .accumulate = true,
                .a_ld = inner.ld});
    }
  }
}

void LowRank::remake(const Call& call, const ops::Matrix& x) const {
  const ProfileLabel label(call.stream, "adapters");
  for (const Bundle& bundle : bundles_) project(call, bundle, x);
}

ops::Matrix LowRank::d_inner(const Call& call, const Bundle& bundle) const {
  return narrowed(bundle_in(call.common.scratch.low_rank, bundle.scratch), call.tokens, bundle.rank);
}

void LowRank::add_gradient(const Call& call, const MatrixHandle& matrix, ops::GemmArgs args) const {
  args.gemm_kind = ops::GemmKind::wgrad;
  args.accumulate = !matrix.overwrites(*call.gradients);
  multiply(call, place_, args);
}

void LowRank::inner_gradients(const Call& call, const Bundle& bundle,
                              const ops::ConstMatrix& d_output) const {
  for (const Adapter& adapter : bundle.adapters) {
    const ops::ConstMatrix d_part = columns_of(d_output, adapter.column, adapter.b.rows());
    multiply(call, place_,
             {.gemm_kind = ops::GemmKind::dgrad,
              .a = {.data = d_part.data, .dtype = d_part.dtype, .rows = d_part.rows, .cols = d_part.cols},
              .b = adapter.b.in(call.parameters).front(),
              .d = columns_of(d_inner(call, bundle), adapter.row - bundle.row, adapter.rank()),
              .factor = bundle.factor,
              .a_ld = d_output.ld});
  }
}

void LowRank::inner_gradients(const Call& call, const ops::ConstMatrix& d_output) const {
  const ProfileLabel label(call.stream, "adapters");
  for (const Bundle& bundle : bundles_) inner_gradients(call, bundle, d_output);
}

void LowRank::gradients(const Call& call, const ops::Matrix& x, const ops::ConstMatrix& d_output) const {
  const ProfileLabel label(call.stream, "adapters");
  for (const Bundle& bundle : bundles_) {
    const ops::Matrix d_inside = d_inner(call, bundle);
    const ops::Matrix inner = narrowed(bundle.inner, call.tokens, bundle.rank);
    for (const Adapter& adapter : bundle.adapters) {
      const ops::ConstMatrix d_part = columns_of(d_output, adapter.column, adapter.b.rows());
      const ops::Operand d_out{
          .data = d_part.data, .dtype = d_part.dtype, .rows = d_part.rows, .cols = d_part.cols};
      const std::int64_t first = adapter.row - bundle.row;
      add_gradient(call, adapter.b,
                   {.a = d_out,
                    .b = operand_of(columns_of(inner, first, adapter.rank())),
                    .d = adapter.b.in(*call.gradients),
                    .a_ld = d_output.ld,
                    .b_ld = inner.ld});
    }
    inner_gradients(call, bundle, d_output);
    ops::Matrix d_a = a_.in(*call.gradients);
    d_a.data = static_cast<std::byte*>(d_a.data) +
               static_cast<std::size_t>(bundle.row * d_a.ld) * size_of(d_a.dtype);
    d_a.rows = bundle.rank;
    add_gradient(call, a_, {.a = operand_of(d_inside), .b = operand_of(input(call, bundle, x)), .d = d_a});
  }
}

void LowRank::add_input_gradient(const Call& call, const ops::Matrix& d_input) const {
  const ProfileLabel label(call.stream, "adapters");
  for (const Bundle& bundle : bundles_) {
    const bool drops = bundle.dropout > 0.0f && call.names != nullptr;
    const ops::Matrix read = drops ? narrowed(call.common.scratch.dropped, call.tokens, inputs_) : d_input;
    multiply(call, place_,
             {.gemm_kind = ops::GemmKind::dgrad,
              .a = operand_of(d_inner(call, bundle)),
              .b = a_rows(call, bundle.row, bundle.rank),
              .d = read,
              .accumulate = !drops});
    if (!drops) continue;
    ops::dropout(call.stream, {.x = read,
                               .names = call.names,
                               .key = bundle.key,
                               .rate = bundle.dropout,
                               .out = d_input,
                               .accumulate = true});
  }
}

ops::Matrix LowRank::unscaled(const Call& call) const {
  ops::Matrix rows = unscaled_;
  rows.data = static_cast<std::byte*>(rows.data) +
              static_cast<std::size_t>(call.first_row * rows.ld) * size_of(rows.dtype);
  return top(rows, call.tokens);
}

void LowRank::measure(const Call& call, const Weight& weight, std::int64_t first) const {
  const ProfileLabel label(call.stream, "adapters");
  std::int64_t column = 0;
  for (const Bundle& bundle : bundles_) {
    for (const Adapter& adapter : bundle.adapters) {
      const std::int64_t rows = adapter.b.rows();
      ops::fill(call.stream, scale_ + column, 1.0f, adapter.column - column);
      column = adapter.column + rows;
      const ops::Operand a = a_rows(call, adapter.row, adapter.rank());
      const ops::Operand& b = adapter.b.in(call.parameters).front();
      ops::dora_scale(call.stream, {.weight = weight.rows_of(call, first + adapter.column, rows),
                                    .a = {a.data, a.dtype, a.rows, a.cols, a.cols},
                                    .b = {b.data, b.dtype, b.rows, b.cols, b.cols},
                                    .factor = bundle.factor,
                                    .magnitude = adapter.magnitude.in(call.parameters),
                                    .scale = scale_ + adapter.column,
                                    .norm = norm_ + adapter.column});
    }
  }
  ops::fill(call.stream, scale_ + column, 1.0f, outputs_ - column);
}

void LowRank::scale(const Call& call, const Output& output) const {
  const ProfileLabel label(call.stream, "adapters");
  ops::scale_columns(call.stream, {.x = unscaled(call),
                                   .scale = scale_,
                                   .bias = output.bias,
                                   .addend = output.addend,
                                   .out = output.out});
}

void LowRank::unscale(const Call& call, const ops::ConstMatrix& d_output) const {
  const ProfileLabel label(call.stream, "adapters");
  if (call.tokens == 0) return;  // without tokens, there are no norms
  for (const Bundle& bundle : bundles_) {
    for (const Adapter& adapter : bundle.adapters) {
      ops::dot_columns(call.stream,
                       {.x = columns_of(d_output, adapter.column, adapter.b.rows()),
                        .y = columns_of(ops::ConstMatrix(unscaled(call)), adapter.column, adapter.b.rows()),
                        .divisor = norm_ + adapter.column,
                        .sums = adapter.magnitude.in(*call.gradients)});
    }
  }
  scale_gradient(call, d_output);
}

void LowRank::scale_gradient(const Call& call, const ops::ConstMatrix& d_output) const {
  const ProfileLabel label(call.stream, "adapters");
  ops::scale_columns(call.stream, {.x = d_output, .scale = scale_, .out = unscaled_gradient(call)});
}

}  // namespace octet::model
