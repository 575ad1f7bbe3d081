// Compares the loss of a teacher's distributions on the GPU with the CPU.
#include "octet/ops/distillation.h"

#include <algorithm>
#include <numeric>

#include "gpu/sides.h"

namespace octet::ops::gpu_distillation_test {
namespace {

struct Shape {
  std::int64_t rows, vocabulary, ranks;  ///< ranks 0: the teacher gives logits
};
constexpr Shape kListed[] = {{3, 67, 1}, {5, 1031, 64}, {4, 512, 512}, {300, 4096, 64}, {2, 128256, 1500}};
constexpr Shape kLogits[] = {{3, 67, 0}, {5, 1031, 0}, {300, 4096, 0}, {2, 128256, 0}};

/// The most probable tokens of a row, best first.
struct Listed {
  std::vector<std::int32_t> ids;
  std::vector<float> logprobs, rest;
};
Listed list(const Tensor& logits, std::int64_t ranks) {
  Listed listed;
  for (std::int64_t r = 0; r < logits.rows(); ++r) {
    std::vector<std::int32_t> order(static_cast<std::size_t>(logits.cols()));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, std::greater<>(), [&](std::int32_t id) { return logits.at(r, id); });
    double sum = 0, top = 0;
    for (std::int64_t c = 0; c < logits.cols(); ++c) sum += std::exp(logits.at(r, c));
    for (std::int64_t k = 0; k < ranks; ++k) {
      const std::int32_t id = order[static_cast<std::size_t>(k)];
      listed.ids.push_back(id);
      listed.logprobs.push_back(static_cast<float>(logits.at(r, id) - std::log(sum)));
      top += std::exp(logits.at(r, id)) / sum;
    }
    listed.rest.push_back(static_cast<float>(std::max(0.0, 1 - top)));
  }
  return listed;
}

void expect_both(DType dtype, const Shape& shape, const DistillationRule& rule, float cap, bool gradient) {
  const auto& [rows, vocabulary, ranks] = shape;
  SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << rows << " x " << vocabulary << " ranks "
                                  << ranks << " beta " << rule.beta << " T " << rule.temperature << " rest "
                                  << static_cast<int>(rule.rest) << " cap " << cap);
  // Rows of whole packs are dense, and others have a margin.
  const std::int64_t gap = vocabulary % 8 == 0 ? 0 : 3;
  const Tensor before = Tensor::random(dtype, rows, vocabulary, 1, 2, gap),
               teacher = Tensor::random(dtype, rows, vocabulary, 2, 2, gap);
  const Listed listed = list(teacher, ranks);
  std::vector<std::int32_t> targets;
  for (std::int64_t r = 0; r < rows; ++r) {
    const bool takes_listed = ranks > 0 && r % 3 == 0;
    targets.push_back(r % 5 == 3     ? -100
                      : takes_listed ? listed.ids[static_cast<std::size_t>(r * ranks)]
                                     : static_cast<std::int32_t>(r * 31 % vocabulary));
  }
  const std::vector<float> empty(static_cast<std::size_t>(rows), -1.0f);
  both(
      [&](Side& s) {
        const Matrix logits = s.put(before);
        float* results[4];
        for (float*& result : results) result = s.put(empty);
        DistillationArgs args{.logits = logits,
                              .targets = s.put(targets),
                              .soft_cap = cap,
                              .gradient = gradient,
                              .rule = rule,
                              .row_loss = results[0],
                              .row_divergence = results[1],
                              .row_cross_entropy = results[2],
                              .row_agreement = results[3]};
        if (ranks > 0) {
          args.ranks = ranks;
          args.ids = s.put(listed.ids);
          args.logprobs = s.put(listed.logprobs);
          args.rest = s.put(listed.rest);
          args.kept = s.put(std::vector<float>(listed.ids.size()));
        } else {
          args.teacher = s.put(teacher);
        }
        distillation(s, args);
        s.out("logits", logits);
        const char* const names[] = {"loss", "divergence", "cross_entropy", "agreement"};
        for (int i = 0; i < 4; ++i) s.out(names[i], results[i], rows, DType::f32);
      },
      {.relative = 2e-5, .absolute = 2e-6, .bf16_steps = 1.01});
}

TEST(Distillation, OfListedTokens) {
  using enum TeacherRest;
  for (const DType dtype : kComputeTypes) {
    for (const Shape& shape : kListed) {
      for (const TeacherRest rest : {bucket, renormalise, zero}) {
        for (const double beta : {0.0, 0.5, 1.0})
          expect_both(dtype, shape, {.ratio = 0.7, .beta = beta, .rest = rest}, 0, true);
        expect_both(dtype, shape, {.ratio = 0.7, .beta = 0.3, .temperature = 2.5, .rest = rest}, 30, true);
        expect_both(dtype, shape, {.ratio = 1, .rest = rest}, 30, false);
      }
    }
  }
}

TEST(Distillation, OfLogits) {
  for (const DType dtype : kComputeTypes) {
    for (const Shape& shape : kLogits) {
      for (const double beta : {0.0, 0.5, 1.0})
        expect_both(dtype, shape, {.ratio = 0.7, .beta = beta}, 0, true);
      expect_both(dtype, shape, {.ratio = 0.7, .beta = 0.3, .temperature = 2.5}, 30, true);
      expect_both(dtype, shape, {.ratio = 1}, 30, false);
    }
  }
}

}  // namespace
}  // namespace octet::ops::gpu_distillation_test
