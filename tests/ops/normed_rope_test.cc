#include "octet/ops/normed_rope.h"

#include "ops/tensor.h"

namespace octet::ops::normed_rope_test {
namespace {

constexpr double kEps = 1e-5;

/// Inputs of one case, and the expected results in float64.
struct Case {
  Case(std::int64_t rows, const Heads& h, DType t, bool plus, std::int64_t rotate = 0)
      : tokens(rows),
        heads(h),
        rotated(rotate),
        dtype(t),
        one_plus(plus),
        qkv(Tensor::random(t, rows, h.qkv_width(), 1, 2)),
        d_out(Tensor::random(t, rows, h.qkv_width(), 2)),
        q_weight(random_floats(h.head_dim, 3)),
        k_weight(random_floats(h.head_dim, 4)),
        cosine(static_cast<std::size_t>(kPositions * half())),
        sine(cosine.size()) {
    for (std::int64_t r = 0; r < rows; ++r)
      positions.push_back(static_cast<std::int32_t>(r * 37 % kPositions));
    for (std::size_t i = 0; i < cosine.size(); ++i) {
      const double angle = 0.37 * static_cast<double>(i);
      cosine[i] = static_cast<float>(std::cos(angle));
      sine[i] = static_cast<float>(std::sin(angle));
    }
  }
  /// Half of the dimensions that rotate.
  std::int64_t half() const { return (rotated == 0 ? heads.head_dim : rotated) / 2; }
  std::int64_t normed_heads() const { return heads.q_heads + heads.kv_heads; }
  double weight(std::int64_t head, std::int64_t i) const {
    const auto& w = head < heads.q_heads ? q_weight : k_weight;
    return static_cast<double>(w[static_cast<std::size_t>(i)]) + (one_plus ? 1 : 0);
  }
  double rstd(std::int64_t row, std::int64_t head) const {
    double squares = 0;
    for (std::int64_t i = 0; i < heads.head_dim; ++i) {
      const double x = qkv.at(row, head * heads.head_dim + i);
      squares += x * x;
    }
    return 1 / std::sqrt(squares / static_cast<double>(heads.head_dim) + static_cast<double>(float{kEps}));
  }
  double angle_part(const std::vector<float>& table, std::int64_t row, std::int64_t i) const {
    return static_cast<double>(
        table[static_cast<std::size_t>(positions[static_cast<std::size_t>(row)] * half() + i % half())]);
  }
  /// Element i of a head, rotated (or rotated back). `x` returns the elements before the rotation.
  template <typename F>
  double transposed(std::int64_t row, std::int64_t i, bool back, F x) const {
    if (i >= 2 * half()) return x(i);
    const double sign = (i < half()) == back ? 1 : -1;
    const std::int64_t other = i < half() ? i + half() : i - half();
    return x(i) * angle_part(cosine, row, i) + sign * x(other) * angle_part(sine, row, i);
  }

  static constexpr std::int64_t kPositions = 50;
  std::int64_t tokens;
  Heads heads;
  std::int64_t rotated;
  DType dtype;
  bool one_plus;
  Tensor qkv, d_out;
  std::vector<float> q_weight, k_weight, cosine, sine;
  std::vector<std::int32_t> positions;
};

struct Forward {
  explicit Forward(const Case& c, int threads = 2)
      : out(c.qkv),
        raw(c.dtype, c.tokens, c.normed_heads() * c.heads.head_dim),
        rstd(static_cast<std::size_t>(c.tokens * c.normed_heads()), -1.0f) {
    CpuStream stream(threads);
    normed_rope(stream, {.qkv = out.matrix(),
                         .heads = c.heads,
                         .q_weight = c.q_weight.data(),
                         .k_weight = c.k_weight.data(),
                         .eps = static_cast<float>(kEps),
                         .one_plus_weight = c.one_plus,
                         .positions = c.positions.data(),
                         .cosine = c.cosine.data(),
                         .sine = c.sine.data(),
                         .raw = raw.matrix(),
                         .rstd = rstd.data(),
                         .rotated = c.rotated});
  }
  Tensor out, raw;
  std::vector<float> rstd;
};

void expect_forward(const Case& c) {
  const Forward f(c);
  const std::int64_t dim = c.heads.head_dim;
  for (std::int64_t r = 0; r < c.tokens; ++r) {
    for (std::int64_t h = 0; h < c.normed_heads() + c.heads.kv_heads; ++h) {
      if (h >= c.normed_heads()) {
        for (std::int64_t i = 0; i < dim; ++i)
          ASSERT_EQ(f.out.at(r, h * dim + i), c.qkv.at(r, h * dim + i)) << "a value";
        continue;
      }
      const double rstd = c.rstd(r, h);
      ASSERT_NEAR(static_cast<double>(f.rstd[static_cast<std::size_t>(r * c.normed_heads() + h)]), rstd,
                  4e-7 * rstd);
      const auto normed = [&](std::int64_t i) { return c.qkv.at(r, h * dim + i) * rstd * c.weight(h, i); };
      for (std::int64_t i = 0; i < dim; ++i) {
        ASSERT_EQ(f.raw.at(r, h * dim + i), c.qkv.at(r, h * dim + i));
        const double want = c.transposed(r, i, false, normed);
        const std::int64_t other = i >= 2 * c.half() ? i : i < c.half() ? i + c.half() : i - c.half();
        const double slack = 1e-6 * (std::abs(normed(i)) + std::abs(normed(other)));
        ASSERT_NEAR(f.out.at(r, h * dim + i), want, std::abs(want) * f.out.rounding() + slack)
            << r << " " << h << " " << i;
      }
    }
  }
  EXPECT_TRUE(f.out.margin_untouched() && f.raw.margin_untouched());
}

struct Backward {
  Backward(const Case& c, int threads, std::vector<float> dq, std::vector<float> dk)
      : d(c.d_out), d_q(std::move(dq)), d_k(std::move(dk)), copy(DType::e5m2, c.tokens, c.heads.qkv_width()) {
    const Forward f(c, threads);
    CpuStream stream(threads);
    std::vector<std::byte> room(normed_rope_backward_workspace(stream.device(), c.tokens, c.heads),
                                std::byte{0xFF});
    normed_rope_backward(stream, {.d_qkv = d.matrix(),
                                  .raw = f.raw.matrix(),
                                  .rstd = f.rstd.data(),
                                  .heads = c.heads,
                                  .q_weight = c.q_weight.data(),
                                  .k_weight = c.k_weight.data(),
                                  .one_plus_weight = c.one_plus,
                                  .positions = c.positions.data(),
                                  .cosine = c.cosine.data(),
                                  .sine = c.sine.data(),
                                  .d_q_weight = d_q.data(),
                                  .d_k_weight = d_k.data(),
                                  .quantize = copy.into(),
                                  .workspace = {room.data(), room.size()},
                                  .rotated = c.rotated});
  }
  Tensor d;
  std::vector<float> d_q, d_k;
  Fp8Copy copy;
};

void expect_backward(const Case& c) {
  const std::int64_t dim = c.heads.head_dim;
  const std::vector<float> start_q = random_floats(dim, 5), start_k = random_floats(dim, 6);
  const Backward b(c, 2, start_q, start_k);
  std::vector<double> d_q(start_q.begin(), start_q.end()), d_k(start_k.begin(), start_k.end());
  std::vector<double> size_q(d_q.size(), 1), size_k(d_k.size(), 1);
  for (std::int64_t r = 0; r < c.tokens; ++r) {
    for (std::int64_t h = 0; h < c.normed_heads() + c.heads.kv_heads; ++h) {
      if (h >= c.normed_heads()) {
        for (std::int64_t i = 0; i < dim; ++i)
          ASSERT_EQ(b.d.at(r, h * dim + i), c.d_out.at(r, h * dim + i)) << "a value";
        continue;
      }
      const double rstd = c.rstd(r, h);
      const auto upstream = [&](std::int64_t i) { return c.d_out.at(r, h * dim + i); };
      double dot = 0, size = 0;
      for (std::int64_t i = 0; i < dim; ++i) {
        const double dy = c.transposed(r, i, true, upstream), xhat = c.qkv.at(r, h * dim + i) * rstd;
        auto& sum = h < c.heads.q_heads ? d_q : d_k;
        auto& scale = h < c.heads.q_heads ? size_q : size_k;
        sum[static_cast<std::size_t>(i)] += dy * xhat;
        scale[static_cast<std::size_t>(i)] += std::abs(dy * xhat);
        dot += dy * c.weight(h, i) * xhat;
        size += std::abs(dy * c.weight(h, i)) * (1 + std::abs(xhat));
      }
      const double mean = dot / static_cast<double>(dim);
      for (std::int64_t i = 0; i < dim; ++i) {
        const double xhat = c.qkv.at(r, h * dim + i) * rstd;
        const double want = rstd * (c.transposed(r, i, true, upstream) * c.weight(h, i) - xhat * mean);
        const double slack = 2e-7 * rstd * size * (1 + std::abs(xhat));
        ASSERT_NEAR(b.d.at(r, h * dim + i), want, std::abs(want) * b.d.rounding() + slack)
            << r << " " << h << " " << i;
      }
    }
  }
  for (std::size_t i = 0; i < d_q.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(b.d_q[i]), d_q[i], 4e-7 * size_q[i]) << "query weight " << i;
    ASSERT_NEAR(static_cast<double>(b.d_k[i]), d_k[i], 4e-7 * size_k[i]) << "key weight " << i;
  }
  EXPECT_TRUE(b.d.margin_untouched());
  b.copy.expect_copy_of(b.d);
  const Backward again(c, 3, start_q, start_k);
  EXPECT_TRUE(again.d == b.d);
  EXPECT_EQ(again.d_q, b.d_q) << "sums do not depend on the threads";
  EXPECT_EQ(again.d_k, b.d_k);
}

TEST(NormedRope, ForwardAndBackwardMatchFloat64) {
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t tokens : kRows) {
      for (const bool one_plus : {false, true}) {
        SCOPED_TRACE(testing::Message() << tokens << " tokens " << name_of(dtype) << " " << one_plus);
        for (const Heads& heads : {Heads{4, 2, 64}, Heads{3, 1, 10}, Heads{2, 2, 2}, Heads{1, 1, 256}}) {
          const Case c(tokens, heads, dtype, one_plus);
          expect_forward(c);
          expect_backward(c);
        }
      }
    }
  }
}

TEST(NormedRope, APartOfEachHeadRotates) {
  for (const DType dtype : kComputeTypes) {
    for (const std::int64_t tokens : kRows) {
      SCOPED_TRACE(testing::Message() << tokens << " tokens " << name_of(dtype));
      for (const auto& [heads, rotated] :
           {std::pair{Heads{4, 2, 64}, 32}, {Heads{3, 1, 10}, 4}, {Heads{2, 2, 128}, 128}}) {
        const Case c(tokens, heads, dtype, false, rotated);
        expect_forward(c);
        expect_backward(c);
      }
    }
  }
}

TEST(NormedRope, BackwardIsTheDerivativeOfForward) {
  // Compares (f(+h) - f(-h)) / 2h along a direction of the input and of both weights with the gradients.
  Case c(3, {2, 1, 8}, DType::f32, true);
  const auto value = [&](double step) {
    Case moved = c;
    for (std::int64_t r = 0; r < c.tokens; ++r) {
      for (std::int64_t i = 0; i < c.qkv.cols(); ++i)
        moved.qkv.set(r, i, c.qkv.at(r, i) + step * std::cos(static_cast<double>(r * 31 + i)));
    }
    for (std::size_t i = 0; i < 8; ++i) {
      moved.q_weight[i] += static_cast<float>(step * std::sin(static_cast<double>(i)));
      moved.k_weight[i] -= static_cast<float>(step * std::cos(static_cast<double>(i)));
    }
    const Forward f(moved);
    double sum = 0;
    for (std::int64_t r = 0; r < c.tokens; ++r) {
      for (std::int64_t i = 0; i < c.qkv.cols(); ++i) sum += f.out.at(r, i) * c.d_out.at(r, i);
    }
    return sum;
  };
  const Backward b(c, 1, std::vector<float>(8), std::vector<float>(8));
  double want = 0;
  for (std::int64_t r = 0; r < c.tokens; ++r) {
    for (std::int64_t i = 0; i < c.qkv.cols(); ++i)
      want += b.d.at(r, i) * std::cos(static_cast<double>(r * 31 + i));
  }
  for (std::size_t i = 0; i < 8; ++i) {
    want += static_cast<double>(b.d_q[i]) * std::sin(static_cast<double>(i)) -
            static_cast<double>(b.d_k[i]) * std::cos(static_cast<double>(i));
  }
  EXPECT_NEAR((value(1e-2) - value(-1e-2)) / 2e-2, want, 1e-4 * std::abs(want));
}

TEST(NormedRope, HeadsThatDoNotFitAreRefused) {
  Case c(2, {2, 1, 8}, DType::f32, false);
  CpuStream stream;
  NormedRopeArgs args;
  args.qkv = c.qkv.matrix();
  args.heads = {2, 1, 6};
  EXPECT_THROW(normed_rope(stream, args), std::logic_error);
  args.heads = {2, 1, 8};
  EXPECT_THROW(normed_rope(stream, args), std::logic_error) << "no weights";
}

}  // namespace
}  // namespace octet::ops::normed_rope_test
