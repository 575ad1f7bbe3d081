#include <cstdio>

#include "canvas.h"

namespace octet::report {
namespace {

std::string hex(Colour c) {
  char text[8];
  std::snprintf(text, sizeof text, "#%02x%02x%02x", c.r, c.g, c.b);
  return text;
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  return text;
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '&') {
      result += "&amp;";
    } else if (c == '<') {
      result += "&lt;";
    } else if (c == '>') {
      result += "&gt;";
    } else if (static_cast<unsigned char>(c) >= 0x20) {
      result += c;
    }
  }
  return result;
}

}  // namespace

void SvgCanvas::polyline(const Points& points, const Pen& pen) {
  body_ += "<polyline fill=\"none\" stroke=\"" + hex(pen.colour) + "\" stroke-width=\"" + number(pen.width) +
           "\" stroke-opacity=\"" + number(pen.opacity) +
           "\" stroke-linejoin=\"round\" stroke-linecap=\"round\" points=\"";
  for (const auto& [x, y] : points) body_ += number(x) + "," + number(y) + " ";
  body_ += "\"/>\n";
}

void SvgCanvas::dot(double x, double y, double radius, Colour colour) {
  body_ += "<circle cx=\"" + number(x) + "\" cy=\"" + number(y) + "\" r=\"" + number(radius) + "\" fill=\"" +
           hex(colour) + "\"/>\n";
}

void SvgCanvas::text(const Text& t) {
  const char* anchor = t.anchor == Anchor::start ? "start" : t.anchor == Anchor::middle ? "middle" : "end";
  body_ += "<text x=\"" + number(t.x) + "\" y=\"" + number(t.y) + "\" font-size=\"" + number(t.size) +
           "\" text-anchor=\"" + anchor + "\" fill=\"" + hex(t.colour) + "\"";
  if (t.upwards) body_ += " transform=\"rotate(-90 " + number(t.x) + " " + number(t.y) + ")\"";
  body_ += ">" + escaped(t.text) + "</text>\n";
}

std::string SvgCanvas::finish() const {
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 800 500\" width=\"800\" height=\"500\" "
         "font-family=\"Helvetica, Arial, sans-serif\">\n<rect width=\"800\" height=\"500\" "
         "fill=\"#ffffff\"/>\n" +
         body_ + "</svg>\n";
}

}  // namespace octet::report
