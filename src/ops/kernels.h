// Both sides of every element-wise and row-wise op, for dispatch.h: cpu:: runs immediately, cuda:: enqueues.
// Arguments are already checked. Ops with few arguments receive them as one struct. Host spans are copied,
// because the work may run after the caller has returned.
#pragma once

#include <vector>

#include "octet/ops/activation.h"
#include "octet/ops/attention_sinks.h"
#include "octet/ops/block_quantize.h"
#include "octet/ops/cross_entropy.h"
#include "octet/ops/delta_inputs.h"
#include "octet/ops/delta_rule.h"
#include "octet/ops/distillation.h"
#include "octet/ops/dora.h"
#include "octet/ops/dropout.h"
#include "octet/ops/elementwise.h"
#include "octet/ops/embedding.h"
#include "octet/ops/embedding_noise.h"
#include "octet/ops/expert_bias.h"
#include "octet/ops/gated_activation.h"
#include "octet/ops/gated_norm.h"
#include "octet/ops/judgement.h"
#include "octet/ops/layer_norm.h"
#include "octet/ops/normed_rope.h"
#include "octet/ops/optimizer.h"
#include "octet/ops/output_gate.h"
#include "octet/ops/preference.h"
#include "octet/ops/quantize.h"
#include "octet/ops/rms_norm.h"
#include "octet/ops/rope.h"
#include "octet/ops/score_rows.h"
#include "octet/ops/step_checks.h"
#include "octet/ops/wire.h"

namespace octet::ops {

struct GatherRowsArgs {
  ConstMatrix x;
  const std::int32_t* rows = nullptr;
  Matrix out;
};
struct ScatterRowsArgs {
  ConstMatrix in;
  const std::int32_t* rows = nullptr;
  Matrix x;
};
struct BiasBackwardArgs {
  ConstMatrix dy;
  float* d_bias = nullptr;
};
struct AddSumArgs {
  const float* values = nullptr;
  std::int64_t count = 0;
  double* total = nullptr;
};
struct SoftCapArgs {
  Matrix x;
  float cap = 0;
};
struct AmaxArgs {
  ConstMatrix x;
  float* amax = nullptr;
  const std::int32_t* skip = nullptr;
};
struct QuantizeArgs {
  ConstMatrix x;
  QuantizeInto into;
};
struct ConvertArgs {
  const void* from = nullptr;
  DType from_dtype = DType::f32;
  void* to = nullptr;
  DType to_dtype = DType::f32;
  std::int64_t count = 0;
};
struct AddArgs {
  const void* from = nullptr;
  DType from_dtype = DType::f32;
  float* to = nullptr;
  std::int64_t count = 0;
};
struct FillArgs {
  float* x = nullptr;
  float value = 0;
  std::int64_t count = 0;
};
struct ScaleByArgs {
  void* x = nullptr;
  DType dtype = DType::f32;
  const float* factor = nullptr;
  std::int64_t count = 0;
};
struct FinishNormArgs {
  const std::int64_t* limbs = nullptr;
  StepScalars* scalars = nullptr;
};
struct SumPartsWork {
  SumPartsArgs args;  ///< args.parts must not be read
  std::vector<const void*> parts;
};
struct SumTreeWork {
  SumTreeArgs args;  ///< args.addends and args.merges must not be read
  std::vector<const float*> addends;
  std::vector<int> merges;
};
struct CombineWork {
  CombineArgs args;  ///< args.parts must not be read
  std::vector<const void*> parts;
};
struct AdamWWork {
  AdamWArgs args;  ///< args.spans must not be read
  std::vector<AdamWSpan> spans;
};

/// The tokens of one partial sum of attention_sinks_backward() on a GPU.
inline constexpr std::int64_t kSinkTokens = 256;

/// Returns the rows that rms_norm_backward sums into one partial sum of d_weight. There are at most 256
/// partial sums.
constexpr std::int64_t rms_norm_backward_block(std::int64_t rows) {
  return rows <= 16 * 256 ? 16 : (rows + 255) / 256;
}

/// Returns matrix `i` of quantize_each().
inline QuantizeArgs matrix_of(const QuantizeEachArgs& a, std::int64_t i) {
  QuantizeArgs one{a.x, a.into};
  one.x.rows = a.x.rows / a.count;
  const std::int64_t begin = i * one.x.rows * a.x.cols;
  one.x.data =
      static_cast<const std::uint8_t*>(a.x.data) + static_cast<std::size_t>(begin) * size_of(a.x.dtype);
  if (one.into.row != nullptr) one.into.row += begin;
  if (one.into.transposed != nullptr) one.into.transposed += begin;
  if (one.into.scale != nullptr) one.into.scale += i;
  if (one.into.amax != nullptr) one.into.amax += i;
  if (one.into.seen != nullptr) one.into.seen += i;
  return one;
}

// The CUDA side has the same functions with the stream as first argument.
#define OCTET_ROW_OPS(OP)                                    \
  OP(rms_norm, RmsNormArgs)                                  \
  OP(rms_norm_backward, RmsNormBackwardArgs)                 \
  OP(layer_norm, LayerNormArgs)                              \
  OP(layer_norm_backward, LayerNormBackwardArgs)             \
  OP(attention_sinks, AttentionSinksArgs)                    \
  OP(attention_sinks_backward, AttentionSinksBackwardArgs)   \
  OP(delta_rule, DeltaRuleArgs)                              \
  OP(delta_rule_backward, DeltaRuleBackwardArgs)             \
  OP(cached_delta_rule, CachedDeltaRuleArgs)                 \
  OP(delta_inputs, DeltaInputsArgs)                          \
  OP(delta_inputs_backward, DeltaInputsBackwardArgs)         \
  OP(cached_delta_inputs, CachedDeltaInputsArgs)             \
  OP(gated_norm, GatedNormArgs)                              \
  OP(gated_norm_backward, GatedNormBackwardArgs)             \
  OP(take_output_gates, TakeOutputGatesArgs)                 \
  OP(put_output_gates, PutOutputGatesArgs)                   \
  OP(output_gate, OutputGateArgs)                            \
  OP(output_gate_backward, OutputGateBackwardArgs)           \
  OP(expert_bias, ExpertBiasArgs)                            \
  OP(expert_bias_backward, ExpertBiasBackwardArgs)           \
  OP(expert_bias_weights, ExpertBiasWeightsArgs)             \
  OP(rope_table, RopeTableArgs)                              \
  OP(rope, RopeArgs)                                         \
  OP(normed_rope, NormedRopeArgs)                            \
  OP(normed_rope_backward, NormedRopeBackwardArgs)           \
  OP(activation, ActivationArgs)                             \
  OP(activation_backward, ActivationBackwardArgs)            \
  OP(gated_activation, GatedActivationArgs)                  \
  OP(gated_activation_backward, GatedActivationBackwardArgs) \
  OP(embedding, EmbeddingArgs)                               \
  OP(embedding_backward, EmbeddingBackwardArgs)              \
  OP(embedding_noise, EmbeddingNoiseArgs)                    \
  OP(gather_rows, GatherRowsArgs)                            \
  OP(scatter_rows, ScatterRowsArgs)                          \
  OP(bias_backward, BiasBackwardArgs)                        \
  OP(cross_entropy, CrossEntropyArgs)                        \
  OP(row_entropy, RowEntropyArgs)                            \
  OP(answer_sums, AnswerSumsArgs)                            \
  OP(preference_loss, PreferenceLossArgs)                    \
  OP(judgement_loss, JudgementLossArgs)                      \
  OP(score_rows, ScoreRowsArgs)                              \
  OP(distillation, DistillationArgs)                         \
  OP(dora_scale, DoraScaleArgs)                              \
  OP(scale_columns, ScaleColumnsArgs)                        \
  OP(dot_columns, DotColumnsArgs)                            \
  OP(dropout, DropoutArgs)                                   \
  OP(soft_cap, SoftCapArgs)                                  \
  OP(add_sum, AddSumArgs)                                    \
  OP(amax, AmaxArgs)                                         \
  OP(quantize, QuantizeArgs)                                 \
  OP(quantize_each, QuantizeEachArgs)                        \
  OP(block_quantize, BlockQuantizeArgs)                      \
  OP(transpose, TransposeArgs)                               \
  OP(current_scale, CurrentScaleArgs)                        \
  OP(delayed_scale, DelayedScaleArgs)                        \
  OP(convert, ConvertArgs)                                   \
  OP(add, AddArgs)                                           \
  OP(fill, FillArgs)                                         \
  OP(scale_by, ScaleByArgs)                                  \
  OP(encode_values, EncodeArgs)                              \
  OP(decode_values, DecodeArgs)                              \
  OP(sum_parts, SumPartsWork)                                \
  OP(sum_tree, SumTreeWork)                                  \
  OP(combine_parts, CombineWork)                             \
  OP(random_normal, RandomNormalArgs)                        \
  OP(square_sum, SquareSumArgs)                              \
  OP(finish_norm, FinishNormArgs)                            \
  OP(adamw, AdamWWork)

namespace cpu {
#define OCTET_DECLARE(name, Args) void name(const Args& args);
OCTET_ROW_OPS(OCTET_DECLARE)
#undef OCTET_DECLARE
}  // namespace cpu

namespace cuda {
#define OCTET_DECLARE(name, Args) void name(Stream& stream, const Args& args);
OCTET_ROW_OPS(OCTET_DECLARE)
#undef OCTET_DECLARE
}  // namespace cuda

// Both sides of the ops that check a step, for dispatch.h.

namespace cpu {
void add_hash(const HashArgs& args);
void limit_step(const LimitStepArgs& args);
}  // namespace cpu
namespace cuda {
void add_hash(Stream& stream, const HashArgs& args);
void limit_step(Stream& stream, const LimitStepArgs& args);
}  // namespace cuda

}  // namespace octet::ops
