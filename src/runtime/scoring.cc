#include "octet/runtime/scoring.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "octet/base/dtype.h"
#include "octet/base/error.h"

namespace octet::runtime {
namespace {

double value_at(const std::vector<std::byte>& bytes, DType dtype, std::size_t index) {
  if (dtype == DType::f32) return reinterpret_cast<const float*>(bytes.data())[index];
  return static_cast<float>(reinterpret_cast<const Bf16*>(bytes.data())[index]);
}

double log_probability(const std::vector<std::byte>& logits, DType dtype, std::size_t first,
                       std::size_t vocabulary, std::size_t target) {
  double highest = value_at(logits, dtype, first), sum = 0;
  for (std::size_t i = 1; i < vocabulary; ++i)
    highest = std::max(highest, value_at(logits, dtype, first + i));
  for (std::size_t i = 0; i < vocabulary; ++i) sum += std::exp(value_at(logits, dtype, first + i) - highest);
  return value_at(logits, dtype, first + target) - highest - std::log(sum);
}

}  // namespace

std::vector<double> log_probabilities(model::Transformer& core, model::ParameterSource& source,
                                      Stream& stream, const model::MicroBatch& batch,
                                      const std::vector<std::int32_t>& targets, double* loss_sum) {
  check(static_cast<std::int64_t>(targets.size()) == batch.labels, "every label row has its target");
  std::vector<double> out(targets.size(), 0.0);
  std::vector<std::byte> logits;
  core.evaluate(
      source, stream, batch, loss_sum, [&](Stream& s, const ops::ConstMatrix& rows, std::int64_t first_row) {
        check(rows.ld == rows.cols, "logits lie densely");
        const auto width = static_cast<std::size_t>(rows.cols);
        logits.resize(static_cast<std::size_t>(rows.rows) * width * size_of(rows.dtype));
        s.device().copy_to_host(s, logits.data(), rows.data, logits.size());
        s.synchronize();
        for (std::size_t r = 0; r < static_cast<std::size_t>(rows.rows); ++r) {
          const std::size_t at = static_cast<std::size_t>(first_row) + r;
          if (targets[at] < 0) continue;
          out[at] =
              log_probability(logits, rows.dtype, r * width, width, static_cast<std::size_t>(targets[at]));
        }
      });
  stream.synchronize();
  return out;
}

}  // namespace octet::runtime
