// The loss of a teacher's distributions, against its definition in float64 and against differences of it.
#include "octet/ops/distillation.h"

#include <algorithm>
#include <numeric>

#include "octet/base/error.h"
#include "ops/tensor.h"

namespace octet::ops::distillation_test {
namespace {

using Row = std::vector<double>;

constexpr std::int64_t kRows = 4;
constexpr std::int64_t kUntrained = 2;  ///< the row without a target

/// The distribution of a teacher for a row: logits, or listed tokens.
struct Teacher {
  Row logits;
  std::vector<std::int32_t> ids;
  Row logprobs;
  double rest = 0;
};

Row softmax(const Row& x, double temperature) {
  const double most = *std::ranges::max_element(x);
  Row p;
  for (const double v : x) p.push_back(std::exp((v - most) / temperature));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& v : p) v /= sum;
  return p;
}

/// Returns the terms of KL(a || b) of the first `count` outcomes.
double divergence_of(const Row& a, const Row& b, std::size_t count) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += a[i] > 0 ? a[i] * std::log(a[i] / b[i]) : 0.0;
  return sum;
}

double divergence_of(const DistillationRule& rule, const Row& p, const Row& q, std::size_t count) {
  if (rule.beta == 0) return divergence_of(p, q, count);
  if (rule.beta == 1) return divergence_of(q, p, count);
  Row m;
  for (std::size_t i = 0; i < p.size(); ++i) m.push_back(rule.beta * p[i] + (1 - rule.beta) * q[i]);
  return rule.beta * divergence_of(p, m, count) + (1 - rule.beta) * divergence_of(q, m, count);
}

struct Losses {
  double divergence = 0, cross_entropy = 0;
  bool agrees = false;
};

/// The losses of a row of logits before their cap.
Losses losses_of(const DistillationRule& rule, const Row& before, double cap, std::size_t target,
                 const Teacher& teacher) {
  Row z = before;
  for (double& v : z) v = cap > 0 ? cap * std::tanh(v / cap) : v;
  const Row q = softmax(z, 1);
  Losses losses{.cross_entropy = -std::log(q[target])};
  const double most = *std::ranges::max_element(z);
  if (teacher.ids.empty()) {
    losses.divergence = divergence_of(rule, softmax(teacher.logits, rule.temperature),
                                      softmax(z, rule.temperature), z.size());
    const auto best = std::ranges::max_element(teacher.logits) - teacher.logits.begin();
    losses.agrees = z[static_cast<std::size_t>(best)] == most;
    return losses;
  }
  Row own, wanted = teacher.logprobs;
  double others = 0;
  for (std::size_t i = 0; i < z.size(); ++i) {
    if (std::ranges::find(teacher.ids, static_cast<std::int32_t>(i)) == teacher.ids.end()) others += q[i];
  }
  for (const std::int32_t id : teacher.ids) own.push_back(std::log(q[static_cast<std::size_t>(id)]));
  if (rule.rest != TeacherRest::renormalise && teacher.ids.size() < z.size()) {
    own.push_back(std::log(others));
    wanted.push_back(std::log(std::max(teacher.rest, 1e-9)));
  }
  const std::size_t count = rule.rest == TeacherRest::zero ? teacher.ids.size() : own.size();
  losses.divergence =
      divergence_of(rule, softmax(wanted, rule.temperature), softmax(own, rule.temperature), count);
  losses.agrees = z[static_cast<std::size_t>(teacher.ids.front())] == most;
  return losses;
}

/// Lists the `ranks` most probable tokens of a softmax, with numbers that a float holds.
Teacher listed(const Row& logits, std::int64_t ranks) {
  const Row p = softmax(logits, 1);
  Teacher teacher;
  teacher.ids.resize(p.size());
  std::iota(teacher.ids.begin(), teacher.ids.end(), 0);
  const auto of = [&](std::int32_t id) { return p[static_cast<std::size_t>(id)]; };
  std::ranges::stable_sort(teacher.ids, std::greater<>(), of);
  teacher.ids.resize(static_cast<std::size_t>(ranks));
  teacher.rest = 1;
  for (const std::int32_t id : teacher.ids) {
    teacher.logprobs.push_back(static_cast<double>(static_cast<float>(std::log(of(id)))));
    teacher.rest -= of(id);
  }
  teacher.rest = static_cast<double>(static_cast<float>(std::max(0.0, teacher.rest)));
  return teacher;
}

/// Random logits of a model and of its teacher. `ranks` 0: the teacher gives logits.
struct Case {
  Case(DType dtype, std::int64_t vocabulary, std::int64_t ranks_of_teacher)
      : logits(Tensor::random(dtype, kRows, vocabulary, 5, 2)),
        of_teacher(Tensor::random(dtype, kRows, vocabulary, 6, 2)),
        ranks(ranks_of_teacher) {
    of_teacher.set(0, 1, 20);  // one row agrees: both models prefer this token
    logits.set(0, 1, 20);
    for (std::int64_t r = 0; r < kRows; ++r) {
      // The targets of rows 0 and 3 are listed, and the target of row 1 is the least probable token.
      Teacher teacher{.logits = row(of_teacher, r)};
      if (ranks > 0) teacher = listed(teacher.logits, ranks);
      const Row p = row(of_teacher, r);
      const auto place = r == 1 ? std::ranges::min_element(p) : std::ranges::max_element(p);
      targets.push_back(r == kUntrained ? -100 : static_cast<std::int32_t>(place - p.begin()));
      ids.insert(ids.end(), teacher.ids.begin(), teacher.ids.end());
      for (const double v : teacher.logprobs) logprobs.push_back(static_cast<float>(v));
      rest.push_back(static_cast<float>(teacher.rest));
      teachers.push_back(teacher);
    }
    kept.resize(ids.size());
  }
  static Row row(const Tensor& t, std::int64_t r) {
    Row x;
    for (std::int64_t c = 0; c < t.cols(); ++c) x.push_back(t.at(r, c));
    return x;
  }
  DistillationArgs args(Tensor& x, const DistillationRule& rule, double cap) {
    return {.logits = x.matrix(),
            .targets = targets.data(),
            .soft_cap = static_cast<float>(cap),
            .rule = rule,
            .teacher = ranks > 0 ? ConstMatrix{} : ConstMatrix(of_teacher.matrix()),
            .ranks = ranks,
            .ids = ids.data(),
            .logprobs = logprobs.data(),
            .rest = rest.data(),
            .kept = kept.data(),
            .row_loss = loss.data(),
            .row_divergence = divergence.data(),
            .row_cross_entropy = cross_entropy.data(),
            .row_agreement = agreement.data()};
  }

  Tensor logits, of_teacher;
  std::int64_t ranks;
  std::vector<Teacher> teachers;
  std::vector<std::int32_t> targets, ids;
  std::vector<float> logprobs, rest, kept;
  std::vector<float> loss = std::vector<float>(kRows, -1), divergence = loss, cross_entropy = loss,
                     agreement = loss;
};

void expect_row(const Case& c, const Tensor& x, const DistillationRule& rule, double cap, std::int64_t r) {
  const auto i = static_cast<std::size_t>(r);
  const auto target = static_cast<std::size_t>(c.targets[i]);
  const Row before = Case::row(c.logits, r);
  const auto loss_of = [&](const Row& z) {
    const Losses l = losses_of(rule, z, cap, target, c.teachers[i]);
    return (1 - rule.ratio) * l.cross_entropy + rule.ratio * l.divergence;
  };
  const Losses want = losses_of(rule, before, cap, target, c.teachers[i]);
  const auto near = [](float value, double wanted) {
    EXPECT_NEAR(static_cast<double>(value), wanted, 1e-5 * (1 + std::abs(wanted)));
  };
  near(c.divergence[i], want.divergence);
  near(c.cross_entropy[i], want.cross_entropy);
  near(c.loss[i], loss_of(before));
  EXPECT_EQ(c.agreement[i] != 0.0f, want.agrees);
  const auto expect_slope = [&](std::size_t k) {
    constexpr double step = 1e-4;
    Row more = before, less = before;
    more[k] += step, less[k] -= step;
    const double slope = (loss_of(more) - loss_of(less)) / (2 * step);
    EXPECT_NEAR(x.at(r, static_cast<std::int64_t>(k)), slope, std::abs(slope) * x.rounding() + 2e-6)
        << r << " " << k;
  };
  // Some tokens of a large vocabulary, the target, and listed tokens.
  for (std::size_t k = 0; k < before.size(); k += 1 + before.size() / 32) expect_slope(k);
  expect_slope(target);
  for (const std::int32_t id : c.teachers[i].ids) expect_slope(static_cast<std::size_t>(id));
}

void expect_rows(DType dtype, std::int64_t vocabulary, std::int64_t ranks, const DistillationRule& rule,
                 double cap) {
  SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << vocabulary << " ranks " << ranks << " ratio "
                                  << rule.ratio << " beta " << rule.beta << " T " << rule.temperature
                                  << " rest " << static_cast<int>(rule.rest) << " cap " << cap);
  Case c(dtype, vocabulary, ranks);
  Tensor x = c.logits;
  CpuStream stream;
  distillation(stream, c.args(x, rule, cap));
  for (std::int64_t r = 0; r < kRows; ++r) {
    if (r != kUntrained) {
      expect_row(c, x, rule, cap, r);
      continue;
    }
    for (const auto* values : {&c.loss, &c.divergence, &c.cross_entropy, &c.agreement})
      EXPECT_EQ((*values)[kUntrained], 0.0f);
    for (std::int64_t k = 0; k < vocabulary; ++k) ASSERT_EQ(x.at(r, k), 0.0);
  }
  EXPECT_EQ(c.agreement.front(), 1.0f);
  EXPECT_TRUE(x.margin_untouched());
  // Without a gradient, the logits stay and the losses have the same bits.
  const std::vector<float> losses = c.loss;
  Tensor unchanged = c.logits;
  DistillationArgs args = c.args(unchanged, rule, cap);
  args.gradient = false;
  distillation(stream, args);
  EXPECT_TRUE(unchanged == c.logits);
  EXPECT_EQ(c.loss, losses);
}

TEST(Distillation, OfLogitsHasTheLossAndSlopesOfFloat64) {
  for (const DType dtype : kComputeTypes) {
    for (const double beta : {0.0, 0.3, 0.5, 1.0}) {
      for (const double temperature : {1.0, 2.5}) {
        for (const double cap : {0.0, 30.0})
          expect_rows(dtype, 29, 0, {.ratio = 0.7, .beta = beta, .temperature = temperature}, cap);
      }
    }
  }
  expect_rows(DType::f32, 531, 0, {.ratio = 1, .beta = 0.5}, 0);
  expect_rows(DType::f32, 29, 0, {.ratio = 0}, 0);
}

TEST(Distillation, OfListedTokensHasTheLossAndSlopesOfFloat64) {
  using enum TeacherRest;
  for (const DType dtype : kComputeTypes) {
    for (const TeacherRest rest : {bucket, renormalise, zero}) {
      for (const double beta : {0.0, 0.3, 0.5, 1.0}) {
        for (const double temperature : {1.0, 2.5}) {
          const DistillationRule rule{.ratio = 0.7, .beta = beta, .temperature = temperature, .rest = rest};
          expect_rows(dtype, 29, 5, rule, 0);
          expect_rows(dtype, 29, 8, rule, 30);
        }
      }
    }
  }
  for (const TeacherRest rest : {bucket, renormalise, zero}) {
    expect_rows(DType::f32, 531, 12, {.ratio = 1, .beta = 0.5, .rest = rest}, 0);
    expect_rows(DType::f32, 29, 1, {.ratio = 0.5, .rest = rest}, 0);
  }
}

TEST(Distillation, OfAllTokensInAListIsThatOfLogits) {
  using enum TeacherRest;
  for (const TeacherRest rest : {bucket, renormalise, zero}) {
    for (const double beta : {0.0, 0.5, 1.0}) {
      const DistillationRule rule{.ratio = 0.6, .beta = beta, .temperature = 1.5, .rest = rest};
      Case list(DType::f32, 29, 29), logits(DType::f32, 29, 0);
      Tensor of_list = list.logits, of_logits = logits.logits;
      CpuStream stream;
      distillation(stream, list.args(of_list, rule, 0));
      distillation(stream, logits.args(of_logits, rule, 0));
      for (std::size_t r = 0; r < kRows; ++r) {
        EXPECT_NEAR(static_cast<double>(list.loss[r]), static_cast<double>(logits.loss[r]), 1e-5);
        for (std::int64_t k = 0; k < 29; ++k) {
          const auto row = static_cast<std::int64_t>(r);
          ASSERT_NEAR(of_list.at(row, k), of_logits.at(row, k), 2e-6);
        }
      }
    }
  }
}

TEST(Distillation, OfATeacherThatEqualsTheModelIsZero) {
  for (const double beta : {0.0, 0.5, 1.0}) {
    Case c(DType::f32, 29, 0);
    c.of_teacher = c.logits;
    Tensor x = c.logits;
    CpuStream stream;
    distillation(stream, c.args(x, {.ratio = 1, .beta = beta}, 0));
    for (std::int64_t r = 0; r < kRows; ++r) {
      EXPECT_NEAR(static_cast<double>(c.loss[static_cast<std::size_t>(r)]), 0, 1e-6);
      for (std::int64_t k = 0; k < 29; ++k) ASSERT_NEAR(x.at(r, k), 0, 1e-6);
    }
  }
}

TEST(Distillation, OfARestThatRoundedToZeroIsFinite) {
  for (const double beta : {0.0, 0.5, 1.0}) {
    Case c(DType::f32, 29, 5);
    std::ranges::fill(c.rest, 0.0f);
    for (Teacher& teacher : c.teachers) teacher.rest = 0;
    Tensor x = c.logits;
    CpuStream stream;
    const DistillationRule rule{.ratio = 1, .beta = beta};
    distillation(stream, c.args(x, rule, 0));
    for (const std::int64_t r : {0, 1, 3}) expect_row(c, x, rule, 0, r);
  }
}

TEST(Distillation, OfNoRowsDoesNothing) {
  CpuStream stream;
  distillation(stream, {.logits = {.data = nullptr, .dtype = DType::f32, .rows = 0, .cols = 5, .ld = 5}});
}

TEST(Distillation, RefusesWrongParameters) {
  const auto expect_refused = [](const std::string& part, auto change, std::int64_t ranks = 5) {
    Case c(DType::f32, 29, ranks);
    Tensor x = c.logits;
    DistillationArgs args = c.args(x, {}, 0);
    change(args, c);
    CpuStream stream;
    try {
      distillation(stream, args);
      static_cast<Stream&>(stream).synchronize();
      ADD_FAILURE() << "not refused: " << part;
    } catch (const std::exception& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  using Args = DistillationArgs;
  expect_refused("ratio and beta", [](Args& a, Case&) { a.rule.ratio = 1.5; });
  expect_refused("ratio and beta", [](Args& a, Case&) { a.rule.beta = -0.1; });
  expect_refused("ratio and beta", [](Args& a, Case&) { a.rule.beta = 1.1; });
  expect_refused("temperature", [](Args& a, Case&) { a.rule.temperature = 0; });
  expect_refused("arrays of rows", [](Args& a, Case&) { a.row_agreement = nullptr; });
  expect_refused("listed tokens of each row", [](Args& a, Case&) { a.ranks = 0; });
  expect_refused("listed tokens of each row", [](Args& a, Case&) { a.ranks = 30; });
  expect_refused("listed tokens of each row", [](Args& a, Case&) { a.rest = nullptr; });
  expect_refused("a listed token is outside", [](Args&, Case& c) { c.ids[1] = 29; });
  expect_refused("a listed token is outside", [](Args&, Case& c) { c.ids[1] = -1; });
  expect_refused("a target is outside", [](Args&, Case& c) { c.targets[0] = 29; });
  expect_refused(
      "logits of the teacher", [](Args& a, Case&) { a.teacher.cols = 28; }, 0);
}

}  // namespace
}  // namespace octet::ops::distillation_test
