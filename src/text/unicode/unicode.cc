#include "unicode/unicode.h"

#include <algorithm>
#include <map>

namespace octet::text {
namespace {

constexpr std::string_view kNames[] = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl",
                                       "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sm", "Sc",
                                       "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};

}  // namespace

void normalise_ranges(Ranges& ranges) {
  std::sort(ranges.begin(), ranges.end());
  Ranges out;
  for (const auto& range : ranges) {
    if (!out.empty() && range.first <= out.back().second + 1) {
      out.back().second = std::max(out.back().second, range.second);
    } else {
      out.push_back(range);
    }
  }
  ranges = std::move(out);
}

Ranges complement(const Ranges& ranges) {
  Ranges out;
  std::uint32_t next = 0;
  for (const auto& [first, last] : ranges) {
    if (first > next) out.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next <= kMaxCodePoint) out.emplace_back(next, kMaxCodePoint);
  return out;
}

Ranges category_ranges(std::uint32_t mask) {
  Ranges out;
  const auto runs = category_runs();
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (!((mask >> (runs[i] & 0xFF)) & 1)) continue;
    const std::uint32_t last = i + 1 < runs.size() ? (runs[i + 1] >> 8) - 1 : kMaxCodePoint;
    out.emplace_back(runs[i] >> 8, last);
  }
  normalise_ranges(out);
  return out;
}

std::uint32_t category_mask(std::string_view name) {
  std::uint32_t mask = 0;
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    if (kNames[i] == name || (name.size() == 1 && kNames[i][0] == name[0])) mask |= 1u << i;
  }
  return mask;
}

Ranges white_space() {
  return {{0x9, 0xD},       {0x20, 0x20},     {0x85, 0x85},     {0xA0, 0xA0},     {0x1680, 0x1680},
          {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}};
}

Ranges word_characters() {
  Ranges out = category_ranges(category_mask("L") | category_mask("M") | category_mask("Nd") |
                               category_mask("Nl") | category_mask("Pc"));
  // Alphabetic signs of category So: circled and squared letters.
  for (const auto& range :
       Ranges{{0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}}) {
    out.push_back(range);
  }
  normalise_ranges(out);
  return out;
}

Ranges words_and_joiners() {
  Ranges out = word_characters();
  out.emplace_back(0x200C, 0x200D);
  return out;
}

Ranges regex_word_characters() {
  Ranges out = word_characters();
  for (const auto& range : Ranges{{0xB2, 0xB3}, {0xB9, 0xB9}, {0xBC, 0xBE}}) out.push_back(range);
  normalise_ranges(out);
  return out;
}

bool close_under_ascii_case(Ranges& ranges) {
  normalise_ranges(ranges);
  const Ranges given = ranges;
  const auto has = [&](std::uint32_t code) {
    return std::any_of(given.begin(), given.end(),
                       [&](const auto& r) { return r.first <= code && code <= r.second; });
  };
  for (std::uint32_t lower = 'a'; lower <= 'z'; ++lower) {
    const std::uint32_t upper = lower - 32;
    const std::uint32_t third = lower == 's' ? 0x17F : lower == 'k' ? 0x212A : lower;
    if (!has(lower) && !has(upper) && !has(third)) continue;
    for (const std::uint32_t code : {lower, upper, third}) ranges.emplace_back(code, code);
  }
  normalise_ranges(ranges);
  const auto beyond = [](const auto& r) {
    return r.second >= 0x80 && r.second != 0x17F && r.second != 0x212A;
  };
  if (std::none_of(given.begin(), given.end(), beyond)) return true;
  const CharSet set(ranges);
  std::size_t inside = 0, total = 0;
  for (const auto& [first, last] :
       category_ranges(category_mask("Lu") | category_mask("Ll") | category_mask("Lt"))) {
    for (std::uint32_t code = std::max(first, 0x80u); code <= last; ++code) {
      if (code == 0x17F || code == 0x212A) continue;
      ++total;
      inside += set.contains(code);
    }
  }
  return inside == 0 || inside == total;
}

CharSet::CharSet(Ranges ranges) : ranges_(std::move(ranges)) {
  normalise_ranges(ranges_);
  std::map<std::array<std::uint64_t, 4>, std::uint16_t> known;
  auto range = ranges_.begin();
  for (std::uint32_t page = 0; page < page_of_.size(); ++page) {
    std::array<std::uint64_t, 4> bits{};
    const std::uint32_t first = page << 8, last = first | 0xFF;
    while (range != ranges_.end() && range->second < first) ++range;
    for (auto r = range; r != ranges_.end() && r->first <= last; ++r) {
      for (std::uint32_t c = std::max(first, r->first); c <= std::min(last, r->second); ++c) {
        bits[(c >> 6) & 3] |= std::uint64_t{1} << (c & 63);
      }
    }
    const auto [it, fresh] = known.try_emplace(bits, static_cast<std::uint16_t>(pages_.size()));
    if (fresh) pages_.push_back(bits);
    page_of_[page] = it->second;
  }
}

}  // namespace octet::text
