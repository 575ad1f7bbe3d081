// The sum equals generate::LogProbabilities bit for bit: it runs in the order of the vocabulary.
#include "octet/ops/best_tokens.h"

#include <cmath>

#include "cpu/simd.h"

namespace octet::ops::cpu {

void best_tokens(const BestTokensArgs& args);
void fill_ids(const FillIdsArgs& args);

void best_tokens(const BestTokensArgs& args) {
  const std::int64_t vocabulary = args.logits.cols;
  simd::parallel_rows(args.logits.rows, (args.normalizers ? 16 : 1) * vocabulary,
                      [&](std::int64_t begin, std::int64_t end) {
                        for (std::int64_t row = begin; row < end; ++row) {
                          const float* x = static_cast<const float*>(args.logits.data) + row * args.logits.ld;
                          std::int64_t best = 0;
                          for (std::int64_t i = 1; i < vocabulary && !std::isnan(x[best]); ++i) {
                            if (x[i] > x[best] || std::isnan(x[i])) best = i;
                          }
                          BestToken& out = args.out[row];
                          out = {.logit = x[best], .id = static_cast<std::int32_t>(best)};
                          if (!args.normalizers) continue;
                          const auto highest = static_cast<double>(x[best]);
                          double sum = 0;
                          for (std::int64_t i = 0; i < vocabulary; ++i) {
                            sum += std::exp(static_cast<double>(x[i]) - highest);
                          }
                          out.normalizer = highest + std::log(sum);
                        }
                      });
}

void fill_ids(const FillIdsArgs& args) {
  for (std::int64_t i = 0; i < args.count; ++i) {
    if (args.ids[i] < 0) args.ids[i] = args.best[-1 - args.ids[i]].id;
  }
}

}  // namespace octet::ops::cpu
