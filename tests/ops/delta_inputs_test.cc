#include "octet/ops/delta_inputs.h"

#include "ops/delta_problem.h"

namespace octet::ops::delta_inputs_test {
namespace {

struct Shape {
  std::vector<std::int32_t> lengths;
  DeltaHeads heads;
  std::int64_t groups = 1;
  DType dtype = DType::f32;
  std::int64_t after = 0;
};

const Shape kShapes[] = {
    {{1}, {1, 1, 8, 8}},
    {{2, 0, 3, 9}, {2, 4, 16, 24}, 1},
    {{5, 4, 300}, {2, 4, 16, 24}, 2, DType::f32, 3},
    {{40, 3}, {4, 4, 72, 8}, 2, DType::bf16, 1},
    {{30, 31}, {4, 16, 48, 40}, 4, DType::bf16},
    {{600}, {1, 3, 8, 16}},
};

struct Problem {
  explicit Problem(const Shape& s)
      : shape(s),
        columns{.heads = s.heads, .groups = s.groups},
        starts(1, 0),
        projected(Tensor::random(s.dtype, count(s), columns.width(), 1, 2)),
        d_qkv(Tensor::random(s.dtype, count(s), s.heads.qkv_width(), 2)),
        taps(random_floats(s.heads.qkv_width() * kDeltaTaps, 3)),
        a_log(random_floats(s.heads.value_heads, 4)),
        dt_bias(random_floats(s.heads.value_heads, 5)),
        d_log_decay(random_floats(count(s) * s.heads.value_heads, 6)),
        d_beta(random_floats(count(s) * s.heads.value_heads, 7)) {
    for (const auto length : s.lengths) starts.push_back(starts.back() + length);
  }
  static std::int64_t count(const Shape& s) {
    std::int64_t sum = s.after;
    for (const auto length : s.lengths) sum += length;
    return sum;
  }
  std::int64_t tokens() const { return count(shape); }
  Documents documents() const {
    return {.cu_seqlens = starts.data(),
            .host_cu_seqlens = nullptr,
            .count = std::ssize(shape.lengths),
            .max_length = *std::max_element(shape.lengths.begin(), shape.lengths.end()),
            .tokens = tokens()};
  }
  /// Returns the first token of a token's document, or -1.
  std::int64_t start_of(std::int64_t t) const {
    for (std::size_t d = 0; d + 1 < starts.size(); ++d) {
      if (t >= starts[d] && t < starts[d + 1]) return starts[d];
    }
    return -1;
  }
  /// Returns the column of a channel of qkv in the projection.
  std::int64_t column_of(std::int64_t channel) const {
    const DeltaHeads& h = shape.heads;
    const std::int64_t run = channel < 2 * h.keys() ? h.keys() / shape.groups : h.values() / shape.groups;
    const std::int64_t part = channel < h.keys() ? 0 : (channel < 2 * h.keys() ? 1 : 2);
    const std::int64_t in_part = channel - part * h.keys();
    const std::int64_t group_width = (2 * h.keys() + 2 * h.values()) / shape.groups;
    return in_part / run * group_width + part * h.keys() / shape.groups + in_part % run;
  }

  Shape shape;
  DeltaColumns columns;
  std::vector<std::int32_t> starts;
  Tensor projected, d_qkv;
  std::vector<float> taps, a_log, dt_bias, d_log_decay, d_beta;
};

std::string words_of(const Shape& s) {
  return std::to_string(s.heads.key_heads) + "/" + std::to_string(s.heads.value_heads) + " heads of " +
         std::to_string(s.heads.key_dim) + "/" + std::to_string(s.heads.value_dim) + ", " +
         std::to_string(s.groups) + " groups, " + std::string(name_of(s.dtype));
}

double sigmoid64(double x) {
  return 1 / (1 + std::exp(-x));
}

/// The sum of the convolution, and of its terms' sizes.
double convolved(const Problem& p, std::int64_t t, std::int64_t channel, double* size = nullptr) {
  double sum = 0;
  for (std::int64_t s = 0; s < kDeltaTaps && t - s >= p.start_of(t); ++s) {
    const double term =
        static_cast<double>(p.taps[static_cast<std::size_t>(channel * kDeltaTaps + kDeltaTaps - 1 - s)]) *
        p.projected.at(t - s, p.column_of(channel));
    sum += term;
    if (size) *size += std::abs(term);
  }
  return sum;
}

struct Outputs {
  Outputs(const Problem& p)
      : qkv(p.shape.dtype, p.tokens(), p.shape.heads.qkv_width()),
        log_decay(p.d_beta.size(), std::nanf("")),
        beta(p.d_beta.size(), std::nanf("")) {}
  Tensor qkv;
  std::vector<float> log_decay, beta;
};

Outputs run(const Problem& p, int threads = 2) {
  Outputs r(p);
  CpuStream stream(threads);
  delta_inputs(stream, {.projected = p.projected.matrix(),
                        .columns = p.columns,
                        .documents = p.documents(),
                        .taps = p.taps.data(),
                        .a_log = p.a_log.data(),
                        .dt_bias = p.dt_bias.data(),
                        .qkv = r.qkv.matrix(),
                        .log_decay = r.log_decay.data(),
                        .beta = r.beta.data()});
  return r;
}

TEST(DeltaColumns, RunsHaveTheirHeadsTogether) {
  // One run: [4 queries | 4 keys | 8 values | 8 gates | 2 b | 2 a] heads.
  const DeltaColumns one{.heads = {2, 4, 8, 16}};
  EXPECT_EQ(one.query(1), 8);
  EXPECT_EQ(one.key(1), 24);
  EXPECT_EQ(one.value(3), 32 + 48);
  EXPECT_EQ(one.gate(0), 96);
  EXPECT_EQ(one.b(3), 163);
  EXPECT_EQ(one.a(0), 164);
  EXPECT_EQ(one.width(), 168);
  // Two runs of one key head each: [8 | 8 | 32 | 32], then [2 | 2].
  const DeltaColumns two{.heads = {2, 4, 8, 16}, .groups = 2};
  EXPECT_EQ(two.query(1), 80);
  EXPECT_EQ(two.key(0), 8);
  EXPECT_EQ(two.value(1), 32);
  EXPECT_EQ(two.value(2), 96);
  EXPECT_EQ(two.gate(3), 80 + 64);
  EXPECT_EQ(two.b(2), 164);
  EXPECT_EQ(two.a(1), 163);
  EXPECT_EQ(two.a(3), 167);
}

TEST(DeltaInputs, ForwardIsTheFloat64One) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(words_of(shape));
    const Problem p(shape);
    const Outputs found = run(p);
    EXPECT_TRUE(found.qkv.margin_untouched());
    for (std::int64_t t = 0; t < p.tokens(); ++t) {
      const bool inside = p.start_of(t) >= 0;
      for (std::int64_t c = 0; c < found.qkv.cols(); ++c) {
        double size = 0;
        const double x = inside ? convolved(p, t, c, &size) : 0, want = x * sigmoid64(x);
        ASSERT_NEAR(found.qkv.at(t, c), want, std::abs(want) * found.qkv.rounding() + 1e-6 * size)
            << t << " " << c;
      }
      for (std::int64_t h = 0; h < shape.heads.value_heads; ++h) {
        const auto at = static_cast<std::size_t>(t * shape.heads.value_heads + h),
                   i = static_cast<std::size_t>(h);
        const double x = p.projected.at(t, p.columns.a(h)) + static_cast<double>(p.dt_bias[i]);
        const double decay = -std::exp(static_cast<double>(p.a_log[i])) * std::log(1 + std::exp(x));
        const double beta = sigmoid64(p.projected.at(t, p.columns.b(h)));
        ASSERT_NEAR(static_cast<double>(found.log_decay[at]), inside ? decay : 0, 1e-7 * std::abs(decay));
        ASSERT_NEAR(static_cast<double>(found.beta[at]), inside ? beta : 0, 1e-7 * beta);
      }
    }
  }
}

TEST(DeltaInputs, FarGatesAreFinite) {
  Problem p({{2}, {1, 2, 8, 8}});
  p.projected.set(0, p.columns.a(0), 1e4);
  p.projected.set(0, p.columns.a(1), -1e4);
  p.projected.set(0, p.columns.b(0), 1e4);
  p.projected.set(0, p.columns.b(1), -1e4);
  const Outputs found = run(p);
  EXPECT_NEAR(static_cast<double>(found.log_decay[0]), -1e4 * std::exp(static_cast<double>(p.a_log[0])), 5);
  EXPECT_EQ(found.log_decay[1], 0.0f);
  EXPECT_EQ(found.beta[0], 1.0f);
  EXPECT_EQ(found.beta[1], 0.0f);
}

/// Gradients; those of weights are added to ones.
struct Gradients {
  explicit Gradients(const Problem& p)
      : d_projected(p.shape.dtype, p.tokens(), p.columns.width()),
        d_taps(p.taps.size(), 1.0f),
        d_a_log(p.a_log.size(), 1.0f),
        d_dt_bias(p.dt_bias.size(), 1.0f) {}
  Tensor d_projected;
  std::vector<float> d_taps, d_a_log, d_dt_bias;
};

Gradients run_backward(const Problem& p, int threads = 2, bool weights = true) {
  Gradients r(p);
  CpuStream stream(threads);
  const DeltaWorkspace workspace(stream.device(),
                                 delta_inputs_workspace(stream.device(), p.columns, p.tokens()));
  // Columns of gates must stay.
  for (std::int64_t t = 0; t < p.tokens(); ++t) {
    for (std::int64_t h = 0; h < p.shape.heads.value_heads; ++h) {
      for (std::int64_t i = 0; i < p.shape.heads.value_dim; ++i)
        r.d_projected.set(t, p.columns.gate(h) + i, 77);
    }
  }
  delta_inputs_backward(stream, {.projected = p.projected.matrix(),
                                 .columns = p.columns,
                                 .documents = p.documents(),
                                 .taps = p.taps.data(),
                                 .a_log = p.a_log.data(),
                                 .dt_bias = p.dt_bias.data(),
                                 .d_qkv = p.d_qkv.matrix(),
                                 .d_log_decay = p.d_log_decay.data(),
                                 .d_beta = p.d_beta.data(),
                                 .d_projected = r.d_projected.matrix(),
                                 .d_taps = weights ? r.d_taps.data() : nullptr,
                                 .d_a_log = weights ? r.d_a_log.data() : nullptr,
                                 .d_dt_bias = weights ? r.d_dt_bias.data() : nullptr,
                                 .workspace = workspace});
  return r;
}

void expect_conv_gradients(const Problem& p, const Gradients& found) {
  const auto taps = static_cast<std::size_t>(kDeltaTaps);
  for (std::int64_t c = 0; c < p.d_qkv.cols(); ++c) {
    std::vector<double> d_x(static_cast<std::size_t>(p.tokens())), size = d_x, d_taps(taps), tap_size(taps);
    const std::int64_t column = p.column_of(c);
    for (std::int64_t t = 0; t < p.tokens(); ++t) {
      if (p.start_of(t) < 0) continue;
      const double x = convolved(p, t, c), sig = sigmoid64(x);
      const double d = p.d_qkv.at(t, c) * sig * (1 + x * (1 - sig));
      for (std::int64_t s = 0; s < kDeltaTaps && t - s >= p.start_of(t); ++s) {
        const auto j = static_cast<std::size_t>(kDeltaTaps - 1 - s), at = static_cast<std::size_t>(t - s);
        const double w = static_cast<double>(p.taps[static_cast<std::size_t>(c * kDeltaTaps) + j]);
        d_x[at] += w * d;
        size[at] += std::abs(w * p.d_qkv.at(t, c));
        d_taps[j] += d * p.projected.at(t - s, column);
        tap_size[j] += std::abs(p.d_qkv.at(t, c) * p.projected.at(t - s, column));
      }
    }
    for (std::int64_t t = 0; t < p.tokens(); ++t) {
      const auto at = static_cast<std::size_t>(t);
      ASSERT_NEAR(found.d_projected.at(t, column), d_x[at],
                  std::abs(d_x[at]) * found.d_projected.rounding() + 4e-6 * size[at])
          << t << " " << c;
    }
    for (std::size_t j = 0; j < taps; ++j) {
      ASSERT_NEAR(static_cast<double>(found.d_taps[static_cast<std::size_t>(c) * taps + j]), 1 + d_taps[j],
                  4e-6 * (1 + tap_size[j]));
    }
  }
}

void expect_gate_gradients(const Problem& p, const Gradients& found) {
  for (std::int64_t h = 0; h < p.shape.heads.value_heads; ++h) {
    const auto i = static_cast<std::size_t>(h);
    double d_a_log = 1, d_dt_bias = 1, size = 1;
    for (std::int64_t t = 0; t < p.tokens(); ++t) {
      const bool inside = p.start_of(t) >= 0;
      const auto at = static_cast<std::size_t>(t * p.shape.heads.value_heads + h);
      const double x = p.projected.at(t, p.columns.a(h)) + static_cast<double>(p.dt_bias[i]),
                   b = p.projected.at(t, p.columns.b(h)), sig = sigmoid64(b);
      const double rate = -std::exp(static_cast<double>(p.a_log[i])),
                   g = static_cast<double>(p.d_log_decay[at]);
      const double d_a = inside ? g * rate * sigmoid64(x) : 0;
      const double d_b = inside ? static_cast<double>(p.d_beta[at]) * sig * (1 - sig) : 0;
      ASSERT_NEAR(found.d_projected.at(t, p.columns.a(h)), d_a, std::abs(d_a) * found.d_projected.rounding());
      ASSERT_NEAR(found.d_projected.at(t, p.columns.b(h)), d_b, std::abs(d_b) * found.d_projected.rounding());
      const double of_rate = inside ? g * rate * std::log(1 + std::exp(x)) : 0;
      d_dt_bias += d_a;
      d_a_log += of_rate;
      size += std::abs(of_rate) + std::abs(d_a);
      for (std::int64_t k = 0; k < p.shape.heads.value_dim; ++k)
        ASSERT_EQ(found.d_projected.at(t, p.columns.gate(h) + k), 77);
    }
    EXPECT_NEAR(static_cast<double>(found.d_a_log[i]), d_a_log, 2e-7 * size);
    EXPECT_NEAR(static_cast<double>(found.d_dt_bias[i]), d_dt_bias, 2e-7 * size);
  }
}

TEST(DeltaInputs, GradientsAreTheFloat64Ones) {
  for (const Shape& shape : kShapes) {
    SCOPED_TRACE(words_of(shape));
    const Problem p(shape);
    const Gradients found = run_backward(p);
    EXPECT_TRUE(found.d_projected.margin_untouched());
    expect_conv_gradients(p, found);
    expect_gate_gradients(p, found);
    const Gradients frozen = run_backward(p, 2, false);
    EXPECT_TRUE(frozen.d_projected == found.d_projected);
    EXPECT_EQ(frozen.d_taps.front(), 1.0f);
  }
}

TEST(DeltaInputs, BitsDoNotDependOnThreads) {
  const Problem p(kShapes[2]);
  const Outputs one = run(p, 1), more = run(p, 7);
  EXPECT_TRUE(one.qkv == more.qkv);
  EXPECT_EQ(one.beta, more.beta);
  const Gradients back = run_backward(p, 1), more_back = run_backward(p, 7);
  EXPECT_TRUE(back.d_projected == more_back.d_projected);
  EXPECT_EQ(back.d_taps, more_back.d_taps);
  EXPECT_EQ(back.d_a_log, more_back.d_a_log);
}

TEST(DeltaInputs, ADocumentHasItsBitsAtAnyPlace) {
  Problem p({{4, 9, 2, 9}, {2, 4, 16, 24}, 2});
  for (std::int64_t t = 0; t < 9; ++t) {
    for (std::int64_t c = 0; c < p.projected.cols(); ++c)
      p.projected.set(15 + t, c, p.projected.at(4 + t, c));
    for (std::int64_t c = 0; c < p.d_qkv.cols(); ++c) p.d_qkv.set(15 + t, c, p.d_qkv.at(4 + t, c));
    for (auto* values : {&p.d_log_decay, &p.d_beta})
      std::copy_n(values->begin() + (4 + t) * 4, 4, values->begin() + (15 + t) * 4);
  }
  const Outputs found = run(p);
  const Gradients back = run_backward(p);
  for (std::int64_t t = 0; t < 9; ++t) {
    for (std::int64_t c = 0; c < found.qkv.cols(); ++c)
      ASSERT_EQ(found.qkv.at(4 + t, c), found.qkv.at(15 + t, c));
    for (std::int64_t c = 0; c < p.projected.cols(); ++c)
      ASSERT_EQ(back.d_projected.at(4 + t, c), back.d_projected.at(15 + t, c)) << t << " " << c;
  }
}

/// Inputs of the documents of a problem as sequences, `piece` tokens of each per call.
Outputs decode(const Problem& p, std::int64_t piece) {
  Outputs r(p);
  const DeltaHeads& heads = p.shape.heads;
  const std::int64_t documents = std::ssize(p.shape.lengths), value_heads = heads.value_heads;
  std::vector<float> past(static_cast<std::size_t>(documents * (kDeltaTaps - 1) * heads.qkv_width()),
                          std::nanf(""));
  CpuStream stream;
  for (std::int64_t begin = 0; begin < p.documents().max_length; begin += piece) {
    std::vector<std::int32_t> slots, positions;
    std::vector<std::int64_t> rows;
    for (std::int64_t d = documents - 1; d >= 0; --d) {
      const auto at = static_cast<std::size_t>(d);
      for (std::int64_t i = begin; i < std::min<std::int64_t>(begin + piece, p.shape.lengths[at]); ++i) {
        slots.push_back(static_cast<std::int32_t>(d));
        positions.push_back(static_cast<std::int32_t>(i));
        rows.push_back(p.starts[at] + i);
      }
    }
    const std::int64_t count = std::ssize(rows);
    Tensor projected(p.shape.dtype, count, p.columns.width()), qkv(p.shape.dtype, count, heads.qkv_width());
    for (std::int64_t t = 0; t < count; ++t) {
      for (std::int64_t c = 0; c < projected.cols(); ++c)
        projected.set(t, c, p.projected.at(rows[static_cast<std::size_t>(t)], c));
    }
    std::vector<float> log_decay(static_cast<std::size_t>(count * value_heads)), beta = log_decay;
    cached_delta_inputs(stream, {.projected = projected.matrix(),
                                 .columns = p.columns,
                                 .slots = slots.data(),
                                 .positions = positions.data(),
                                 .past = past.data(),
                                 .taps = p.taps.data(),
                                 .a_log = p.a_log.data(),
                                 .dt_bias = p.dt_bias.data(),
                                 .qkv = qkv.matrix(),
                                 .log_decay = log_decay.data(),
                                 .beta = beta.data()});
    for (std::int64_t t = 0; t < count; ++t) {
      const std::int64_t to = rows[static_cast<std::size_t>(t)];
      for (std::int64_t c = 0; c < qkv.cols(); ++c) r.qkv.set(to, c, qkv.at(t, c));
      std::copy_n(log_decay.begin() + t * value_heads, value_heads, r.log_decay.begin() + to * value_heads);
      std::copy_n(beta.begin() + t * value_heads, value_heads, r.beta.begin() + to * value_heads);
    }
  }
  return r;
}

TEST(CachedDeltaInputs, DecodingHasTheBitsOfTheWholeSequence) {
  for (Shape shape : kShapes) {
    SCOPED_TRACE(words_of(shape));
    shape.after = 0;
    const Problem p(shape);
    const Outputs whole = run(p);
    for (const std::int64_t piece : {1, 2, 3, 5, 1000}) {
      const Outputs found = decode(p, piece);
      EXPECT_TRUE(found.qkv == whole.qkv) << piece;
      EXPECT_EQ(found.log_decay, whole.log_decay);
      EXPECT_EQ(found.beta, whole.beta);
    }
  }
}

TEST(CachedDeltaInputs, CopiesOfTheFirstTokenChangeThePastOnce) {
  const Problem p({{3}, {1, 1, 8, 8}});
  Tensor projected = p.projected;
  for (std::int64_t c = 0; c < projected.cols(); ++c) projected.set(2, c, projected.at(0, c));
  const std::int32_t slots[] = {1, 0, 1}, positions[] = {5, 6, 5};
  const std::vector<float> before = random_floats(2 * 3 * 24, 9);
  std::vector<float> past = before, log_decay(3), beta(3);
  Tensor qkv(DType::f32, 3, 24);
  CpuStream stream;
  CachedDeltaInputsArgs args{.projected = projected.matrix(),
                             .columns = p.columns,
                             .slots = slots,
                             .positions = positions,
                             .past = past.data(),
                             .taps = p.taps.data(),
                             .a_log = p.a_log.data(),
                             .dt_bias = p.dt_bias.data(),
                             .qkv = qkv.matrix(),
                             .log_decay = log_decay.data(),
                             .beta = beta.data()};
  cached_delta_inputs(stream, args);
  for (std::int64_t c = 0; c < 24; ++c) {
    EXPECT_EQ(qkv.at(2, c), qkv.at(0, c));
    for (std::int64_t s = 0; s < 3; ++s) {
      const auto at = static_cast<std::size_t>(c);
      const auto row = static_cast<std::size_t>(s) * 24 + at;
      EXPECT_EQ(static_cast<double>(past[72 + row]),
                s == 2 ? projected.at(0, p.column_of(c)) : static_cast<double>(before[72 + row]));
      EXPECT_EQ(static_cast<double>(past[row]),
                s == 0 ? projected.at(1, p.column_of(c)) : static_cast<double>(before[row]));
    }
  }
  EXPECT_EQ(beta[2], beta[0]);
  args.past = nullptr;
  EXPECT_THROW(cached_delta_inputs(stream, args), std::logic_error);
}

TEST(DeltaInputs, WrongArgumentsAreRefused) {
  const Problem p({{3}, {2, 4, 8, 8}});
  Outputs out(p);
  CpuStream stream;
  const DeltaInputsArgs good{.projected = p.projected.matrix(),
                             .columns = p.columns,
                             .documents = p.documents(),
                             .taps = p.taps.data(),
                             .a_log = p.a_log.data(),
                             .dt_bias = p.dt_bias.data(),
                             .qkv = out.qkv.matrix(),
                             .log_decay = out.log_decay.data(),
                             .beta = out.beta.data()};
  const auto refused = [&](auto change) {
    DeltaInputsArgs args = good;
    change(args);
    EXPECT_THROW(delta_inputs(stream, args), std::logic_error);
  };
  delta_inputs(stream, good);
  refused([](auto& a) { a.columns.groups = 3; });
  refused([](auto& a) { a.columns.groups = 0; });
  refused([](auto& a) { a.columns.heads.key_dim = 16; });
  refused([](auto& a) { a.projected.cols -= 1; });
  refused([](auto& a) { a.documents.tokens = 2; });
  refused([](auto& a) { a.qkv.rows = 2; });
  refused([](auto& a) { a.qkv.dtype = DType::bf16; });
  refused([](auto& a) { a.taps = nullptr; });
  refused([](auto& a) { a.beta = nullptr; });
  Gradients back(p);
  DeltaInputsBackwardArgs args{.projected = p.projected.matrix(),
                               .columns = p.columns,
                               .documents = p.documents(),
                               .taps = p.taps.data(),
                               .a_log = p.a_log.data(),
                               .dt_bias = p.dt_bias.data(),
                               .d_qkv = p.d_qkv.matrix(),
                               .d_log_decay = p.d_log_decay.data(),
                               .d_beta = nullptr,
                               .d_projected = back.d_projected.matrix()};
  EXPECT_THROW(delta_inputs_backward(stream, args), std::logic_error);
  args.d_beta = p.d_beta.data();
  delta_inputs_backward(stream, args);
  args.d_projected.cols -= 1;
  EXPECT_THROW(delta_inputs_backward(stream, args), std::logic_error);
}

}  // namespace
}  // namespace octet::ops::delta_inputs_test
