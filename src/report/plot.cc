#include "octet/report/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "canvas.h"

namespace octet::report {
namespace {

constexpr Colour kInk{0x33, 0x33, 0x33}, kGrid{0xE4, 0xE7, 0xEB}, kAxis{0x8A, 0x93, 0x9E};
constexpr Colour kColours[] = {
    {0x1F, 0x77, 0xB4}, {0xE4, 0x6C, 0x0A}, {0x2C, 0x9B, 0x4B}, {0xB0, 0x3A, 0x8C}};
constexpr double kLeft = 78, kRight = 775, kTop = 52, kBottom = 440;

struct Range {
  double low, high;
  double share(double value) const { return (value - low) / (high - low); }
};

bool is_point(const std::pair<double, double>& p) {
  return std::isfinite(p.first) && std::isfinite(p.second);
}

struct Ranges {
  Range x, y;
};

// The first steps of a run often tower above the rest; the axis still shows every point.
Ranges ranges_of(const Figure& figure) {
  Ranges r{{INFINITY, -INFINITY}, {INFINITY, -INFINITY}};
  for (const Series& series : figure.series) {
    for (const auto& point : series.points) {
      if (!is_point(point)) continue;
      r.x.low = std::min(r.x.low, point.first), r.x.high = std::max(r.x.high, point.first);
      r.y.low = std::min(r.y.low, point.second), r.y.high = std::max(r.y.high, point.second);
    }
  }
  if (r.x.low > r.x.high) r = {{0, 1}, {0, 1}};
  const auto widen = [](Range& range) {
    if (!(range.high - range.low > 1e-12 * std::max(1.0, std::abs(range.high)))) {
      const double more = std::max(0.5, std::abs(range.high) * 0.1);
      range.low -= more, range.high += more;
    }
  };
  widen(r.x);
  widen(r.y);
  const double margin = (r.y.high - r.y.low) * 0.05;
  const bool positive = r.y.low >= 0;
  r.y.low -= margin, r.y.high += margin;
  if (positive) r.y.low = std::max(0.0, r.y.low);
  return r;
}

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

struct Frame {
  Ranges r;
  double x(double value) const { return kLeft + (kRight - kLeft) * r.x.share(value); }
  double y(double value) const { return kBottom - (kBottom - kTop) * r.y.share(value); }
};

void draw_axes(Canvas& canvas, const Figure& figure, const Frame& frame) {
  const auto xs = ticks(frame.r.x.low, frame.r.x.high, 8), ys = ticks(frame.r.y.low, frame.r.y.high, 7);
  for (const double y : ys) {
    canvas.polyline({{kLeft, frame.y(y)}, {kRight, frame.y(y)}}, {kGrid});
    canvas.text({.x = kLeft - 9,
                 .y = frame.y(y) + 4,
                 .text = tick_text(y, ys.size() > 1 ? ys[1] - ys[0] : 1),
                 .anchor = Anchor::end,
                 .colour = kInk});
  }
  for (const double x : xs) {
    canvas.polyline({{frame.x(x), kTop}, {frame.x(x), kBottom}}, {kGrid});
    canvas.polyline({{frame.x(x), kBottom}, {frame.x(x), kBottom + 5}}, {kAxis});
    canvas.text({.x = frame.x(x),
                 .y = kBottom + 20,
                 .text = tick_text(x, xs.size() > 1 ? xs[1] - xs[0] : 1),
                 .anchor = Anchor::middle,
                 .colour = kInk});
  }
  canvas.polyline({{kLeft, kTop}, {kLeft, kBottom}, {kRight, kBottom}}, {kAxis, 1.2});
  canvas.text({.x = (kLeft + kRight) / 2,
               .y = 30,
               .text = figure.title,
               .size = 17,
               .anchor = Anchor::middle,
               .colour = kInk});
  canvas.text({.x = (kLeft + kRight) / 2,
               .y = kBottom + 44,
               .text = figure.x_label,
               .size = 13,
               .anchor = Anchor::middle,
               .colour = kInk});
  canvas.text({.x = 22,
               .y = (kTop + kBottom) / 2,
               .text = figure.y_label,
               .size = 13,
               .anchor = Anchor::middle,
               .colour = kInk,
               .upwards = true});
}

// One point a pixel column and extreme is enough: a curve of a million points stays a small file.
Points thinned(const Points& points) {
  constexpr std::size_t kMost = 4000;
  if (points.size() <= kMost) return points;
  Points kept;
  const std::size_t bucket = points.size() / (kMost / 2) + 1;
  for (std::size_t i = 0; i < points.size(); i += bucket) {
    const auto begin = points.begin() + static_cast<std::ptrdiff_t>(i);
    const auto end = points.begin() + static_cast<std::ptrdiff_t>(std::min(points.size(), i + bucket));
    auto [low, high] = std::minmax_element(begin, end, [](auto& a, auto& b) { return a.second < b.second; });
    if (low > high) std::swap(low, high);
    kept.push_back(*low);
    if (low != high) kept.push_back(*high);
  }
  return kept;
}

void draw_curve(Canvas& canvas, const Frame& frame, const Points& points, const Pen& pen) {
  Points line;
  const auto flush = [&] {
    if (line.size() > 1) canvas.polyline(thinned(line), pen);
    line.clear();
  };
  for (const auto& point : points) {
    if (is_point(point)) {
      line.emplace_back(frame.x(point.first), frame.y(point.second));
    } else {
      flush();
    }
  }
  flush();
}

void draw_series(Canvas& canvas, const Frame& frame, const Series& series, Colour colour) {
  if (!series.smooth) {
    draw_curve(canvas, frame, series.points, {colour, 2});
  } else {
    draw_curve(canvas, frame, series.points, {colour, 1.2, 0.45});
    std::vector<double> values;
    for (const auto& point : series.points) values.push_back(point.second);
    values = smoothed(values);
    Points smooth = series.points;
    for (std::size_t i = 0; i < smooth.size(); ++i) smooth[i].second = values[i];
    draw_curve(canvas, frame, smooth, {colour, 2.4});
  }
  std::size_t finite = 0;
  for (const auto& point : series.points) finite += is_point(point) ? 1 : 0;
  if (!series.markers && finite > 1) return;
  for (const auto& point : series.points) {
    if (is_point(point)) canvas.dot(frame.x(point.first), frame.y(point.second), 3, colour);
  }
}

void draw_legend(Canvas& canvas, const Figure& figure) {
  double y = kTop + 18;
  double lines = 0;
  for (const Series& series : figure.series) lines += series.smooth ? 2 : 1;
  // A veil, so that a curve that rises behind the legend stays legible.
  const double middle = kTop + 13 + 9.5 * (lines - 1);
  canvas.polyline({{kRight - 168, middle}, {kRight - 20, middle}},
                  {{0xFF, 0xFF, 0xFF}, 19 * lines + 8, 0.85});
  const auto entry = [&](const std::string& name, const Pen& pen) {
    canvas.polyline({{kRight - 172, y - 4}, {kRight - 142, y - 4}}, pen);
    canvas.text({.x = kRight - 134, .y = y, .text = name, .colour = kInk});
    y += 19;
  };
  for (std::size_t i = 0; i < figure.series.size(); ++i) {
    const Colour colour = kColours[i % std::size(kColours)];
    if (figure.series[i].smooth) {
      entry(figure.series[i].name, {colour, 1.4, 0.5});
      entry(figure.series[i].name + ", smoothed", {colour, 2.4});
    } else {
      entry(figure.series[i].name, {colour, 2});
    }
  }
}

void draw(Canvas& canvas, const Figure& figure) {
  const Frame frame{ranges_of(figure)};
  draw_axes(canvas, figure, frame);
  for (std::size_t i = 0; i < figure.series.size(); ++i) {
    draw_series(canvas, frame, figure.series[i], kColours[i % std::size(kColours)]);
  }
  draw_legend(canvas, figure);
}

}  // namespace

std::vector<double> smoothed(const std::vector<double>& values) {
  const double weight = 1.8 * (1 / (1 + std::exp(-0.05 * static_cast<double>(values.size()))) - 0.5);
  std::vector<double> result;
  double last = NAN;
  for (const double value : values) {
    // A value that is not finite is left out of the average, not spread over all that follow.
    if (!std::isfinite(value)) {
      result.push_back(value);
      continue;
    }
    last = std::isnan(last) ? value : last * weight + (1 - weight) * value;
    result.push_back(last);
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

std::string to_svg(const Figure& figure) {
  SvgCanvas canvas;
  draw(canvas, figure);
  return canvas.finish();
}

std::string to_png(const Figure& figure) {
  PixelCanvas canvas;
  draw(canvas, figure);
  return canvas.finish();
}

}  // namespace octet::report
