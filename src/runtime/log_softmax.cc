#include "octet/runtime/log_softmax.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "octet/base/dtype.h"
#include "octet/base/error.h"

namespace octet::runtime {
namespace {

/// Rows of logits on the host; bf16 values are widened.
class HostRows {
 public:
  void fetch(Stream& stream, const ops::ConstMatrix& rows) {
    check(rows.ld == rows.cols, "logits lie densely");
    width_ = static_cast<std::size_t>(rows.cols);
    const std::size_t count = static_cast<std::size_t>(rows.rows) * width_;
    values_.resize(count);
    if (rows.dtype == DType::f32) {
      stream.device().copy_to_host(stream, values_.data(), rows.data, count * sizeof(float));
      return stream.synchronize();
    }
    narrow_.resize(count);
    stream.device().copy_to_host(stream, narrow_.data(), rows.data, count * sizeof(Bf16));
    stream.synchronize();
    std::ranges::transform(narrow_, values_.begin(), [](Bf16 x) { return static_cast<float>(x); });
  }
  std::span<const float> row(std::size_t r) const { return {values_.data() + r * width_, width_}; }

 private:
  std::vector<float> values_;
  std::vector<Bf16> narrow_;
  std::size_t width_ = 0;
};

}  // namespace

LogSoftmax LogSoftmax::of(std::span<const float> logits) {
  double highest = static_cast<double>(logits.front()), sum = 0;
  for (const float value : logits) highest = std::max(highest, static_cast<double>(value));
  for (const float value : logits) sum += std::exp(static_cast<double>(value) - highest);
  return {.highest = highest, .log_sum = std::log(sum)};
}

std::vector<double> log_probabilities(model::Transformer& core, model::ParameterSource& source,
                                      Stream& stream, const model::MicroBatch& batch,
                                      const std::vector<std::int32_t>& targets, double* loss_sum) {
  check(static_cast<std::int64_t>(targets.size()) == batch.labels, "every label row has its target");
  std::vector<double> out(targets.size(), 0.0);
  HostRows logits;
  core.evaluate(source, stream, batch, loss_sum,
                [&](Stream& s, const ops::ConstMatrix& rows, std::int64_t first_row) {
                  logits.fetch(s, rows);
                  for (std::size_t r = 0; r < static_cast<std::size_t>(rows.rows); ++r) {
                    const std::size_t at = static_cast<std::size_t>(first_row) + r;
                    if (targets[at] < 0) continue;
                    const std::span<const float> row = logits.row(r);
                    const float target = row[static_cast<std::size_t>(targets[at])];
                    out[at] = LogSoftmax::of(row).log_probability(static_cast<double>(target));
                  }
                });
  stream.synchronize();
  return out;
}

}  // namespace octet::runtime
