#include "layers/mlp/experts.h"

#include <algorithm>
#include <span>
#include <string>

#include "layers/mlp/expert_names.h"
#include "layers/mlp/gated_mlp.h"
#include "octet/base/error.h"
#include "octet/base/index.h"
#include "octet/device/profile.h"
#include "octet/ops/block_quantize.h"
#include "octet/ops/embedding.h"
#include "octet/ops/gated_activation.h"
#include "octet/ops/routing.h"

namespace octet::model {
namespace {

/// Returns the parts of this rank's experts.
std::vector<Part> parts_of(const ExpertShape& shape, const Share& share, const std::vector<Part>& of_one) {
  std::vector<Part> parts;
  const std::int64_t first = share.first_expert(shape.count);
  for (std::int64_t e = first; e < first + share.own_experts(shape.count); ++e) {
    for (const Part& part : of_one)
      parts.push_back(
          {names_of(shape).block + "experts." + std::to_string(e) + "." + part.name, part.rows, part.split});
  }
  return parts;
}

ExpertShape shape_of_share(const Architecture& a) {
  ExpertShape shape = a.experts;
  shape.width = piece_of(kEven, shape.width, a.share).count;
  return shape;
}

/// Returns a matrix as a GEMM operand: its FP8 copy if it has one, otherwise the values.
ops::Operand operand_of(const ops::Matrix& values, const precision::Fp8Copy& copy) {
  if (copy.row == nullptr)
    return {.data = values.data, .dtype = values.dtype, .rows = values.rows, .cols = values.cols};
  return {.data = copy.row,
          .dtype = DType::e4m3,
          .rows = values.rows,
          .cols = values.cols,
          .scale_inv = copy.scales,
          .scaling = ops::Scaling::whole_rows};
}

/// Returns the arguments that make a producer of the values also write `copy`.
ops::QuantizeInto into(const precision::Fp8Copy& copy) {
  return {.row = copy.row, .row_scale_inv = copy.scales};
}

/// Makes the FP8 copy of finished values if there is one.
void fill_copy(const Call& call, const ops::Matrix& values, const precision::Fp8Copy& copy) {
  if (copy.row == nullptr) return;
  ops::block_quantize(
      call.stream,
      {.x = values, .scaling = ops::Scaling::whole_rows, .row = copy.row, .scale_inv = copy.scales});
}

/// Writes zeros to the rows [begin, end) of a matrix.
void clear_padding(const Call& call, const ops::Matrix& m, std::int64_t begin, std::int64_t end) {
  if (begin == end) return;
  const ops::Matrix rows = rows_from(m, begin, end - begin);
  call.stream.device().zero(call.stream, rows.data, bytes_of(rows.rows, rows.ld, rows.dtype));
}

/// Returns a grouped GEMM of `rows` rows without data.
ops::GroupedGemmArgs grouped_shape(const ExpertShape& shape, const precision::Recipe& recipe,
                                   std::int64_t rows, std::int64_t out, std::int64_t in) {
  const DType dtype = recipe.rows() ? DType::e4m3 : recipe.compute;
  return {.weight = {.dtype = dtype, .rows = shape.count * out, .cols = in},
          .count = shape.count,
          .x = {.dtype = dtype, .rows = rows, .cols = in},
          .d = {nullptr, recipe.compute, rows, out, out}};
}

}  // namespace

Experts::Experts(GroupBuilder& group, const Architecture& a)
    : shape_(shape_of_share(a)),
      sums_(a.share.sums()),
      hidden_(a.hidden),
      activation_(a.activation),
      activation_limit_(static_cast<float>(a.activation_limit)),
      norm_(group, "mlp_norm", mlp_norm_name(a), a.hidden, a),
      router_(group, a),
      sources_(a.share.expert_size),
      own_(a.share.own_experts(shape_.count)),
      gate_up_(group, {.name = "experts_gate_up",
                       .title = "experts' gate, up",
                       .inputs = a.hidden,
                       .modules = parts_of(shape_, a.share,
                                           {{names_of(shape_).gate, a.experts.width, kEven},
                                            {names_of(shape_).up, a.experts.width, kEven}}),
                       .bias = shape_.biases,
                       .init_std = a.initializer_range,
                       .experts = own_,
                       .taken = shape_.taken,
                       .sources = sources_,
                       .first = a.share.first_expert(shape_.count),
                       .joined = "gate_up_proj"}),
      down_(group, {.name = "experts_down",
                    .title = "experts' down",
                    .inputs = a.experts.width,
                    .modules = parts_of(shape_, a.share, {{names_of(shape_).down, a.hidden}}),
                    .bias = shape_.biases,
                    .init_std = a.initializer_range,
                    .inputs_split = kEven,
                    .adds_bias = a.share.adds_once(),
                    .experts = own_,
                    .taken = shape_.taken,
                    .sources = sources_,
                    .first = a.share.first_expert(shape_.count)}) {
  if (shape_.shared > 0) shared_.emplace(group, a);
}

std::vector<Linear*> Experts::linears() {
  if (!shared_) return {&gate_up_, &down_};
  return {&gate_up_, &down_, &shared_->gate_up(), &shared_->down()};
}

std::vector<const Linear*> Experts::linears() const {
  if (!shared_) return {&gate_up_, &down_};
  return {&gate_up_, &down_, &shared_->gate_up(), &shared_->down()};
}

bool Experts::trained() const {
  return norm_.trained() || router_.trained() || gate_up_.trained() || down_.trained() ||
         (shared_ && shared_->trained());
}

void Experts::set_passes_on(bool passes_on) {
  norm_.set_passes_on(passes_on);
  gate_up_.set_passes_on(norm_.runs_back());
  down_.set_passes_on(gate_up_.runs_back() || router_.trained());
  if (shared_) shared_->set_passes_on(norm_.runs_back());
}

ops::Matrix Experts::normed(const Call& call) const {
  return shared_ ? shared_->input(call) : top(normed_, call.tokens);
}

void Experts::reserve(BlockBuffers& buffers, const Common& common) {
  const std::int64_t taken = shape_.taken;
  norm_.reserve(buffers);
  if (shared_) {
    shared_->reserve(buffers, common);
  } else {
    normed_ = buffers.matrix("activations/experts' input", hidden_,
                             common.remakes_inputs() ? Kept::never : Kept::activations);
  }
  const ExpertRoom room{.taken = taken, .experts = own_, .sources = sources_};
  const std::int64_t rows = room.rows(common.options);
  made_ = buffers.rows("activations/experts' rows", rows, hidden_, Kept::never);
  gated_ = buffers.rows("activations/experts' gate and up", rows, 2 * shape_.width, Kept::activations);
  activated_ = buffers.rows("activations/experts' activations", rows, shape_.width, Kept::never);
  router_.reserve(buffers);
  if (sources_ > 1) {
    const bool adapts = !gate_up_.expert_adapters().empty() || !down_.expert_adapters().empty();
    exchanged_.emplace(*common.options.token_exchange, shape_, hidden_,
                       common.options.sums_by_source || adapts, common.options.exchange_wire);
    exchanged_->reserve(buffers, common.options, gate_up_.drops_experts() || down_.drops_experts());
  }
  for (Linear* linear : linears()) {
    linear->reserve_expert_adapters(buffers, common);
    if (linear->expert_adapters().empty() || !common.recipe().rows()) continue;
    throw Error({.what = "generation in FP8 with adapters on experts is not built",
                 .expected = "--dtype bf16, or merged weights",
                 .fix = "give --dtype bf16, or merge the adapters (trainer export)",
                 .code = ExitCode::usage});
  }
  if (common.options.training) {
    d_activated_ = buffers.rows("activations/experts' gradients", rows, shape_.width, Kept::never);
    router_.reserve_gradients(buffers);
  }
  fp8_ = common.recipe().rows();
  if (!fp8_) return;
  const auto copy = [&](std::int64_t factor, std::int64_t cols) {
    return take_copy(
        {.rows = factor * common.options.max_tokens,
         .cols = cols,
         .transposed = false,
         .scaling = ops::Scaling::whole_rows},
        [&](std::size_t bytes) { return buffers.take("activations/experts' FP8 rows", bytes, Kept::never); });
  };
  normed_copy_ = copy(1, hidden_);
  made_copy_ = copy(taken, hidden_);
  activated_copy_ = copy(taken, shape_.width);
}

std::size_t Experts::workspace(const Device& device, const Common& common) const {
  const std::size_t others =
      std::max(router_.workspace(device, common), shared_ ? shared_->workspace(device, common) : 0);
  if (common.options.training) {
    return std::max({others, norm_.workspace(device, common), gate_up_.workspace(device, common),
                     down_.workspace(device, common)});
  }
  const std::int64_t rows = common.options.max_tokens * shape_.taken;
  const auto bytes_of_gemm = [&](std::int64_t out, std::int64_t in) {
    ops::Operand a{.dtype = common.dtype, .rows = rows, .cols = in};
    if (common.recipe().rows())
      a = {.dtype = DType::e4m3, .rows = rows, .cols = in, .scaling = ops::Scaling::whole_rows};
    ops::Operand b = a;
    b.rows = out;
    return ops::gemm_workspace(device, {.a = a,
                                        .b = b,
                                        .d = {nullptr, common.dtype, rows, out, out},
                                        .fixed_order = common.options.fixed_order});
  };
  return std::max({others, bytes_of_gemm(2 * shape_.width, hidden_), bytes_of_gemm(hidden_, shape_.width)});
}

std::vector<Operation> Experts::operations(std::int64_t tokens) const {
  const int inputs = gate_up_.runs_back() ? 1 : 0;
  std::vector<Operation> all = norm_.operations(tokens, {0, inputs, inputs, 1});
  const std::int64_t rows = tokens * shape_.taken;
  const auto width = static_cast<double>(shape_.width), hidden = static_cast<double>(hidden_);
  const double values = static_cast<double>(rows);
  append(all, router_.operations(tokens, norm_.runs_back()));
  append(all, gate_up_.operations(rows, {0, 0, 0, 1}));
  all.push_back(moves(OperationKind::activation, 3 * values * width, {1, 1, 1, 2}));
  if (gate_up_.runs_back()) all.push_back(moves_back(OperationKind::activation, 5 * values * width));
  append(all, down_.operations(rows, {}));
  if (shared_) append(all, shared_->operations(tokens));
  // Rows are gathered and put together again.
  all.push_back(moves(OperationKind::embedding, 4 * values * hidden, {0, 0, 0, 0}));
  if (down_.runs_back()) all.push_back(moves_back(OperationKind::embedding, 6 * values * hidden));
  return all;
}

Exchanges Experts::exchanges() const {
  if (sources_ == 1) return {};
  Exchanges all{.rows = 2, .again = 1};
  if (down_.runs_back()) all.rows += 1, all.weights = 2;
  if (gate_up_.runs_back() && gate_up_.learns()) ++all.rows;
  if (norm_.runs_back()) ++all.rows;
  return all;
}

void Experts::multiply(const Call& call, const ops::Operand& a, const ops::Operand& b,
                       const ops::Matrix& d) const {
  ops::gemm(call.stream, {.a = a,
                          .b = b,
                          .d = d,
                          .b_stands = !call.common.options.fixed_order,
                          .fixed_order = call.common.options.fixed_order,
                          .fast_accumulation = true,
                          .workspace = call.common.scratch.workspace});
}

ops::GroupedGemmArgs Experts::gate_up_of(const Call& call, Way way) const {
  const std::int64_t rows = call.tokens * shape_.taken;
  const bool gathered = way == Way::gathered;
  return {.weight = gate_up_.stored(call),
          .count = shape_.count,
          .x = gathered ? operand_of(top(made_, rows), made_copy_) : operand_of(normed(call), normed_copy_),
          .source = gathered ? nullptr : router_.row_tokens(),
          .begins = router_.begins(),
          .gated = true,
          .activation = activation_,
          .d = top(activated_, rows)};
}

ops::GroupedGemmArgs Experts::down_of(const Call& call) const {
  const std::int64_t rows = call.tokens * shape_.taken;
  return {.weight = down_.stored(call),
          .count = shape_.count,
          .x = operand_of(top(activated_, rows), activated_copy_),
          .begins = router_.begins(),
          .d = top(made_, rows)};
}

Experts::Way Experts::way_of(const Call& call) const {
  const precision::Recipe& recipe = call.common.recipe();
  if (call.common.options.fixed_order || call.common.options.training || shape_.biases ||
      (recipe.fp8() && !recipe.rows()) || !gate_up_.expert_adapters().empty() ||
      !down_.expert_adapters().empty())
    return Way::each;
  const Device& device = call.stream.device();
  const Way way =
      ops::wants_rows_in_order(device, gate_up_of(call, Way::gathered)) ? Way::gathered : Way::by_number;
  const bool grouped =
      ops::has_grouped_gemm(device, gate_up_of(call, way)) && ops::has_grouped_gemm(device, down_of(call));
  return grouped ? way : Way::each;
}

void Experts::gather(const Call& call) {
  const ops::Matrix rows = top(made_, call.tokens * shape_.taken);
  ops::gather_rows(call.stream, normed(call), router_.row_tokens(), rows);
  fill_copy(call, rows, made_copy_);
}

void Experts::compute(const Call& call, Way way) {
  const ProfileLabel label(call.stream, "experts");
  if (way == Way::each) return compute_each(call);
  if (way == Way::gathered) gather(call);
  ops::grouped_gemm(call.stream, gate_up_of(call, way));
  fill_copy(call, top(activated_, call.tokens * shape_.taken), activated_copy_);
  ops::grouped_gemm(call.stream, down_of(call));
}

template <typename Act>
void Experts::each_part(const Call& call, Act&& act) {
  if (!exchanged_) {
    const std::int64_t rows =
        call.common.options.training ? router_.host_begins().back() : call.tokens * shape_.taken;
    return act(call, RowPart{.count = rows,
                             .room = made_.rows,
                             .rows = {.begins = router_.begins(),
                                      .tokens = router_.row_tokens(),
                                      .on_host = router_.host_begins()},
                             .weights = {.taken = shape_.taken,
                                         .places = router_.places(),
                                         .weights = router_.weights(),
                                         .gradients = router_.weight_gradients()}});
  }
  const std::vector<ExchangedRows::Part>& parts = exchanged_->parts();
  GroupGradients later;  // of further parts, if the gradients of all parts have one buffer
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const ExchangedRows::Part& part = parts[i];
    Call own = call;
    own.tokens = part.count;
    own.first_row = part.begin;
    if (call.names != nullptr && exchanged_->names() != nullptr)
      own.names = exchanged_->names() + part.received;
    if (call.gradients != nullptr && parts.size() > 1) {
      if (!call.gradients->by_source.empty()) {
        own.gradients = &call.gradients->by_source[i];
      } else if (i > 0) {
        if (i == 1) later = *call.gradients, later.overwrite = false;
        own.gradients = &later;
      }
    }
    const std::int64_t end = i + 1 < parts.size() ? parts[i + 1].begin : made_.rows;
    act(own, RowPart{.begin = part.begin,
                     .count = part.count,
                     .room = end - part.begin,
                     .received = part.received,
                     .rows = part.rows,
                     .weights = exchanged_->weights_of(part)});
  }
}

ops::Matrix Experts::at_experts(const Call& call, const char* name, const ops::Matrix& tokens,
                                const std::function<void()>& overlapped) {
  if (!exchanged_) return tokens;
  exchanged_->start_sending(call, name, tokens, router_.row_tokens());
  if (overlapped) overlapped();
  return exchanged_->received(call);
}

ops::Matrix Experts::at_tokens(const Call& call, const char* name) {
  if (exchanged_) return exchanged_->give_back(call, name, made_);
  return top(made_, call.common.options.training ? router_.host_begins().back() : call.tokens * shape_.taken);
}

void Experts::activate(const Call& call, const RowPart& part, const Wanted& wanted) {
  ops::gated_activation(call.stream, {.gate_up = part.of(gated_),
                                      .activation = activation_,
                                      .out = wanted.values,
                                      .quantize = wanted.quantize,
                                      .limit = activation_limit_});
}

void Experts::compute_each(const Call& call) {
  router_.read_begins(call);
  if (call.common.options.training) router_.count_load(call);
  if (fp8_) return compute_each_by_rows(call);
  if (exchanged_) {
    exchanged_->agree(call, router_.host_begins());
    if (call.names != nullptr && exchanged_->names() != nullptr)
      exchanged_->send_names(call, router_.row_tokens());
  }
  const ops::Matrix tokens = at_experts(call, "tokens for experts", normed(call), [&] {
    if (shared_ && call.tokens > 0) shared_->compute(call);
  });
  each_part(call, [&](const Call& own, const RowPart& part) {
    const ops::Matrix received = exchanged_ ? rows_from(tokens, part.received, part.count) : tokens;
    gate_up_.forward_tokens(own, part.rows, received, part.of(made_), part.of(gated_));
    // Without DoRA on the down projection, backward reads no later result.
    if (call.pass.recompute && !down_.scales_experts()) return;
    activate(own, part, down_.wanted_rows(own, part.of(activated_)));
    down_.forward_experts(own, part.rows, part.of(activated_), part.of(made_));
  });
}

void Experts::compute_each_by_rows(const Call& call) {
  const std::int64_t rows = call.tokens * shape_.taken;
  const std::span<const std::int32_t> begins = router_.host_begins();
  gather(call);
  const auto each = [&](const Linear& weight, const ops::Operand& x, const ops::Matrix& d) {
    const ops::Operand all = weight.stored(call);
    const std::int64_t outputs = all.rows / shape_.count;
    for (std::int64_t e = 0; e < shape_.count; ++e) {
      const std::int64_t begin = begins[index(e)], count = begins[index(e + 1)] - begin;
      if (count == 0) continue;
      multiply(call, rows_from(x, begin, count), rows_from(all, e * outputs, outputs),
               rows_from(d, begin, count));
    }
  };
  each(gate_up_, operand_of(top(made_, rows), made_copy_), top(gated_, rows));
  gate_up_.add_biases(call, router_.begins(), top(gated_, rows));
  ops::gated_activation(call.stream, {.gate_up = top(gated_, rows),
                                      .activation = activation_,
                                      .out = {},
                                      .quantize = into(activated_copy_),
                                      .limit = activation_limit_});
  each(down_, operand_of(top(activated_, rows), activated_copy_), top(made_, rows));
  down_.add_biases(call, router_.begins(), top(made_, rows));
}

bool Experts::unwatched(const Device& device, const Architecture& a, const precision::Recipe& recipe,
                        bool fixed_order, std::int64_t tokens) {
  const ExpertShape shape = shape_of_share(a);
  const std::int64_t rows = tokens * shape.taken;
  return !fixed_order && !shape.biases &&
         ops::has_grouped_gemm(device, grouped_shape(shape, recipe, rows, 2 * shape.width, a.hidden)) &&
         ops::has_grouped_gemm(device, grouped_shape(shape, recipe, rows, a.hidden, shape.width));
}

void Experts::normalise(const Call& call, const NormInput& before, const ops::QuantizeInto& quantize) {
  norm_.forward(call, before, {.values = normed(call), .quantize = quantize});
}

void Experts::forward(const Call& call, const NormInput& before, const ops::Matrix& stream,
                      const ops::Matrix& after) {
  const Way way = way_of(call);
  call.settle();
  normalise(call, before, way == Way::by_number ? into(normed_copy_) : ops::QuantizeInto{});
  if (call.tokens == 0 && !exchanged_) {
    router_.clear_begins();
    return;
  }
  if (call.tokens > 0) {
    // With split experts, the shared expert is computed while tokens are sent.
    if (shared_ && !exchanged_) shared_->compute(call);
    router_.forward(call, normed(call));
  }
  compute(call, way);
  if (call.pass.recompute) return;
  const ops::Matrix rows = at_tokens(call, "results of experts");
  if (call.tokens == 0) return;
  const ops::Matrix made = sums_ ? top(call.common.scratch.delta, call.tokens) : after;
  ops::weighted_rows(call.stream, {.x = rows,
                                   .taken = shape_.taken,
                                   .places = router_.places(),
                                   .weights = router_.weights(),
                                   .addend = sums_ ? ops::Matrix{} : stream,
                                   .out = made});
  if (shared_) shared_->add_to(call, made);
  if (sums_) reduce_partial(call, "experts", made);
}

void Experts::backward_down(const Call& call, const std::function<void()>& overlapped) {
  const ProfileLabel label(call.stream, "experts");
  // For rows without their weights; weigh_backward() multiplies by them.
  const ops::Matrix d_tokens =
      at_experts(call, "gradients for experts", top(call.common.scratch.gradient, call.tokens), overlapped);
  if (exchanged_)
    exchanged_->send_weights(
        call, {.taken = shape_.taken, .places = router_.places(), .weights = router_.weights()});
  each_part(call, [&](const Call& own, const RowPart& part) {
    backward_down(own, part, exchanged_ ? rows_from(d_tokens, part.received, part.count) : d_tokens);
  });
  if (exchanged_) exchanged_->give_back_gradients(call, router_.weight_gradients());
}

void Experts::backward_down(const Call& call, const RowPart& part, const ops::Matrix& d_tokens) {
  const ops::Matrix activated = part.of(activated_), made = part.of(made_), d = part.of(d_activated_);
  activate(call, part, {.values = activated, .quantize = {}});
  down_.input_gradient_of_tokens(call, part.rows, d_tokens, made, d);
  const ops::Matrix unweighted = down_.unweighted(call, part.rows, activated, made);
  ops::weigh_backward(call.stream, {.x = activated,
                                    .d = d,
                                    .d_y = unweighted,
                                    .tokens = call.tokens,
                                    .taken = part.weights.taken,
                                    .places = part.weights.places,
                                    .weights = part.weights.weights,
                                    .d_weights = part.weights.gradients});
  down_.add_biases_to_weights(call, part.rows, d_tokens, part.weights.gradients);
  const std::int64_t padded = down_.padded_rows(call, part.count, part.room);
  clear_padding(call, activated_, part.begin + part.count, part.begin + padded);
  clear_padding(call, made_, part.begin + part.count, part.begin + padded);
  down_.experts_weight_gradient(call, part.rows, part.padded(activated_, padded), part.padded(made_, padded));
}

void Experts::backward_gate_up(const Call& call) {
  const ProfileLabel label(call.stream, "experts");
  ops::Matrix tokens;
  if (gate_up_.learns()) tokens = at_experts(call, "tokens for experts, again", normed(call));
  each_part(call, [&](const Call& own, const RowPart& part) {
    backward_gate_up(own, part, exchanged_ ? rows_from(tokens, part.received, part.count) : tokens);
  });
}

void Experts::backward_gate_up(const Call& call, const RowPart& part, const ops::Matrix& tokens) {
  const std::int64_t own = part.count, rows = gate_up_.padded_rows(call, own, part.room);
  const ops::Matrix gated = part.padded(gated_, rows), made = part.padded(made_, rows);
  clear_padding(call, gated_, part.begin + own, part.begin + rows);
  clear_padding(call, d_activated_, part.begin + own, part.begin + rows);
  const Wanted wanted = gate_up_.wanted_row_gradients(call, gated);
  ops::gated_activation_backward(call.stream, {.gate_up = gated,
                                               .d_out = part.padded(d_activated_, rows),
                                               .activation = activation_,
                                               .d_gate_up = wanted.values,
                                               .quantize = wanted.quantize,
                                               .limit = activation_limit_});
  if (gate_up_.learns()) {
    ops::gather_rows(call.stream, tokens, part.rows.tokens, top(made, own));
    clear_padding(call, made_, part.begin + own, part.begin + rows);
  }
  gate_up_.experts_gradients(call, part.rows, made, gated, made);
}

void Experts::backward(const Call& call, const ops::Matrix& stream, const ops::QuantizeInto& into) {
  if (call.common.remakes_inputs()) {
    const ProfileLabel label(call.stream, "recompute");
    normalise(call.again(Readers::backward), {.residual = stream}, {});
  }
  // The parts of the gradient of the normed stream are added up here.
  const ops::Matrix d_normed = top(call.common.scratch.delta, call.tokens);
  const bool shared_back = shared_ && shared_->runs_back();
  const auto begin_sum = [&] {
    if (shared_back) return shared_->backward(call, d_normed, norm_.runs_back());
    if (norm_.runs_back())
      call.stream.device().zero(call.stream, d_normed.data,
                                bytes_of(d_normed.rows, d_normed.cols, d_normed.dtype));
  };
  const bool overlapped = exchanged_ && down_.runs_back();
  if (!overlapped) begin_sum();
  if (down_.runs_back()) backward_down(call, overlapped ? begin_sum : std::function<void()>());
  if (gate_up_.runs_back()) backward_gate_up(call);
  if (norm_.runs_back() || router_.trained())
    router_.backward(call, normed(call), d_normed, norm_.runs_back());
  if (!norm_.runs_back()) return;
  ops::weighted_rows(call.stream, {.x = at_tokens(call, "gradients of experts"),
                                   .taken = shape_.taken,
                                   .places = router_.places(),
                                   .addend = d_normed,
                                   .out = d_normed});
  norm_.backward(
      call,
      {.dy = d_normed, .x = stream, .dx = top(call.common.scratch.gradient, call.tokens), .into = into});
}

NormInput Experts::sum(const Call& call, const ops::Matrix& before, const ops::Matrix& after) const {
  if (!sums_) return {.residual = after};
  return {.residual = before, .delta = top(call.common.scratch.delta, call.tokens), .sum = after};
}

void Experts::settle(const Call& call, const ops::Matrix& before, const ops::Matrix& after) const {
  if (sums_) norm_.add(call, sum(call, before, after));
}

}  // namespace octet::model
