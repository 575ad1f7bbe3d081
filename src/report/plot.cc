#include "octet/report/plot.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

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

#ifdef OCTET_HAVE_CAIRO

#include <cairo-svg.h>
#include <cairo.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "octet/base/error.h"

namespace octet::report {
namespace {

using Points = std::vector<std::pair<double, double>>;

struct Colour {
  double r, g, b;
};

struct Box {
  double left, top, right, bottom;
};

constexpr double kWidth = 800, kChartHeight = 500, kPanelsHeight = 170, kScale = 2;
constexpr Colour kInk{0.2, 0.2, 0.2}, kGrid{0.89, 0.91, 0.92}, kAxis{0.54, 0.58, 0.62};
constexpr Colour kColours[] = {
    {0.12, 0.47, 0.71}, {0.89, 0.42, 0.04}, {0.17, 0.61, 0.29}, {0.69, 0.23, 0.55}};
constexpr Box kChart{78, 52, 775, 440};
constexpr double kMeasured = 2.2, kSmoothed = 1;

enum class Anchor : std::uint8_t { start, middle, end };

double height_of(const Figure& figure) {
  return kChartHeight + (figure.panels.empty() ? 0 : kPanelsHeight);
}

bool is_point(const std::pair<double, double>& p) {
  return std::isfinite(p.first) && std::isfinite(p.second);
}

void set_colour(cairo_t* to, const Colour& c, double opacity = 1) {
  cairo_set_source_rgba(to, c.r, c.g, c.b, opacity);
}

void line(cairo_t* to, double x0, double y0, double x1, double y1, const Colour& colour, double width) {
  set_colour(to, colour);
  cairo_set_line_width(to, width);
  cairo_move_to(to, x0, y0);
  cairo_line_to(to, x1, y1);
  cairo_stroke(to);
}

double text_width(cairo_t* to, const std::string& text) {
  cairo_text_extents_t extents;
  cairo_text_extents(to, text.c_str(), &extents);
  return extents.x_advance;
}

void write(cairo_t* to, double x, double y, const std::string& text, double size, Anchor anchor) {
  set_colour(to, kInk);
  cairo_set_font_size(to, size);
  const double width = anchor == Anchor::start ? 0 : text_width(to, text);
  cairo_move_to(to, x - (anchor == Anchor::middle ? width / 2 : width), y);
  cairo_show_text(to, text.c_str());
}

// Truncates a text to the available room: "a long na…".
std::string fitting(cairo_t* to, std::string text, double size, double room) {
  cairo_set_font_size(to, size);
  if (text_width(to, text) <= room) return text;
  while (!text.empty() && text_width(to, text + "…") > room) {
    do text.pop_back();
    while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0xC0) == 0x80);
    // The first byte of a truncated character is removed, too.
    if (!text.empty() && (static_cast<unsigned char>(text.back()) & 0x80) != 0) text.pop_back();
  }
  return text + "…";
}

/// The position of a chart, and its axes.
struct Frame {
  Box box;
  Axis x, y;
  double column(double value) const { return box.left + (box.right - box.left) * x.share(value); }
  double row(double value) const { return box.bottom - (box.bottom - box.top) * y.share(value); }
};

void draw_axes(cairo_t* to, const Frame& frame, double size) {
  const Box& box = frame.box;
  for (const auto& [value, text] : frame.y.ticks) {
    line(to, box.left, frame.row(value), box.right, frame.row(value), kGrid, 1);
    write(to, box.left - 7, frame.row(value) + size / 3, text, size, Anchor::end);
  }
  for (const auto& [value, text] : frame.x.ticks) {
    line(to, frame.column(value), box.top, frame.column(value), box.bottom, kGrid, 1);
    line(to, frame.column(value), box.bottom, frame.column(value), box.bottom + 4, kAxis, 1);
    write(to, frame.column(value), box.bottom + 6 + size, text, size, Anchor::middle);
  }
  line(to, box.left, box.top, box.left, box.bottom, kAxis, 1.2);
  line(to, box.left, box.bottom, box.right, box.bottom, kAxis, 1.2);
}

// Keeps two points per bucket, its extremes. This keeps the shape of a long curve in a small file.
Points thinned(const Points& points) {
  constexpr std::size_t kMost = 3000;
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

void draw_curve(cairo_t* to, const Frame& frame, const Points& points, const Colour& colour, double width) {
  Points piece;
  set_colour(to, colour);
  cairo_set_line_width(to, width);
  const auto flush = [&] {
    for (const auto& [x, y] : thinned(piece)) cairo_line_to(to, x, y);
    cairo_stroke(to);
    piece.clear();
  };
  for (const auto& point : points) {
    if (is_point(point)) {
      piece.emplace_back(frame.column(point.first), frame.row(point.second));
    } else {
      flush();
    }
  }
  flush();
}

// Whether to draw a smoothed curve; smoothing few points shows nothing.
bool draws_smoothed(const Series& series) {
  return series.smooth && series.points.size() >= 20;
}

void draw_series(cairo_t* to, const Frame& frame, const Series& series, const Colour& colour, double width) {
  draw_curve(to, frame, series.points, colour, width);
  if (draws_smoothed(series)) {
    std::vector<double> values;
    // Smooths in the scale of the axis: on a logarithmic axis, means of losses would be above a falling
    // curve.
    const bool logs = frame.y.logarithmic;
    for (const auto& [x, y] : series.points) values.push_back(logs ? std::log(y) : y);
    values = smoothed(values);
    Points smooth = series.points;
    for (std::size_t i = 0; i < smooth.size(); ++i) smooth[i].second = logs ? std::exp(values[i]) : values[i];
    draw_curve(to, frame, smooth, kInk, kSmoothed);
  }
  const auto finite = std::ranges::count_if(series.points, is_point);
  if (!series.markers && finite > 1) return;
  set_colour(to, colour);
  for (const auto& point : series.points) {
    if (!is_point(point)) continue;
    cairo_arc(to, frame.column(point.first), frame.row(point.second), 1.6 * width, 0, 2 * M_PI);
    cairo_fill(to);
  }
}

void draw_legend(cairo_t* to, const Figure& figure) {
  struct Entry {
    std::string name;
    Colour colour;
    double width;
  };
  std::vector<Entry> entries;
  double widest = 0;
  cairo_set_font_size(to, 12);
  for (std::size_t i = 0; i < figure.series.size(); ++i) {
    const Series& series = figure.series[i];
    entries.push_back({series.name, kColours[i % std::size(kColours)], kMeasured});
    if (draws_smoothed(series)) entries.push_back({series.name + ", smoothed", kInk, kSmoothed});
  }
  for (const Entry& entry : entries) widest = std::max(widest, text_width(to, entry.name));
  const double left = kChart.right - widest - 48;
  set_colour(to, {1, 1, 1}, 0.85);
  cairo_rectangle(to, left - 6, kChart.top + 4, widest + 50, 19 * static_cast<double>(entries.size()) + 6);
  cairo_fill(to);
  double y = kChart.top + 20;
  for (const Entry& entry : entries) {
    line(to, left, y - 4, left + 30, y - 4, entry.colour, entry.width);
    write(to, left + 38, y, entry.name, 12, Anchor::start);
    y += 19;
  }
}

void draw_panels(cairo_t* to, const Figure& figure) {
  const auto count = static_cast<double>(figure.panels.size());
  const double cell = (kWidth - 20) / std::max(1.0, count);
  for (std::size_t i = 0; i < figure.panels.size(); ++i) {
    const double left = 10 + cell * static_cast<double>(i);
    const std::vector<Series> one{figure.panels[i]};
    const Frame frame{
        .box = {left + 50, kChartHeight + 24, left + cell - 12, kChartHeight + kPanelsHeight - 30},
        .x = x_axis(one, 3),
        .y = y_axis(one, 4)};
    draw_axes(to, frame, 9);
    draw_series(to, frame, figure.panels[i], kColours[0], 1.4);
    write(to, left + 50, kChartHeight + 16, figure.panels[i].name, 11, Anchor::start);
  }
}

void draw(cairo_t* to, const Figure& figure) {
  set_colour(to, {1, 1, 1});
  cairo_paint(to);
  cairo_select_font_face(to, "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
  cairo_set_line_join(to, CAIRO_LINE_JOIN_ROUND);
  cairo_set_line_cap(to, CAIRO_LINE_CAP_ROUND);
  const Frame frame{.box = kChart, .x = x_axis(figure.series, 8), .y = y_axis(figure.series, 7)};
  draw_axes(to, frame, 12);
  for (std::size_t i = 0; i < figure.series.size(); ++i)
    draw_series(to, frame, figure.series[i], kColours[i % std::size(kColours)], kMeasured);
  draw_legend(to, figure);
  write(to, kWidth / 2, 32, fitting(to, figure.title, 17, kWidth - 40), 17, Anchor::middle);
  write(to, (kChart.left + kChart.right) / 2, kChart.bottom + 42, figure.x_label, 13, Anchor::middle);
  cairo_save(to);
  cairo_translate(to, 22, (kChart.top + kChart.bottom) / 2);
  cairo_rotate(to, -M_PI / 2);
  write(to, 0, 0, figure.y_label + (frame.y.logarithmic ? " (logarithmic)" : ""), 13, Anchor::middle);
  cairo_restore(to);
  draw_panels(to, figure);
}

cairo_status_t append(void* to, const unsigned char* bytes, unsigned int size) {
  static_cast<std::string*>(to)->append(reinterpret_cast<const char*>(bytes), size);
  return CAIRO_STATUS_SUCCESS;
}

void require(cairo_status_t status) {
  if (status == CAIRO_STATUS_SUCCESS) return;
  throw Error({.what = "a plot could not be drawn",
               .found = cairo_status_to_string(status),
               .fix = "set plot_loss: false to draw no plots",
               .code = ExitCode::failure});
}

using Surface = std::unique_ptr<cairo_surface_t, decltype(&cairo_surface_destroy)>;

void draw_on(cairo_surface_t* surface, const Figure& figure, double scale) {
  const std::unique_ptr<cairo_t, decltype(&cairo_destroy)> to(cairo_create(surface), &cairo_destroy);
  cairo_scale(to.get(), scale, scale);
  draw(to.get(), figure);
  require(cairo_status(to.get()));
}

}  // namespace

bool draws_plots() {
  return true;
}

std::string to_svg(const Figure& figure) {
  std::string bytes;
  const Surface surface(cairo_svg_surface_create_for_stream(&append, &bytes, kWidth, height_of(figure)),
                        &cairo_surface_destroy);
  draw_on(surface.get(), figure, 1);
  cairo_surface_finish(surface.get());
  require(cairo_surface_status(surface.get()));
  return bytes;
}

std::string to_png(const Figure& figure) {
  const Surface surface(cairo_image_surface_create(CAIRO_FORMAT_RGB24, static_cast<int>(kWidth * kScale),
                                                   static_cast<int>(height_of(figure) * kScale)),
                        &cairo_surface_destroy);
  draw_on(surface.get(), figure, kScale);
  std::string bytes;
  require(cairo_surface_write_to_png_stream(surface.get(), &append, &bytes));
  return bytes;
}

}  // namespace octet::report

#else

namespace octet::report {

bool draws_plots() {
  return false;
}
std::string to_svg(const Figure& /*figure*/) {
  return "";
}
std::string to_png(const Figure& /*figure*/) {
  return "";
}

}  // namespace octet::report

#endif
