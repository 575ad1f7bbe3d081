#include "words.h"

#include <cmath>
#include <cstdio>
#include <ctime>

#include "octet/base/json.h"
#include "octet/base/process.h"
#include "octet/base/strings.h"
#include "octet/report/number.h"

namespace octet::report {

std::string python_number(double value, int digits) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char text[64];
  std::snprintf(text, sizeof text, "%.*g", digits, value);
  std::string result = text;
  if (result.find_first_of(".e") == std::string::npos) result += ".0";
  return result;
}

std::string rate_text(double value) {
  if (!std::isfinite(value)) return "?";
  return value >= 100 ? with_commas(std::llround(std::min(value, 9e18))) : fixed(value, 1);
}

std::string fixed(double value, int digits) {
  char text[400];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

double gib(std::int64_t bytes) {
  return static_cast<double>(bytes) / (1024.0 * 1024.0 * 1024.0);
}

std::string quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string cell(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '|') result += '\\';
    result += c == '\n' || c == '\r' ? ' ' : c;
  }
  return result;
}

std::string date_and_host() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char date[32] = "";
  std::strftime(date, sizeof date, "%b%d_%H-%M-%S", &local);
  return std::string(date) + "_" + host_name();
}

double flop_utilisation(double flops, double tokens_per_second, std::int64_t devices, double peak) {
  if (!(flops > 0) || !(tokens_per_second > 0) || devices < 1 || !(peak > 0)) return 0;
  return flops * tokens_per_second / (static_cast<double>(devices) * peak);
}

}  // namespace octet::report
