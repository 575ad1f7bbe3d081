// Every buffer of the core, reserved once, for the largest micro-batch.
#include <algorithm>
#include <memory>

#include "core.h"
#include "octet/base/error.h"
#include "octet/ops/attention.h"
#include "octet/ops/embedding.h"
#include "octet/ops/normed_rope.h"
#include "octet/ops/rms_norm.h"
#include "octet/ops/rope.h"

namespace octet::model {
namespace {

std::size_t bytes_of(std::int64_t rows, std::int64_t cols, DType dtype) {
  std::size_t bytes = 0;
  const bool overflow =
      __builtin_mul_overflow(static_cast<std::size_t>(rows), static_cast<std::size_t>(cols), &bytes) ||
      __builtin_mul_overflow(bytes, size_of(dtype), &bytes);
  if (overflow) {
    throw Error({.what = "an activation does not fit the address space",
                 .found = std::to_string(rows) + " x " + std::to_string(cols) + " elements",
                 .fix = "use smaller micro-batches"});
  }
  return bytes;
}

/// FP8 products read whole multiples of 16 tokens.
std::int64_t fp8_rows(std::int64_t rows) {
  return (rows + 15) / 16 * 16;
}

/// What an FP8 copy of at most [rows, cols] is to hold.
struct CopyShape {
  std::int64_t rows = 0, cols = 0;
  bool row = true, transposed = true;
  ops::Scaling scaling = ops::Scaling::tensor;
};

precision::Fp8Copy reserve_copy(Arena& arena, const char* name, const CopyShape& shape) {
  precision::Fp8Copy copy;
  const std::int64_t rows = fp8_rows(shape.rows);
  const std::size_t bytes = bytes_of(rows, shape.cols, DType::u8);
  if (shape.row) copy.row = arena.reserve_as<std::uint8_t>(name, bytes);
  if (shape.transposed) copy.transposed = arena.reserve_as<std::uint8_t>(name, bytes);
  if (shape.scaling == ops::Scaling::tensor) return copy;
  const auto scales = [&](std::int64_t r, std::int64_t c) {
    return arena.reserve_as<float>(name, static_cast<std::size_t>(ops::scale_count(shape.scaling, r, c)));
  };
  if (shape.row) copy.scales = scales(rows, shape.cols);
  if (shape.transposed) copy.transposed_scales = scales(shape.cols, rows);
  return copy;
}

}  // namespace

ops::Matrix Transformer::Impl::reserve_matrix(Arena& arena, const char* name, std::int64_t rows,
                                              std::int64_t cols) const {
  return {.data = arena.reserve(name, bytes_of(rows, cols, dtype_)),
          .dtype = dtype_,
          .rows = rows,
          .cols = cols,
          .ld = cols};
}

SavedInput Transformer::Impl::reserve_input(Arena& arena, std::size_t block, Linear linear,
                                            std::int64_t width) {
  SavedInput input;
  const std::int64_t tokens = options_.max_tokens;
  ops::Matrix shared_values = scratch_.wide;
  shared_values.cols = shared_values.ld = width;
  if (input_tensor(block, linear) == precision::Quantizer::kPlain) {
    if (remakes_inputs() && linear != kOutput) {
      input.values = shared_values;
      return input;
    }
    input.values = reserve_matrix(arena, "activations/linear inputs", tokens, width);
    return input;
  }
  // The FP8 copy is all that backward needs; where products read transposed copies, the weight gradient reads
  // that one alone, so that the other is shared.
  const bool transposed = quantizer_.transposes();
  if (remakes_inputs()) {
    input.copy = scratch_.x_copy;
  } else {
    const bool shared = transposed && options_.recompute == Recompute::none && options_.training;
    input.copy = reserve_copy(
        arena, "activations/FP8 inputs",
        {.rows = tokens, .cols = width, .row = !shared, .transposed = transposed, .scaling = scaling()});
    if (shared) {
      input.copy.row = scratch_.x_copy.row;
      input.copy.scales = scratch_.x_copy.scales;
    }
  }
  if (linear == kOutput) {
    // Attention's backward pass reads its output itself.
    input.values = reserve_matrix(arena, "activations/attention", tokens, width);
  } else if (quantizer_.needs_values(input_tensor(block, linear))) {
    input.values = shared_values;
  }
  return input;
}

void Transformer::Impl::reserve_block(Arena& arena, std::size_t block) {
  BlockActivations& b = blocks_[block];
  const std::int64_t tokens = options_.max_tokens;
  const Architecture& a = architecture_;
  const bool own = options_.training && options_.recompute != Recompute::full;
  if (block > 0 && !own) b = blocks_[0];
  if (block == 0 || options_.training) {
    b.input = reserve_matrix(arena, "activations/block inputs", tokens, a.hidden);
  }
  if (block > 0 && !own) return;
  b.middle = reserve_matrix(arena, "activations/after attention", tokens, a.hidden);
  const bool own_qkv = block == 0 || !remakes_qkv();
  b.qkv = own_qkv ? reserve_matrix(arena, "activations/qkv", tokens, a.heads.qkv_width()) : blocks_[0].qkv;
  b.gate_up = reserve_matrix(arena, "activations/gate and up", tokens, 2 * a.intermediate);
  const auto rows = static_cast<std::size_t>(tokens);
  b.input_rstd = arena.reserve_as<float>("activations/norms", rows);
  b.mlp_rstd = arena.reserve_as<float>("activations/norms", rows);
  if (a.qk_norm && options_.training && !own_qkv) {
    b.raw_heads = blocks_[0].raw_heads;
    b.head_rstd = blocks_[0].head_rstd;
  } else if (a.qk_norm && options_.training) {
    const std::int64_t heads = a.heads.q_heads + a.heads.kv_heads;
    b.raw_heads = reserve_matrix(arena, "activations/heads", tokens, heads * a.heads.head_dim);
    b.head_rstd = arena.reserve_as<float>("activations/norms", rows * static_cast<std::size_t>(heads));
  }
  if (a.sublayer_norms) {
    b.attention_output = reserve_matrix(arena, "activations/sublayer outputs", tokens, a.hidden);
    b.mlp_output = reserve_matrix(arena, "activations/sublayer outputs", tokens, a.hidden);
    b.attention_output_rstd = arena.reserve_as<float>("activations/norms", rows);
    b.mlp_output_rstd = arena.reserve_as<float>("activations/norms", rows);
  }
  if (options_.training) {
    b.lse =
        arena.reserve_as<float>("activations/attention", rows * static_cast<std::size_t>(a.heads.q_heads));
  }
  b.inputs[kQkv] = reserve_input(arena, block, kQkv, a.hidden);
  b.inputs[kOutput] = reserve_input(arena, block, kOutput, a.q_width());
  b.inputs[kGateUp] = reserve_input(arena, block, kGateUp, a.hidden);
  b.inputs[kDown] = reserve_input(arena, block, kDown, a.intermediate);
}

// A product reads one layout of a weight, so that both have the same place.
void Transformer::Impl::reserve_weight(Arena& arena) {
  std::int64_t count = 0, scales = 0;
  for (const TensorSpec& weight : layout_.groups[1].segments[kBlockMatrices].tensors) {
    count = std::max(count, weight.count());
    for (const auto& [rows, cols] :
         {std::pair(weight.rows, weight.cols), std::pair(weight.cols, weight.rows)}) {
      scales = std::max(scales, ops::scale_count(ops::Scaling::squares, rows, cols));
    }
  }
  precision::Fp8Copy& copy = scratch_.weight;
  copy.row = copy.transposed =
      arena.reserve_as<std::uint8_t>("activations/FP8 weight", static_cast<std::size_t>(count));
  copy.scales = copy.transposed_scales =
      arena.reserve_as<float>("activations/FP8 weight", static_cast<std::size_t>(scales));
}

void Transformer::Impl::reserve_gradients(Arena& arena) {
  const std::int64_t tokens = options_.max_tokens;
  const Architecture& a = architecture_;
  scratch_.gradient = reserve_matrix(arena, "activations/gradients", tokens, a.hidden);
  if (a.sublayer_norms) scratch_.d_added = reserve_matrix(arena, "activations/gradients", tokens, a.hidden);
  scratch_.d_qkv = reserve_matrix(arena, "activations/gradients", tokens, a.heads.qkv_width());
  if (!quantizer_.recipe().fp8()) return;
  const std::int64_t width = std::max({a.hidden, a.heads.qkv_width(), 2 * a.intermediate});
  scratch_.d_copy = reserve_copy(
      arena, "activations/FP8 gradients",
      {.rows = tokens, .cols = width, .transposed = quantizer_.transposes(), .scaling = scaling()});
}

void Transformer::Impl::reserve_head(Arena& arena) {
  const std::int64_t tokens = options_.max_tokens;
  const Architecture& a = architecture_;
  scratch_.final_stream = reserve_matrix(arena, "head/hidden", tokens, a.hidden);
  scratch_.final_norm = reserve_matrix(arena, "head/hidden", tokens, a.hidden);
  scratch_.final_rstd = arena.reserve_as<float>("head/norm", static_cast<std::size_t>(tokens));
  const std::int64_t labels = options_.max_labels == 0 ? tokens : options_.max_labels;
  scratch_.label_hidden = reserve_matrix(arena, "head/label rows", labels, a.hidden);
  const auto row_bytes = static_cast<std::int64_t>(bytes_of(1, a.vocabulary, dtype_));
  chunk_ = std::max<std::int64_t>(1, static_cast<std::int64_t>(options_.logits_bytes) / row_bytes);
  if (chunk_ > 128) chunk_ -= chunk_ % 128;
  chunk_ = std::min(chunk_, labels);
  scratch_.logits = reserve_matrix(arena, "head/logits", chunk_, a.vocabulary);
  scratch_.row_loss = arena.reserve_as<float>("head/losses", static_cast<std::size_t>(chunk_));
}

void Transformer::Impl::reserve_workspace(Arena& arena) {
  const Device& device = arena.device();
  const Architecture& a = architecture_;
  const std::int64_t tokens = options_.max_tokens;
  std::size_t bytes = ops::attention_workspace(device, a.heads, dtype_, tokens, options_.max_length);
  const auto need = [&](std::size_t more) { bytes = std::max(bytes, more); };
  // Products by their shapes alone: [rows, in] with a weight [out, in].
  const auto products = [&](std::int64_t rows, std::int64_t out, std::int64_t in, bool fp8) {
    const precision::Recipe& recipe = quantizer_.recipe();
    const DType x = fp8 ? recipe.forward_format : dtype_, g = fp8 ? recipe.gradient_format : dtype_;
    const bool blocks = fp8 && recipe.blocks();
    const ops::Scaling by_rows = blocks ? ops::Scaling::rows : ops::Scaling::tensor;
    const ops::Scaling by_squares = blocks ? ops::Scaling::squares : ops::Scaling::tensor;
    const ops::Operand input{.dtype = x, .rows = rows, .cols = in, .scaling = by_rows};
    const ops::Operand weight{.dtype = x, .rows = out, .cols = in, .scaling = by_squares};
    const ops::Operand d_output{.dtype = g, .rows = rows, .cols = out, .scaling = by_rows};
    const auto shape = [](DType dtype, std::int64_t r, std::int64_t c) {
      return ops::Matrix{.dtype = dtype, .rows = r, .cols = c, .ld = c};
    };
    const auto product_of = [&](ops::Product kind, const ops::Operand& left, const ops::Operand& right,
                                const ops::Matrix& d) {
      need(ops::gemm_workspace(
          device, {.product = kind, .a = left, .b = right, .d = d, .fixed_order = options_.fixed_order}));
    };
    product_of(ops::Product::forward, input, weight, shape(dtype_, rows, out));
    if (!options_.training) return;
    product_of(ops::Product::dgrad, d_output, weight, shape(dtype_, rows, in));
    product_of(ops::Product::wgrad, d_output, input, shape(options_.gradient_dtype, out, in));
  };
  for (std::size_t linear = 0; linear < kLinears && last_block_ > first_block_; ++linear) {
    const TensorSpec& weight = layout_.groups[1].segments[kBlockMatrices].tensors[linear];
    const precision::Recipe& recipe = quantizer_.recipe();
    products(tokens, weight.rows, weight.cols, recipe.fp8());
    for (const ScaledPart& part : scaled_parts(weight, recipe.fp8() && recipe.scale_parts)) {
      products(tokens, part.count / weight.cols, weight.cols, recipe.fp8());
    }
  }
  products(chunk_, a.vocabulary, a.hidden, false);
  if (options_.training) {
    need(ops::rms_norm_backward_workspace(device, tokens, a.hidden));
    if (a.qk_norm) need(ops::normed_rope_backward_workspace(device, tokens, a.heads));
    need(ops::embedding_backward_workspace(device, tokens, a.vocabulary));
  }
  scratch_.workspace = {.data = arena.reserve("workspace", bytes), .bytes = bytes};
}

void Transformer::Impl::make_rope_tables(Arena& arena) {
  const std::int64_t half = architecture_.heads.head_dim / 2;
  const std::int64_t positions = options_.max_positions == 0 ? options_.max_length : options_.max_positions;
  const std::size_t bytes = bytes_of(positions, half, DType::f32);
  Device& device = arena.device();
  const std::unique_ptr<Stream> stream = device.make_stream({.name = "rotary tables"});
  for (const Rope& rope : architecture_.ropes) {
    const std::vector<float> host = inverse_frequencies(rope, architecture_.heads.head_dim);
    auto* frequencies = arena.reserve_as<float>("rotary tables", host.size());
    auto* cosine = static_cast<float*>(arena.reserve("rotary tables", bytes));
    auto* sine = static_cast<float*>(arena.reserve("rotary tables", bytes));
    device.copy_to_device(*stream, frequencies, host.data(), host.size() * sizeof(float));
    ops::rope_table(*stream, {.inv_freq = frequencies,
                              .factor = static_cast<float>(rope.attention_factor),
                              .positions = positions,
                              .half_dim = half,
                              .cosine = cosine,
                              .sine = sine});
    stream->synchronize();
    cosine_.push_back(cosine);
    sine_.push_back(sine);
  }
}

void Transformer::Impl::reserve_buffers(Arena& arena) {
  const std::int64_t tokens = options_.max_tokens;
  const Architecture& a = architecture_;
  const std::int64_t wide = std::max({a.hidden, a.q_width(), a.intermediate});
  scratch_.delta = reserve_matrix(arena, "activations/scratch", tokens, a.hidden);
  scratch_.wide = reserve_matrix(arena, "activations/scratch", tokens, wide);
  if (quantizer_.recipe().fp8() && (quantizer_.transposes() || remakes_inputs())) {
    scratch_.x_copy = reserve_copy(arena, "activations/FP8 scratch",
                                   {.rows = tokens,
                                    .cols = wide,
                                    .transposed = quantizer_.transposes() && remakes_inputs(),
                                    .scaling = scaling()});
  }
  if (quantizer_.recipe().blocks()) reserve_weight(arena);
  blocks_.resize(static_cast<std::size_t>(last_block_ - first_block_));
  for (std::size_t block = 0; block < blocks_.size(); ++block) reserve_block(arena, block);
  if (options_.training) reserve_gradients(arena);
  reserve_head(arena);
  reserve_workspace(arena);
  make_rope_tables(arena);
}

}  // namespace octet::model
