#include "core.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "layers/rotary_tables.h"
#include "octet/base/error.h"
#include "octet/device/profile.h"
#include "octet/ops/elementwise.h"
#include "octet/ops/embedding_noise.h"
#include "octet/ops/quantize.h"
#include "octet/ops/routing.h"

namespace octet::model {
namespace {

/// Hidden states, or their gradients, on their way into or out of a part of the blocks.
void copy_matrix(Stream& stream, const ops::ConstMatrix& from, const ops::Matrix& to) {
  check(from.data != nullptr && to.data != nullptr && from.rows == to.rows && from.cols == to.cols &&
            from.dtype == to.dtype && from.ld == from.cols && to.ld == to.cols,
        "hidden states at the edge of a part are [tokens, hidden], dense, in the compute dtype");
  const auto count = static_cast<std::size_t>(from.rows * from.cols);
  stream.device().copy(stream, to.data, from.data, count * size_of(from.dtype));
}

}  // namespace

Transformer::Impl::Impl(const Architecture& architecture, const precision::Recipe& recipe, Arena& arena,
                        const TransformerOptions& options, precision::Audit* audit)
    : architecture_(architecture),
      layers_(architecture),
      range_{options.first_block, options.last_block},
      common_{.options = options,
              .dtype = recipe.compute,
              .quantizer = precision::Quantizer(arena, "precision/activations", recipe,
                                                layers_.quantized_tensors(recipe, range_.first, range_.last),
                                                layers_.cast_weights(recipe, range_.first, range_.last)),
              .audit = audit} {
  check(common_.dtype == DType::f32 || common_.dtype == DType::bf16, "the compute dtype is f32 or bf16");
  reserve(arena);
  if (audit != nullptr) plan_audit(arena.device());
}

void Transformer::Impl::require_whole() const {
  check(has_embedding() && has_head(), "a rank with some of the blocks computes no whole pass");
}

void Transformer::Impl::reserve(Arena& arena) {
  const TransformerOptions& options = common_.options;
  reserve_scratch(arena, layers_, range_, common_);
  reserve_router_sums(arena);
  BlockBuffers buffers(arena, options, common_.dtype);
  buffers.reserve(range_.first, range_.last,
                  [&](int layer) { layers_.block(layer).reserve(buffers, common_); });
  if (has_head()) layers_.head().reserve(arena, common_);
  std::size_t bytes = 0;
  const auto need = [&bytes](std::size_t more) { bytes = std::max(bytes, more); };
  const Device& device = arena.device();
  for (int layer = range_.first; layer < range_.last; ++layer) {
    need(layers_.block(layer).workspace(device, common_));
  }
  if (has_head()) need(layers_.head().workspace(device, common_));
  if (has_embedding() && options.training) need(layers_.embedding().workspace(device, common_));
  common_.scratch.workspace = {.data = arena.reserve("workspace", bytes), .bytes = bytes};
  if (architecture_.value_norm) reserve_ones(arena);
  common_.ropes = make_rotary_tables(arena, architecture_,
                                     options.max_positions == 0 ? options.max_length : options.max_positions);
}

void Transformer::Impl::reserve_ones(Arena& arena) {
  std::int64_t count = 0;
  for (int layer = range_.first; layer < range_.last; ++layer)
    count = std::max(count, architecture_.heads_of(layer).qkv_width());
  common_.ones = arena.reserve_as<float>("norms without weights", static_cast<std::size_t>(count));
  const std::unique_ptr<Stream> stream = arena.device().make_stream({.name = "norms without weights"});
  ops::fill(*stream, common_.ones, 1.0f, count);
  stream->synchronize();
}

void Transformer::Impl::reserve_router_sums(Arena& arena) {
  const ExpertShape& experts = architecture_.experts;
  const bool balances = experts.balance > 0, bounds = common_.options.router_z_loss > 0 && experts.count > 0;
  if (!common_.options.training || (!balances && !bounds)) return;
  check(has_embedding() && has_head(), "a loss of routers reads all blocks");
  const auto count = static_cast<std::size_t>(experts.count);
  RouterSums& sums = common_.scratch.routers;
  if (balances) {
    sums.counts = arena.reserve_as<double>("activations/load of experts", count);
    sums.probabilities = arena.reserve_as<double>("activations/load of experts", count);
    sums.d_probabilities = arena.reserve_as<float>("activations/load of experts", count);
  }
  if (bounds) {
    sums.log_sums = arena.reserve_as<double>("activations/z-loss of routers", 1);
    sums.z_slope = arena.reserve_as<float>("activations/z-loss of routers", 1);
  }
}

void Transformer::Impl::clear_router_sums(Stream& stream) {
  const RouterSums& sums = common_.scratch.routers;
  const std::size_t bytes = static_cast<std::size_t>(architecture_.experts.count) * sizeof(double);
  if (sums.counts != nullptr) {
    stream.device().zero(stream, sums.counts, bytes);
    stream.device().zero(stream, sums.probabilities, bytes);
  }
  if (sums.log_sums != nullptr) stream.device().zero(stream, sums.log_sums, sizeof(double));
}

void Transformer::Impl::add_router_losses(const Passing& pass, const MicroBatch& batch, double* loss_sum) {
  const RouterSums& sums = common_.scratch.routers;
  if (pass.tokens == 0) return;
  // The losses of routers count once for each term of the loss: a label, a pair, or a judged answer.
  const bool pairs = common_.options.preference.has_value(), judged = common_.options.judgement.has_value();
  const std::int32_t* const targets = pairs    ? batch.pairs.answers
                                      : judged ? batch.judged.answers
                                               : batch.targets;
  const std::int64_t terms = pairs ? batch.pairs.count : judged ? batch.judged.count : batch.labels;
  if (sums.counts != nullptr) {
    const auto layers = std::ranges::count_if(architecture_.blocks, &BlockShape::mixes_experts);
    ops::balance_loss(pass.stream, {.counts = sums.counts,
                                    .probabilities = sums.probabilities,
                                    .count = architecture_.experts.count,
                                    .rows = layers * pass.tokens,
                                    .coefficient = architecture_.experts.balance,
                                    .targets = targets,
                                    .labels = terms,
                                    .loss_sum = loss_sum,
                                    .d_probabilities = sums.d_probabilities});
  }
  if (sums.log_sums != nullptr) {
    ops::z_loss(pass.stream, {.sum = sums.log_sums,
                              .tokens = pass.tokens,
                              .coefficient = common_.options.router_z_loss,
                              .targets = targets,
                              .labels = terms,
                              .loss_sum = loss_sum,
                              .slope = sums.z_slope});
  }
}

void Transformer::Impl::plan_audit(const Device& device) {
  const bool fp8 = common_.recipe().fp8();
  const auto row_of = [&](const LinearLayer& facts, const char* no_fp8) {
    return precision::AuditRow{.name = facts.title,
                               .layers = facts.layers,
                               .rows = facts.rows,
                               .cols = facts.cols,
                               .fp8 = fp8 && facts.fp8,
                               .reason = fp8 ? no_fp8 : "no FP8 recipe"};
  };
  for (const LinearLayer& facts : layers_.linear_layers(range_.first, range_.last)) {
    precision::AuditRow row = row_of(facts, "");
    std::vector<std::pair<Linear*, std::int64_t>> same;
    for (int layer = range_.first; layer < range_.last; ++layer) {
      for (Linear* linear : layers_.block(layer).linears()) {
        if (facts.counts(linear->facts())) same.emplace_back(linear, layer);
      }
    }
    if (row.fp8) row.planned = same.front().first->weight().planned(device, common_);
    const std::size_t at = common_.audit->plan(row);
    for (const auto& [linear, layer] : same) linear->weight().set_place({.row = at, .layer = layer});
    plan_adapters(facts, same);
  }
  if (!has_head()) return;
  Head& head = layers_.head();
  head.set_place({.row = common_.audit->plan(row_of(head.facts(), "logits are kept in the compute dtype"))});
}

void Transformer::Impl::plan_adapters(const LinearLayer& facts,
                                      const std::vector<std::pair<Linear*, std::int64_t>>& linears) {
  std::optional<std::size_t> at;
  for (const auto& [linear, layer] : linears) {
    if (!linear->adapters()) continue;
    if (!at) {
      precision::AuditRow row = linear->adapters().audit_row(facts.title.c_str());
      row.layers =
          std::ranges::count_if(linears, [](const auto& one) { return bool(one.first->adapters()); });
      at = common_.audit->plan(row);
    }
    linear->adapters().set_place({.row = *at, .layer = layer});
  }
  for (const auto& [linear, layer] : linears) {
    if (linear->expert_adapters().empty()) continue;
    if (!at) {
      precision::AuditRow row = linear->expert_adapters().front().audit_row(facts.title.c_str());
      row.layers = facts.layers;
      at = common_.audit->plan(row);
    }
    for (LowRank& of_expert : linear->expert_adapters()) of_expert.set_place({.row = *at, .layer = layer});
  }
}

void Transformer::Impl::check_batch(const MicroBatch& batch) const {
  const TransformerOptions& options = common_.options;
  const std::int64_t labels = options.max_labels == 0 ? options.max_tokens : options.max_labels;
  if (batch.documents.tokens > options.max_tokens || batch.documents.max_length > options.max_length ||
      batch.labels > labels || batch.labels > batch.documents.tokens) {
    throw Error({.what = "a micro-batch is larger than planned",
                 .expected = std::to_string(options.max_tokens) + " tokens, documents of " +
                             std::to_string(options.max_length) + ", " + std::to_string(labels) + " labels",
                 .found = std::to_string(batch.documents.tokens) + ", " +
                          std::to_string(batch.documents.max_length) + " and " + std::to_string(batch.labels),
                 .fix = "plan for the largest micro-batch (max_tokens, max_length)"});
  }
}

Transformer::Impl::Passing Transformer::Impl::training_pass(ParameterSource& source, Stream& stream,
                                                            const MicroBatch& batch) const {
  // What backward makes again needs no operands for it yet.
  const bool kept = common_.options.recompute == Recompute::none;
  return {.source = source,
          .stream = stream,
          .attention = {.positions = batch.positions, .documents = batch.documents},
          .tokens = batch.documents.tokens,
          .options = {.record = true, .keep = true, .readers = kept ? Readers::all : Readers::forward},
          .names = batch.names,
          .given_experts = batch.experts};
}

Call Transformer::Impl::call_of_block(const Passing& pass, int layer, const GroupParameters& parameters) {
  Call of_block = call(pass, parameters);
  if (!architecture_.block(layer).mixes_experts) return of_block;
  const auto first = architecture_.blocks.begin() + range_.first;
  const auto before = std::count_if(first, architecture_.blocks.begin() + layer,
                                    [](const BlockShape& block) { return block.mixes_experts; });
  const std::int64_t at = before * pass.tokens * architecture_.experts.taken;
  if (pass.given_experts != nullptr) of_block.given_experts = pass.given_experts + at;
  if (pass.chosen_experts != nullptr) of_block.chosen_experts = pass.chosen_experts + at;
  return of_block;
}

void Transformer::Impl::enter(const Passing& pass, const std::int32_t* ids, const ops::ConstMatrix& in) {
  const ops::Matrix stream = top(layers_.block(range_.first).input(), pass.tokens);
  if (!has_embedding()) return copy_matrix(pass.stream, in, stream);
  const GroupParameters& table = pass.source.acquire(embedding_group(), Pass::forward, pass.stream);
  layers_.embedding().forward(call(pass, table), ids, stream);
  if (pass.options.keep && common_.options.embedding_noise > 0) {
    ops::embedding_noise(pass.stream, {.x = stream,
                                       .names = pass.names,
                                       .cu_seqlens = pass.attention.documents.cu_seqlens,
                                       .documents = pass.attention.documents.count,
                                       .alpha = static_cast<float>(common_.options.embedding_noise)});
  }
  pass.source.release(embedding_group(), Pass::forward, pass.stream);
}

void Transformer::Impl::forward_blocks(const Passing& pass, const ops::Matrix& out) {
  common_.decode_queue.clear();
  for (int layer = range_.first; layer < range_.last; ++layer) {
    Block& block = layers_.block(layer);
    const bool last = layer + 1 == range_.last;
    const int group = layers_.layout().block_group(layer);
    Call of_block = call_of_block(pass, layer, pass.source.acquire(group, Pass::forward, pass.stream));
    // What no backward pass reads is made for the forward pass alone.
    if (!block.runs_back()) of_block.pass.keep = false, of_block.pass.readers = Readers::forward;
    const ops::Matrix input = top(block.input(), pass.tokens);
    const ops::Matrix after = last ? out : top(layers_.block(layer + 1).input(), pass.tokens);
    const NormInput before =
        layer == range_.first ? NormInput{.residual = input} : layers_.block(layer - 1).sum(of_block, input);
    block.forward(of_block, before, after);
    // The next block's GEMMs may be enqueued with this one's, if its parameters stay.
    if (last || !pass.source.keeps()) of_block.settle();
    if (last && !has_head()) block.settle(of_block, after);
    pass.source.release(group, Pass::forward, pass.stream);
  }
}

void Transformer::Impl::with_head(const Passing& pass, bool training,
                                  const std::function<void(const Call&, const HeadWeight&)>& use) {
  const ProfileLabel label(pass.stream, "head");
  const auto held = [&](int group) {
    const GroupParameters& parameters = pass.source.acquire(group, Pass::forward, pass.stream);
    return call(pass, parameters, training ? &pass.source.gradients(group, pass.stream) : nullptr);
  };
  const Head& head = layers_.head();
  const Call own = held(head_group());
  if (head.tied()) {
    use(own, Head::weight(layers_.embedding().table(), held(embedding_group())));
  } else {
    use(own, Head::weight(head.own_weight(), own));
  }
  if (training) pass.source.give_back(head_group(), pass.stream);
  // A tied table that is trained has its gradient from the embedding, too.
  if (training && head.tied() && !layers_.embedding().trained())
    pass.source.give_back(embedding_group(), pass.stream);
  if (head.tied()) pass.source.release(embedding_group(), Pass::forward, pass.stream);
  pass.source.release(head_group(), Pass::forward, pass.stream);
}

void Transformer::Impl::lose(const Passing& pass, bool training, const MicroBatch& batch,
                             const LossOutputs& losses) {
  const Block& last = layers_.block(range_.last - 1);
  const Head& head = layers_.head();
  with_head(pass, training, [&](const Call& of_head, const HeadWeight& weight) {
    const NormInput stream = last.sum(of_head, top(head.input(), pass.tokens));
    const ops::QuantizeInto into = training && last.runs_back() ? last.wanted(of_head) : ops::QuantizeInto{};
    head.loss(of_head, stream, weight, batch, losses, into);
  });
}

void Transformer::Impl::take_gradient(const Call& call, const ops::ConstMatrix& d_out) {
  const ops::Matrix gradient = top(common_.scratch.gradient, call.tokens);
  copy_matrix(call.stream, d_out, gradient);
  const ops::QuantizeInto into = layers_.block(range_.last - 1).wanted(call);
  if (into.row != nullptr || into.amax != nullptr) ops::quantize(call.stream, gradient, into);
}

void Transformer::Impl::backward_blocks(const Passing& pass, const ops::ConstMatrix& d_out) {
  for (int layer = range_.last - 1; layer >= range_.first; --layer) {
    Block& block = layers_.block(layer);
    if (!block.runs_back()) return;
    const int group = layers_.layout().block_group(layer);
    Call of_block = call_of_block(pass, layer, pass.source.acquire(group, Pass::backward, pass.stream));
    if (layer + 1 == range_.last && !has_head()) take_gradient(of_block, d_out);
    if (common_.options.recompute == Recompute::full) block.recompute(of_block);
    of_block.gradients = &pass.source.gradients(group, pass.stream);
    const bool read = layer > range_.first && layers_.block(layer - 1).runs_back();
    block.backward(of_block, read ? layers_.block(layer - 1).wanted(of_block) : ops::QuantizeInto{});
    pass.source.give_back(group, pass.stream);
    pass.source.release(group, Pass::backward, pass.stream);
  }
}

void Transformer::Impl::leave(const Passing& pass, const std::int32_t* ids, const ops::Matrix& d_in) {
  const ops::Matrix gradient = top(common_.scratch.gradient, pass.tokens);
  if (!has_embedding()) {
    // Blocks below, which another core runs, may all be frozen.
    if (layers_.block(range_.first - 1).runs_back() || layers_.embedding().trained())
      copy_matrix(pass.stream, gradient, d_in);
    return;
  }
  if (!layers_.embedding().trained()) return;
  const GroupParameters none;
  const GroupGradients& gradients = pass.source.gradients(embedding_group(), pass.stream);
  layers_.embedding().backward(call(pass, none, &gradients), ids, gradient);
  pass.source.give_back(embedding_group(), pass.stream);
}

void Transformer::Impl::forward(ParameterSource& source, Stream& stream, const MicroBatch& batch,
                                const ops::ConstMatrix& in, const ops::Matrix& out,
                                const LossOutputs& losses) {
  check(common_.options.training, "only a core with training buffers trains");
  check_batch(batch);
  const Passing pass = training_pass(source, stream, batch);
  clear_router_sums(stream);
  enter(pass, batch.ids, in);
  forward_blocks(pass, has_head() ? top(layers_.head().input(), pass.tokens) : out);
  source.blocks_done(stream);
  if (!has_head()) return;
  lose(pass, true, batch, losses);
  add_router_losses(pass, batch, losses.loss_sum);
}

void Transformer::Impl::backward(ParameterSource& source, Stream& stream, const MicroBatch& batch,
                                 const ops::ConstMatrix& d_out, const ops::Matrix& d_in) {
  const Passing pass = training_pass(source, stream, batch);
  backward_blocks(pass, d_out);
  leave(pass, batch.ids, d_in);
}

Transformer::Impl::Passing Transformer::Impl::forward_pass(ParameterSource& source, Stream& stream,
                                                           const MicroBatch& batch) const {
  return {.source = source,
          .stream = stream,
          .attention = {.positions = batch.positions, .documents = batch.documents},
          .tokens = batch.documents.tokens,
          .options = {.readers = Readers::forward}};
}

void Transformer::Impl::evaluate(ParameterSource& source, Stream& stream, const MicroBatch& batch,
                                 const LossOutputs& losses) {
  check_batch(batch);
  const Passing pass = forward_pass(source, stream, batch);
  enter(pass, batch.ids, {});
  forward_blocks(pass, top(layers_.head().input(), pass.tokens));
  lose(pass, false, batch, losses);
}

void Transformer::Impl::score(ParameterSource& source, Stream& stream, const MicroBatch& batch, bool adapters,
                              double* out) {
  check((common_.options.preference || common_.options.judgement) && out != nullptr,
        "log-probabilities are of pairs or of judged answers");
  check_batch(batch);
  Passing pass = forward_pass(source, stream, batch);
  pass.options.adapters = adapters;
  enter(pass, batch.ids, {});
  forward_blocks(pass, top(layers_.head().input(), pass.tokens));
  const Block& last = layers_.block(range_.last - 1);
  const Head& head = layers_.head();
  with_head(pass, false, [&](const Call& of_head, const HeadWeight& weight) {
    head.score(of_head, last.sum(of_head, top(head.input(), pass.tokens)), weight, batch, out);
  });
}

ExpertLoads Transformer::Impl::take_expert_loads(LoadOf of) {
  ExpertLoads loads;
  for (int layer = range_.first; layer < range_.last; ++layer) {
    BlockLoad load = layers_.block(layer).take_load(of);
    if (!load.rows.empty()) loads.emplace(layer, std::move(load));
  }
  return loads;
}

void Transformer::Impl::decode(ParameterSource& source, Stream& stream, const DecodeBatch& batch,
                               KvCache& cache, const ops::Matrix& logits, const ops::ConstMatrix& in,
                               const ops::Matrix& out) {
  check(!has_head() || (logits.rows >= batch.row_count && logits.cols == layers_.head().facts().rows),
        "logits have a row for every wanted token");
  check_batch({.labels = batch.row_count, .documents = {.tokens = batch.tokens}});
  const Passing pass{.source = source,
                     .stream = stream,
                     .attention = {.positions = batch.positions,
                                   .documents = {.tokens = batch.tokens},
                                   .slots = batch.slots,
                                   .cache = &cache,
                                   .alone = batch.alone},
                     .tokens = batch.tokens,
                     .options = {.readers = Readers::forward},
                     .chosen_experts = batch.experts};
  const ops::Matrix after = has_head() ? top(layers_.head().input(), pass.tokens) : out;
  enter(pass, batch.ids, in);
  forward_blocks(pass, after);
  if (!has_head()) return;
  with_head(pass, false, [&](const Call& of_head, const HeadWeight& weight) {
    const NormInput behind = layers_.block(range_.last - 1).sum(of_head, after);
    layers_.head().logits(of_head, behind, weight, batch.rows, top(logits, batch.row_count));
  });
}

}  // namespace octet::model
