#include "octet/base/strings.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <numeric>
#include <utility>

namespace octet {
namespace {

// Letters that are left out, added, changed, or exchanged with their neighbour; two rows are kept.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> above(b.size() + 1), row(b.size() + 1), next(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    next[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = a[i - 1] == b[j - 1];
      next[j] = std::min({row[j] + 1, next[j - 1] + 1, row[j - 1] + (same ? 0 : 1)});
      const bool exchanged = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (exchanged) next[j] = std::min(next[j], above[j - 2] + 1);
    }
    std::swap(above, row);
    std::swap(row, next);
  }
  return row[b.size()];
}

// Half of a short word is another word, and a single letter any.
std::size_t farthest(std::size_t size) {
  return size < 2 ? 0 : size < 5 ? 1 : std::max<std::size_t>(2, size / 4);
}

// Ignores the sections that both dotted paths begin with: at most half of the rest may differ.
bool differs_less_than_half(std::string_view word, std::string_view candidate, std::size_t distance) {
  auto common = static_cast<std::size_t>(std::ranges::mismatch(word, candidate).in1 - word.begin());
  const auto ends = [common](std::string_view path) { return path.substr(common, 1); };
  const bool section =
      ends(word) == "." ? ends(candidate).empty() : ends(word).empty() && ends(candidate) == ".";
  const std::size_t dot = word.substr(0, common).rfind('.');
  if (!section) common = dot == std::string_view::npos ? 0 : dot + 1;
  return 2 * distance <= std::max(word.size(), candidate.size()) - common;
}

}  // namespace

std::string nearest_name(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t best_distance = farthest(word.size()) + 1;
  for (const auto& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < best_distance && differs_less_than_half(word, candidate, distance)) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::vector<std::string> names_of_family(std::string_view word, const std::vector<std::string>& candidates) {
  const auto letters = [](std::string_view text) {
    std::string out;
    for (const char c : text) {
      const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
      if (lower < 'a' || lower > 'z') break;
      out += lower;
    }
    return out;
  };
  const std::string family = letters(word);
  std::vector<std::string> out;
  if (family.size() < 2) return out;
  std::ranges::copy_if(candidates, std::back_inserter(out),
                       [&](const std::string& name) { return letters(name) == family; });
  return out;
}

bool same_digits(std::string_view a, std::string_view b) {
  const auto digits = [](std::string_view text) {
    std::string out;
    std::ranges::copy_if(text, std::back_inserter(out), [](char c) { return c >= '0' && c <= '9'; });
    return out;
  };
  return digits(a) == digits(b);
}

std::string human_bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (std::abs(bytes) >= 1024.0 && unit < 4) {
    bytes /= 1024.0;
    ++unit;
  }
  char text[64];
  std::snprintf(text, sizeof text,
                unit == 0  ? "%.0f %s"
                : unit < 3 ? "%.1f %s"
                           : "%.2f %s",
                bytes, kUnits[unit]);
  return text;
}

std::string with_commas(std::int64_t n) {
  std::string digits = std::to_string(n);
  const std::ptrdiff_t first = n < 0 ? 1 : 0;
  for (std::ptrdiff_t i = static_cast<std::ptrdiff_t>(digits.size()) - 3; i > first; i -= 3) {
    digits.insert(static_cast<std::size_t>(i), ",");
  }
  return digits;
}

std::string clock_time(double seconds) {
  const auto s = static_cast<std::int64_t>(std::max(0.0, seconds));
  char text[64];
  std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", static_cast<long long>(s / 3600),
                static_cast<long long>(s / 60 % 60), static_cast<long long>(s % 60));
  return text;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> pieces;
  std::size_t begin = 0;
  for (;;) {
    const std::size_t end = text.find(separator, begin);
    pieces.emplace_back(text.substr(begin, end == std::string_view::npos ? end : end - begin));
    if (end == std::string_view::npos) return pieces;
    begin = end + 1;
  }
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n\v\f";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

std::string lower_case(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

bool is_utf8(std::string_view text) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  const auto* const end = p + text.size();
  while (p < end) {
    if (*p < 0x80) {
      ++p;
      continue;
    }
    const int length = *p >= 0xF0 ? 4 : *p >= 0xE0 ? 3 : 2;
    if (*p < 0xC2 || *p > 0xF4 || end - p < length) return false;
    std::uint32_t point = *p & (0x7Fu >> length);
    for (int i = 1; i < length; ++i) {
      if ((p[i] & 0xC0) != 0x80) return false;
      point = (point << 6) | (p[i] & 0x3Fu);
    }
    if ((length == 3 && point < 0x800) || (length == 4 && point < 0x10000)) return false;
    if (point > 0x10FFFF || (point >= 0xD800 && point < 0xE000)) return false;
    p += length;
  }
  return true;
}

}  // namespace octet
