#include <algorithm>
#include <cmath>
#include <cstdio>

#include "octet/report/plot.h"

namespace octet::report {
namespace {

constexpr double kMostLinear = 20;  // the largest ratio of values on a linear axis

std::string tick_text(double value, double step) {
  char text[48];
  const double magnitude = std::max(std::abs(value), step);
  if (magnitude >= 1e7 || (magnitude < 1e-4 && magnitude > 0)) {
    std::snprintf(text, sizeof text, "%g", value);
    return text;
  }
  const int digits = std::clamp(static_cast<int>(std::ceil(-std::log10(step) - 1e-9)), 0, 8);
  std::snprintf(text, sizeof text, "%.*f", digits, std::abs(value) < step * 1e-6 ? 0.0 : value);
  std::string result = text;
  if (digits == 0) {
    const std::size_t first = result[0] == '-' ? 1 : 0;
    for (std::size_t at = result.size(); at > first + 3;) result.insert(at -= 3, ",");
  }
  return result;
}

// Adds room around an axis with equal, or nearly equal, ends.
void widen(Axis& axis) {
  if (axis.high - axis.low > 1e-12 * std::max(1.0, std::abs(axis.high))) return;
  const double more = axis.high == 0 ? 0.5 : std::abs(axis.high) * 0.1;
  axis.low -= more, axis.high += more;
}

void add_ticks(Axis& axis, int wanted) {
  const std::vector<double> all = ticks(axis.low, axis.high, wanted);
  for (const double value : all)
    axis.ticks.emplace_back(value, tick_text(value, all.size() > 1 ? all[1] - all[0] : 1));
}

// Adds ticks at 1, 2 and 5 times powers of ten, or at powers of ten only if there are many.
void add_logarithmic_ticks(Axis& axis, int wanted) {
  const int first = static_cast<int>(std::floor(std::log10(axis.low)));
  const int last = static_cast<int>(std::ceil(std::log10(axis.high)));
  const int stride = std::max(1, (last - first + wanted - 1) / std::max(1, wanted));
  const bool between = 2 * (last - first) <= wanted;
  for (int power = first; power <= last; power += stride) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double value = factor * std::pow(10.0, power);
      if ((factor > 1 && !between) || value < axis.low || value > axis.high) continue;
      char text[32];
      std::snprintf(text, sizeof text, "%g", value);
      axis.ticks.emplace_back(value, text);
    }
  }
}

// Returns the range of the finite points; {0, 1} if there are none.
Axis range_of(const std::vector<Series>& series, bool of_x) {
  Axis axis{.low = INFINITY, .high = -INFINITY};
  for (const Series& one : series) {
    for (const auto& [x, y] : one.points) {
      if (!std::isfinite(x) || !std::isfinite(y)) continue;
      axis.low = std::min(axis.low, of_x ? x : y), axis.high = std::max(axis.high, of_x ? x : y);
    }
  }
  if (axis.low > axis.high) axis.low = 0, axis.high = 1;
  return axis;
}

}  // namespace

double Axis::share(double value) const {
  if (logarithmic) return (std::log10(value) - std::log10(low)) / (std::log10(high) - std::log10(low));
  return (value - low) / (high - low);
}

Axis y_axis(const std::vector<Series>& series, int wanted) {
  Axis axis = range_of(series, false);
  if (axis.low > 0 && axis.high > kMostLinear * axis.low) {
    axis.logarithmic = true;
    axis.low /= 1.2, axis.high *= 1.2;
    add_logarithmic_ticks(axis, wanted);
    return axis;
  }
  const bool positive = axis.low >= 0;
  widen(axis);
  const double margin = (axis.high - axis.low) * 0.05;
  axis.low -= margin, axis.high += margin;
  if (positive) axis.low = std::max(0.0, axis.low);
  add_ticks(axis, wanted);
  return axis;
}

Axis x_axis(const std::vector<Series>& series, int wanted) {
  Axis axis = range_of(series, true);
  widen(axis);
  add_ticks(axis, wanted);
  return axis;
}

std::vector<double> smoothed(const std::vector<double>& values) {
  const std::size_t most = std::max<std::size_t>(1, values.size() / 40);
  // Prefix sums of the finite values.
  std::vector<double> sums{0};
  std::vector<std::size_t> counts{0};
  for (const double value : values) {
    sums.push_back(sums.back() + (std::isfinite(value) ? value : 0));
    counts.push_back(counts.back() + (std::isfinite(value) ? 1 : 0));
  }
  std::vector<double> result;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t half = std::min({most, i, values.size() - 1 - i});
    const std::size_t begin = i - half, end = i + half + 1;
    result.push_back(std::isfinite(values[i])
                         ? (sums[end] - sums[begin]) / static_cast<double>(counts[end] - counts[begin])
                         : values[i]);
  }
  return result;
}

std::vector<double> ticks(double low, double high, int wanted) {
  if (!(high > low) || !std::isfinite(low) || !std::isfinite(high)) return {};
  const double rough = (high - low) / std::max(1, wanted);
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> result;
  const double first = std::ceil(low / step - 1e-9);
  for (int i = 0; i < 100; ++i) {
    const double value = (first + i) * step;
    if (value > high + step * 1e-9) break;
    result.push_back(value);
  }
  return result;
}

}  // namespace octet::report
