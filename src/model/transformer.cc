#include "octet/model/transformer.h"

#include <algorithm>

#include "core.h"
#include "octet/base/error.h"
#include "octet/ops/cross_entropy.h"
#include "octet/ops/embedding.h"

namespace octet::model {
namespace {

constexpr std::size_t kTensorsPerBlock = 2 * kLinears;

TransformerOptions checked(TransformerOptions options, const Architecture& a) {
  const auto expect = [](bool good, const char* what, std::int64_t found) {
    if (good) return;
    throw Error({.what = "the transformer cannot be built for these sizes",
                 .expected = what,
                 .found = std::to_string(found),
                 .code = ExitCode::usage});
  };
  expect(options.max_tokens >= 1 && options.max_tokens <= kMostTokens, "1 to 2^30 tokens in a micro-batch",
         options.max_tokens);
  expect(options.max_length >= 1 && options.max_length <= options.max_tokens,
         "documents no longer than a micro-batch", options.max_length);
  expect(options.max_labels >= 0 && options.max_labels <= options.max_tokens,
         "no more labels than tokens in a micro-batch", options.max_labels);
  expect(options.max_positions >= 0 && options.max_positions <= kMostTokens, "at most 2^30 positions",
         options.max_positions);
  if (options.last_block < 0) options.last_block = static_cast<int>(a.layers);
  // A rank that runs a part of the blocks needs the stream from its neighbour, which has no way in yet.
  expect(options.first_block == 0 && options.last_block == a.layers, "all blocks on one rank",
         options.last_block - options.first_block);
  return options;
}

/// Columns of a linear layer's output with a scale each; none: one scale.
std::vector<std::int64_t> scaled_columns(const TensorSpec& weight, bool each_part) {
  const std::vector<ScaledPart> parts = scaled_parts(weight, each_part);
  std::vector<std::int64_t> columns;
  if (parts.size() < 2) return columns;
  for (const ScaledPart& part : parts) columns.push_back(part.count / weight.cols);
  return columns;
}

std::vector<precision::QuantizedTensor> quantized_tensors(const TransformerOptions& options,
                                                          const ParameterLayout& layout, bool each_part) {
  std::vector<precision::QuantizedTensor> tensors;
  for (int block = options.first_block; block < options.last_block; ++block) {
    const std::string prefix = "layers." + std::to_string(block) + ".";
    for (const char* name : kLinearNames) {
      tensors.push_back({prefix + name + "/input", precision::TensorRole::input});
    }
    const auto& weights = layout.groups[1].segments[kBlockMatrices].tensors;
    for (std::size_t linear = 0; linear < kLinears; ++linear) {
      tensors.push_back({prefix + kLinearNames[linear] + "/output_gradient",
                         precision::TensorRole::output_gradient, scaled_columns(weights[linear], each_part)});
    }
  }
  return tensors;
}

/// Names of the weights that products make for themselves, by block and linear layer.
std::vector<std::string> weight_names(const TransformerOptions& options) {
  std::vector<std::string> names;
  for (int block = options.first_block; block < options.last_block; ++block) {
    for (const char* name : kLinearNames) {
      names.push_back("layers." + std::to_string(block) + "." + name + "/weight");
    }
  }
  return names;
}

// In the order of the layout.
VectorIndex vector_index(const Architecture& a) {
  VectorIndex index;
  int next = 2;  // after the norms of the stream
  const auto place = [&next](bool present, int& at) {
    if (present) at = next++;
  };
  place(a.sublayer_norms, index.attention_output_norm);
  place(a.sublayer_norms, index.mlp_output_norm);
  place(a.qk_norm, index.q_norm);
  place(a.qk_norm, index.k_norm);
  place(a.qkv_bias, index.bias[kQkv]);
  place(a.output_bias, index.bias[kOutput]);
  place(a.mlp_bias, index.bias[kGateUp]);
  place(a.mlp_bias, index.bias[kDown]);
  return index;
}

}  // namespace

KvCache::KvCache(Arena& arena, const Architecture& a, DType dtype, std::int64_t slots, std::int64_t capacity)
    : slots_(slots), capacity_(capacity) {
  std::int64_t elements = 0;
  if (slots < 1 || capacity < 1 || __builtin_mul_overflow(slots, capacity, &elements) ||
      __builtin_mul_overflow(elements, a.heads.kv_heads * a.heads.head_dim * 8, &elements)) {
    throw Error({.what = "a KV cache of this size is impossible",
                 .expected = "at least one sequence of one token that fits memory",
                 .found = std::to_string(slots) + " x " + std::to_string(capacity) + " tokens"});
  }
  const auto bytes = static_cast<std::size_t>(elements / 8) * size_of(dtype);
  for (std::int64_t layer = 0; layer < a.layers; ++layer) {
    keys_.push_back(arena.reserve("KV cache", bytes));
    values_.push_back(arena.reserve("KV cache", bytes));
  }
}

Transformer::Impl::Impl(const Architecture& architecture, const precision::Recipe& recipe, Arena& arena,
                        const TransformerOptions& options, precision::Audit* audit,
                        PartialReduction* reduction)
    : architecture_(architecture),
      options_(checked(options, architecture)),
      layout_(build_layout(architecture)),
      quantizer_(arena, "precision/activations", recipe,
                 quantized_tensors(options_, layout_, recipe.scale_parts),
                 recipe.blocks() ? weight_names(options_) : std::vector<std::string>{}),
      audit_(audit),
      reduction_(reduction),
      first_block_(options_.first_block),
      last_block_(options_.last_block),
      vectors_(vector_index(architecture)),
      dtype_(recipe.compute) {
  check(dtype_ == DType::f32 || dtype_ == DType::bf16, "the compute dtype is f32 or bf16");
  reserve_buffers(arena);
  if (audit_ != nullptr) plan_audit(arena.device());
}

std::array<ops::GemmOutcome, 3> Transformer::Impl::planned_products(const Device& device,
                                                                    const TensorSpec& weight) const {
  const precision::Recipe& recipe = quantizer_.recipe();
  const std::int64_t tokens = options_.max_tokens;
  const ops::Scaling by_squares = recipe.blocks() ? ops::Scaling::squares : ops::Scaling::tensor;
  const ops::Operand input{
      .dtype = recipe.forward_format, .rows = tokens, .cols = weight.cols, .scaling = scaling()};
  std::array<ops::GemmOutcome, 3> planned{};
  for (const ScaledPart& part : scaled_parts(weight, recipe.scale_parts)) {
    const std::int64_t out = part.count / weight.cols;
    const ops::Operand w{
        .dtype = recipe.forward_format, .rows = out, .cols = weight.cols, .scaling = by_squares};
    const ops::Operand d_output{
        .dtype = recipe.gradient_format, .rows = tokens, .cols = out, .scaling = scaling()};
    const auto plan = [&](ops::Product product, const ops::Operand& a, const ops::Operand& b,
                          const ops::Matrix& d) {
      const ops::GemmOutcome outcome =
          ops::gemm_outcome(device, {.product = product, .a = a, .b = b, .d = d});
      ops::GemmOutcome& worst = planned[static_cast<std::size_t>(product)];
      if (worst.way == ops::GemmWay::none || outcome.way > worst.way) worst = outcome;
    };
    plan(ops::Product::forward, input, w, {nullptr, dtype_, tokens, out, weight.rows});
    if (!options_.training) continue;
    plan(ops::Product::dgrad, d_output, w, {nullptr, dtype_, tokens, weight.cols, weight.cols});
    plan(ops::Product::wgrad, d_output, input,
         {nullptr, options_.gradient_dtype, out, weight.cols, weight.cols});
  }
  return planned;
}

// In the order of Linear, and the head behind them: place_of and product count there.
void Transformer::Impl::plan_audit(const Device& device) {
  static constexpr std::array<const char*, kLinears> names = {"attention q, k, v", "attention output",
                                                              "MLP gate, up", "MLP down"};
  const bool fp8 = quantizer_.recipe().fp8();
  for (std::size_t linear = 0; linear < kLinears; ++linear) {
    const TensorSpec& weight = layout_.groups[1].segments[kBlockMatrices].tensors[linear];
    audit_->plan({.name = names[linear],
                  .layers = last_block_ - first_block_,
                  .rows = weight.rows,
                  .cols = weight.cols,
                  .fp8 = fp8,
                  .reason = fp8 ? "" : "no FP8 recipe",
                  .planned = fp8 ? planned_products(device, weight) : std::array<ops::GemmOutcome, 3>{}});
  }
  audit_->plan({.name = "head",
                .layers = 1,
                .rows = architecture_.vocabulary,
                .cols = architecture_.hidden,
                .fp8 = false,
                .reason = fp8 ? "logits are kept in the compute dtype" : "no FP8 recipe"});
}

std::int64_t Transformer::Impl::input_tensor(std::size_t block, Linear linear) const {
  if (!quantizer_.recipe().fp8()) return precision::Quantizer::kPlain;
  return static_cast<std::int64_t>(block * kTensorsPerBlock + linear);
}

std::int64_t Transformer::Impl::gradient_tensor(std::size_t block, Linear linear) const {
  if (!quantizer_.recipe().fp8()) return precision::Quantizer::kPlain;
  return static_cast<std::int64_t>(block * kTensorsPerBlock + kLinears + linear);
}

const float* Transformer::Impl::vector(const GroupParameters& parameters, int index) {
  if (index < 0) return nullptr;
  return static_cast<const float*>(parameters.weights[kBlockVectors][static_cast<std::size_t>(index)].data);
}

std::size_t Transformer::Impl::rope_of(std::size_t block) const {
  return static_cast<std::size_t>(architecture_.blocks[block + static_cast<std::size_t>(first_block_)].rope);
}

float Transformer::Impl::embedding_scale() const {
  const auto scale = static_cast<float>(architecture_.embedding_scale);
  return dtype_ == DType::bf16 ? from_bf16(to_bf16(scale)) : scale;
}

void Transformer::Impl::product(Stream& stream, ops::Product product, const ops::Operand& a,
                                const ops::Operand& b, const ops::Matrix& d, bool accumulate) {
  multiply(stream, {.row = kLinears}, {.product = product, .a = a, .b = b, .d = d, .accumulate = accumulate});
}

void Transformer::Impl::multiply(Stream& stream, const precision::AuditPlace& place,
                                 const ops::GemmArgs& args) {
  ops::GemmArgs whole = args;
  whole.fixed_order = options_.fixed_order;
  // Forward sums lose less than an activation does when it becomes FP8 again; those of gradients lose only
  // what the recipe allows.
  whole.fast_accumulation = args.product == ops::Product::forward || quantizer_.recipe().fast_gradients;
  whole.workspace = scratch_.workspace;
  const ops::GemmOutcome outcome = ops::gemm(stream, whole);
  if (audit_ != nullptr) audit_->count(place, args.product, outcome);
}

void Transformer::Impl::reduce(Stream& stream, const ops::Matrix& part) {
  if (reduction_ != nullptr) reduction_->reduce_partial(stream, part);
}

void Transformer::Impl::check_batch(const MicroBatch& batch) const {
  const std::int64_t labels = scratch_.label_hidden.rows;
  if (batch.documents.tokens > options_.max_tokens || batch.documents.max_length > options_.max_length ||
      batch.labels > labels || batch.labels > batch.documents.tokens) {
    throw Error({.what = "a micro-batch is larger than what was planned",
                 .expected = std::to_string(options_.max_tokens) + " tokens, documents of " +
                             std::to_string(options_.max_length) + ", " + std::to_string(labels) + " labels",
                 .found = std::to_string(batch.documents.tokens) + ", " +
                          std::to_string(batch.documents.max_length) + " and " +
                          std::to_string(batch.labels)});
  }
}

void Transformer::Impl::embed(ParameterSource& source, Stream& stream, const std::int32_t* ids,
                              std::int64_t tokens) {
  const GroupParameters& table = source.acquire(layout_.embedding_group(), Pass::forward, stream);
  const ops::Operand& weight = table.weights[0][0];
  ops::embedding(stream, {.ids = ids,
                          .table = {weight.data, weight.dtype, weight.rows, weight.cols, weight.cols},
                          .scale = embedding_scale(),
                          .out = top(blocks_.front().input, tokens)});
  source.release(layout_.embedding_group(), Pass::forward, stream);
}

void Transformer::Impl::forward_blocks(ParameterSource& source, Stream& stream, std::int64_t tokens,
                                       const AttentionInput& attention, const PassOptions& pass) {
  for (std::size_t block = 0; block < blocks_.size(); ++block) {
    const int group = layout_.block_group(static_cast<int>(block) + options_.first_block);
    const GroupParameters& parameters = source.acquire(group, Pass::forward, stream);
    const ops::Matrix input = top(blocks_[block].input, tokens);
    forward_block(
        stream, block, parameters,
        block == 0 ? NormInput{.residual = input} : norm_input(top(blocks_[block - 1].middle, tokens), input),
        attention, pass);
    source.release(group, Pass::forward, stream);
  }
}

void Transformer::Impl::backward_blocks(ParameterSource& source, Stream& stream, std::int64_t tokens,
                                        const AttentionInput& attention, const PassOptions& pass) {
  for (std::size_t left = blocks_.size(); left > 0; --left) {
    const std::size_t block = left - 1;
    const int group = layout_.block_group(static_cast<int>(block) + options_.first_block);
    const GroupParameters& parameters = source.acquire(group, Pass::backward, stream);
    if (options_.recompute == Recompute::full) {
      const ProfileLabel label(stream, "recompute");
      forward_block(stream, block, parameters, {.residual = top(blocks_[block].input, tokens)}, attention,
                    {.record = false, .keep = true, .recompute = true});
    }
    const GroupGradients& gradients = source.gradients(group, stream);
    backward_block(stream, block, parameters, gradients, attention, static_cast<std::int64_t>(block) - 1,
                   pass);
    source.give_back(group, stream);
    source.release(group, Pass::backward, stream);
  }
}

void Transformer::Impl::train(ParameterSource& source, Stream& stream, const MicroBatch& batch,
                              double* loss_sum, const LogitsHook& logits) {
  check(options_.training, "a core built without training buffers trains nothing");
  check_batch(batch);
  const std::int64_t tokens = batch.documents.tokens;
  const AttentionInput attention{.positions = batch.positions, .documents = batch.documents};
  // What backward makes again needs no operands for it yet.
  const bool kept = options_.recompute == Recompute::none;
  const PassOptions pass{.record = true, .keep = true, .readers = kept ? Readers::all : Readers::forward};
  embed(source, stream, batch.ids, tokens);
  forward_blocks(source, stream, tokens, attention, pass);
  source.blocks_done(stream);
  forward_head(source, stream, batch, true, loss_sum, logits, pass);
  backward_blocks(source, stream, tokens, attention, pass);

  const int table = layout_.embedding_group();
  const ops::Matrix& d_table = source.gradients(table, stream).gradients[0][0];
  if (d_table.data != nullptr) {
    ops::embedding_backward(stream, {.ids = batch.ids,
                                     .d_out = top(scratch_.gradient, tokens),
                                     .scale = embedding_scale(),
                                     .d_table = d_table,
                                     .padding_id = architecture_.padding_id,
                                     .workspace = scratch_.workspace});
  }
  source.give_back(table, stream);
}

void Transformer::Impl::evaluate(ParameterSource& source, Stream& stream, const MicroBatch& batch,
                                 double* loss_sum, const LogitsHook& logits) {
  check_batch(batch);
  const std::int64_t tokens = batch.documents.tokens;
  const AttentionInput attention{.positions = batch.positions, .documents = batch.documents};
  embed(source, stream, batch.ids, tokens);
  forward_blocks(source, stream, tokens, attention, {.readers = Readers::forward});
  forward_head(source, stream, batch, false, loss_sum, logits, {});
}

void Transformer::Impl::decode(ParameterSource& source, Stream& stream, const DecodeBatch& batch,
                               KvCache& cache, const ops::Matrix& logits) {
  check(logits.rows >= batch.row_count && logits.cols == architecture_.vocabulary,
        "logits have a row for every wanted token");
  check_batch({.labels = batch.row_count, .documents = {.tokens = batch.tokens}});
  const AttentionInput attention{.positions = batch.positions,
                                 .documents = {.tokens = batch.tokens},
                                 .slots = batch.slots,
                                 .cache = &cache};
  embed(source, stream, batch.ids, batch.tokens);
  forward_blocks(source, stream, batch.tokens, attention, {.readers = Readers::forward});

  const int head_group = layout_.head_group(), table_group = layout_.embedding_group();
  const bool tied = architecture_.tied;
  const GroupParameters& head = source.acquire(head_group, Pass::forward, stream);
  const GroupParameters* table = tied ? &source.acquire(table_group, Pass::forward, stream) : nullptr;
  final_norm(stream, head, batch.tokens);
  const ops::Matrix hidden = top(scratch_.label_hidden, batch.row_count);
  ops::gather_rows(stream, top(scratch_.final_norm, batch.tokens), batch.rows, hidden);
  const ops::Operand x{.data = hidden.data, .dtype = dtype_, .rows = hidden.rows, .cols = hidden.cols};
  const ops::Matrix wanted = top(logits, batch.row_count);
  product(stream, ops::Product::forward, x, head_weight(head, table), wanted);
  if (architecture_.logit_soft_cap > 0) {
    ops::soft_cap(stream, wanted, static_cast<float>(architecture_.logit_soft_cap));
  }
  if (tied) source.release(table_group, Pass::forward, stream);
  source.release(head_group, Pass::forward, stream);
}

Transformer::Transformer(const Architecture& architecture, const precision::Recipe& recipe, Arena& arena,
                         const TransformerOptions& options, precision::Audit* audit,
                         PartialReduction* reduction)
    : impl_(std::make_unique<Impl>(architecture, recipe, arena, options, audit, reduction)) {}
Transformer::~Transformer() = default;

void Transformer::train(ParameterSource& source, Stream& stream, const MicroBatch& batch, double* loss_sum,
                        const LogitsHook& logits) {
  impl_->train(source, stream, batch, loss_sum, logits);
}

void Transformer::evaluate(ParameterSource& source, Stream& stream, const MicroBatch& batch, double* loss_sum,
                           const LogitsHook& logits) {
  impl_->evaluate(source, stream, batch, loss_sum, logits);
}

void Transformer::decode(ParameterSource& source, Stream& stream, const DecodeBatch& batch, KvCache& cache,
                         const ops::Matrix& logits) {
  impl_->decode(source, stream, batch, cache, logits);
}

precision::ScaleSet* Transformer::activation_scales() {
  return impl_->quantizer_.scales();
}
precision::CastStatistics* Transformer::casts() {
  return impl_->quantizer_.casts();
}
std::vector<precision::CastRow> Transformer::cast_rows() const {
  return impl_->quantizer_.cast_rows();
}
const Architecture& Transformer::architecture() const {
  return impl_->architecture_;
}
const TransformerOptions& Transformer::options() const {
  return impl_->options_;
}
const precision::Recipe& Transformer::recipe() const {
  return impl_->quantizer_.recipe();
}

}  // namespace octet::model
