// Compares rotary embedding on the GPU with the CPU, with and without norms of heads. A bf16 output may be
// the neighbouring value if the arithmetic differs in the last place.
#include "octet/ops/rope.h"
#include "gpu/copies.h"
#include "octet/ops/normed_rope.h"

namespace octet::ops::rope_test {
namespace {

TEST(Rope, TableRotationAndItsInverse) {
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t dim : {2, 6, 64, 80, 96, 128, 256}) {
      for (const std::int64_t tokens : {1, 127, 129, 144, 256}) {
        // With one KV head, the number of rotated heads is odd, although heads of 64 are processed in pairs.
        const Heads heads{.q_heads = 6, .kv_heads = tokens == 144 ? 1 : 2, .head_dim = dim};
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

TEST(Rope, APartOfEachHeadTurns) {
  for (const DType dtype : kComputeTypes) {
    for (const auto& [dim, rotated] : {std::pair<std::int64_t, std::int64_t>{128, 64}, {64, 16}, {10, 4}}) {
      for (const std::int64_t tokens : {1, 129}) {
        const Heads heads{.q_heads = 6, .kv_heads = 2, .head_dim = dim};
        const Tensor qkv = Tensor::random(dtype, tokens, heads.qkv_width(), 1),
                     d_out = Tensor::random(dtype, tokens, heads.qkv_width(), 2);
        std::vector<float> cosines, sines;
        for (std::int64_t i = 0; i < 300 * rotated / 2; ++i) {
          cosines.push_back(static_cast<float>(std::cos(0.37 * static_cast<double>(i))));
          sines.push_back(static_cast<float>(std::sin(0.37 * static_cast<double>(i))));
        }
        std::vector<std::int32_t> positions;
        for (std::int64_t t = 0; t < tokens; ++t)
          positions.push_back(static_cast<std::int32_t>((t * 37) % 300));
        both(
            [&, rotated = rotated, dim = dim](Side& s) {
              RopeArgs args{.qkv = s.put(qkv),
                            .heads = heads,
                            .positions = s.put(positions),
                            .cosine = s.put(cosines),
                            .sine = s.put(sines),
                            .rotated = rotated};
              rope(s, args);
              s.out("rotated", args.qkv);
              args.qkv = s.put(d_out);
              args.inverse = true;
              Copies copies(s, DType::e5m2, tokens, heads.qkv_width());
              args.quantize = copies.into;
              rope(s, args);
              copies.hold_to(args.qkv);
              s.out("rotated back", args.qkv);
              const Matrix x = s.put(qkv), d = s.put(d_out), raw = s.put(Tensor(dtype, tokens, 8 * dim));
              auto* rstd = s.put(std::vector<float>(static_cast<std::size_t>(tokens * 8), 0.0f));
              const float *q = s.put(random_floats(dim, 3)), *k = s.put(random_floats(dim, 4));
              normed_rope(s, {.qkv = x,
                              .heads = heads,
                              .q_weight = q,
                              .k_weight = k,
                              .positions = args.positions,
                              .cosine = args.cosine,
                              .sine = args.sine,
                              .raw = raw,
                              .rstd = rstd,
                              .rotated = rotated});
              s.out("normed and turned", x);
              auto *d_q = s.put(random_floats(dim, 5)), *d_k = s.put(random_floats(dim, 6));
              normed_rope_backward(
                  s, {.d_qkv = d,
                      .raw = raw,
                      .rstd = rstd,
                      .heads = heads,
                      .q_weight = q,
                      .k_weight = k,
                      .positions = args.positions,
                      .cosine = args.cosine,
                      .sine = args.sine,
                      .d_q_weight = d_q,
                      .d_k_weight = d_k,
                      .workspace = s.workspace(normed_rope_backward_workspace(s.device(), tokens, heads)),
                      .rotated = rotated});
              s.out("d_qkv", d);
              s.out("d_q_weight", d_q, dim, DType::f32);
              s.out("d_k_weight", d_k, dim, DType::f32);
            },
            {.relative = 1e-5, .absolute = 3e-4, .bf16_steps = 1.01});
      }
    }
  }
}

TEST(Rope, NeighboursTurnIfPairsAreInterleaved) {
  for (const DType dtype : kComputeTypes) {
    for (const auto& [dim, rotated] :
         {std::pair<std::int64_t, std::int64_t>{128, 0}, {128, 64}, {64, 0}, {10, 6}}) {
      for (const std::int64_t tokens : {1, 3, 129, 256}) {
        const Heads heads{.q_heads = 6, .kv_heads = 2, .head_dim = dim};
        const std::int64_t gap = tokens == 129 ? 3 : 0, half = (rotated == 0 ? dim : rotated) / 2;
        const Tensor qkv = Tensor::random(dtype, tokens, heads.qkv_width(), 1, 1, gap);
        std::vector<float> cosines, sines;
        for (std::int64_t i = 0; i < 300 * half; ++i) {
          cosines.push_back(static_cast<float>(std::cos(0.37 * static_cast<double>(i))));
          sines.push_back(static_cast<float>(std::sin(0.37 * static_cast<double>(i))));
        }
        std::vector<std::int32_t> positions;
        for (std::int64_t t = 0; t < tokens; ++t)
          positions.push_back(static_cast<std::int32_t>((t * 37) % 300));
        both(
            [&, rotated = rotated](Side& s) {
              RopeArgs args{.qkv = s.put(qkv),
                            .heads = heads,
                            .positions = s.put(positions),
                            .cosine = s.put(cosines),
                            .sine = s.put(sines),
                            .rotated = rotated,
                            .interleaved = true};
              rope(s, args);
              s.out("rotated", args.qkv);
              args.qkv = s.put(qkv);
              args.inverse = true;
              Copies copies(s, DType::e5m2, tokens, heads.qkv_width());
              args.quantize = copies.into;
              rope(s, args);
              copies.hold_to(args.qkv);
              s.out("rotated back", args.qkv);
            },
            {.relative = 1e-6, .absolute = 1e-6, .bf16_steps = 1.01});
      }
    }
  }
}

TEST(NormedRope, ForwardAndBackward) {
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t dim : {2, 10, 64, 80, 128, 256}) {
      for (const std::int64_t tokens : {0, 1, 129, 700}) {
        SCOPED_TRACE(std::to_string(tokens) + " tokens, heads of " + std::to_string(dim));
        const Heads heads{.q_heads = 6, .kv_heads = 2, .head_dim = dim};
        // Whole packs in all but one number of tokens.
        const std::int64_t gap = tokens == 129 ? 3 : 0;
        const Tensor qkv = Tensor::random(dtype, tokens, heads.qkv_width(), 1, 2, gap),
                     d_out = Tensor::random(dtype, tokens, heads.qkv_width(), 2, 1, gap);
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
                const Matrix raw = s.put(Tensor(dtype, tokens, 8 * dim, gap));
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
                        .d_q_weight = one_plus ? nullptr : d_q,
                        .d_k_weight = one_plus ? nullptr : d_k,
                        .quantize = copies.into,
                        .workspace = s.workspace(normed_rope_backward_workspace(s.device(), tokens, heads))});
                copies.hold_to(d);
                s.out("d_qkv", d);
                s.out("d_q_weight", d_q, dim, DType::f32);
                s.out("d_k_weight", d_k, dim, DType::f32);
              },
              // Sums over up to 700 x 6 products in another order.
              {.relative = 1e-5, .absolute = 3e-4, .bf16_steps = 1.01});
        }
      }
    }
  }
}

}  // namespace
}  // namespace octet::ops::rope_test
