#include "layers/linear.h"

#include <algorithm>

#include "layers/work_list.h"
#include "octet/device/profile.h"
#include "octet/ops/embedding.h"
#include "octet/ops/expert_bias.h"

namespace octet::model {
namespace {

std::vector<Part> named(const std::vector<Part>& modules, const std::string& suffix) {
  std::vector<Part> parts = modules;
  for (Part& part : parts) part.name += suffix;
  return parts;
}

/// A call for the rows [begin, begin + count) of one expert. `names`: of all rows, or null.
Call with_rows(const Call& call, const std::uint64_t* names, std::int64_t begin, std::int64_t count) {
  Call own = call;
  own.tokens = count;
  own.first_row = call.first_row + begin;
  own.names = names == nullptr ? nullptr : names + begin;
  return own;
}

/// Calls act(expert, first row, number of rows) for every expert.
template <class Act>
void each_expert(const ExpertRows& rows, Act&& act) {
  for (std::size_t e = 0; e + 1 < rows.on_host.size(); ++e)
    act(static_cast<std::int64_t>(e), rows.on_host[e], rows.on_host[e + 1] - rows.on_host[e]);
}

}  // namespace

Linear::Linear(GroupBuilder& group, const LinearShape& shape)
    : name_(shape.name),
      title_(shape.title),
      experts_(std::max<std::int64_t>(1, shape.experts)),
      taken_(shape.taken),
      sources_(shape.sources),
      mixture_(shape.experts > 0),
      reads_stream_(shape.reads_stream),
      kept_values_(shape.kept_values),
      adds_bias_(shape.adds_bias),
      weight_(group.matrix(shape.name, shape.inputs, named(shape.modules, ".weight"),
                           {.init_std = shape.init_std,
                            .fp8 = true,
                            .gradient_by_gemm = true,
                            .expert = mixture_,
                            .experts = shape.experts,
                            .columns = shape.inputs_split}),
              experts_),
      adapters_(group, {.name = shape.name,
                        .inputs = shape.inputs,
                        .modules = mixture_ ? std::vector<Part>() : shape.modules,
                        .init_std = shape.init_std}) {
  if (mixture_) add_expert_adapters(group, shape);
  if (shape.bias) {
    bias_ = group.vector(std::string(shape.name) + "_bias", named(shape.modules, ".bias"), InitRule::zeros,
                         shape.experts);
  }
}

void Linear::add_expert_adapters(GroupBuilder& group, const LinearShape& shape) {
  const auto each = static_cast<std::ptrdiff_t>(shape.modules.size()) / shape.experts;
  bool any = false;
  group.set_adapters_of_experts(true);
  for (std::int64_t e = 0; e < shape.experts; ++e) {
    const auto first = shape.modules.begin() + e * each;
    std::vector<Part> modules(first, first + each);
    Part joined{.name = modules.front().name.substr(0, modules.front().name.rfind('.') + 1) + shape.joined};
    for (const Part& module : modules) joined.rows += module.rows;
    if (group.adapter(joined.name) != nullptr) modules = {joined};
    LowRank adapters(group, {.name = shape.name + ("." + std::to_string(shape.first + e)),
                             .inputs = shape.inputs,
                             .modules = std::move(modules),
                             .init_std = shape.init_std,
                             .remade = true});
    any = any || adapters;
    expert_adapters_.add(std::move(adapters));
  }
  group.set_adapters_of_experts(false);
  if (!any) expert_adapters_.clear();
}

void Linear::reserve_expert_adapters(BlockBuffers& buffers, const Common& common) {
  const std::int64_t rows = common.options.max_tokens * taken_;
  ops::Matrix unscaled;
  if (scales_experts()) {
    unscaled =
        buffers.rows("activations/adapters", room().rows(common.options), weight_.rows(), Kept::activations);
  }
  expert_adapters_.reserve(buffers, common, rows, unscaled);
  if (!expert_adapters_.drops()) return;
  row_names_ = static_cast<std::uint64_t*>(buffers.take(
      "activations/adapters", static_cast<std::size_t>(rows) * sizeof(std::uint64_t), Kept::never));
}

bool Linear::scales_experts() const {
  return expert_adapters_.scales();
}

const std::uint64_t* Linear::names_of_rows(const Call& call, const ExpertRows& rows) const {
  if (row_names_ == nullptr || call.names == nullptr) return nullptr;
  const std::int64_t count = rows.on_host.back();
  // A name is copied as two words.
  ops::gather_rows(call.stream, ops::ConstMatrix(call.names, DType::f32, call.tokens, 2, 2), rows.tokens,
                   {.data = row_names_, .dtype = DType::f32, .rows = count, .cols = 2, .ld = 2});
  return row_names_;
}

LinearLayer Linear::facts() const {
  return {.name = name_,
          .title = title_,
          .rows = weight_.rows(),
          .cols = weight_.cols(),
          .fp8 = true,
          .cast_alone = kept_values_ || mixture_ || reads_stream_,
          .experts = experts_,
          .taken = taken_};
}

std::vector<Operation> Linear::operations(std::int64_t tokens, const Repeats& forward_again) const {
  Repeats again = forward_again;
  // DoRA keeps its unscaled output in a separate buffer. Full recomputation repeats it even if backward does
  // not read the layer's output.
  if (adapters_.scales()) again.back() = 1;
  std::vector<Operation> all = gemms_of(facts(), tokens, again);
  std::erase_if(all, [&](const Operation& o) {
    return (o.gemm_kind == ops::GemmKind::dgrad && !passes_on_) ||
           (o.gemm_kind == ops::GemmKind::wgrad && !weight_.trained());
  });
  append(all, adapters_.operations(tokens, again, passes_on_));
  if (!expert_adapters_.empty())
    append(all, expert_adapters_.each().front().operations(tokens, {1, 1, 1, 1}, passes_on_));
  return all;
}

bool Linear::trained() const {
  return weight_.trained() || bias_.trained() || adapters_ || !expert_adapters_.empty();
}

void Linear::reserve(BlockBuffers& buffers, const Common& common) {
  // Adapters read the values, which an FP8 recipe does not keep.
  const bool fp8 = common.recipe().fp8();
  input_.reserve(buffers, common,
                 {.cols = weight_.cols(),
                  .kept_values = kept_values_ || (fp8 && adapters_),
                  .kept_operand = weight_.trained(),
                  .given = reads_stream_});
  adapters_.reserve(buffers);
}

std::size_t Linear::workspace(const Device& device, const Common& common) const {
  std::size_t bytes = std::max(weight_.workspace(device, common), adapters_.workspace(device, common));
  for (const LowRank& of_expert : expert_adapters_.each())
    bytes = std::max(bytes, of_expert.workspace(device, common));
  return bytes;
}

Wanted Linear::wanted_gradient(const Call& call, const ops::Matrix& values) const {
  // DoRA's GEMMs read the gradient before the columns' scales.
  const bool fused = multiplies_gradient() && !adapters_.scales();
  const bool exist = bias_ || adapters_ || !fused || output_gradient_.needs_values(call.common);
  return {.values = exist ? values : ops::Matrix{},
          .quantize = fused ? output_gradient_.wanted(call) : ops::QuantizeInto{}};
}

std::vector<ops::Operand> Linear::gradient_written(const Call& call, const ops::ConstMatrix& d_output) const {
  if (adapters_.scales()) return gradient_values_written(call, d_output);
  if (!multiplies_gradient()) return {};
  return output_gradient_.written(call, d_output);
}

std::vector<ops::Operand> Linear::gradient_values_written(const Call& call,
                                                          const ops::ConstMatrix& d_output) const {
  if (adapters_.scales()) adapters_.unscale(call, d_output);
  if (!multiplies_gradient()) return {};
  return output_gradient_.values_written(call,
                                         adapters_.scales() ? adapters_.unscaled_gradient(call) : d_output);
}

void Linear::make_unscaled(const Call& call) const {
  const ops::Matrix unscaled = adapters_.unscaled(call);
  weight_.forward(call, input_.operand(), nullptr, {}, unscaled);
  adapters_.forward(call, input_.values(call), unscaled);
  adapters_.measure(call, weight_);
}

void Linear::forward(const Call& call, const ops::Matrix& out, const ops::ConstMatrix& addend) const {
  const ProfileLabel label(call.stream, name_);
  if (adapters_.scales() && call.pass.adapters) {
    make_unscaled(call);
    return adapters_.scale(call, {.bias = bias_.in(call.parameters), .addend = addend, .out = out});
  }
  weight_.forward(call, input_.operand(), added_bias(call), addend, out);
  if (call.pass.adapters) adapters_.forward(call, input_.values(call), out);
}

std::optional<ops::DecodeGemmArgs> Linear::decode_args(const Call& call,
                                                       const ops::DecodeGemmArgs& args) const {
  const TransformerOptions& options = call.common.options;
  if (options.training || options.fixed_order || adapters_) return std::nullopt;
  auto whole = weight_.decode_args(call, args);
  if (whole) whole->bias = added_bias(call);
  return whole;
}

bool Linear::takes_decode(const Call& call, const ops::DecodeGemmArgs& args) const {
  if (call.tokens > ops::kDecodeTokens) return false;
  const auto whole = decode_args(call, args);
  return whole && ops::has_decode_gemm(call.stream.device(), *whole);
}

void Linear::forward_decode(const Call& call, const ops::DecodeGemmArgs& args) const {
  const ProfileLabel label(call.stream, name_);
  weight_.forward(call, decode_args(call, args).value());
}

void Linear::remake(const Call& call) const {
  if (adapters_.scales()) return make_unscaled(call);
  adapters_.remake(call, input_.values(call));
}

void Linear::backward(const Call& call, const ops::ConstMatrix& d_output,
                      std::span<const ops::Operand> operands, const ops::Matrix& d_input) const {
  const ProfileLabel label(call.stream, name_);
  // Weight gradients come first, because d_input may alias the input.
  adapters_.gradients(call, input_.values(call),
                      adapters_.scales() ? adapters_.unscaled_gradient(call) : d_output);
  weight_.add_gradient(call, operands, input_.operand());
  if (passes_on_) {
    weight_.backward(call, operands, d_input);
    adapters_.add_input_gradient(call, d_input);
  }
  float* const d_bias = bias_.in(*call.gradients);
  if (d_bias != nullptr) ops::bias_backward(call.stream, d_output, d_bias);
}

std::int64_t Linear::copied_rows(const Device& device, const Common& common) const {
  // Any number of rows up to this one may be copied, also a multiple of 16.
  const std::int64_t all = (room().rows(common.options) + 15) / 16 * 16;
  const auto together = [&](ops::GemmKind gemm_kind) {
    return weight_.multiplies_together(device, common, gemm_kind, all);
  };
  using enum ops::GemmKind;
  // A token takes an expert at most once.
  const std::int64_t of_expert = std::min(all, common.options.max_tokens * sources_);
  return together(forward) || together(dgrad) || together(wgrad) ? all : of_expert;
}

bool Linear::multiplies_together(const Call& call, ops::GemmKind gemm_kind, std::int64_t rows) const {
  // DoRA scales the outputs and gradients of each expert.
  return !scales_experts() && weight_.multiplies_together(call.stream.device(), call.common, gemm_kind, rows);
}

std::int64_t Linear::padded_rows(const Call& call, std::int64_t rows, std::int64_t room) const {
  using enum ops::GemmKind;
  const std::int64_t padded = (rows + 15) / 16 * 16;
  if (!weight_.trained() || padded > room || multiplies_together(call, wgrad, rows)) return rows;
  return multiplies_together(call, wgrad, padded) ? padded : rows;
}

bool Linear::reads_fp8(const Call& call, ops::GemmKind gemm_kind, std::int64_t rows) const {
  return call.common.recipe().fp8() && multiplies_together(call, gemm_kind, rows);
}

bool Linear::shares_row_gradients(const Call& call, std::int64_t rows) const {
  // One GEMM per expert would overwrite the copies.
  return multiplies_gradient() && reads_fp8(call, ops::GemmKind::dgrad, rows) &&
         (!weight_.trained() || multiplies_together(call, ops::GemmKind::wgrad, rows));
}

void Linear::forward_rows(const Call& call, const ExpertRows& rows, const ops::Matrix& x,
                          const ops::Operand* operand, const ops::Matrix& out) const {
  const bool together = operand != nullptr || multiplies_together(call, ops::GemmKind::forward, x.rows);
  if (together) {
    weight_.multiply_rows_of_experts(
        call, ops::GemmKind::forward,
        operand != nullptr ? *operand : input_.copied(call, x, call.pass.record, ops::GemmKind::forward),
        rows.begins, out);
  }
  auto matrices = expert_adapters_.together(call, x.rows);
  if (!call.pass.adapters) matrices.reset();
  const std::uint64_t* names = names_of_rows(call, rows);
  each_expert(rows, [&](std::int64_t e, std::int64_t begin, std::int64_t count) {
    if (count == 0) return;
    const ops::Matrix from = rows_from(x, begin, count), to = rows_from(out, begin, count);
    const Call own = with_rows(call, names, begin, count);
    const LowRank* adapters = matrices || !call.pass.adapters ? nullptr : adapters_of(e);
    const bool scales = adapters != nullptr && adapters->scales();
    const ops::Matrix sum = scales ? adapters->unscaled(own) : to;
    if (!together)
      weight_.forward(call, input_.copied(call, from, call.pass.record, ops::GemmKind::forward), nullptr, {},
                      sum, e);
    if (adapters != nullptr) adapters->forward(own, from, sum);
    if (!scales) return;
    adapters->measure(own, weight_, e * weight_.rows());
    adapters->scale(own, {.bias = nullptr, .addend = {}, .out = to});
  });
  if (matrices) expert_adapters_.forward(call, rows, *matrices, x, out);
  add_biases(call, rows.begins, out);
}

void Linear::add_biases(const Call& call, const std::int32_t* begins, const ops::Matrix& out) const {
  const float* const bias = added_bias(call);
  if (bias == nullptr) return;
  ops::expert_bias(call.stream, {.x = out, .bias = bias, .count = experts_, .begins = begins});
}

void Linear::add_biases_to_weights(const Call& call, const ExpertRows& rows, const ops::Matrix& d_tokens,
                                   float* d_weights) const {
  const float* const bias = added_bias(call);
  if (bias == nullptr) return;
  ops::expert_bias_weights(call.stream, {.d_tokens = d_tokens,
                                         .row_tokens = rows.tokens,
                                         .rows = rows.on_host.back(),
                                         .bias = bias,
                                         .count = experts_,
                                         .begins = rows.begins,
                                         .d_weights = d_weights});
}

void Linear::forward_tokens(const Call& call, const ExpertRows& rows, const ops::Matrix& tokens,
                            const ops::Matrix& x, const ops::Matrix& out) const {
  std::optional<ops::Operand> operand;
  if (reads_fp8(call, ops::GemmKind::forward, x.rows))
    operand = input_.gathered(call, tokens, {rows.tokens, x.rows}, x.data);
  if (!operand || !expert_adapters_.empty()) ops::gather_rows(call.stream, tokens, rows.tokens, x);
  forward_rows(call, rows, x, operand ? &*operand : nullptr, out);
}

Wanted Linear::wanted_rows(const Call& call, const ops::Matrix& x) const {
  if (!reads_fp8(call, ops::GemmKind::forward, x.rows)) return {.values = x, .quantize = {}};
  Wanted wanted = input_.wanted_copies(call, x);
  if (!expert_adapters_.empty()) wanted.values = x;
  return wanted;
}

void Linear::forward_experts(const Call& call, const ExpertRows& rows, const ops::Matrix& x,
                             const ops::Matrix& out) const {
  if (!reads_fp8(call, ops::GemmKind::forward, x.rows)) return forward_rows(call, rows, x, nullptr, out);
  const ops::Operand operand = input_.copies_written(call, x);
  forward_rows(call, rows, x, &operand, out);
}

void Linear::rows_input_gradient(const Call& call, const ExpertRows& rows, const ops::Matrix& d_output,
                                 const ops::Operand* operand, const ops::Matrix& d_x, bool follows) const {
  if (!passes_on_) return;
  const bool together = operand != nullptr || multiplies_together(call, ops::GemmKind::dgrad, d_output.rows);
  if (together) {
    weight_.multiply_rows_of_experts(
        call, ops::GemmKind::dgrad,
        operand != nullptr ? *operand : output_gradient_.values_written(call, d_output).front(), rows.begins,
        d_x);
  }
  const auto matrices = expert_adapters_.together(call, d_output.rows);
  const std::uint64_t* names = names_of_rows(call, rows);
  each_expert(rows, [&](std::int64_t e, std::int64_t begin, std::int64_t count) {
    if (count == 0) return;
    ops::Matrix from = rows_from(d_output, begin, count);
    const ops::Matrix to = rows_from(d_x, begin, count);
    const Call own = with_rows(call, names, begin, count);
    const LowRank* adapters = matrices ? nullptr : adapters_of(e);
    if (adapters != nullptr && adapters->scales()) {
      adapters->scale_gradient(own, from);
      from = adapters->unscaled_gradient(own);
    }
    if (!together) weight_.backward(call, output_gradient_.values_written(call, from), to, e);
    if (adapters == nullptr) return;
    adapters->inner_gradients(own, from);
    adapters->add_input_gradient(own, to);
  });
  if (!matrices) return;
  if (!follows) expert_adapters_.inner_gradients(call, rows, *matrices, d_output);
  expert_adapters_.add_input_gradient(call, rows, *matrices, d_x);
}

void Linear::input_gradient_of_tokens(const Call& call, const ExpertRows& rows, const ops::Matrix& d_tokens,
                                      const ops::Matrix& d_output, const ops::Matrix& d_x) const {
  std::optional<ops::Operand> operand;
  if (!weight_.trained() && passes_on_ && reads_fp8(call, ops::GemmKind::dgrad, d_output.rows))
    operand = output_gradient_.gathered(call, d_tokens, {rows.tokens, d_output.rows}, d_output.data);
  if (!operand || learns()) ops::gather_rows(call.stream, d_tokens, rows.tokens, d_output);
  rows_input_gradient(call, rows, d_output, operand ? &*operand : nullptr, d_x);
}

Wanted Linear::wanted_row_gradients(const Call& call, const ops::Matrix& d_output) const {
  if (!shares_row_gradients(call, d_output.rows)) return {.values = d_output, .quantize = {}};
  const bool exist = learns() || output_gradient_.needs_values(call.common);
  return {.values = exist ? d_output : ops::Matrix{}, .quantize = output_gradient_.wanted(call)};
}

void Linear::experts_gradients(const Call& call, const ExpertRows& rows, const ops::Matrix& x,
                               const ops::Matrix& d_output, const ops::Matrix& d_x) const {
  std::optional<ops::Operand> operand;
  if (shares_row_gradients(call, d_output.rows)) operand = output_gradient_.written(call, d_output).front();
  if (learns()) rows_weight_gradient(call, rows, x, d_output, operand ? &*operand : nullptr);
  rows_input_gradient(call, rows, d_output, operand ? &*operand : nullptr, d_x, learns());
}

void Linear::rows_weight_gradient(const Call& call, const ExpertRows& rows, const ops::Matrix& x,
                                  const ops::Matrix& d_output, const ops::Operand* operand) const {
  if (float* const d_bias = bias_.in(*call.gradients)) {
    ops::expert_bias_backward(call.stream,
                              {.d_y = d_output, .count = experts_, .begins = rows.begins, .d_bias = d_bias});
  }
  // The amax of the gradient is recorded here if no GEMM for the input reads it.
  Call again = call;
  again.pass.record = !passes_on_;
  const bool together = weight_.trained() && multiplies_together(call, ops::GemmKind::wgrad, x.rows);
  if (together) {
    weight_.add_gradients_of_experts(
        call, operand != nullptr ? *operand : output_gradient_.values_written(again, d_output).front(),
        input_.copied(call, x, false, ops::GemmKind::wgrad), rows.begins);
  }
  const auto matrices = expert_adapters_.together(call, x.rows);
  if (matrices) {
    expert_adapters_.project(call, rows, *matrices, x);
    expert_adapters_.inner_gradients(call, rows, *matrices, d_output);
    expert_adapters_.gradients(call, rows, *matrices, x, d_output);
  }
  const std::uint64_t* names = names_of_rows(call, rows);
  each_expert(rows, [&](std::int64_t e, std::int64_t begin, std::int64_t count) {
    const ops::Matrix in = rows_from(x, begin, count), d_out = rows_from(d_output, begin, count);
    if (const LowRank* adapters = matrices ? nullptr : adapters_of(e)) {
      const Call own = with_rows(call, names, begin, count);
      const bool scales = adapters->scales();
      if (scales) adapters->unscale(own, d_out);
      adapters->remake(own, in);
      adapters->gradients(own, in, scales ? adapters->unscaled_gradient(own) : d_out);
    }
    if (!weight_.trained() || together) return;
    weight_.add_gradient(call, output_gradient_.values_written(again, d_out),
                         input_.copied(call, in, false, ops::GemmKind::wgrad), e);
  });
}

std::optional<ExpertAdapters::Matrices> Linear::with_inner(const Call& call, std::int64_t rows) const {
  if (!passes_on_ || weight_.trained()) return std::nullopt;
  return expert_adapters_.together(call, rows);
}

ops::Matrix Linear::unweighted(const Call& call, const ExpertRows& rows, const ops::Matrix& x,
                               const ops::Matrix& d_output) const {
  if (!learns()) return {};
  const auto matrices = with_inner(call, x.rows);
  if (!matrices) return d_output;
  expert_adapters_.project(call, rows, *matrices, x);
  return expert_adapters_.both_inner(x.rows);
}

void Linear::experts_weight_gradient(const Call& call, const ExpertRows& rows, const ops::Matrix& x,
                                     const ops::Matrix& d_output) const {
  if (const auto matrices = with_inner(call, x.rows))
    return expert_adapters_.gradients(call, rows, *matrices, x, d_output);
  if (learns()) rows_weight_gradient(call, rows, x, d_output, nullptr);
}

}  // namespace octet::model
