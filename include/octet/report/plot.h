// Line plots, drawn by cairo as SVG and as PNG. A program that was built without cairo draws none.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace octet::report {

/// One curve. Points that are not finite break the line.
struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  ///< (x, y), x ascending
  bool smooth = false;                            ///< also draws smoothed() as a thin line
  bool markers = false;                           ///< draws a dot at each point
};

/// A large chart, and a row of small ones below it, which share its x axis.
struct Figure {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<Series> series;
  std::vector<Series> panels;
};

/// The range of an axis and its labels. All points of the curves are within the range.
struct Axis {
  double low = 0, high = 1;
  bool logarithmic = false;
  std::vector<std::pair<double, std::string>> ticks;

  /// Where a value is: 0 at `low`, 1 at `high`.
  double share(double value) const;
};

/// An axis with about `wanted` ticks. It is logarithmic if all values are above 0 and the largest exceeds 20
/// times the smallest.
Axis y_axis(const std::vector<Series>& series, int wanted);
Axis x_axis(const std::vector<Series>& series, int wanted);

/// Means over a window that is centred at each value, which is narrower near the ends: no lag. Values that
/// are not finite stay and do not count.
std::vector<double> smoothed(const std::vector<double>& values);

/// Round numbers in [low, high], about `wanted`: 1, 2 or 5 times a power of ten apart.
std::vector<double> ticks(double low, double high, int wanted);

/// Whether this program was built with cairo.
bool draws_plots();
/// The figure as an SVG document; "" without cairo. Throws Error if cairo fails.
std::string to_svg(const Figure& figure);
/// The figure as a PNG file, 1,600 pixels wide; "" without cairo. Throws Error if cairo fails.
std::string to_png(const Figure& figure);

}  // namespace octet::report
