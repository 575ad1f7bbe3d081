#include "layers/embedding_and_head.h"

#include <algorithm>
#include <cmath>

#include "layers/linear_operands.h"
#include "octet/ops/cross_entropy.h"
#include "octet/ops/distillation.h"
#include "octet/ops/embedding.h"
#include "octet/ops/score_rows.h"

namespace octet::model {

// A tied table is also the head's weight. The head's backward runs first, so its wgrad GEMM may overwrite the
// gradient before the embedding adds to it.
Embedding::Embedding(GroupBuilder& group, const Architecture& a)
    : table_(group.matrix("embed", a.hidden, {{"embed_tokens.weight", a.vocabulary, kVocabulary}},
                          {.init_std = a.tied ? head_deviation(a) : a.embedding_initializer_range,
                           .gradient_by_gemm = a.tied})),
      scale_(a.embedding_scale / a.residual_multiplier),
      rounds_(a.rounds_embedding_scale),
      padding_id_(a.padding_id),
      sums_(a.share.sums()) {}

std::size_t Embedding::workspace(const Device& device, const Common& common) const {
  return ops::embedding_backward_workspace(device, common.options.max_tokens, table_.rows());
}

std::vector<Operation> Embedding::operations(std::int64_t tokens) const {
  const double values = 2 * static_cast<double>(tokens) * static_cast<double>(table_.cols());
  std::vector<Operation> all = {moves(OperationKind::embedding, values)};
  if (trained()) all.push_back(moves_back(OperationKind::embedding, values));
  return all;
}

float Embedding::scale(const Common& common) const {
  const auto scale = static_cast<float>(scale_);
  return rounds_ && common.dtype == DType::bf16 ? from_bf16(to_bf16(scale)) : scale;
}

void Embedding::forward(const Call& call, const std::int32_t* ids, const ops::Matrix& out) const {
  const ops::Operand& table = table_.in(call.parameters).front();
  ops::embedding(call.stream, {.ids = ids,
                               .table = {table.data, table.dtype, table.rows, table.cols, table.cols},
                               .scale = scale(call.common),
                               .out = out});
  if (sums_) reduce_partial(call, "embedding", out);
}

void Embedding::backward(const Call& call, const std::int32_t* ids, const ops::ConstMatrix& d_out) const {
  const ops::Matrix& d_table = table_.in(*call.gradients);
  if (d_table.data == nullptr) return;
  ops::embedding_backward(call.stream, {.ids = ids,
                                        .d_out = d_out,
                                        .scale = scale(call.common),
                                        .d_table = d_table,
                                        .padding_id = padding_id_,
                                        .workspace = call.common.scratch.workspace});
}

// Under a tied head, a token's own logit grows with the square root of the width.
double head_deviation(const Architecture& a) {
  const double range = a.tied ? a.embedding_initializer_range : a.initializer_range;
  const double logits = a.tied ? 0.25 : 0.5;
  return std::min(range, logits / std::sqrt(static_cast<double>(a.hidden)));
}

Head::Head(GroupBuilder& group, const Architecture& a)
    : vocabulary_(a.scores ? 1 : vocabulary_of_share(a).count),
      width_(a.hidden),
      scores_(a.scores),
      soft_cap_(static_cast<float>(a.logit_soft_cap)),
      factor_(static_cast<float>(1.0 / a.logits_divisor)),
      norm_(group, "norm", a.tensor_prefix + "norm", a.hidden, a) {
  if (a.tied) return;
  if (a.scores) {
    weight_ = group.matrix("score", a.hidden, {{a.head_name, 1}},
                           {.init_std = a.initializer_range, .gradient_by_gemm = true});
    return;
  }
  weight_ = group.matrix("lm_head", a.hidden, {{a.head_name, a.vocabulary, kVocabulary}},
                         {.init_std = head_deviation(a), .gradient_by_gemm = true});
}

void Head::set_below(bool table_trained, bool passes_on) {
  weight_trained_ = tied() ? table_trained : weight_->trained();
  norm_.set_passes_on(passes_on);
}

LinearLayer Head::facts() const {
  return {.name = "head", .title = "head", .rows = vocabulary_, .cols = width_};
}

void Head::reserve(Arena& arena, const Common& common) {
  const TransformerOptions& options = common.options;
  const DType dtype = common.dtype;
  const auto matrix = [&](const char* name, std::int64_t rows, std::int64_t cols) {
    return ops::Matrix{.data = arena.reserve(name, bytes_of(rows, cols, dtype)),
                       .dtype = dtype,
                       .rows = rows,
                       .cols = cols,
                       .ld = cols};
  };
  input_ = matrix("head/hidden", options.max_tokens, width_);
  normed_ = matrix("head/hidden", options.max_tokens, width_);
  norm_.reserve(
      arena.reserve_as<float>("head/norm", static_cast<std::size_t>(norm_.kept() * options.max_tokens)));
  const std::int64_t labels = options.max_labels == 0 ? options.max_tokens : options.max_labels;
  hidden_ = matrix("head/label rows", labels, width_);
  const auto row_bytes = static_cast<std::int64_t>(bytes_of(1, vocabulary_, dtype));
  // With a frozen head, chunks do not add to a gradient, so smaller chunks cost no traffic.
  const std::size_t logits_bytes = weight_trained_ ? options.logits_bytes : options.logits_bytes / 2;
  chunk_ = std::max<std::int64_t>(1, static_cast<std::int64_t>(logits_bytes) / row_bytes);
  if (chunk_ > 128) chunk_ -= chunk_ % 128;
  chunk_ = std::min(chunk_, labels);
  logits_ = matrix("head/logits", chunk_, vocabulary_);
  const bool answers = options.preference || options.judgement;
  const auto rows = static_cast<std::size_t>(answers ? labels : chunk_);
  row_loss_ = arena.reserve_as<float>("head/losses", rows);
  if (answers || options.token_loss.entropy_power)
    row_factors_ = arena.reserve_as<float>("head/losses", rows);
  if (options.counts_hits)
    row_hits_ = arena.reserve_as<float>("head/losses", static_cast<std::size_t>(chunk_));
  if (options.teacher_loss) {
    kept_logits_ = arena.reserve_as<float>("head/losses",
                                           static_cast<std::size_t>(chunk_ * options.teacher_loss->ranks));
    row_figures_ =
        arena.reserve_as<float>("head/losses", static_cast<std::size_t>(chunk_ * ops::kDistillationFigures));
  }
  if (!answers) return;
  // Each answer has a label row.
  answer_sums_ = arena.reserve_as<double>("head/losses", rows);
  slopes_ = arena.reserve_as<double>("head/losses", rows);
}

std::size_t Head::workspace(const Device& device, const Common& common) const {
  const std::size_t bytes = workspace_of_gemm(
      device, common, {.rows = chunk_, .out = vocabulary_, .in = width_, .pitch = vocabulary_});
  return common.options.training ? std::max(bytes, norm_.workspace(device, common)) : bytes;
}

std::vector<Operation> Head::operations(std::int64_t tokens) const {
  std::vector<Operation> all = norm_.operations(tokens, {});
  append(all, gemms_of(facts(), tokens));
  std::erase_if(all, [&](const Operation& o) {
    return o.kind == OperationKind::gemm && ((o.gemm_kind == ops::GemmKind::dgrad && !norm_.runs_back()) ||
                                             (o.gemm_kind == ops::GemmKind::wgrad && !weight_trained_));
  });
  // The loss reads the logits twice and writes their gradient over them.
  const double values = static_cast<double>(tokens) * static_cast<double>(vocabulary_);
  all.push_back(moves(OperationKind::loss, 3 * values));
  return all;
}

HeadWeight Head::weight(const MatrixHandle& matrix, const Call& call) {
  const ops::Operand& values = matrix.in(call.parameters).front();
  if (call.gradients == nullptr) return {.values = values};
  return {.values = values,
          .gradient = &matrix.in(*call.gradients),
          .overwrite = matrix.overwrites(*call.gradients)};
}

ops::Matrix Head::pick(const Call& call, const NormInput& stream, const std::int32_t* rows,
                       std::int64_t count) const {
  const ops::Matrix normed = top(normed_, call.tokens);
  norm_.forward(call, stream, {.values = normed});
  const ops::Matrix picked = top(hidden_, count);
  ops::gather_rows(call.stream, normed, rows, picked);
  return picked;
}

void Head::chunk_gradient(const Call& call, const HeadWeight& weight, const Chunk& chunk,
                          const ops::Matrix& d_logits) const {
  if (weight.gradient->data != nullptr) {
    multiply(call, place_,
             {.gemm_kind = ops::GemmKind::wgrad,
              .a = operand_of(d_logits),
              .b = operand_of(chunk.hidden),
              .d = *weight.gradient,
              .accumulate = !weight.overwrite || chunk.first > 0,
              .factor = factor_});
  }
  if (!norm_.runs_back()) return;
  multiply(call, place_,
           {.gemm_kind = ops::GemmKind::dgrad,
            .a = operand_of(d_logits),
            .b = weight.values,
            .d = chunk.hidden,
            .factor = factor_});
}

template <class Use>
void Head::each_chunk(const ops::Matrix& hidden, const MicroBatch& batch, Use&& use) const {
  // Runs at least once, so the gradient of the head is zeroed also without labels.
  for (std::int64_t first = 0; first == 0 || first < batch.labels; first += chunk_) {
    use(Chunk{.hidden = rows_from(hidden, first, std::min(chunk_, batch.labels - first)),
              .first = first,
              .targets = batch.targets + first});
  }
}

void Head::make_logits(const Call& call, const HeadWeight& weight, const Chunk& chunk) const {
  multiply(call, place_,
           {.gemm_kind = ops::GemmKind::forward,
            .a = operand_of(chunk.hidden),
            .b = weight.values,
            .d = top(logits_, chunk.hidden.rows),
            .factor = factor_});
}

void Head::show_logits(const Call& call, const HeadWeight& weight, const Chunk& chunk,
                       const LogitsHook& hook) const {
  make_logits(call, weight, chunk);
  if (!hook || chunk.hidden.rows == 0) return;
  const ops::Matrix logits = top(logits_, chunk.hidden.rows);
  if (soft_cap_ > 0) ops::soft_cap(call.stream, logits, soft_cap_);
  hook(call.stream, logits, chunk.first);
  // soft_cap() overwrote the logits. The loss caps them itself and needs the exact uncapped bits.
  if (soft_cap_ > 0) make_logits(call, weight, chunk);
}

void Head::chunk_loss(const Call& call, const HeadWeight& weight, const Chunk& chunk,
                      const LossOutputs& losses) const {
  const std::int64_t rows = chunk.hidden.rows;
  const ops::Matrix logits = top(logits_, rows);
  show_logits(call, weight, chunk, losses.logits);
  const TokenLoss& rule = call.common.options.token_loss;
  if (rule.entropy_power) {
    ops::row_entropy(call.stream, {.logits = logits,
                                   .soft_cap = soft_cap_,
                                   .power = static_cast<float>(*rule.entropy_power),
                                   .out = row_factors_});
  }
  ops::cross_entropy(call.stream, {.logits = logits,
                                   .targets = chunk.targets,
                                   .soft_cap = soft_cap_,
                                   .gradient = weight.gradient != nullptr,
                                   .row_loss = row_loss_,
                                   .smoothing = static_cast<float>(rule.smoothing),
                                   .by_probability = rule.by_probability,
                                   .row_factors = rule.entropy_power ? row_factors_ : nullptr,
                                   .factors_loss = rule.entropy_power.has_value(),
                                   .row_hits = losses.hits != nullptr ? row_hits_ : nullptr});
  ops::add_sum(call.stream, row_loss_, rows, losses.loss_sum);
  if (losses.hits != nullptr) ops::add_sum(call.stream, row_hits_, rows, losses.hits);
  if (weight.gradient != nullptr) chunk_gradient(call, weight, chunk, logits);
}

void Head::teach_chunk(const Call& call, const HeadWeight& weight, const Chunk& chunk, const Taught& taught,
                       const LossOutputs& losses) const {
  const std::int64_t rows = chunk.hidden.rows;
  const ops::Matrix logits = top(logits_, rows);
  show_logits(call, weight, chunk, losses.logits);
  if (rows > 0) {
    const TeacherLoss& loss = *call.common.options.teacher_loss;
    using enum ops::DistillationFigure;
    const auto figure = [&](ops::DistillationFigure kind) {
      return row_figures_ + static_cast<std::int64_t>(kind) * chunk_;
    };
    ops::distillation(call.stream, {.logits = logits,
                                    .targets = chunk.targets,
                                    .soft_cap = soft_cap_,
                                    .gradient = weight.gradient != nullptr,
                                    .rule = loss.rule,
                                    .ranks = loss.ranks,
                                    .ids = taught.ids + chunk.first * loss.ranks,
                                    .logprobs = taught.logprobs + chunk.first * loss.ranks,
                                    .rest = taught.rest + chunk.first,
                                    .kept = kept_logits_,
                                    .row_loss = row_loss_,
                                    .row_divergence = figure(divergence),
                                    .row_cross_entropy = figure(cross_entropy),
                                    .row_agreement = figure(agreement)});
    ops::add_sum(call.stream, row_loss_, rows, losses.loss_sum);
    for (const ops::DistillationFigure kind : {divergence, cross_entropy, agreement})
      ops::add_sum(call.stream, figure(kind), rows, taught.figures + static_cast<int>(kind));
  }
  if (weight.gradient != nullptr) chunk_gradient(call, weight, chunk, logits);
}

void Head::sum_answers(const Call& call, const HeadWeight& weight, const ops::Matrix& hidden,
                       const MicroBatch& batch, const LogitsHook& hook, double beyond, double* sums) const {
  each_chunk(hidden, batch, [&](const Chunk& chunk) {
    show_logits(call, weight, chunk, hook);
    if (scores_) {
      return ops::score_rows(
          call.stream, {.scores = top(logits_, chunk.hidden.rows), .row_loss = row_loss_ + chunk.first});
    }
    ops::cross_entropy(call.stream, {.logits = top(logits_, chunk.hidden.rows),
                                     .targets = chunk.targets,
                                     .soft_cap = soft_cap_,
                                     .gradient = false,
                                     .row_loss = row_loss_ + chunk.first});
  });
  const bool pairs = call.common.options.preference.has_value();
  ops::answer_sums(call.stream, {.row_loss = row_loss_,
                                 .answers = pairs ? batch.pairs.answers : batch.judged.answers,
                                 .count = pairs ? 2 * batch.pairs.count : batch.judged.count,
                                 .pairs = pairs,
                                 .beyond = beyond,
                                 .out = sums});
}

void Head::add_losses(const Call& call, const MicroBatch& batch, const LossOutputs& losses,
                      bool training) const {
  const TransformerOptions& options = call.common.options;
  if (options.judgement) {
    ops::judgement_loss(call.stream, {.rule = *options.judgement,
                                      .count = batch.judged.count,
                                      .answers = batch.judged.answers,
                                      .desirable = batch.judged.desirable,
                                      .sums = answer_sums_,
                                      .references = batch.judged.references,
                                      .point = batch.judged.point,
                                      .slopes = slopes_,
                                      .row_factors = training ? row_factors_ : nullptr,
                                      .loss_sum = losses.loss_sum,
                                      .figures = batch.judged.figures});
    return;
  }
  ops::preference_loss(call.stream, {.rule = *options.preference,
                                     .pairs = batch.pairs.count,
                                     .answers = batch.pairs.answers,
                                     .sums = answer_sums_,
                                     .references = batch.pairs.references,
                                     .slopes = slopes_,
                                     .row_factors = training ? row_factors_ : nullptr,
                                     .loss_sum = losses.loss_sum,
                                     .figures = batch.pairs.figures});
}

void Head::loss_of_answers(const Call& call, const HeadWeight& weight, const ops::Matrix& hidden,
                           const MicroBatch& batch, const LossOutputs& losses) const {
  const std::optional<ops::PreferenceRule>& rule = call.common.options.preference;
  const bool training = weight.gradient != nullptr;
  sum_answers(call, weight, hidden, batch, losses.logits, rule ? rule->beyond : 1.0, answer_sums_);
  add_losses(call, batch, losses, training);
  if (!training) return;
  each_chunk(hidden, batch, [&](const Chunk& chunk) {
    // The logits of a single chunk still exist.
    if (batch.labels > chunk_) make_logits(call, weight, chunk);
    const ops::Matrix logits = top(logits_, chunk.hidden.rows);
    if (scores_) {
      ops::score_rows(call.stream, {.scores = logits, .row_factors = row_factors_ + chunk.first});
    } else {
      ops::cross_entropy(call.stream, {.logits = logits,
                                       .targets = chunk.targets,
                                       .soft_cap = soft_cap_,
                                       .row_factors = row_factors_ + chunk.first});
    }
    chunk_gradient(call, weight, chunk, logits);
  });
}

void Head::loss(const Call& call, const NormInput& stream, const HeadWeight& weight, const MicroBatch& batch,
                const LossOutputs& losses, const ops::QuantizeInto& into) const {
  const ops::Matrix hidden = pick(call, stream, batch.label_rows, batch.labels);
  if (call.common.options.preference || call.common.options.judgement) {
    loss_of_answers(call, weight, hidden, batch, losses);
  } else if (call.common.options.teacher_loss) {
    each_chunk(hidden, batch,
               [&](const Chunk& chunk) { teach_chunk(call, weight, chunk, batch.taught, losses); });
  } else {
    each_chunk(hidden, batch, [&](const Chunk& chunk) { chunk_loss(call, weight, chunk, losses); });
  }
  if (call.gradients == nullptr || !norm_.runs_back()) return;
  const ops::Matrix d_normed = top(normed_, call.tokens);
  ops::scatter_rows(call.stream, hidden, batch.label_rows, d_normed);
  norm_.backward(call, {.dy = d_normed,
                        .x = top(input_, call.tokens),
                        .dx = top(call.common.scratch.gradient, call.tokens),
                        .accumulate = false,
                        .into = into});
}

void Head::score(const Call& call, const NormInput& stream, const HeadWeight& weight, const MicroBatch& batch,
                 double* out) const {
  const ops::Matrix hidden = pick(call, stream, batch.label_rows, batch.labels);
  sum_answers(call, weight, hidden, batch, {}, 1.0, out);
}

void Head::logits(const Call& call, const NormInput& stream, const HeadWeight& weight,
                  const std::int32_t* rows, const ops::Matrix& logits) const {
  const ops::Matrix hidden = pick(call, stream, rows, logits.rows);
  multiply(call, place_,
           {.gemm_kind = ops::GemmKind::forward,
            .a = operand_of(hidden),
            .b = weight.values,
            .d = logits,
            .factor = factor_});
  if (soft_cap_ > 0) ops::soft_cap(call.stream, logits, soft_cap_);
}

}  // namespace octet::model
