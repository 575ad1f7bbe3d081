#include <png.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "canvas.h"
#include "font.h"
#include "octet/base/error.h"

namespace octet::report {

PixelCanvas::PixelCanvas()
    : pixels_(static_cast<std::size_t>(kRows) * kColumns * 3, 0xFF),
      cover_(static_cast<std::size_t>(kRows) * kColumns, 0.0f) {}

// Adds one segment to the coverage. The maximum, not the sum, so that joints do not show.
void PixelCanvas::stroke(double x0, double y0, double x1, double y1, double radius) {
  if (!std::isfinite(x0 + y0 + x1 + y1)) return;
  const auto column = [](double x) { return static_cast<int>(std::clamp(x, 0.0, kColumns - 1.0)); };
  const auto row = [](double y) { return static_cast<int>(std::clamp(y, 0.0, kRows - 1.0)); };
  const double reach = radius + 1;
  const int left = column(std::min(x0, x1) - reach), right = column(std::max(x0, x1) + reach);
  const int top = row(std::min(y0, y1) - reach), bottom = row(std::max(y0, y1) + reach);
  left_ = std::min(left_, left), right_ = std::max(right_, right);
  top_ = std::min(top_, top), bottom_ = std::max(bottom_, bottom);
  const double dx = x1 - x0, dy = y1 - y0, length2 = dx * dx + dy * dy;
  for (int y = top; y <= bottom; ++y) {
    for (int x = left; x <= right; ++x) {
      const double px = x + 0.5 - x0, py = y + 0.5 - y0;
      const double t = length2 > 0 ? std::clamp((px * dx + py * dy) / length2, 0.0, 1.0) : 0.0;
      const double distance = std::hypot(px - t * dx, py - t * dy);
      const auto covered = static_cast<float>(std::clamp(radius + 0.5 - distance, 0.0, 1.0));
      float& cover = cover_[static_cast<std::size_t>(y) * kColumns + static_cast<std::size_t>(x)];
      cover = std::max(cover, covered);
    }
  }
}

void PixelCanvas::blend(Colour colour, double opacity) {
  const std::uint8_t paint[3] = {colour.r, colour.g, colour.b};
  for (int y = top_; y <= bottom_; ++y) {
    for (int x = left_; x <= right_; ++x) {
      const std::size_t at = static_cast<std::size_t>(y) * kColumns + static_cast<std::size_t>(x);
      const double alpha = static_cast<double>(cover_[at]) * opacity;
      if (alpha > 0) {
        for (std::size_t c = 0; c < 3; ++c) {
          std::uint8_t& pixel = pixels_[at * 3 + c];
          pixel = static_cast<std::uint8_t>(std::lround(pixel + (paint[c] - pixel) * alpha));
        }
      }
      cover_[at] = 0;
    }
  }
  left_ = kColumns, top_ = kRows, right_ = -1, bottom_ = -1;
}

void PixelCanvas::polyline(const Points& points, const Pen& pen) {
  const double radius = pen.width * kScale / 2;
  for (std::size_t i = 1; i < points.size(); ++i) {
    stroke(points[i - 1].first * kScale, points[i - 1].second * kScale, points[i].first * kScale,
           points[i].second * kScale, radius);
  }
  blend(pen.colour, pen.opacity);
}

void PixelCanvas::dot(double x, double y, double radius, Colour colour) {
  stroke(x * kScale, y * kScale, x * kScale, y * kScale, radius * kScale);
  blend(colour, 1);
}

void PixelCanvas::text(const Text& t) {
  const double unit = t.size * 0.7 / kCapHeight * kScale;
  double width = 0;
  for (const char c : t.text) width += (glyph(c)[1] - glyph(c)[0]) * unit;
  double pen = t.anchor == Anchor::start ? 0 : t.anchor == Anchor::middle ? -width / 2 : -width;
  for (const char c : t.text) {
    const char* code = glyph(c);
    const double left = code[0] - 'R';
    bool down = false;
    double x0 = 0, y0 = 0;
    for (const char* p = code + 2; p[0] != '\0' && p[1] != '\0'; p += 2) {
      if (p[0] == ' ' && p[1] == 'R') {
        down = false;
        continue;
      }
      const double along = pen + (p[0] - 'R' - left) * unit, across = (p[1] - 'R' - kBaseLine) * unit;
      const double x = t.x * kScale + (t.upwards ? across : along);
      const double y = t.y * kScale + (t.upwards ? -along : across);
      if (down) stroke(x0, y0, x, y, 0.045 * t.size * kScale);
      x0 = x, y0 = y, down = true;
    }
    pen += (code[1] - code[0]) * unit;
  }
  blend(t.colour, 1);
}

std::string PixelCanvas::finish() const {
  png_image image;
  std::memset(&image, 0, sizeof image);
  image.version = PNG_IMAGE_VERSION;
  image.width = kColumns;
  image.height = kRows;
  image.format = PNG_FORMAT_RGB;
  // The largest a PNG of this size can be: asking libpng for the exact size would compress twice.
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::string bytes(size, '\0');
  const bool ok = png_image_write_to_memory(&image, bytes.data(), &size, 0, pixels_.data(), 0, nullptr) != 0;
  bytes.resize(size);
  if (!ok)
    throw Error({.what = "the plot could not be encoded as PNG",
                 .found = image.message,
                 .fix = "set plot_loss: false"});
  return bytes;
}

}  // namespace octet::report
