// Compares each row-wise op on the GPU with the CPU, on random inputs and awkward shapes. Tolerances: sums
// over n terms in another order differ by about sqrt(n) units of fp32 (2^-24). The fast exponential and
// division add a few units. A bf16 output may then be the neighbouring value (one step of 2^-7, relative).
#include <cstring>
#include <limits>

#include "gpu/copies.h"
#include "octet/ops/cross_entropy.h"
#include "octet/ops/elementwise.h"
#include "octet/ops/embedding.h"
#include "octet/ops/gated_activation.h"
#include "octet/ops/rms_norm.h"

namespace octet::ops::row_ops_test {
namespace {

/// Stores a tensor densely, like activations, so that its packs move as a whole.
Matrix put_dense(Side& s, const Tensor& t, std::int64_t rows, std::int64_t cols, DType dtype) {
  std::vector<std::uint16_t> halves;
  std::vector<float> floats;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < cols; ++c) {
      const auto x = static_cast<float>(t.at(r, c));
      dtype == DType::bf16 ? halves.push_back(to_bf16(x)) : floats.push_back(x);
    }
  }
  void* data = dtype == DType::bf16 ? static_cast<void*>(s.put(halves)) : s.put(floats);
  return {data, dtype, rows, cols, cols};
}

// Rows of whole packs, as in a model: few rows, and more rows than blocks in a grid.
TEST(RmsNorm, RowsThatLieOneBehindTheOther) {
  constexpr std::int64_t shapes[][2] = {{33, 256}, {129, 4096}, {48, 8192}, {4112, 256}};
  for (const DType dtype : kComputeTypes) {
    for (const auto& [rows, hidden] : shapes) {
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(hidden) + " " + std::string(name_of(dtype)));
      const Tensor first = Tensor::random(dtype, rows, hidden, 1),
                   second = Tensor::random(dtype, rows, hidden, 2);
      const auto weight = random_floats(hidden, 5), d_weight_before = random_floats(hidden, 6);
      for (const bool adds : {false, true}) {
        both(
            [&](Side& s) {
              const auto put = [&](const Tensor& t) { return put_dense(s, t, rows, hidden, dtype); };
              const Matrix x = put(first), out = put(second), d = put(second);
              auto* w = s.put(weight);
              auto* rstd = s.put(std::vector<float>(static_cast<std::size_t>(rows), 0.0f));
              Copies copies(s, DType::e4m3, rows, hidden), again(s, DType::e4m3, rows, hidden);
              RmsNormArgs forward{.residual = x,
                                  .delta = adds ? put(second) : Matrix{},
                                  .sum = adds ? x : Matrix{},
                                  .weight = w,
                                  .one_plus_weight = adds,
                                  .out = out,
                                  .rstd = rstd,
                                  .quantize = copies.into};
              rms_norm(s, forward);
              copies.hold_to(out);
              // As in a model: the stream exists, and only the FP8 copy is requested.
              forward.delta = {};
              forward.sum = forward.out = {};
              forward.quantize = again.into;
              rms_norm(s, forward);
              again.hold_to(out);
              s.out("sum", x);
              s.out("out", out);
              s.out("rstd", rstd, rows, DType::f32);
              auto* d_weight = s.put(d_weight_before);
              Copies back(s, DType::e5m2, rows, hidden);
              rms_norm_backward(
                  s, {.dy = put(first),
                      .x = x,
                      .rstd = rstd,
                      .weight = w,
                      .one_plus_weight = adds,
                      .d_residual = d,
                      .accumulate = adds,
                      .d_weight = d_weight,
                      .quantize = back.into,
                      .workspace = s.workspace(rms_norm_backward_workspace(s.device(), rows, hidden))});
              back.hold_to(d);
              s.out("d_residual", d);
              s.out("d_weight", d_weight, hidden, DType::f32);
            },
            {.relative = 1e-5, .absolute = 2e-4, .bf16_steps = 1.01});
      }
    }
  }
}

TEST(RmsNorm, ForwardAndBackward) {
  for (const DType dtype : kComputeTypes) {
    for (const auto& [rows, hidden] : kShapes) {
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(hidden) + " " + std::string(name_of(dtype)));
      const Tensor residual = Tensor::random(dtype, rows, hidden, 1),
                   delta = Tensor::random(dtype, rows, hidden, 2),
                   dy = Tensor::random(dtype, rows, hidden, 3),
                   before = Tensor::random(dtype, rows, hidden, 4);
      const auto weight = random_floats(hidden, 5), d_weight_before = random_floats(hidden, 6);
      for (const bool gemma : {false, true}) {
        both(
            [&](Side& s) {
              const Matrix x = s.put(residual), out = s.put(Tensor(dtype, rows, hidden));
              auto* w = s.put(weight);
              auto* rstd = s.put(std::vector<float>(static_cast<std::size_t>(rows), 0.0f));
              Copies copies(s, DType::e4m3, rows, hidden);
              rms_norm(s, {.residual = x,
                           .delta = s.put(delta),
                           .sum = x,
                           .weight = w,
                           .eps = 1e-5f,
                           .one_plus_weight = gemma,
                           .out = out,
                           .rstd = rstd,
                           .quantize = copies.into});
              copies.hold_to(out);
              s.out("sum", x);
              s.out("out", out);
              s.out("rstd", rstd, rows, DType::f32);
              const Matrix d = s.put(before);
              auto* d_weight = s.put(d_weight_before);
              Copies back(s, DType::e5m2, rows, hidden);
              rms_norm_backward(
                  s, {.dy = s.put(dy),
                      .x = x,
                      .rstd = rstd,
                      .weight = w,
                      .one_plus_weight = gemma,
                      .d_residual = d,
                      .accumulate = !gemma,
                      .d_weight = d_weight,
                      .quantize = back.into,
                      .workspace = s.workspace(rms_norm_backward_workspace(s.device(), rows, hidden))});
              back.hold_to(d);
              s.out("d_residual", d);
              s.out("d_weight", d_weight, hidden, DType::f32);
            },
            {.relative = 1e-5, .absolute = 2e-5, .bf16_steps = 1.01});
      }
    }
  }
}

TEST(SoftCap, IsThatOfTheCpu) {
  for (const DType dtype : kComputeTypes) {
    for (const auto& [rows, cols] : kShapes) {
      for (const float cap : {0.5f, 30.0f}) {
        SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols));
        const Tensor logits = Tensor::random(dtype, rows, cols, 1, 40);
        both(
            [&](Side& s) {
              const Matrix x = s.put(logits);
              soft_cap(s, x, cap);
              s.out("capped", x);
            },
            {.relative = 1e-6, .absolute = 1e-6 * static_cast<double>(cap), .bf16_steps = 1.01});
      }
    }
  }
}

TEST(GatedActivation, ForwardAndBackwardInPlace) {
  for (const DType dtype : kComputeTypes) {
    for (const auto& [rows, width] : kShapes) {
      for (const Activation activation : {Activation::silu, Activation::gelu_tanh, Activation::clamped}) {
        for (const double size : {1.0, 40.0}) {
          SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(width));
          const Tensor gate_up = Tensor::random(dtype, rows, 2 * width, 1, size),
                       d_out = Tensor::random(dtype, rows, width, 2);
          both(
              [&](Side& s) {
                const Matrix x = s.put(gate_up), h = s.put(Tensor(dtype, rows, width));
                Copies copies(s, DType::e4m3, rows, width);
                gated_activation(s, {x, activation, h, copies.into});
                copies.hold_to(h);
                s.out("h", h);
                Copies back(s, DType::e5m2, rows, 2 * width);
                gated_activation_backward(s, {x, s.put(d_out), activation, x, back.into});
                back.hold_to(x);
                s.out("d_gate_up", x);
                if (rows == 0) return;
                Copies only(s, DType::e5m2, rows, 2 * width);
                gated_activation_backward(s, {s.put(gate_up), s.put(d_out), activation, {}, only.into});
                only.hold_to(x);
              },
              // 1 - sigmoid amplifies the rounding error of the sigmoid, and is multiplied by gate and up.
              {.relative = 3e-6, .absolute = 3e-5 * size, .bf16_steps = 1.01});
        }
      }
    }
  }
}

TEST(Embedding, ForwardAndDeterministicBackward) {
  for (const DType dtype : kComputeTypes) {
    for (const auto& [tokens, hidden] : kShapes) {
      for (const std::int64_t vocabulary : {1, 13, 5003}) {
        const Tensor table = Tensor::random(dtype, vocabulary, hidden, 1),
                     d_out = Tensor::random(dtype, tokens, hidden, 2),
                     before = Tensor::random(vocabulary == 13 ? dtype : DType::f32, vocabulary, hidden, 3);
        std::vector<std::int32_t> ids;
        for (std::int64_t t = 0; t < tokens; ++t) {
          // Repeated, unused and invalid ids.
          ids.push_back(t % 11 == 10 ? static_cast<std::int32_t>(t % 22 == 10 ? -1 : vocabulary)
                                     : static_cast<std::int32_t>((t * t * 31 + t) % vocabulary));
        }
        both(
            [&](Side& s) {
              const Matrix out = s.put(Tensor(dtype, tokens, hidden)), d_table = s.put(before);
              auto* id = s.put(ids);
              embedding(s, {id, s.put(table), 1.5f, out});
              s.out("out", out);
              embedding_backward(
                  s,
                  {.ids = id,
                   .d_out = s.put(d_out),
                   .scale = 0.75f,
                   .d_table = d_table,
                   .workspace = s.workspace(embedding_backward_workspace(s.device(), tokens, vocabulary))});
              s.out("d_table", d_table);
              const Matrix without = s.put(before);
              embedding_backward(
                  s,
                  {.ids = id,
                   .d_out = s.put(d_out),
                   .scale = 0.75f,
                   .d_table = without,
                   .padding_id = ids.empty() ? -1 : ids.back(),
                   .workspace = s.workspace(embedding_backward_workspace(s.device(), tokens, vocabulary))});
              s.out("d_table without padding", without);
            },
            {});
      }
    }
  }
}

TEST(Rows, AreGatheredScatteredAndSummed) {
  for (const DType dtype : kComputeTypes) {
    for (const auto& [rows, cols] : kShapes) {
      const std::int64_t picked = (rows + 1) / 2;
      const std::int64_t gap = cols % 16 == 0 ? 0 : 3;
      const Tensor x = Tensor::random(dtype, rows, cols, 1, 1, gap);
      std::vector<std::int32_t> list;
      for (std::int64_t i = 0; i < picked; ++i) list.push_back(static_cast<std::int32_t>(rows - 1 - 2 * i));
      both(
          [&](Side& s) {
            const Matrix from = s.put(x), some = s.put(Tensor(dtype, picked, cols, gap)),
                         back = s.put(Tensor(dtype, rows, cols));
            auto* which = s.put(list);
            gather_rows(s, from, which, some);
            scatter_rows(s, some, which, back);
            s.out("gathered", some);
            // FP8 values: the bytes of the rows.
            const std::int64_t bytes = from.ld * static_cast<std::int64_t>(size_of(dtype));
            const ConstMatrix codes(from.data, DType::e4m3, rows, bytes, bytes);
            auto* picked_bytes =
                s.put(std::vector<std::uint8_t>(static_cast<std::size_t>(picked * bytes + 1), 0xEE));
            gather_rows(s, codes, which, {picked_bytes, DType::e4m3, picked, bytes, bytes});
            s.out("gathered bytes", picked_bytes, picked * bytes + 1, DType::u8);
            s.out("scattered", back);
          },
          {});
      both(
          [&](Side& s) {
            auto* bias = s.put(random_floats(cols, 2));
            bias_backward(s, s.put(x), bias);
            s.out("d_bias", bias, cols, DType::f32);
          },
          {.relative = 2e-6, .absolute = 5e-6});
    }
  }
}

TEST(CrossEntropy, LossAndGradientOfAnyVocabulary) {
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t rows : {0, 1, 127}) {
      for (const std::int64_t vocabulary : {1, 7, 512, 32003, 50257}) {
        if (rows * vocabulary > 4000000) continue;
        for (const float cap : {0.0f, 3.0f}) {
          SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(vocabulary));
          const Tensor logits = Tensor::random(dtype, rows, vocabulary, 1, 4);
          std::vector<std::int32_t> targets;
          for (std::int64_t r = 0; r < rows; ++r) {
            targets.push_back(r % 5 == 4 ? -100 : static_cast<std::int32_t>((r * 7919) % vocabulary));
          }
          both(
              [&](Side& s) {
                const Matrix x = s.put(logits);
                auto* loss = s.put(std::vector<float>(static_cast<std::size_t>(rows), -1.0f));
                auto* total = s.put(std::vector<double>{0.5});
                auto* t = s.put(targets);
                cross_entropy(
                    s, {.logits = x, .targets = t, .soft_cap = cap, .gradient = false, .row_loss = loss});
                s.out("untouched logits", x);
                cross_entropy(
                    s, {.logits = x, .targets = t, .soft_cap = cap, .gradient = true, .row_loss = loss});
                add_sum(s, loss, rows, total);
                s.out("gradient", x);
                s.out("loss", loss, rows, DType::f32);
                s.out("total", total, 1, DType::f64);
              },
              {.relative = 1e-5, .absolute = 5e-6, .bf16_steps = 1.01});
        }
      }
    }
  }
}

// Rows aligned to 16 bytes: rows of one to eight blocks per cluster, several rows in sequence, and rows that
// are too long for a cluster or end inside a pack.
TEST(CrossEntropy, RowsOnBoundariesOfAnyLength) {
  struct Case {
    std::int64_t rows, vocabulary, ld;
  };
  for (const Case& c : {Case{3, 8, 8}, Case{700, 4096, 4096}, Case{5, 32768, 32768}, Case{150, 32776, 32776},
                        Case{5, 128256, 128264}, Case{3, 151936, 151936}, Case{2, 262144, 262144},
                        Case{2, 262152, 262152}, Case{4, 50257, 50264}}) {
    SCOPED_TRACE(std::to_string(c.rows) + " x " + std::to_string(c.vocabulary));
    std::vector<std::uint16_t> logits;
    for (const float x : random_floats(c.rows * c.ld, 1, 4)) logits.push_back(to_bf16(x + 30));
    std::vector<std::int32_t> targets;
    for (std::int64_t r = 0; r < c.rows; ++r) {
      targets.push_back(r % 5 == 1 ? -100
                                   : static_cast<std::int32_t>((r * 7919 + c.vocabulary - 1) % c.vocabulary));
    }
    both(
        [&](Side& s) {
          const Matrix x{s.put(logits), DType::bf16, c.rows, c.vocabulary, c.ld};
          auto* loss = s.put(std::vector<float>(static_cast<std::size_t>(c.rows), -1.0f));
          auto* t = s.put(targets);
          cross_entropy(s, {.logits = x, .targets = t, .gradient = false, .row_loss = loss});
          s.out("untouched logits", x);
          s.out("loss without gradient", loss, c.rows, DType::f32);
          cross_entropy(s, {.logits = x, .targets = t, .row_loss = loss});
          s.out("gradient", x);
          s.out("loss", loss, c.rows, DType::f32);
        },
        {.relative = 1e-5, .absolute = 5e-6, .bf16_steps = 1.01});
  }
}

TEST(Elementwise, ConversionsAddsAndFillsGiveTheSameBits) {
  std::vector<float> x = random_floats(10007, 1, 3);
  for (std::uint32_t high = 0; high < 0x10000u; high += 7)
    x.push_back(std::bit_cast<float>((high << 16) | (high & 0xFFFFu)));
  for (const std::int64_t n :
       {std::int64_t{1}, std::int64_t{7}, std::int64_t{4096}, static_cast<std::int64_t>(x.size())}) {
    both(
        [&](Side& s) {
          auto* f32 = s.put(x);
          for (const DType dtype : {DType::bf16, DType::f16}) {
            auto* narrow = s.put(std::vector<std::uint16_t>(x.size(), 0x1111));
            auto* wide = s.put(std::vector<float>(x.size(), 7.0f));
            convert(s, f32, DType::f32, narrow, dtype, n);
            convert(s, narrow, dtype, wide, DType::f32, n);
            s.out("narrow", reinterpret_cast<const std::uint8_t*>(narrow), 2 * n, DType::u8);
            s.out("wide", reinterpret_cast<const std::uint8_t*>(wide), 4 * n, DType::u8);
          }
        },
        {});
    both(
        [&](Side& s) {
          auto* a = s.put(random_floats(n, 2));
          auto* b = s.put(random_floats(n, 3));
          auto* narrow = s.put(std::vector<std::uint16_t>(static_cast<std::size_t>(n), 0x3F81));
          add(s, b, DType::f32, a, n);
          add(s, narrow, DType::bf16, a, n);
          s.out("added", a, n, DType::f32);
          auto* factor = s.put(std::vector<float>{0.3f});
          scale_by(s, {.data = a, .dtype = DType::f32, .rows = 1, .cols = n, .ld = n}, factor);
          scale_by(s, {.data = narrow, .dtype = DType::bf16, .rows = 1, .cols = n, .ld = n}, factor);
          s.out("scaled", a, n, DType::f32);
          s.out("scaled narrow", reinterpret_cast<const std::uint8_t*>(narrow), 2 * n, DType::u8);
          fill(s, b, 2.5f, n - 1);
          s.out("filled", b, n, DType::f32);
        },
        {});
  }
}

TEST(RandomNormal, GivesTheNumbersOfTheCpu) {
  for (const std::int64_t count : {1, 127, 100001}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      both(
          [&](Side& side) {
            const Matrix out = side.put(Tensor(dtype, 1, count));
            random_normal(side, {.seed = 8,
                                 .first = 7000000000,
                                 .width = count > 1000 ? 113 : 0,
                                 .pitch = 300,
                                 .column = count > 1000 ? 100 : 0,
                                 .deviation = 0.02f,
                                 .out = out.data,
                                 .dtype = dtype,
                                 .count = count});
            side.out("normal", out);
          },
          {.relative = 0x1p-22, .bf16_steps = 1});
    }
  }
}

}  // namespace
}  // namespace octet::ops::row_ops_test
