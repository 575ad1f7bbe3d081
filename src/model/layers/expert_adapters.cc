#include "layers/expert_adapters.h"

#include <algorithm>

#include "octet/device/profile.h"

namespace octet::model {
namespace {

ops::Matrix matrix_of(const ops::Operand& x) {
  return {.data = const_cast<void*>(x.data), .dtype = x.dtype, .rows = x.rows, .cols = x.cols, .ld = x.cols};
}

ops::Matrix without_data(const MatrixHandle& matrix, std::int64_t rows, DType dtype) {
  return {.data = nullptr, .dtype = dtype, .rows = rows, .cols = matrix.cols(), .ld = matrix.cols()};
}

/// Appends the matrices at(0), at(1), … of `count` experts. Returns false if they are not equally spaced.
template <class At>
bool append_spaced(std::vector<ExpertAdapters::Spaced>& to, std::size_t count, At&& at) {
  const auto address = [](const ops::Matrix& m) { return reinterpret_cast<std::intptr_t>(m.data); };
  const ops::Matrix first = at(0);
  const auto size = static_cast<std::intptr_t>(size_of(first.dtype));
  const std::intptr_t bytes = count > 1 ? address(at(1)) - address(first) : 0;
  if (first.data == nullptr || bytes % size != 0 || bytes < 0) return false;
  for (std::size_t e = 1; e < count; ++e) {
    const ops::Matrix m = at(e);
    if (m.dtype != first.dtype || m.ld != first.ld ||
        address(m) != address(first) + static_cast<std::intptr_t>(e) * bytes)
      return false;
  }
  to.push_back({first, bytes / size});
  return true;
}

}  // namespace

bool ExpertAdapters::scales() const {
  return std::ranges::any_of(each_, &LowRank::scales);
}

bool ExpertAdapters::drops() const {
  return std::ranges::any_of(each_, &LowRank::drops);
}

template <class Act>
void ExpertAdapters::each_adapter(Act&& act) const {
  std::size_t i = 0;
  for (const LowRank::Bundle& bundle : bundles()) {
    for (const LowRank::Adapter& adapter : bundle.adapters) act(bundle, adapter, i++);
  }
}

bool ExpertAdapters::alike() const {
  if (each_.empty() || scales() || drops()) return false;
  const auto same_adapter = [](const LowRank::Adapter& x, const LowRank::Adapter& y) {
    return x.column == y.column && x.row == y.row && x.b.rows() == y.b.rows() && x.rank() == y.rank();
  };
  const auto same_bundle = [&](const LowRank::Bundle& x, const LowRank::Bundle& y) {
    return x.factor == y.factor && x.row == y.row && x.rank == y.rank && x.scratch == y.scratch &&
           std::ranges::equal(x.adapters, y.adapters, same_adapter);
  };
  return std::ranges::all_of(
      each_, [&](const LowRank& one) { return std::ranges::equal(one.bundles_, bundles(), same_bundle); });
}

ExpertAdapters::Matrices ExpertAdapters::shapes(const Common& common) const {
  Matrices m;
  const MatrixHandle& a = each_.front().a_;
  const DType gradient = common.options.gradient_dtype;
  for (const LowRank::Bundle& bundle : bundles()) {
    m.a.push_back({without_data(a, bundle.rank, common.dtype)});
    m.d_a.push_back({without_data(a, bundle.rank, gradient)});
  }
  each_adapter([&](const LowRank::Bundle&, const LowRank::Adapter& adapter, std::size_t) {
    m.b.push_back({without_data(adapter.b, adapter.b.rows(), common.dtype)});
    m.d_b.push_back({without_data(adapter.b, adapter.b.rows(), gradient)});
  });
  return m;
}

std::optional<ExpertAdapters::Matrices> ExpertAdapters::found(const Call& call) const {
  Matrices m;
  const std::size_t count = each_.size();
  bool spaced = true;
  for (std::size_t b = 0; b < bundles().size(); ++b) {
    const std::int64_t row = bundles()[b].row, rank = bundles()[b].rank;
    spaced = spaced && append_spaced(m.a, count, [&](std::size_t e) {
               return matrix_of(each_[e].a_rows(call, row, rank));
             });
    if (call.gradients == nullptr) continue;
    spaced = spaced && append_spaced(m.d_a, count, [&](std::size_t e) {
               return rows_from(each_[e].a_.in(*call.gradients), row, rank);
             });
  }
  for (std::size_t b = 0; b < bundles().size() && spaced; ++b) {
    for (std::size_t i = 0; i < bundles()[b].adapters.size() && spaced; ++i) {
      const auto handle = [&](std::size_t e) -> const MatrixHandle& {
        return each_[e].bundles_[b].adapters[i].b;
      };
      spaced = append_spaced(m.b, count,
                             [&](std::size_t e) { return matrix_of(handle(e).in(call.parameters).front()); });
      if (call.gradients == nullptr) continue;
      spaced =
          spaced && append_spaced(m.d_b, count, [&](std::size_t e) { return handle(e).in(*call.gradients); });
    }
  }
  return spaced ? std::optional(m) : std::nullopt;
}

bool ExpertAdapters::has_kernels(const Device& device, const Common& common, const Matrices& matrices,
                                 std::int64_t rows) const {
  if (common.options.fixed_order) return false;
  const auto count = static_cast<std::int64_t>(each_.size());
  // Buffers are aligned, so the offset of a column shows the alignment of its address.
  const auto part = [&](std::int64_t column, std::int64_t cols, std::int64_t ld) {
    const auto offset = static_cast<std::uintptr_t>(column) * size_of(common.dtype);
    return ops::Matrix{reinterpret_cast<void*>(offset), common.dtype, rows, cols, ld};
  };
  // `in` and `out`: the rows of the input and of the output. dgrad has the operands of forward.
  const auto has = [&](const std::vector<Spaced>& weights, const std::vector<Spaced>& gradients,
                       std::size_t i, const ops::Matrix& in, const ops::Matrix& out) {
    const bool forward = ops::has_expert_low_rank(device, {.gemm_kind = ops::GemmKind::forward,
                                                           .a = in,
                                                           .b = weights[i].first,
                                                           .step = weights[i].step,
                                                           .count = count,
                                                           .d = out});
    if (gradients.empty()) return forward;
    return forward && ops::has_expert_low_rank(device, {.gemm_kind = ops::GemmKind::wgrad,
                                                        .a = out,
                                                        .b = in,
                                                        .step = gradients[i].step,
                                                        .count = count,
                                                        .d = gradients[i].first});
  };
  const std::int64_t inputs = each_.front().inputs_, outputs = each_.front().outputs_;
  bool all = true;
  for (std::size_t i = 0; i < bundles().size(); ++i) {
    const std::int64_t rank = bundles()[i].rank;
    all = all && has(matrices.a, matrices.d_a, i, part(0, inputs, inputs),
                     part(bundles()[i].scratch, rank, inner_.ld));
  }
  each_adapter([&](const LowRank::Bundle& bundle, const LowRank::Adapter& adapter, std::size_t i) {
    all = all && has(matrices.b, matrices.d_b, i,
                     part(bundle.scratch + adapter.row - bundle.row, adapter.rank(), inner_.ld),
                     part(adapter.column, adapter.b.rows(), outputs));
  });
  return all;
}

void ExpertAdapters::reserve(BlockBuffers& buffers, const Common& common, std::int64_t rows,
                             const ops::Matrix& unscaled) {
  if (alike()) {
    const std::int64_t cols = each_.front().scratch_columns() * (common.options.training ? 2 : 1);
    inner_ = {.data = nullptr, .dtype = common.dtype, .rows = rows, .cols = cols, .ld = cols};
    if (has_kernels(buffers.device(), common, shapes(common), rows)) {
      inner_.data = buffers.take("activations/adapters", bytes_of(rows, cols, common.dtype), Kept::never);
    } else {
      inner_ = {};
    }
  }
  for (LowRank& one : each_) one.reserve(buffers, unscaled, inner_);
}

std::optional<ExpertAdapters::Matrices> ExpertAdapters::together(const Call& call, std::int64_t rows) const {
  if (inner_.cols == 0 || rows == 0) return std::nullopt;
  std::optional<Matrices> matrices = found(call);
  if (!matrices || !has_kernels(call.stream.device(), call.common, *matrices, rows)) return std::nullopt;
  return matrices;
}

ops::Matrix ExpertAdapters::inner(const LowRank::Bundle& bundle, std::int64_t rows) const {
  return columns_of(top(inner_, rows), bundle.scratch, bundle.rank);
}

ops::Matrix ExpertAdapters::d_inner(const LowRank::Bundle& bundle, std::int64_t rows) const {
  return columns_of(top(inner_, rows), inner_.cols / 2 + bundle.scratch, bundle.rank);
}

void ExpertAdapters::multiply(const Call& call, const ExpertRows& rows, ops::ExpertLowRankArgs args) const {
  args.begins = rows.begins;
  args.count = static_cast<std::int64_t>(each_.size());
  ops::expert_low_rank(call.stream, args);
  if (call.common.audit == nullptr) return;
  const ops::GemmWay way = args.a.dtype == DType::bf16 ? ops::GemmWay::bf16 : ops::GemmWay::f32;
  call.common.audit->count(each_.front().place_, args.gemm_kind,
                           {.way = way, .a = args.a.dtype, .b = args.b.dtype, .calls = 1});
}

void ExpertAdapters::project(const Call& call, const ExpertRows& rows, const Matrices& matrices,
                             const ops::Matrix& x) const {
  const ProfileLabel label(call.stream, "adapters");
  for (std::size_t i = 0; i < bundles().size(); ++i) {
    const LowRank::Bundle& bundle = bundles()[i];
    multiply(call, rows,
             {.gemm_kind = ops::GemmKind::forward,
              .a = x,
              .b = matrices.a[i].first,
              .step = matrices.a[i].step,
              .d = inner(bundle, x.rows),
              .factor = bundle.factor});
  }
}

void ExpertAdapters::forward(const Call& call, const ExpertRows& rows, const Matrices& matrices,
                             const ops::Matrix& x, const ops::Matrix& out) const {
  project(call, rows, matrices, x);
  const ProfileLabel label(call.stream, "adapters");
  each_adapter([&](const LowRank::Bundle& bundle, const LowRank::Adapter& adapter, std::size_t i) {
    multiply(call, rows,
             {.gemm_kind = ops::GemmKind::forward,
              .a = columns_of(inner(bundle, x.rows), adapter.row - bundle.row, adapter.rank()),
              .b = matrices.b[i].first,
              .step = matrices.b[i].step,
              .d = columns_of(out, adapter.column, adapter.b.rows()),
              .accumulate = true});
  });
}

void ExpertAdapters::inner_gradients(const Call& call, const ExpertRows& rows, const Matrices& matrices,
                                     const ops::Matrix& d_output) const {
  const ProfileLabel label(call.stream, "adapters");
  each_adapter([&](const LowRank::Bundle& bundle, const LowRank::Adapter& adapter, std::size_t i) {
    multiply(call, rows,
             {.gemm_kind = ops::GemmKind::dgrad,
              .a = columns_of(d_output, adapter.column, adapter.b.rows()),
              .b = matrices.b[i].first,
              .step = matrices.b[i].step,
              .d = columns_of(d_inner(bundle, d_output.rows), adapter.row - bundle.row, adapter.rank()),
              .factor = bundle.factor});
  });
}

void ExpertAdapters::gradients(const Call& call, const ExpertRows& rows, const Matrices& matrices,
                               const ops::Matrix& x, const ops::Matrix& d_output) const {
  const ProfileLabel label(call.stream, "adapters");
  each_adapter([&](const LowRank::Bundle& bundle, const LowRank::Adapter& adapter, std::size_t i) {
    multiply(call, rows,
             {.gemm_kind = ops::GemmKind::wgrad,
              .a = columns_of(d_output, adapter.column, adapter.b.rows()),
              .b = columns_of(inner(bundle, x.rows), adapter.row - bundle.row, adapter.rank()),
              .step = matrices.d_b[i].step,
              .d = matrices.d_b[i].first,
              .accumulate = !adapter.b.overwrites(*call.gradients)});
  });
  for (std::size_t i = 0; i < bundles().size(); ++i) {
    multiply(call, rows,
             {.gemm_kind = ops::GemmKind::wgrad,
              .a = d_inner(bundles()[i], x.rows),
              .b = x,
              .step = matrices.d_a[i].step,
              .d = matrices.d_a[i].first,
              .accumulate = !each_.front().a_.overwrites(*call.gradients)});
  }
}

void ExpertAdapters::add_input_gradient(const Call& call, const ExpertRows& rows, const Matrices& matrices,
                                        const ops::Matrix& d_input) const {
  const ProfileLabel label(call.stream, "adapters");
  for (std::size_t i = 0; i < bundles().size(); ++i) {
    multiply(call, rows,
             {.gemm_kind = ops::GemmKind::dgrad,
              .a = d_inner(bundles()[i], d_input.rows),
              .b = matrices.a[i].first,
              .step = matrices.a[i].step,
              .d = d_input,
              .accumulate = true});
  }
}

}  // namespace octet::model
