// What a plot is drawn with. Coordinates are in units of an 800 x 500 page, y downwards.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace octet::report {

inline constexpr double kWidth = 800, kHeight = 500;

struct Colour {
  std::uint8_t r, g, b;
};

struct Pen {
  Colour colour;
  double width = 1;
  double opacity = 1;
};

enum class Anchor : std::uint8_t { start, middle, end };

struct Text {
  double x, y;  ///< of the anchor, on the base line
  std::string text;
  double size = 12;  ///< height of a capital is 0.7 of it
  Anchor anchor = Anchor::start;
  Colour colour{0x33, 0x33, 0x33};
  bool upwards = false;  ///< turned by 90 degrees, reading upwards
};

using Points = std::vector<std::pair<double, double>>;

class Canvas {
 public:
  virtual ~Canvas() = default;
  virtual void polyline(const Points& points, const Pen& pen) = 0;
  virtual void dot(double x, double y, double radius, Colour colour) = 0;
  virtual void text(const Text& text) = 0;
};

class SvgCanvas : public Canvas {
 public:
  void polyline(const Points& points, const Pen& pen) override;
  void dot(double x, double y, double radius, Colour colour) override;
  void text(const Text& text) override;
  std::string finish() const;

 private:
  std::string body_;
};

/// Anti-aliased by the distance of a pixel's centre to the stroke.
class PixelCanvas : public Canvas {
 public:
  PixelCanvas();
  void polyline(const Points& points, const Pen& pen) override;
  void dot(double x, double y, double radius, Colour colour) override;
  void text(const Text& text) override;
  /// As a PNG file. Throws Error when libpng fails.
  std::string finish() const;

 private:
  static constexpr int kScale = 2;
  static constexpr int kColumns = static_cast<int>(kWidth) * kScale,
                       kRows = static_cast<int>(kHeight) * kScale;
  void stroke(double x0, double y0, double x1, double y1, double radius);
  void blend(Colour colour, double opacity);
  std::vector<std::uint8_t> pixels_;  // [rows, columns, 3]
  std::vector<float> cover_;          // [rows, columns]: of the drawing in progress
  int left_ = kColumns, top_ = kRows, right_ = -1, bottom_ = -1;  // touched part of cover_
};

}  // namespace octet::report
