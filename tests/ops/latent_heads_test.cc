#include "octet/ops/latent_heads.h"

#include "ops/tensor.h"

namespace octet::ops::latent_heads_test {
namespace {

const LatentHeads kHeads[] = {{1, 1, 2, 1}, {3, 12, 8, 10}, {2, 8, 8, 16}, {4, 5, 6, 7}, {1, 3, 600, 601}};

/// A column of a matrix by parts of heads: q, k and v of attention, or queries and expanded latents.
struct Columns {
  const LatentHeads& h;
  std::int64_t q(std::int64_t head, std::int64_t d) const { return head * h.key_dim() + d; }
  std::int64_t k(std::int64_t head, std::int64_t d) const { return h.keys() + q(head, d); }
  std::int64_t v(std::int64_t head, std::int64_t d) const { return 2 * h.keys() + q(head, d); }
  /// In expanded latents.
  std::int64_t key(std::int64_t head, std::int64_t d) const { return head * (h.nope_dim + h.value_dim) + d; }
  std::int64_t value(std::int64_t head, std::int64_t d) const { return key(head, h.nope_dim + d); }
};

TEST(LatentHeads, AreJoinedWithTheRotatedDimensionsFirst) {
  for (const DType dtype : kComputeTypes) {
    for (const LatentHeads& h : kHeads) {
      const std::int64_t rows = 5;
      const Tensor queries = Tensor::random(dtype, rows, h.keys(), 1),
                   expanded = Tensor::random(dtype, rows, h.expanded(), 2),
                   rope_key = Tensor::random(dtype, rows, h.rope_dim, 3);
      Tensor qkv(dtype, rows, h.padded().qkv_width());
      CpuStream stream;
      join_latent_heads(stream, {.queries = queries.matrix(),
                                 .expanded = expanded.matrix(),
                                 .rope_key = rope_key.matrix(),
                                 .heads = h,
                                 .qkv = qkv.matrix()});
      const Columns at{h};
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t head = 0; head < h.heads; ++head) {
          for (std::int64_t d = 0; d < h.rope_dim; ++d) {
            ASSERT_EQ(qkv.at(r, at.q(head, d)), queries.at(r, at.q(head, h.nope_dim + d)));
            ASSERT_EQ(qkv.at(r, at.k(head, d)), rope_key.at(r, d));
          }
          for (std::int64_t d = 0; d < h.nope_dim; ++d) {
            ASSERT_EQ(qkv.at(r, at.q(head, h.rope_dim + d)), queries.at(r, at.q(head, d)));
            ASSERT_EQ(qkv.at(r, at.k(head, h.rope_dim + d)), expanded.at(r, at.key(head, d)));
          }
          for (std::int64_t d = 0; d < h.key_dim(); ++d) {
            const double expected = d < h.value_dim ? expanded.at(r, at.value(head, d)) : 0;
            ASSERT_EQ(qkv.at(r, at.v(head, d)), expected);
          }
        }
      }
      EXPECT_TRUE(qkv.margin_untouched());
    }
  }
}

TEST(LatentHeads, GradientsAreSplitAndSumKeysThatHeadsShare) {
  for (const DType dtype : kComputeTypes) {
    for (const LatentHeads& h : kHeads) {
      const std::int64_t rows = 5;
      const Tensor d_qkv = Tensor::random(dtype, rows, h.padded().qkv_width(), 4);
      Tensor d_queries(dtype, rows, h.keys()), d_expanded(dtype, rows, h.expanded()),
          d_rope_key(dtype, rows, h.rope_dim);
      CpuStream stream;
      split_latent_heads(stream, {.d_qkv = d_qkv.matrix(),
                                  .heads = h,
                                  .d_queries = d_queries.matrix(),
                                  .d_expanded = d_expanded.matrix(),
                                  .d_rope_key = d_rope_key.matrix()});
      const Columns at{h};
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t d = 0; d < h.rope_dim; ++d) {
          double sum = 0, size = 0;
          for (std::int64_t head = 0; head < h.heads; ++head) {
            sum += d_qkv.at(r, at.k(head, d));
            size += std::abs(d_qkv.at(r, at.k(head, d)));
            ASSERT_EQ(d_queries.at(r, at.q(head, h.nope_dim + d)), d_qkv.at(r, at.q(head, d)));
          }
          ASSERT_NEAR(d_rope_key.at(r, d), sum, size * d_rope_key.rounding());
        }
        for (std::int64_t head = 0; head < h.heads; ++head) {
          for (std::int64_t d = 0; d < h.nope_dim; ++d) {
            ASSERT_EQ(d_queries.at(r, at.q(head, d)), d_qkv.at(r, at.q(head, h.rope_dim + d)));
            ASSERT_EQ(d_expanded.at(r, at.key(head, d)), d_qkv.at(r, at.k(head, h.rope_dim + d)));
          }
          for (std::int64_t d = 0; d < h.value_dim; ++d)
            ASSERT_EQ(d_expanded.at(r, at.value(head, d)), d_qkv.at(r, at.v(head, d)));
        }
      }
      EXPECT_TRUE(d_queries.margin_untouched() && d_expanded.margin_untouched() &&
                  d_rope_key.margin_untouched());
    }
  }
}

TEST(LatentHeads, ValuesAreCutOutOfTheirPaddingAndPutBack) {
  for (const DType dtype : kComputeTypes) {
    for (const LatentHeads& h : kHeads) {
      for (const std::int64_t rows : {0, 1, 65}) {
        const Tensor padded = Tensor::random(dtype, rows, h.keys(), 5);
        Tensor out(dtype, rows, h.values()), back(dtype, rows, h.keys());
        Fp8Copy with(DType::e4m3, rows, h.values()), alone(DType::e4m3, rows, h.values());
        CpuStream stream;
        cut_head_values(
            stream, {.padded = padded.matrix(), .heads = h, .out = out.matrix(), .quantize = with.into()});
        cut_head_values(stream, {.padded = padded.matrix(), .heads = h, .quantize = alone.into()});
        pad_head_values(stream, {.d_out = out.matrix(), .heads = h, .d_padded = back.matrix()});
        const Columns at{h};
        for (std::int64_t r = 0; r < rows; ++r) {
          for (std::int64_t head = 0; head < h.heads; ++head) {
            for (std::int64_t d = 0; d < h.key_dim(); ++d) {
              const bool value = d < h.value_dim;
              const double expected = value ? padded.at(r, at.q(head, d)) : 0;
              ASSERT_EQ(back.at(r, at.q(head, d)), expected);
              if (!value) continue;
              ASSERT_EQ(out.at(r, head * h.value_dim + d), expected);
            }
          }
        }
        EXPECT_TRUE(out.margin_untouched() && back.margin_untouched());
        with.expect_copy_of(out);
        EXPECT_EQ(with.row, alone.row);
        EXPECT_EQ(with.transposed, alone.transposed);
      }
    }
  }
}

TEST(LatentHeads, WrongArgumentsAreRefused) {
  const LatentHeads h{2, 4, 4, 6};
  const Tensor keys = Tensor::random(DType::f32, 3, 16, 1), expanded = Tensor::random(DType::f32, 3, 20, 2),
               rope_key = Tensor::random(DType::f32, 3, 4, 3);
  Tensor qkv(DType::f32, 3, 48), values(DType::f32, 3, 12), padded(DType::f32, 3, 16);
  CpuStream stream;
  const JoinLatentHeadsArgs good{.queries = keys.matrix(),
                                 .expanded = expanded.matrix(),
                                 .rope_key = rope_key.matrix(),
                                 .heads = h,
                                 .qkv = qkv.matrix()};
  join_latent_heads(stream, good);
  const auto refused = [&](auto change) {
    JoinLatentHeadsArgs args = good;
    change(args);
    EXPECT_THROW(join_latent_heads(stream, args), std::logic_error);
  };
  refused([](auto& a) { a.heads.value_dim = 9; });
  refused([](auto& a) { a.heads.rope_dim = 0; });
  refused([](auto& a) { a.queries.cols = 15; });
  refused([](auto& a) { a.expanded.rows = 2; });
  refused([](auto& a) { a.rope_key.dtype = DType::bf16; });
  Tensor d_expanded(DType::f32, 3, 20), d_rope_key(DType::f32, 3, 4);
  SplitLatentHeadsArgs split{.d_qkv = qkv.matrix(),
                             .heads = h,
                             .d_queries = padded.matrix(),
                             .d_expanded = d_expanded.matrix(),
                             .d_rope_key = d_rope_key.matrix()};
  split_latent_heads(stream, split);
  split.d_rope_key.cols = 3;
  EXPECT_THROW(split_latent_heads(stream, split), std::logic_error);
  EXPECT_THROW(cut_head_values(stream, {.padded = keys.matrix(), .heads = h}), std::logic_error);
  EXPECT_THROW(cut_head_values(stream, {.padded = keys.matrix(), .heads = h, .out = padded.matrix()}),
               std::logic_error);
  EXPECT_THROW(pad_head_values(stream, {.d_out = keys.matrix(), .heads = h, .d_padded = padded.matrix()}),
               std::logic_error);
  // These matrices fit their heads. Only the sizes of the heads are wrong.
  const LatentHeads sizes[] = {{2, 4, 4, 9}, {2, 8, 0, 6}, {2, 0, 8, 6}};
  for (const LatentHeads& wrong : sizes) {
    const Tensor d_out(DType::f32, 3, wrong.values());
    EXPECT_THROW(
        pad_head_values(stream, {.d_out = d_out.matrix(), .heads = wrong, .d_padded = padded.matrix()}),
        std::logic_error);
  }
}

}  // namespace
}  // namespace octet::ops::latent_heads_test
