#include "layers/low_rank.h"

#include <algorithm>
#include <cmath>

#include "layers/work.h"
#include "octet/base/files.h"
#include "octet/device/profile.h"
#include "octet/ops/dora.h"
#include "octet/ops/dropout.h"
#include "octet/ops/elementwise.h"

namespace octet::model {
namespace {

/// Columns of the scratch begin at multiples of it.
constexpr std::int64_t kColumns = 16;

ops::Operand operand_of(const ops::Matrix& m) {
  return {.data = m.data, .dtype = m.dtype, .rows = m.rows, .cols = m.cols};
}

/// Columns [first, first + count) of a matrix.
template <class Any>
Any columns_of(Any m, std::int64_t first, std::int64_t count) {
  using Byte = std::conditional_t<std::is_same_v<Any, ops::ConstMatrix>, const std::byte, std::byte>;
  m.data = static_cast<Byte*>(m.data) + static_cast<std::size_t>(first) * size_of(m.dtype);
  m.cols = count;
  return m;
}

}  // namespace

LowRank::LowRank(GroupBuilder& group, const Shape& shape) : inputs_(shape.inputs) {
  std::int64_t scratch = 0;
  const double norm = shape.init_std * std::sqrt(static_cast<double>(inputs_));
  for (const Part& module : shape.modules) {
    if (const AdapterShape* of = group.adapter(module.name)) {
      adapters_.push_back(
          {.a = group.adapter_matrix(module.name, AdapterMatrix::a, of->rank, inputs_),
           .b = group.adapter_matrix(module.name, AdapterMatrix::b, module.rows, of->rank),
           .magnitude = of->dora ? group.adapter_magnitude(module.name, module.rows, norm) : VectorHandle(),
           .key = hash64(group.full_name(module.name)),
           .dropout = static_cast<float>(of->dropout),
           .column = outputs_,
           .factor = static_cast<float>(of->factor),
           .inner = {},
           .scratch = scratch});
      scratch += (of->rank + kColumns - 1) / kColumns * kColumns;
    }
    outputs_ += module.rows;
  }
}

bool LowRank::scales() const {
  return std::ranges::any_of(adapters_, [](const Adapter& a) { return static_cast<bool>(a.magnitude); });
}

bool LowRank::drops() const {
  return std::ranges::any_of(adapters_, [](const Adapter& a) { return a.dropout > 0; });
}

std::int64_t LowRank::scratch_columns() const {
  if (adapters_.empty()) return 0;
  const Adapter& last = adapters_.back();
  return last.scratch + (last.rank() + kColumns - 1) / kColumns * kColumns;
}

void LowRank::reserve(BlockBuffers& buffers) {
  for (Adapter& adapter : adapters_) {
    adapter.inner = buffers.matrix("activations/adapters", adapter.rank(), Kept::activations);
  }
  if (!scales()) return;
  unscaled_ = buffers.matrix("activations/adapters", outputs_, Kept::activations);
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
  for (const Adapter& adapter : adapters_) {
    const std::int64_t out = adapter.b.rows(), rank = adapter.rank();
    bytes = std::max(
        {bytes, product_workspace(device, common, {.rows = rows, .out = rank, .in = inputs_, .pitch = rank}),
         product_workspace(device, common, {.rows = rows, .out = out, .in = rank, .pitch = out})});
  }
  return bytes;
}

std::vector<Operation> LowRank::values_of(const Adapter& adapter, std::int64_t tokens, const Repeats& again,
                                          bool passes_on) const {
  std::vector<Operation> all;
  const auto t = static_cast<double>(tokens), in = static_cast<double>(inputs_);
  const auto out = static_cast<double>(adapter.b.rows());
  if (adapter.dropout > 0) {
    all.push_back(moves(OperationKind::adapters, 2 * t * in, again));
    all.push_back(moves_back(OperationKind::adapters, (passes_on ? 5 : 2) * t * in));
  }
  if (adapter.magnitude) {
    // The weight is read for its norms.
    all.push_back(moves(OperationKind::adapters, 3 * t * out + in * out, again));
    all.push_back(moves_back(OperationKind::adapters, 4 * t * out));
  }
  return all;
}

std::vector<Operation> LowRank::operations(std::int64_t tokens, const Repeats& forward_again,
                                           bool passes_on) const {
  std::vector<Operation> all;
  for (const Adapter& adapter : adapters_) {
    // Full recomputation makes A x again even where nobody reads the output.
    Repeats again = forward_again;
    again.back() = 1;
    std::vector<Operation> a = products_of(
        {.name = "adapter A", .title = "adapters", .rows = adapter.rank(), .cols = inputs_}, tokens, again);
    if (!passes_on) std::erase_if(a, [](const Operation& o) { return o.product == ops::Product::dgrad; });
    append(all, std::move(a));
    append(all,
           products_of(
               {.name = "adapter B", .title = "adapters", .rows = adapter.b.rows(), .cols = adapter.rank()},
               tokens, forward_again));
    append(all, values_of(adapter, tokens, again, passes_on));
  }
  return all;
}

precision::AuditRow LowRank::audit_row(const char* title) const {
  std::int64_t rank = 0;
  for (const Adapter& adapter : adapters_) rank += adapter.rank();
  return {.name = std::string(title) + ": adapters",
          .layers = 1,
          .rows = rank,
          .cols = inputs_,
          .reason = "adapters are multiplied in the compute dtype"};
}

ops::Matrix LowRank::input(const Call& call, const Adapter& adapter, const ops::Matrix& x) const {
  if (adapter.dropout == 0.0f || call.names == nullptr) return x;
  const ops::Matrix dropped = narrowed(call.common.scratch.dropped, call.tokens, inputs_);
  ops::dropout(call.stream,
               {.x = x, .names = call.names, .key = adapter.key, .rate = adapter.dropout, .out = dropped});
  return dropped;
}

void LowRank::project(const Call& call, const Adapter& adapter, const ops::Matrix& x) const {
  multiply(call, place_,
           {.product = ops::Product::forward,
            .a = operand_of(input(call, adapter, x)),
            .b = adapter.a.in(call.parameters).front(),
            .d = narrowed(adapter.inner, call.tokens, adapter.rank()),
            .factor = adapter.factor});
}

void LowRank::forward(const Call& call, const ops::Matrix& x, const ops::Matrix& out) const {
  const ProfileLabel label(call.stream, "adapters");
  for (const Adapter& adapter : adapters_) {
    project(call, adapter, x);
    multiply(call, place_,
             {.product = ops::Product::forward,
              .a = operand_of(narrowed(adapter.inner, call.tokens, adapter.rank())),
              .b = adapter.b.in(call.parameters).front(),
              .d = columns_of(out, adapter.column, adapter.b.rows()),
              .accumulate = true});
  }
}

void LowRank::remake(const Call& call, const ops::Matrix& x) const {
  const ProfileLabel label(call.stream, "adapters");
  for (const Adapter& adapter : adapters_) project(call, adapter, x);
}

ops::Matrix LowRank::d_inner(const Call& call, const Adapter& adapter) const {
  ops::Matrix part = call.common.scratch.low_rank;
  part.data = static_cast<std::byte*>(part.data) +
              static_cast<std::size_t>(part.rows * adapter.scratch) * size_of(part.dtype);
  return narrowed(part, call.tokens, adapter.rank());
}

void LowRank::add_gradient(const Call& call, const MatrixHandle& matrix, ops::GemmArgs args) const {
  args.product = ops::Product::wgrad;
  args.d = matrix.in(*call.gradients);
  args.accumulate = !matrix.overwrites(*call.gradients);
  multiply(call, place_, args);
}

void LowRank::gradients(const Call& call, const ops::Matrix& x, const ops::ConstMatrix& d_output) const {
  const ProfileLabel label(call.stream, "adapters");
  for (const Adapter& adapter : adapters_) {
    const ops::ConstMatrix d_part = columns_of(d_output, adapter.column, adapter.b.rows());
    const ops::Operand d_out{
        .data = d_part.data, .dtype = d_part.dtype, .rows = d_part.rows, .cols = d_part.cols};
    const ops::Matrix d_inside = d_inner(call, adapter);
    add_gradient(call, adapter.b,
                 {.a = d_out,
                  .b = operand_of(narrowed(adapter.inner, call.tokens, adapter.rank())),
                  .a_ld = d_output.ld});
    multiply(call, place_,
             {.product = ops::Product::dgrad,
              .a = d_out,
              .b = adapter.b.in(call.parameters).front(),
              .d = d_inside,
              .factor = adapter.factor,
              .a_ld = d_output.ld});
    add_gradient(call, adapter.a, {.a = operand_of(d_inside), .b = operand_of(input(call, adapter, x))});
  }
}

void LowRank::add_input_gradient(const Call& call, const ops::Matrix& d_input) const {
  const ProfileLabel label(call.stream, "adapters");
  for (const Adapter& adapter : adapters_) {
    const bool drops = adapter.dropout > 0.0f && call.names != nullptr;
    const ops::Matrix read = drops ? narrowed(call.common.scratch.dropped, call.tokens, inputs_) : d_input;
    multiply(call, place_,
             {.product = ops::Product::dgrad,
              .a = operand_of(d_inner(call, adapter)),
              .b = adapter.a.in(call.parameters).front(),
              .d = read,
              .accumulate = !drops});
    if (!drops) continue;
    ops::dropout(call.stream, {.x = read,
                               .names = call.names,
                               .key = adapter.key,
                               .rate = adapter.dropout,
                               .out = d_input,
                               .accumulate = true});
  }
}

void LowRank::measure(const Call& call, const Weight& weight) const {
  const ProfileLabel label(call.stream, "adapters");
  std::int64_t column = 0;
  for (const Adapter& adapter : adapters_) {
    const std::int64_t rows = adapter.b.rows();
    ops::fill(call.stream, scale_ + column, 1.0f, adapter.column - column);
    column = adapter.column + rows;
    const ops::Operand& a = adapter.a.in(call.parameters).front();
    const ops::Operand& b = adapter.b.in(call.parameters).front();
    ops::dora_scale(call.stream, {.weight = weight.rows_of(call, adapter.column, rows),
                                  .a = {a.data, a.dtype, a.rows, a.cols, a.cols},
                                  .b = {b.data, b.dtype, b.rows, b.cols, b.cols},
                                  .factor = adapter.factor,
                                  .magnitude = adapter.magnitude.in(call.parameters),
                                  .scale = scale_ + adapter.column,
                                  .norm = norm_ + adapter.column});
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
  for (const Adapter& adapter : adapters_) {
    ops::dot_columns(call.stream,
                     {.x = columns_of(d_output, adapter.column, adapter.b.rows()),
                      .y = columns_of(ops::ConstMatrix(unscaled(call)), adapter.column, adapter.b.rows()),
                      .divisor = norm_ + adapter.column,
                      .sums = adapter.magnitude.in(*call.gradients)});
  }
  ops::scale_columns(call.stream, {.x = d_output, .scale = scale_, .out = unscaled_gradient(call)});
}

}  // namespace octet::model
