// Line plots, drawn once and written as SVG and as PNG.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace octet::report {

/// One curve; points that are not finite are left out and break the line.
struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;  ///< (x, y), x ascending
  bool smooth = true;                             ///< draw the raw curve pale and its moving average strong
  bool markers = false;                           ///< draw a dot at each point
};

struct Figure {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<Series> series;
};

/// Exponential moving average as LLaMA-Factory draws it: weight 1.8 (sigmoid(0.05 n) - 0.5) on the past, for
/// n points.
std::vector<double> smoothed(const std::vector<double>& values);

/// Round numbers that lie in [low, high], about `wanted` of them: 1, 2 or 5 times a power of ten apart.
std::vector<double> ticks(double low, double high, int wanted);

/// The figure as an SVG document.
std::string to_svg(const Figure& figure);
/// The figure as a PNG file of 1,600 x 1,000 pixels.
std::string to_png(const Figure& figure);

}  // namespace octet::report
