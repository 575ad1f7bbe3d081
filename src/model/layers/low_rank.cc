#include "layers/low_rank.h"

#include <algorithm>

#include "layers/work.h"
#include "octet/device/profile.h"

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

LowRank::LowRank(GroupBuilder& group, std::int64_t inputs, const std::vector<Part>& modules)
    : inputs_(inputs) {
  std::int64_t column = 0, scratch = 0;
  for (const Part& module : modules) {
    if (const AdapterShape* shape = group.adapter(module.name)) {
      adapters_.push_back({.a = group.adapter_matrix(module.name, AdapterMatrix::a, shape->rank, inputs),
                           .b = group.adapter_matrix(module.name, AdapterMatrix::b, module.rows, shape->rank),
                           .column = column,
                           .factor = static_cast<float>(shape->factor),
                           .inner = {},
                           .scratch = scratch});
      scratch += (shape->rank + kColumns - 1) / kColumns * kColumns;
    }
    column += module.rows;
  }
}

std::int64_t LowRank::scratch_columns() const {
  if (adapters_.empty()) return 0;
  const Adapter& last = adapters_.back();
  return last.scratch + (last.rank() + kColumns - 1) / kColumns * kColumns;
}

void LowRank::reserve(BlockBuffers& buffers, const Common& common) {
  (void)common;
  for (Adapter& adapter : adapters_) {
    adapter.inner = buffers.matrix("activations/adapters", adapter.rank(), Kept::activations);
  }
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

std::vector<Operation> LowRank::operations(std::int64_t tokens, const Repeats& forward_again) const {
  std::vector<Operation> all;
  for (const Adapter& adapter : adapters_) {
    append(all,
           products_of({.name = "adapter A", .title = "adapters", .rows = adapter.rank(), .cols = inputs_},
                       tokens, forward_again));
    append(all,
           products_of(
               {.name = "adapter B", .title = "adapters", .rows = adapter.b.rows(), .cols = adapter.rank()},
               tokens, forward_again));
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

void LowRank::project(const Call& call, const Adapter& adapter, const ops::Matrix& x) const {
  multiply(call, place_,
           {.product = ops::Product::forward,
            .a = operand_of(x),
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
    // With full recomputation blocks share the buffer, and the last product of a block is not made again.
    if (call.common.options.recompute == Recompute::full) project(call, adapter, x);
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
    add_gradient(call, adapter.a, {.a = operand_of(d_inside), .b = operand_of(x)});
  }
}

void LowRank::add_input_gradient(const Call& call, const ops::Matrix& d_input) const {
  const ProfileLabel label(call.stream, "adapters");
  for (const Adapter& adapter : adapters_) {
    multiply(call, place_,
             {.product = ops::Product::dgrad,
              .a = operand_of(d_inner(call, adapter)),
              .b = adapter.a.in(call.parameters).front(),
              .d = d_input,
              .accumulate = true});
  }
}

}  // namespace octet::model
