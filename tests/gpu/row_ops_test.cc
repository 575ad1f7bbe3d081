// Every row-wise op on the GPU against the CPU, on random inputs and awkward shapes. Tolerances: sums in
// another order over n terms differ by about sqrt(n) units of fp32 (2^-24); the fast exponential and division
// add a few units more; a bf16 output may then fall to the next value (one step of 2^-7, relative).
#include <cstring>
#include <limits>

#include "gpu/sides.h"
#include "octet/ops/cross_entropy.h"
#include "octet/ops/elementwise.h"
#include "octet/ops/embedding.h"
#include "octet/ops/gated_activation.h"
#include "octet/ops/normed_rope.h"
#include "octet/ops/quantize.h"
#include "octet/ops/random.h"
#include "octet/ops/rms_norm.h"
#include "octet/ops/rope.h"

namespace octet::ops {
namespace {

constexpr std::int64_t kShapes[][2] = {{1, 8},     {1, 1},    {127, 80},   {129, 257}, {128, 768},
                                       {64, 4096}, {3, 6000}, {200, 1300}, {0, 64}};
/// An FP8 copy asked of an op on a side. FP8 copies are compared through the values, because a value on the
/// other side of a rounding boundary is another code.
struct Copies {
  Copies(Side& on, DType format, std::int64_t rows, std::int64_t cols) : side(on), count(rows * cols) {
    const std::vector<std::uint8_t> poison(static_cast<std::size_t>(count), 0xEE);
    into = {.format = format,
            .row = side.put(poison),
            .transposed = side.put(poison),
            .scale = side.put(std::vector<float>{13.7f}),
            .amax = side.put(std::vector<float>{0.0f})};
  }
  /// Checks the copies against the matrix of this side, bit by bit.
  void hold_to(const Matrix& y) {
    Side::Output values, row, turned, amax;
    side.out("", y);
    values = side.take();
    side.out("", into.row, count, DType::u8);
    row = side.take();
    side.out("", into.transposed, count, DType::u8);
    turned = side.take();
    side.out("", into.amax, 1, DType::f32);
    amax = side.take();
    double most = 0;
    int wrong = 0;
    for (std::int64_t r = 0; r < y.rows && wrong < 5; ++r) {
      for (std::int64_t c = 0; c < y.cols && wrong < 5; ++c) {
        const auto value = static_cast<float>(values.at(r, c));
        most = std::max(most, std::abs(values.at(r, c)));
        const std::uint8_t code = to_fp8(value * 13.7f, into.format);
        if (row.at(0, r * y.cols + c) == code && turned.at(0, c * y.rows + r) == code) continue;
        ++wrong;
        ADD_FAILURE() << "FP8 copy at (" << r << ", " << c << ") of " << value << ": row "
                      << row.at(0, r * y.cols + c) << ", transposed " << turned.at(0, c * y.rows + r)
                      << ", expected " << static_cast<int>(code);
      }
    }
    EXPECT_EQ(amax.at(0, 0), most);
  }

  Side& side;
  std::int64_t count;
  QuantizeInto into;
};

TEST(Quantize, GivesTheSameBitsForEveryFloatPattern) {
  std::vector<float> x;
  for (std::uint32_t high = 0; high < 0x10000u; ++high) {
    for (const std::uint32_t low : {0x0u, 0x1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      x.push_back(std::bit_cast<float>((high << 16) | low));
    }
  }
  const auto n = static_cast<std::int64_t>(x.size());
  for (const DType format : {DType::e4m3, DType::e5m2}) {
    for (const float scale : {1.0f, 0.37f, 3.4e38f}) {
      both(
          [&](Side& s) {
            const float* values = s.put(x);
            auto* row = s.put(std::vector<std::uint8_t>(x.size(), 0xEE));
            quantize(s, {values, DType::f32, 1, n, n},
                     {.format = format, .row = row, .scale = s.put(std::vector<float>{scale})});
            s.out("codes", row, n, DType::u8);
          },
          {});
    }
  }
}

TEST(Quantize, BothLayoutsAndTheAmaxOfEveryShape) {
  for (const DType dtype : kComputeTypes) {
    for (const auto& [rows, cols] : kShapes) {
      for (const DType format : {DType::e4m3, DType::e5m2}) {
        SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols));
        const Tensor x = Tensor::random(dtype, rows, cols, 1, 5);
        both(
            [&](Side& s) {
              const Matrix m = s.put(x);
              Copies copies(s, format, rows, cols);
              quantize(s, m, copies.into);
              copies.hold_to(m);
              s.out("row", copies.into.row, rows * cols, DType::u8);
              s.out("transposed", copies.into.transposed, rows * cols, DType::u8);
              auto* most = s.put(std::vector<float>{0.25f});
              amax(s, m, most);
              s.out("amax alone", most, 1, DType::f32);
              auto* turned = s.put(std::vector<std::uint8_t>(static_cast<std::size_t>(rows * cols), 0x11));
              transpose(s, {.from = copies.into.row, .rows = rows, .cols = cols, .to = turned});
              s.out("transpose", turned, rows * cols, DType::u8);
            },
            {});
      }
    }
  }
}

TEST(Scales, FollowTheSameRules) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> amaxes = {0.0f, 1e-42f, 3.5f, inf, nan, 448.0f, 1e30f, 0.1f};
  const auto n = static_cast<std::int64_t>(amaxes.size());
  std::vector<std::uint8_t> formats;
  for (std::int64_t i = 0; i < n; ++i)
    formats.push_back(static_cast<std::uint8_t>(i % 2 ? DType::e5m2 : DType::e4m3));
  for (const std::int64_t length : {1, 2, 33, 1024}) {
    both(
        [&](Side& s) {
          auto* amax = s.put(amaxes);
          auto* scale = s.put(std::vector<float>(amaxes.size(), 2.0f));
          auto* inverse = s.put(std::vector<float>(amaxes.size(), 0.5f));
          auto* f = s.put(formats);
          current_scale(s, {amax, f, scale, inverse, n});
          s.out("current scale", scale, n, DType::f32);
          s.out("current inverse", inverse, n, DType::f32);
          std::vector<float> past = random_floats(length * n, 3);
          for (float& x : past) x = std::abs(x) * 100;
          auto* history = s.put(past);
          for (const bool most_recent : {false, true}) {
            delayed_scale(s, {amax, history, f, scale, inverse, n, length, 1, most_recent});
            s.out("delayed scale", scale, n, DType::f32);
            s.out("delayed inverse", inverse, n, DType::f32);
            s.out("history", history, length * n, DType::f32);
            s.out("amax", amax, n, DType::f32);
          }
        },
        {.absolute = 1e-300});
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

TEST(Rope, TableRotationAndItsInverse) {
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t dim : {2, 6, 64, 80, 96, 128, 256}) {
      for (const std::int64_t tokens : {1, 127, 129}) {
        const Heads heads{.q_heads = 6, .kv_heads = 2, .head_dim = dim};
        const Tensor qkv = Tensor::random(dtype, tokens, heads.qkv_width(), 1);
        std::vector<std::int32_t> positions;
        for (std::int64_t t = 0; t < tokens; ++t)
          positions.push_back(static_cast<std::int32_t>((t * 37) % 300));
        std::vector<float> frequency;
        for (std::int64_t i = 0; i < dim / 2; ++i) {
          frequency.push_back(static_cast<float>(
              std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(dim))));
        }
        both(
            [&](Side& s) {
              auto* cosine = s.put(std::vector<float>(static_cast<std::size_t>(300 * dim / 2), 0.0f));
              auto* sine = s.put(std::vector<float>(static_cast<std::size_t>(300 * dim / 2), 0.0f));
              rope_table(s, {s.put(frequency), 1.25f, 300, dim / 2, cosine, sine});
              s.out("cosine", cosine, 300 * dim / 2, DType::f32);
              s.out("sine", sine, 300 * dim / 2, DType::f32);
              for (const bool inverse : {false, true}) {
                const Matrix x = s.put(qkv);
                Copies copies(s, DType::e5m2, tokens, heads.qkv_width());
                rope(s, {x, heads, s.put(positions), cosine, sine, inverse, copies.into});
                copies.hold_to(x);
                s.out("rotated", x);
                Copies only(s, DType::e5m2, tokens, heads.qkv_width());
                rope(s, {s.put(qkv), heads, s.put(positions), cosine, sine, inverse, only.into, false});
                only.hold_to(x);
              }
            },
            {.relative = 1e-6, .absolute = 1e-6, .bf16_steps = 1.01});
      }
    }
  }
}

TEST(NormedRope, ForwardAndBackward) {
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t dim : {2, 10, 64, 80, 128, 256}) {
      for (const std::int64_t tokens : {0, 1, 127, 129}) {
        SCOPED_TRACE(std::to_string(tokens) + " tokens, heads of " + std::to_string(dim));
        const Heads heads{.q_heads = 6, .kv_heads = 2, .head_dim = dim};
        const Tensor qkv = Tensor::random(dtype, tokens, heads.qkv_width(), 1, 2),
                     d_out = Tensor::random(dtype, tokens, heads.qkv_width(), 2);
        const auto table = static_cast<std::size_t>(300 * dim / 2);
        std::vector<float> cosines(table), sines(table);
        for (std::size_t i = 0; i < table; ++i) {
          cosines[i] = static_cast<float>(std::cos(0.37 * static_cast<double>(i)));
          sines[i] = static_cast<float>(std::sin(0.37 * static_cast<double>(i)));
        }
        std::vector<std::int32_t> positions;
        for (std::int64_t t = 0; t < tokens; ++t)
          positions.push_back(static_cast<std::int32_t>((t * 37) % 300));
        for (const bool one_plus : {false, true}) {
          both(
              [&](Side& s) {
                const Matrix x = s.put(qkv), d = s.put(d_out);
                const Matrix raw = s.put(Tensor(dtype, tokens, 8 * dim));
                auto* rstd = s.put(std::vector<float>(static_cast<std::size_t>(tokens * 8), 0.0f));
                const float *q_weight = s.put(random_floats(dim, 3)),
                            *k_weight = s.put(random_floats(dim, 4));
                const float *cosine = s.put(cosines), *sine = s.put(sines);
                const std::int32_t* at = s.put(positions);
                normed_rope(s, {.qkv = x,
                                .heads = heads,
                                .q_weight = q_weight,
                                .k_weight = k_weight,
                                .one_plus_weight = one_plus,
                                .positions = at,
                                .cosine = cosine,
                                .sine = sine,
                                .raw = raw,
                                .rstd = rstd});
                s.out("normed and turned", x);
                s.out("raw heads", raw);
                s.out("rstd", rstd, tokens * 8, DType::f32);
                auto* d_q = s.put(random_floats(dim, 5));
                auto* d_k = s.put(random_floats(dim, 6));
                Copies copies(s, DType::e5m2, tokens, heads.qkv_width());
                normed_rope_backward(
                    s, {.d_qkv = d,
                        .raw = raw,
                        .rstd = rstd,
                        .heads = heads,
                        .q_weight = q_weight,
                        .k_weight = k_weight,
                        .one_plus_weight = one_plus,
                        .positions = at,
                        .cosine = cosine,
                        .sine = sine,
                        .d_q_weight = d_q,
                        .d_k_weight = d_k,
                        .quantize = copies.into,
                        .workspace = s.workspace(normed_rope_backward_workspace(s.device(), tokens, heads))});
                copies.hold_to(d);
                s.out("d_qkv", d);
                s.out("d_q_weight", d_q, dim, DType::f32);
                s.out("d_k_weight", d_k, dim, DType::f32);
              },
              // Sums over up to 129 x 6 products in another order.
              {.relative = 1e-5, .absolute = 1e-4, .bf16_steps = 1.01});
        }
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
      for (const Activation activation : {Activation::silu, Activation::gelu_tanh}) {
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
              // 1 - sigmoid loses what the sigmoid rounds, and is multiplied by gate and up.
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
          // Repeated, unused and invalid ones.
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
      const Tensor x = Tensor::random(dtype, rows, cols, 1);
      std::vector<std::int32_t> list;
      for (std::int64_t i = 0; i < picked; ++i) list.push_back(static_cast<std::int32_t>(rows - 1 - 2 * i));
      both(
          [&](Side& s) {
            const Matrix from = s.put(x), some = s.put(Tensor(dtype, picked, cols)),
                         back = s.put(Tensor(dtype, rows, cols));
            auto* which = s.put(list);
            gather_rows(s, from, which, some);
            scatter_rows(s, some, which, back);
            s.out("gathered", some);
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
          auto* c = s.put(random_floats(n, 4));
          auto* narrow = s.put(std::vector<std::uint16_t>(static_cast<std::size_t>(n), 0x3F81));
          add(s, b, DType::f32, a, n);
          add(s, narrow, DType::bf16, a, n);
          s.out("added", a, n, DType::f32);
          const std::vector<const void*> parts = {a, b, c};
          for (const bool accumulate : {false, true}) {
            sum_in_order(s, {.parts = parts, .to = c, .count = n, .accumulate = accumulate});
            s.out("summed", c, n, DType::f32);
          }
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
}  // namespace octet::ops
