// Compares backward of routing and the load of experts on the GPU with the CPU side.
#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <string>

#include "gpu/sides.h"
#include "octet/ops/routing.h"

namespace octet::ops::routing_backward_test {
namespace {

std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

struct Shape {
  std::int64_t tokens, taken, experts;
};
const std::vector<Shape> kShapes = {{1, 1, 1},     {3, 2, 4},   {37, 8, 128}, {130, 3, 33},
                                    {64, 8, 1024}, {9, 60, 60}, {700, 4, 60}};

/// Returns the experts of each token, all different and in random order.
std::vector<std::int32_t> drawn(const Shape& s) {
  std::mt19937 random(5);
  std::vector<std::int32_t> all(index(s.experts)), taken;
  std::iota(all.begin(), all.end(), 0);
  for (std::int64_t t = 0; t < s.tokens; ++t) {
    std::ranges::shuffle(all, random);
    taken.insert(taken.end(), all.begin(), all.begin() + s.taken);
  }
  return taken;
}

struct Dealt {
  DealArgs args;
  ConstMatrix logits;
};
/// Both sides use the same experts, independent of the routing on each side.
Dealt dealt_on(Side& side, const Shape& s) {
  const std::vector<std::int32_t> none(index(s.tokens * s.taken), -1);
  Dealt made{.args = {.experts = side.put(drawn(s)),
                      .weights = side.put(random_floats(s.tokens * s.taken, 6)),
                      .tokens = s.tokens,
                      .taken = s.taken,
                      .count = s.experts,
                      .begins = side.put(std::vector<std::int32_t>(index(s.experts + 1))),
                      .row_tokens = side.put(none),
                      .places = side.put(none),
                      .place_weights = side.put(std::vector<float>(none.size()))},
             .logits = side.put(Tensor::random(DType::f32, s.tokens, s.experts, 7))};
  deal(side, made.args);
  return made;
}

std::string words(const Shape& s) {
  return std::to_string(s.tokens) + " tokens to " + std::to_string(s.taken) + " of " +
         std::to_string(s.experts);
}

TEST(GpuRoutingBackward, GradientsOfLogitsAreThoseOfTheCpu) {
  for (const Shape& s : kShapes) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const bool normalised : {false, true}) {
        for (const int kind : {0, 1, 2, 3, 4}) {
          const bool balanced = kind == 1, sigmoid = kind == 2 || kind == 4, bounded = kind > 2;
          SCOPED_TRACE(words(s) + (normalised ? ", normalised" : "") + (balanced ? ", balanced" : "") +
                       (sigmoid ? ", sigmoid" : "") + (bounded ? ", z-loss" : ""));
          both(
              [&](Side& side) {
                const Dealt dealt = dealt_on(side, s);
                const Matrix d = side.put(Tensor::random(dtype, s.tokens, s.experts, 9));
                route_backward(
                    side, {.logits = dealt.logits,
                           .taken = s.taken,
                           .normalised = normalised,
                           .scores = sigmoid ? RouterScores::sigmoid : RouterScores::softmax,
                           .scale = sigmoid ? 2.5f : 1.0f,
                           .experts = dealt.args.experts,
                           .places = dealt.args.places,
                           .d_weights = side.put(random_floats(s.tokens * s.taken, 8)),
                           .d_probabilities = balanced ? side.put(random_floats(s.experts, 10)) : nullptr,
                           .z_slope = bounded ? side.put(std::vector<float>{0.3f}) : nullptr,
                           .d_logits = d});
                side.out("d_logits", d);
              },
              {.relative = 1e-4, .absolute = 1e-5, .bf16_steps = dtype == DType::bf16 ? 1.0 : 0.0});
        }
      }
    }
  }
}

TEST(GpuRoutingBackward, RowsAreWeighedAsOnTheCpu) {
  for (const Shape& s : kShapes) {
    for (const auto& [width, out] : {std::array<std::int64_t, 2>{1, 3}, {7, 0}, {48, 64}, {768, 2048}}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        SCOPED_TRACE(words(s) + ", " + std::to_string(width));
        both(
            [&, width = width, out = out](Side& side) {
              const std::int64_t rows = s.tokens * s.taken;
              const Dealt dealt = dealt_on(side, s);
              const Matrix d = side.put(Tensor::random(dtype, rows, width, 2));
              const Matrix d_y = out == 0 ? Matrix{} : side.put(Tensor::random(dtype, rows, out, 3));
              float* const d_weights = side.put(std::vector<float>(index(rows)));
              weigh_backward(side, {.x = side.put(Tensor::random(dtype, rows, width, 1)),
                                    .d = d,
                                    .d_y = d_y,
                                    .tokens = s.tokens,
                                    .taken = s.taken,
                                    .places = dealt.args.places,
                                    .weights = dealt.args.place_weights,
                                    .d_weights = d_weights});
              side.out("d_weights", d_weights, rows, DType::f32);
              side.out("d", d);
              if (out != 0) side.out("d_y", d_y);
            },
            {.relative = 1e-6, .absolute = 1e-6});
      }
    }
  }
}

TEST(GpuRoutingBackward, SumsWithoutWeightsAreThoseOfTheCpu) {
  for (const Shape& s : kShapes) {
    both(
        [&](Side& side) {
          const Dealt dealt = dealt_on(side, s);
          const Matrix out = side.put(Tensor::random(DType::bf16, s.tokens, 40, 4));
          weighted_rows(side, {.x = side.put(Tensor::random(DType::bf16, s.tokens * s.taken, 40, 5)),
                               .taken = s.taken,
                               .places = dealt.args.places,
                               .addend = out,
                               .out = out});
          side.out("out", out);
        },
        {.relative = 1e-6, .absolute = 1e-5, .bf16_steps = 1.0});
  }
}

TEST(GpuRoutingBackward, GatedRowsAndTheirGradientsAreThoseOfTheCpu) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const auto& [tokens, cols] : {std::array<std::int64_t, 2>{1, 1}, {5, 7}, {33, 515}, {130, 2048}}) {
      both(
          [&, tokens = tokens, cols = cols](Side& side) {
            const float* const logits = side.put(random_floats(tokens, 1));
            const Matrix x = side.put(Tensor::random(dtype, tokens, cols, 2));
            const Matrix out = side.put(Tensor::random(dtype, tokens, cols, 3));
            const Matrix d_x = side.put(Tensor::random(dtype, tokens, cols, 4));
            const Matrix d_logits = side.put(Tensor::random(dtype, tokens, 1, 5));
            gated_rows_backward(side,
                                {.logits = logits, .x = x, .d_out = out, .d_x = d_x, .d_logits = d_logits});
            gated_rows(side, {.logits = logits, .x = x, .addend = out, .out = out});
            side.out("out", out);
            side.out("d_x", d_x);
            side.out("d_logits", d_logits);
          },
          {.relative = 1e-5, .absolute = 1e-5, .bf16_steps = dtype == DType::bf16 ? 1.0 : 0.0});
    }
  }
}

TEST(GpuRoutingBackward, ZLossIsThatOfTheCpu) {
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(words(s));
    both(
        [&](Side& side) {
          double* const sum = side.put(std::vector<double>{0.5});
          double* const loss = side.put(std::vector<double>{3.0});
          float* const slope = side.put(std::vector<float>{0.0f});
          std::vector<std::int32_t> targets(index(s.tokens), 1);
          targets[0] = -1;
          add_log_sums(side, {.logits = side.put(Tensor::random(DType::f32, s.tokens, s.experts, 7)),
                              .sum = sum,
                              .workspace = side.workspace(add_log_sums_workspace(side.device()) + 1)});
          z_loss(side, {.sum = sum,
                        .tokens = s.tokens,
                        .coefficient = 0.25,
                        .targets = side.put(targets),
                        .labels = s.tokens,
                        .loss_sum = loss,
                        .slope = slope});
          std::vector<double> found(2);
          side.device().copy_to_host(side, found.data(), sum, sizeof(double));
          side.device().copy_to_host(side, found.data() + 1, loss, sizeof(double));
          static_cast<Stream&>(side).synchronize();
          const std::vector<float> rounded(found.begin(), found.end());
          side.out("sum and loss", side.put(rounded), 2, DType::f32);
          side.out("slope", slope, 1, DType::f32);
        },
        {.relative = 1e-5, .absolute = 1e-5});
  }
}

TEST(GpuRoutingBackward, LoadAndItsLossAreThoseOfTheCpu) {
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(words(s));
    both(
        [&](Side& side) {
          const Dealt dealt = dealt_on(side, s);
          double* const counts = side.put(std::vector<double>(index(s.experts), 2.0));
          double* const probabilities = side.put(std::vector<double>(index(s.experts), 0.5));
          double* const loss = side.put(std::vector<double>{3.0});
          float* const d = side.put(std::vector<float>(index(s.experts)));
          std::vector<std::int32_t> targets(index(s.tokens), 1);
          targets[0] = -1;
          add_load(side, {.logits = dealt.logits,
                          .begins = dealt.args.begins,
                          .counts = counts,
                          .probabilities = probabilities,
                          .workspace = side.workspace(add_load_workspace(side.device(), s.experts) + 1)});
          balance_loss(side, {.counts = counts,
                              .probabilities = probabilities,
                              .count = s.experts,
                              .rows = s.tokens,
                              .coefficient = 0.25,
                              .targets = side.put(targets),
                              .labels = s.tokens,
                              .loss_sum = loss,
                              .d_probabilities = d});
          std::vector<double> found(2 * index(s.experts) + 1);
          const auto fetch = [&](std::size_t at, const double* from, std::size_t count) {
            side.device().copy_to_host(side, found.data() + at, from, count * sizeof(double));
          };
          fetch(0, counts, index(s.experts));
          fetch(index(s.experts), probabilities, index(s.experts));
          fetch(2 * index(s.experts), loss, 1);
          static_cast<Stream&>(side).synchronize();
          const std::vector<float> rounded(found.begin(), found.end());
          side.out("load and loss", side.put(rounded), static_cast<std::int64_t>(rounded.size()), DType::f32);
          side.out("d_probabilities", d, s.experts, DType::f32);
        },
        {.relative = 1e-6, .absolute = 1e-6});
  }
}

}  // namespace
}  // namespace octet::ops::routing_backward_test
