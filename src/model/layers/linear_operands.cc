#include "layers/linear_operands.h"

#include "octet/ops/embedding.h"

namespace octet::model {
namespace {

/// Gathers rows of an FP8 operand into `to`.
ops::Operand gathered_rows(const Call& call, ops::Operand all, const Rows& rows, std::uint8_t* to) {
  ops::gather_rows(call.stream, {all.data, all.dtype, all.rows, all.cols, all.cols}, rows.rows,
                   {to, all.dtype, rows.count, all.cols, all.cols});
  all.data = to;
  all.rows = rows.count;
  return all;
}

}  // namespace

void LinearInput::reserve(BlockBuffers& buffers, const Common& common, const Needs& needs) {
  const std::int64_t cols = cols_ = needs.cols;
  const bool kept_values = needs.kept_values;
  const bool remakes = common.remakes_inputs();
  const ops::Matrix shared_values = common.scratch.wide;
  if (tensor_ == precision::Quantizer::kPlain) {
    if (needs.given) return;
    const bool own = !remakes || kept_values;
    values_ = own ? buffers.matrix("activations/linear inputs", cols, Kept::activations) : shared_values;
    return;
  }
  // Backward needs only the FP8 copy. If GEMMs read transposed copies, the weight gradient reads only the
  // transposed copy, so all layers share the row copy.
  const TransformerOptions& options = common.options;
  const bool transposed = common.quantizer.transposes();
  if (!needs.kept_operand) {
    // Only the next GEMM reads the copy, and it reads the row copy.
    copy_ = {.row = common.scratch.x_copy.row, .scales = common.scratch.x_copy.scales};
  } else if (remakes) {
    copy_ = common.scratch.x_copy;
  } else {
    const bool shared = transposed && options.recompute == Recompute::none && options.training;
    copy_ = take_copy(
        {.rows = options.max_tokens,
         .cols = cols,
         .row = !shared,
         .transposed = transposed,
         .scaling = common.scaling()},
        [&](std::size_t bytes) { return buffers.take("activations/FP8 inputs", bytes, Kept::activations); });
    if (shared) {
      copy_.row = common.scratch.x_copy.row;
      copy_.scales = common.scratch.x_copy.scales;
    }
  }
  values_ = {};
  if (needs.given) return;
  if (kept_values) {
    values_ = buffers.matrix("activations/attention", cols, Kept::activations);
  } else if (common.quantizer.needs_values(tensor_)) {
    values_ = shared_values;
  }
}

precision::Fp8Copy LinearInput::copy_for(const Call& call, WriteOrder order) const {
  precision::Fp8Copy copy = copy_;
  const Readers readers = call.pass.readers;
  if (copy.transposed == nullptr || readers == Readers::all) return copy;
  if (readers == Readers::forward) copy.transposed = nullptr;
  if (readers == Readers::backward && order == WriteOrder::any) copy.row = nullptr;
  return copy;
}

Wanted LinearInput::wanted(const Call& call, WriteOrder order) const {
  return {.values = values(call),
          .quantize = call.common.quantizer.fuse(tensor_, copy_for(call, order), call.pass.record)};
}

// GEMMs check that an operand has data, even if they read only its transposed copy.
void LinearInput::set_operand(ops::Operand operand) {
  if (operand.data == nullptr) operand.data = copy_.row;
  operand_ = operand;
}

void LinearInput::written(const Call& call, WriteOrder order) {
  set_operand(call.common.quantizer.finish(call.stream, tensor_, values(call), copy_for(call, order)));
}

void LinearInput::values_written(const Call& call) {
  set_operand(call.common.quantizer.prepare(call.stream, tensor_, values(call),
                                            copy_for(call, WriteOrder::any), call.pass.record));
}

void LinearInput::take(const Call& call, const ops::Matrix& values) {
  values_ = values;
  values_written(call);
}

ops::Operand LinearInput::copied(const Call& call, const ops::Matrix& values, bool record,
                                 ops::GemmKind gemm_kind) const {
  precision::Fp8Copy copy = call.common.scratch.x_copy;
  if (gemm_kind == ops::GemmKind::forward) copy.transposed = nullptr;
  ops::Operand operand = call.common.quantizer.prepare(call.stream, tensor_, values, copy, record);
  if (operand.data == nullptr) operand.data = copy.row;
  return operand;
}

Wanted LinearInput::wanted_copies(const Call& call, const ops::Matrix& values) const {
  const precision::Quantizer& quantizer = call.common.quantizer;
  return {.values = quantizer.needs_values(tensor_) ? values : ops::Matrix{},
          .quantize = quantizer.fuse(tensor_, {.row = call.common.scratch.x_copy.row}, call.pass.record)};
}

ops::Operand LinearInput::copies_written(const Call& call, const ops::Matrix& values) const {
  return call.common.quantizer.finish(call.stream, tensor_, values, {.row = call.common.scratch.x_copy.row});
}

ops::Operand LinearInput::gathered(const Call& call, const ops::Matrix& tokens, const Rows& rows,
                                   void* room) const {
  const ops::Operand all = call.common.quantizer.prepare(
      call.stream, tensor_, tokens, {.row = static_cast<std::uint8_t*>(room)}, call.pass.record);
  return gathered_rows(call, all, rows, call.common.scratch.x_copy.row);
}

ops::Operand OutputGradient::gathered(const Call& call, const ops::Matrix& tokens, const Rows& rows,
                                      void* room) const {
  const ops::Operand all = call.common.quantizer.prepare(
      call.stream, tensor_, tokens, {.row = static_cast<std::uint8_t*>(room)}, call.pass.record);
  return gathered_rows(call, all, rows, call.common.scratch.d_copy.row);
}

ops::QuantizeInto OutputGradient::wanted(const Call& call) const {
  return call.common.quantizer.fuse(tensor_, call.common.scratch.d_copy, call.pass.record);
}

std::vector<ops::Operand> OutputGradient::values_written(const Call& call,
                                                         const ops::ConstMatrix& values) const {
  return call.common.quantizer.prepare_parts(call.stream, tensor_, values, call.common.scratch.d_copy,
                                             call.pass.record);
}

std::vector<ops::Operand> OutputGradient::written(const Call& call, const ops::ConstMatrix& values) const {
  return call.common.quantizer.finish_parts(call.stream, tensor_, values, call.common.scratch.d_copy,
                                            call.pass.record);
}

}  // namespace octet::model
