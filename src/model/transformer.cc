#include "octet/model/transformer.h"

#include "core.h"
#include "layers/mlp/experts.h"
#include "octet/base/error.h"

namespace octet::model {
namespace {

TransformerOptions checked(TransformerOptions options, const Architecture& a) {
  const auto expect = [](bool good, const char* what, std::int64_t found) {
    if (good) return;
    throw Error({.what = "the transformer cannot be built for these sizes",
                 .expected = what,
                 .found = std::to_string(found),
                 .fix = "correct the sizes in config.json",
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
  if (options.last_block < 0) options.last_block = static_cast<int>(a.share.last_block(a.layers));
  expect(options.last_block <= a.layers, "a last block that the model has", options.last_block);
  expect(options.first_block >= 0 && options.first_block < options.last_block,
         "a first block before the last one", options.first_block);
  expect(options.first_block >= a.share.first_block(a.layers) &&
             options.last_block <= a.share.last_block(a.layers),
         "blocks of this rank's share", options.first_block);
  check(a.share.whole() || !options.training, "training needs all layers on each rank");
  check(!options.preference || !options.judgement, "answers are pairs or judged, not both");
  if (options.teacher_loss) {
    check(!options.preference && !options.judgement && !options.counts_hits,
          "a teacher is for the loss of label rows");
    expect(options.teacher_loss->ranks >= 1 && options.teacher_loss->ranks <= a.vocabulary,
           "1 to the vocabulary size as the number of tokens that a teacher lists",
           options.teacher_loss->ranks);
  }
  check(!a.share.sums() || options.partial_sums != nullptr, "a share with partial sums needs PartialSums");
  check(!a.share.splits_experts() || (options.token_exchange != nullptr && options.training),
        "a share of the experts needs a TokenExchange, in training");
  return options;
}

}  // namespace

Transformer::Transformer(const Architecture& architecture, const precision::Recipe& recipe, Arena& arena,
                         const TransformerOptions& options, precision::Audit* audit)
    : impl_(std::make_unique<Impl>(architecture, recipe, arena, checked(options, architecture), audit)) {}
Transformer::~Transformer() = default;

void Transformer::train(ParameterSource& source, Stream& stream, const MicroBatch& batch, double* loss_sum,
                        const LogitsHook& logits) {
  impl_->require_whole();
  impl_->forward(source, stream, batch, {}, {}, {.loss_sum = loss_sum, .logits = logits});
  impl_->backward(source, stream, batch, {}, {});
}

void Transformer::forward(ParameterSource& source, Stream& stream, const MicroBatch& batch,
                          const ops::ConstMatrix& in, const ops::Matrix& out, double* loss_sum,
                          const LogitsHook& logits) {
  impl_->forward(source, stream, batch, in, out, {.loss_sum = loss_sum, .logits = logits});
}

void Transformer::backward(ParameterSource& source, Stream& stream, const MicroBatch& batch,
                           const ops::ConstMatrix& d_out, const ops::Matrix& d_in) {
  impl_->backward(source, stream, batch, d_out, d_in);
}

void Transformer::evaluate(ParameterSource& source, Stream& stream, const MicroBatch& batch, double* loss_sum,
                           const LogitsHook& logits, double* hits) {
  impl_->require_whole();
  impl_->evaluate(source, stream, batch, {.loss_sum = loss_sum, .hits = hits, .logits = logits});
}

void Transformer::score_references(ParameterSource& source, Stream& stream, const MicroBatch& batch) {
  impl_->require_whole();
  impl_->score(source, stream, batch, false,
               options().judgement ? batch.judged.references : batch.pairs.references);
}

void Transformer::score_answers(ParameterSource& source, Stream& stream, const MicroBatch& batch,
                                double* out) {
  impl_->require_whole();
  impl_->score(source, stream, batch, true, out);
}

void Transformer::decode(ParameterSource& source, Stream& stream, const DecodeBatch& batch, KvCache& cache,
                         const ops::Matrix& logits, const ops::ConstMatrix& in, const ops::Matrix& out) {
  impl_->decode(source, stream, batch, cache, logits, in, out);
}

ExpertLoads Transformer::take_expert_loads(LoadOf of) {
  return impl_->take_expert_loads(of);
}
precision::ScaleSet* Transformer::activation_scales() {
  return impl_->common().quantizer.scales();
}
precision::CastStatistics* Transformer::casts() {
  return impl_->common().quantizer.casts();
}
std::vector<precision::CastRow> Transformer::cast_rows() const {
  return impl_->common().quantizer.cast_rows();
}
const Architecture& Transformer::architecture() const {
  return impl_->architecture();
}
const TransformerOptions& Transformer::options() const {
  return impl_->common().options;
}
const precision::Recipe& Transformer::recipe() const {
  return impl_->common().recipe();
}

std::int64_t unwatched_tokens(const Device& device, const Architecture& architecture,
                              const precision::Recipe& recipe, bool fixed_order, std::int64_t most) {
  if (architecture.experts.count == 0) return most;
  std::int64_t tokens = most;
  while (tokens > 0 && !Experts::unwatched(device, architecture, recipe, fixed_order, tokens)) --tokens;
  return tokens;
}

}  // namespace octet::model
