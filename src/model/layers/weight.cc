#include "layers/weight.h"

#include <algorithm>
#include <stdexcept>

#include "octet/base/error.h"

namespace octet::model {

std::vector<ops::Operand> Weight::operands(const Call& call, ops::GemmKind gemm_kind,
                                           std::int64_t expert) const {
  const std::span<const ops::Operand> stored = matrix_.in(call.parameters);
  std::vector<ops::Operand> weights(stored.begin(), stored.end());
  if (experts_ > 1) weights = {rows_of(call, expert * rows(), rows())};
  if (!call.common.recipe().blocks()) return weights;
  const ops::Operand& w = weights.front();
  const bool reads_transposed =
      gemm_kind == ops::GemmKind::dgrad && ops::gemm_needs_transposed_fp8(call.stream.device());
  precision::Fp8Copy copy = call.common.scratch.weight;
  (reads_transposed ? copy.row : copy.transposed) = nullptr;
  const ops::ConstMatrix values(w.data, w.dtype, w.rows, w.cols, w.cols);
  // Cast statistics count a weight once: in the forward pass.
  const std::int64_t told = gemm_kind == ops::GemmKind::forward ? cast_ : precision::Quantizer::kPlain;
  return {call.common.quantizer.weight(call.stream, told, values, copy)};
}

ops::Operand Weight::rows_of(const Call& call, std::int64_t begin, std::int64_t count) const {
  for (ops::Operand run : matrix_.in(call.parameters)) {
    if (begin < run.rows) {
      check(begin + count <= run.rows, "a module's rows have one scale");
      run.data = static_cast<const std::byte*>(run.data) +
                 static_cast<std::size_t>(begin * run.cols) * size_of(run.dtype);
      run.rows = count;
      return run;
    }
    begin -= run.rows;
  }
  throw std::logic_error("a module's rows lie inside its weight");
}

void Weight::forward(const Call& call, const ops::Operand& input, const float* bias,
                     const ops::ConstMatrix& addend, const ops::Matrix& out, std::int64_t expert) const {
  const auto weights = operands(call, ops::GemmKind::forward, expert);
  std::int64_t column = 0;
  for (const ops::Operand& weight : weights) {
    const std::size_t at = static_cast<std::size_t>(column) * size_of(out.dtype);
    ops::Matrix part = out;
    part.data = static_cast<std::uint8_t*>(out.data) + at;
    ops::ConstMatrix part_of_addend = addend;
    if (addend.data != nullptr) part_of_addend.data = static_cast<const std::uint8_t*>(addend.data) + at;
    part.cols = part_of_addend.cols = weight.rows;
    multiply(call, place_,
             {.gemm_kind = ops::GemmKind::forward,
              .a = input,
              .b = weight,
              .d = part,
              .addend = part_of_addend,
              .bias = bias == nullptr ? nullptr : bias + column});
    column += weight.rows;
  }
}

std::optional<ops::DecodeGemmArgs> Weight::decode_args(const Call& call, ops::DecodeGemmArgs args) const {
  if (call.common.recipe().blocks()) return std::nullopt;
  const std::span<const ops::Operand> runs = matrix_.in(call.parameters);
  if (runs.size() != 1) return std::nullopt;
  args.weight = runs.front();
  return args;
}

void Weight::forward(const Call& call, const ops::DecodeGemmArgs& args) const {
  call.common.decode_queue.add(call.stream, args);
  if (call.common.audit == nullptr) return;
  const ops::GemmWay way = args.weight.dtype == DType::bf16             ? ops::GemmWay::bf16
                           : call.stream.device().traits().emulates_fp8 ? ops::GemmWay::emulated
                                                                        : ops::GemmWay::fp8;
  call.common.audit->count(place_, ops::GemmKind::forward,
                           {.way = way, .a = args.weight.dtype, .b = args.weight.dtype, .calls = 1});
}

void Weight::backward(const Call& call, std::span<const ops::Operand> d_output, const ops::Matrix& d_input,
                      std::int64_t expert) const {
  const auto weights = operands(call, ops::GemmKind::dgrad, expert);
  check(weights.size() == d_output.size(), "weights and output gradients are scaled alike");
  for (std::size_t part = 0; part < weights.size(); ++part) {
    multiply(call, place_,
             {.gemm_kind = ops::GemmKind::dgrad,
              .a = d_output[part],
              .b = weights[part],
              .d = d_input,
              .accumulate = part > 0});
  }
}

void Weight::add_gradient(const Call& call, std::span<const ops::Operand> d_output, const ops::Operand& input,
                          std::int64_t expert) const {
  const ops::Matrix& d_weight = matrix_.in(*call.gradients);
  if (d_weight.data == nullptr) return;
  std::int64_t row = expert * rows();
  for (const ops::Operand& d_part : d_output) {
    ops::Matrix part = d_weight;
    part.data = static_cast<std::uint8_t*>(d_weight.data) +
                static_cast<std::size_t>(row * d_weight.ld) * size_of(d_weight.dtype);
    part.rows = d_part.cols;
    multiply(call, place_,
             {.gemm_kind = ops::GemmKind::wgrad,
              .a = d_part,
              .b = input,
              .d = part,
              .accumulate = !matrix_.overwrites(*call.gradients)});
    row += d_part.cols;
  }
}

bool Weight::multiplies_together(const Device& device, const Common& common, ops::GemmKind gemm_kind,
                                 std::int64_t rows) const {
  const precision::Recipe& recipe = common.recipe();
  if (experts_ == 1 || common.options.fixed_order || (recipe.fp8() && recipe.scales_with_values()))
    return false;
  const bool forward = gemm_kind == ops::GemmKind::forward, wgrad = gemm_kind == ops::GemmKind::wgrad;
  const auto operand = [&](DType format, std::int64_t r, std::int64_t c) {
    return ops::Operand{.dtype = recipe.fp8() ? format : common.dtype, .rows = r, .cols = c};
  };
  const std::int64_t out = this->rows(), in = cols();
  const ops::Operand x = operand(recipe.forward_format, rows, in);
  const std::int64_t d_rows = wgrad ? experts_ * out : rows, d_cols = forward ? out : in;
  return ops::has_expert_gemm(
      device, {.gemm_kind = gemm_kind,
               .a = forward ? x : operand(recipe.gradient_format, rows, out),
               .b = wgrad ? x : operand(recipe.forward_format, experts_ * out, in),
               .count = experts_,
               .d = {nullptr, wgrad ? common.options.gradient_dtype : common.dtype, d_rows, d_cols, d_cols}});
}

void Weight::multiply_experts(const Call& call, ops::ExpertGemmArgs args) const {
  args.count = experts_;
  args.fast_accumulation = args.gemm_kind == ops::GemmKind::forward || call.common.recipe().fast_gradients;
  ops::expert_gemm(call.stream, args);
  if (call.common.audit == nullptr) return;
  const ops::GemmWay way = args.b.dtype == DType::bf16                  ? ops::GemmWay::bf16
                           : call.stream.device().traits().emulates_fp8 ? ops::GemmWay::emulated
                                                                        : ops::GemmWay::fp8;
  call.common.audit->count(place_, args.gemm_kind,
                           {.way = way, .a = args.a.dtype, .b = args.b.dtype, .calls = 1});
}

void Weight::multiply_rows_of_experts(const Call& call, ops::GemmKind gemm_kind, const ops::Operand& a,
                                      const std::int32_t* begins, const ops::Matrix& d) const {
  // Experts are stored one after the other. In FP8, each is a run with its scale.
  const std::span<const ops::Operand> runs = matrix_.in(call.parameters);
  ops::Operand all = runs.front();
  all.rows = experts_ * rows();
  std::int64_t step = 0;
  if (runs.size() > 1) {
    step = runs[1].scale_inv - runs[0].scale_inv;
    check(static_cast<std::int64_t>(runs.size()) == experts_ &&
              runs.back().scale_inv == runs.front().scale_inv + step * (experts_ - 1),
          "every expert has one scale, and scales are equally spaced");
  }
  multiply_experts(
      call, {.gemm_kind = gemm_kind, .a = a, .b = all, .weight_scale_step = step, .begins = begins, .d = d});
}

void Weight::add_gradients_of_experts(const Call& call, const ops::Operand& d_y, const ops::Operand& x,
                                      const std::int32_t* begins) const {
  multiply_experts(call, {.gemm_kind = ops::GemmKind::wgrad,
                          .a = d_y,
                          .b = x,
                          .begins = begins,
                          .d = matrix_.in(*call.gradients),
                          .accumulate = !matrix_.overwrites(*call.gradients)});
}

GemmShape Weight::whole(const Common& common) const {
  return {.rows = common.options.max_tokens,
          .out = rows(),
          .in = cols(),
          .pitch = rows(),
          .fp8 = common.recipe().fp8()};
}

std::vector<GemmShape> Weight::runs(const Common& common) const {
  GemmShape shape = whole(common);
  std::vector<GemmShape> all;
  for (const std::int64_t columns :
       shape.fp8 ? scaled_columns(common.recipe()) : std::vector<std::int64_t>()) {
    shape.out = columns;
    all.push_back(shape);
  }
  if (all.empty()) all.push_back(shape);
  return all;
}

std::size_t Weight::workspace(const Device& device, const Common& common) const {
  std::size_t bytes = workspace_of_gemm(device, common, whole(common));
  for (GemmShape run : runs(common)) {
    // A library may ask for workspace if rows of the result are not contiguous, but it works without it.
    run.pitch = run.out;
    bytes = std::max(bytes, workspace_of_gemm(device, common, run));
  }
  return bytes;
}

std::array<ops::GemmOutcome, 3> Weight::planned(const Device& device, const Common& common) const {
  std::array<ops::GemmOutcome, 3> planned{};
  for (const GemmShape& run : runs(common)) {
    for (const ops::GemmArgs& args : shapes_of_gemms(common, run)) {
      const ops::GemmOutcome outcome = ops::gemm_outcome(device, args);
      ops::GemmOutcome& worst = planned[static_cast<std::size_t>(args.gemm_kind)];
      if (worst.way == ops::GemmWay::none || outcome.way > worst.way) worst = outcome;
    }
  }
  return planned;
}

}  // namespace octet::model
