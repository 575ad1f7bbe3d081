#include "octet/ops/logits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>

#include "cpu/simd.h"
#include "listed_steps.h"

namespace octet::ops::cpu {

// The sum equals generate::LogProbabilities bit for bit: it runs in the order of the vocabulary.

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

// Sums and draws equal generate::candidates, choose and LogProbabilities on the whole row bit for bit: they
// run in the order of the vocabulary.

void listed_logits(const ListedLogitsArgs& args);

namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();
constexpr std::int64_t kLanes = 32;
/// Logits that are tested together: most are not listed, so most groups need one branch only.
constexpr std::int64_t kTogether = 64;

/// The largest logit of each of up to 4096 groups. Together the groups contain the whole row.
struct Groups {
  std::array<float, 4096> largest;
  std::size_t count = 0;
  bool nan = false;  ///< whether any logit is NaN
};

/// A row is divided into pieces. The logits of a piece with the same index modulo kLanes are a group.
OCTET_SIMD void find_groups(const float* x, std::int64_t count, Groups& groups) {
  constexpr std::int64_t pieces = 4096 / kLanes;
  const std::int64_t size = (count + pieces * kLanes - 1) / (pieces * kLanes) * kLanes;
  std::array<std::int32_t, kLanes> nan{};
  for (std::int64_t begin = 0; begin < count; begin += size) {
    const std::int64_t end = std::min(count, begin + size);
    std::array<float, kLanes> largest;
    largest.fill(kNone);
    std::int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (std::int64_t j = 0; j < kLanes; ++j) {
        const auto lane = static_cast<std::size_t>(j);
        const float v = x[i + j];
        largest[lane] = v > largest[lane] ? v : largest[lane];
        nan[lane] |= v != v ? 1 : 0;
      }
    }
    for (std::size_t lane = 0; i < end; ++i, ++lane) {
      largest[lane] = x[i] > largest[lane] ? x[i] : largest[lane];
      nan[lane] |= x[i] != x[i] ? 1 : 0;
    }
    for (const float v : largest) groups.largest[groups.count++] = v;
  }
  for (const std::int32_t lane : nan) groups.nan = groups.nan || lane != 0;
}

/// Returns a value such that at least `most` + 1 logits are equal or larger: smaller logits are not listed.
/// Returns the lowest float if all logits may be listed.
float floor_of(Groups& groups, std::int64_t most) {
  constexpr float least = std::numeric_limits<float>::lowest();
  if (most >= static_cast<std::int64_t>(groups.count)) return least;
  const auto end = groups.largest.begin() + static_cast<std::ptrdiff_t>(groups.count);
  std::nth_element(groups.largest.begin(), groups.largest.begin() + most, end, std::greater<>());
  return std::max(groups.largest[static_cast<std::size_t>(most)], least);
}

OCTET_SIMD bool any_from(float floor, const float* x, std::int64_t count) {
  std::int32_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) found += x[i] >= floor ? 1 : 0;
  return found > 0;
}

/// Calls see(index) for each logit >= `floor`, in order.
template <typename See>
void for_each_from(float floor, const float* x, std::int64_t count, const See& see) {
  for (std::int64_t i = 0; i < count; i += kTogether) {
    const std::int64_t end = std::min(count, i + kTogether);
    if (!any_from(floor, x + i, end - i)) continue;
    for (std::int64_t j = i; j < end; ++j) {
      if (x[j] >= floor) see(j);
    }
  }
}

/// Returns the number of steps that are listed. Counts logits >= `floor` only: smaller logits are never
/// listed.
int steps_to_list(float highest, float floor, const float* x, std::int64_t count, std::int64_t most) {
  std::array<std::int64_t, kListedSteps> in_step{};
  for_each_from(floor, x, count,
                [&](std::int64_t i) { ++in_step[static_cast<std::size_t>(listed_step(highest, x[i]))]; });
  std::int64_t listed = 0;
  for (int step = 0; step < kListedSteps; ++step) {
    listed += in_step[static_cast<std::size_t>(step)];
    if (listed > most) return step;
  }
  return kListedSteps;
}

/// Lists the logits of the steps that fit into `most`. Sets `row.bound` to the largest logit that is not
/// listed. `floor` never excludes that logit.
void list_into(RowOfLogits& row, float floor, const float* x, std::int64_t count, std::int64_t most,
               ListedLogit* out) {
  const int list = steps_to_list(row.highest, floor, x, count, most);
  row.bound = kNone;
  for_each_from(floor, x, count, [&](std::int64_t i) {
    if (listed_step(row.highest, x[i]) < list) {
      out[row.count++] = {.logit = x[i], .id = static_cast<std::int32_t>(i)};
    } else {
      row.bound = std::max(row.bound, x[i]);
    }
  });
}

double sum_of(const float* x, std::int64_t count, float highest) {
  const auto largest = static_cast<double>(highest);
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += std::exp(static_cast<double>(x[i]) - largest);
  return sum;
}

double sum_of(const float* x, std::int64_t count, float highest, double temperature) {
  const double largest = static_cast<double>(highest) / temperature;
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += std::exp(static_cast<double>(x[i]) / temperature - largest);
  return sum;
}

std::int32_t draw_from(const RowOfLogits& row, const float* x, std::int64_t count, double temperature,
                       double left) {
  const double largest = static_cast<double>(row.highest) / temperature;
  double most_probable = -1;
  std::int64_t best = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const double probability = std::exp(static_cast<double>(x[i]) / temperature - largest) / row.sum;
    left -= probability;
    if (left < 0) return static_cast<std::int32_t>(i);
    if (probability > most_probable) most_probable = probability, best = i;
  }
  return static_cast<std::int32_t>(best);
}

void list_row(const ListedLogitsArgs& args, std::int64_t r) {
  const std::int64_t vocabulary = args.logits.cols;
  const float* x = static_cast<const float*>(args.logits.data) + r * args.logits.ld;
  RowOfLogits& row = args.rows[r];
  Groups groups;
  find_groups(x, vocabulary, groups);
  const auto groups_end = groups.largest.begin() + static_cast<std::ptrdiff_t>(groups.count);
  row = {.highest = groups.nan ? std::numeric_limits<float>::quiet_NaN()
                               : *std::max_element(groups.largest.begin(), groups_end)};
  const float* best =
      std::find_if(x, x + vocabulary, [&](float v) { return groups.nan ? std::isnan(v) : v == row.highest; });
  row.best = static_cast<std::int32_t>(best - x);
  row.bound = row.highest;
  if (!std::isfinite(row.highest)) return;
  list_into(row, floor_of(groups, args.most), x, vocabulary, args.most, args.listed + r * args.most);
  if (args.normalizers)
    row.normalizer = static_cast<double>(row.highest) + std::log(sum_of(x, vocabulary, row.highest));
  const double temperature = args.temperatures[r], draw = args.draws[r];
  if (!(temperature > 0)) return;
  row.sum = sum_of(x, vocabulary, row.highest, temperature);
  if (draw < 0) return;
  row.drawn = draw_from(row, x, vocabulary, temperature, draw);
  row.drawn_logit = x[row.drawn];
}

}  // namespace

void listed_logits(const ListedLogitsArgs& args) {
  simd::parallel_rows(args.logits.rows, (args.normalizers ? 20 : 4) * args.logits.cols,
                      [&](std::int64_t begin, std::int64_t end) {
                        for (std::int64_t row = begin; row < end; ++row) list_row(args, row);
                      });
}

}  // namespace octet::ops::cpu
