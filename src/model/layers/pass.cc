#include "layers/pass.h"

#include <algorithm>

#include "octet/device/profile.h"

namespace octet::model {

void DecodeQueue::add(Stream& stream, const ops::DecodeGemmArgs& args) {
  gemms_.push_back(args);
  if (gemms_.size() == ops::kDecodeChain || stream.profile() != nullptr) settle(stream);
}

void DecodeQueue::settle(Stream& stream) {
  if (ops::has_decode_chain(stream.device(), gemms_)) {
    ops::decode_chain(stream, gemms_);
  } else {
    for (const ops::DecodeGemmArgs& args : gemms_) ops::decode_gemm(stream, args);
  }
  gemms_.clear();
}

void multiply(const Call& call, const precision::AuditPlace& place, const ops::GemmArgs& args) {
  const Common& common = call.common;
  ops::GemmArgs whole = args;
  whole.fixed_order = common.options.fixed_order;
  // In forward, fast accumulation loses less than the next cast to FP8. For gradients, the recipe decides.
  whole.fast_accumulation = args.gemm_kind == ops::GemmKind::forward || common.recipe().fast_gradients;
  // Recipes with scales of blocks cast a weight again in every pass.
  whole.b_stands =
      args.gemm_kind == ops::GemmKind::forward && !common.options.training && !common.recipe().blocks();
  whole.workspace = common.scratch.workspace;
  const ops::GemmOutcome outcome = ops::gemm(call.stream, whole);
  if (common.audit != nullptr) common.audit->count(place, args.gemm_kind, outcome);
}

void reduce_partial(const Call& call, const char* name, const ops::Matrix& values) {
  const ProfileLabel label(call.stream, "sums over ranks");
  call.common.options.partial_sums->reduce_partial(call.stream, name, values);
}

void reduce_and_add(const Call& call, const char* name, const ops::Matrix& values,
                    const ops::ConstMatrix& addend, const ops::Matrix& to) {
  const ProfileLabel label(call.stream, "sums over ranks");
  call.common.options.partial_sums->reduce_and_add(call.stream, name, values, addend, to);
}

std::vector<ops::GemmArgs> shapes_of_gemms(const Common& common, const GemmShape& s) {
  const precision::Recipe& recipe = common.recipe();
  const DType x = s.fp8 ? recipe.forward_format : common.dtype;
  const DType g = s.fp8 ? recipe.gradient_format : common.dtype;
  const ops::Scaling by_rows = s.fp8 ? recipe.scaling() : ops::Scaling::tensor;
  const ops::Scaling by_squares = s.fp8 && recipe.blocks() ? ops::Scaling::squares : by_rows;
  const ops::Operand input{.dtype = x, .rows = s.rows, .cols = s.in, .scaling = by_rows};
  const ops::Operand weight{.dtype = x, .rows = s.out, .cols = s.in, .scaling = by_squares};
  const ops::Operand d_output{.dtype = g, .rows = s.rows, .cols = s.out, .scaling = by_rows};
  const auto args = [&common](ops::GemmKind gemm_kind, const ops::Operand& a, const ops::Operand& b,
                              const ops::Matrix& d) {
    return ops::GemmArgs{
        .gemm_kind = gemm_kind, .a = a, .b = b, .d = d, .fixed_order = common.options.fixed_order};
  };
  std::vector<ops::GemmArgs> all;
  all.reserve(3);
  all.push_back(args(ops::GemmKind::forward, input, weight, {nullptr, common.dtype, s.rows, s.out, s.pitch}));
  if (!common.options.training) return all;
  all.push_back(args(ops::GemmKind::dgrad, d_output, weight, {nullptr, common.dtype, s.rows, s.in, s.in}));
  all.push_back(args(ops::GemmKind::wgrad, d_output, input,
                     {nullptr, common.options.gradient_dtype, s.out, s.in, s.in}));
  return all;
}

std::size_t workspace_of_gemm(const Device& device, const Common& common, const GemmShape& shape) {
  std::size_t bytes = 0;
  for (const ops::GemmArgs& args : shapes_of_gemms(common, shape)) {
    bytes = std::max(bytes, ops::gemm_workspace(device, args));
  }
  return bytes;
}

}  // namespace octet::model
