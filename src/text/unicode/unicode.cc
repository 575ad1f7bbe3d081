#include "unicode/unicode.h"

#include <algorithm>
#include <map>
#include <unordered_map>

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

namespace {

constexpr std::uint32_t kHangulS = 0xAC00, kHangulL = 0x1100, kHangulV = 0x1161, kHangulT = 0x11A7;
constexpr std::uint32_t kHangulVs = 21, kHangulTs = 28, kHangulSs = 19 * kHangulVs * kHangulTs;

struct Tables {
  std::unordered_map<std::uint32_t, std::uint8_t> classes;
  std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> full;  ///< full decompositions
  std::unordered_map<std::uint64_t, std::uint32_t> pairs;              ///< compositions
  CharSet unsafe;  ///< characters that NFC may change, move or join to the previous one

  Tables() {
    Ranges changing{{kHangulV, kHangulV + kHangulVs - 1}, {kHangulT + 1, kHangulT + kHangulTs - 1}};
    for (const auto& run : combining_runs()) {
      for (std::uint32_t c = run.first; c <= run.last; ++c) classes[c] = run.value;
      changing.emplace_back(run.first, run.last);
    }
    std::unordered_map<std::uint32_t, const Decomposition*> steps;
    for (const auto& d : decompositions()) steps[d.code] = &d;
    for (const auto& d : decompositions()) {
      expand(steps, d.code, full[d.code]);
      if (d.composes) {
        pairs[static_cast<std::uint64_t>(d.first) << 32 | d.second] = d.code;
        changing.emplace_back(d.second, d.second);
      } else {
        changing.emplace_back(d.code, d.code);
      }
    }
    unsafe = CharSet(changing);
  }

  static void expand(const std::unordered_map<std::uint32_t, const Decomposition*>& steps, std::uint32_t code,
                     std::vector<std::uint32_t>& out) {
    const auto step = steps.find(code);
    if (step == steps.end()) {
      out.push_back(code);
      return;
    }
    expand(steps, step->second->first, out);
    if (step->second->second) expand(steps, step->second->second, out);
  }

  std::uint8_t combining(std::uint32_t code) const {
    const auto it = classes.find(code);
    return it == classes.end() ? 0 : it->second;
  }

  std::uint32_t compose(std::uint32_t a, std::uint32_t b) const {
    if (a >= kHangulL && a < kHangulL + 19 && b >= kHangulV && b < kHangulV + kHangulVs) {
      return kHangulS + ((a - kHangulL) * kHangulVs + (b - kHangulV)) * kHangulTs;
    }
    if (a >= kHangulS && a < kHangulS + kHangulSs && (a - kHangulS) % kHangulTs == 0 && b > kHangulT &&
        b < kHangulT + kHangulTs) {
      return a + (b - kHangulT);
    }
    const auto it = pairs.find(static_cast<std::uint64_t>(a) << 32 | b);
    return it == pairs.end() ? 0 : it->second;
  }
};

const Tables& tables() {
  static const Tables instance;
  return instance;
}

/// A character and its change of the character count: 0 replaces one source character, 1 is inserted, and -n
/// replaces n + 1 source characters.
struct Changed {
  std::uint32_t code;
  int change;
  std::uint8_t combining;
};

std::vector<Changed> decomposed(std::string_view text) {
  const Tables& t = tables();
  std::vector<Changed> out;
  out.reserve(text.size());
  std::size_t ready = 0;  // start of the trailing characters with a combining class
  const auto sort_pending = [&] {
    std::stable_sort(out.begin() + static_cast<std::ptrdiff_t>(ready), out.end(),
                     [](const Changed& a, const Changed& b) { return a.combining < b.combining; });
  };
  const auto push = [&](std::uint32_t code, bool first) {
    const std::uint8_t combining = t.combining(code);
    if (combining == 0) sort_pending();
    out.push_back({code, first ? 0 : 1, combining});
    if (combining == 0) ready = out.size();
  };
  for (std::size_t i = 0; i < text.size();) {
    const std::uint32_t code = utf8_at(text.data() + i);
    i += utf8_length(static_cast<unsigned char>(text[i]));
    if (code >= kHangulS && code < kHangulS + kHangulSs) {
      const std::uint32_t s = code - kHangulS;
      push(kHangulL + s / (kHangulVs * kHangulTs), true);
      push(kHangulV + s % (kHangulVs * kHangulTs) / kHangulTs, false);
      if (s % kHangulTs) push(kHangulT + s % kHangulTs, false);
      continue;
    }
    const auto full = t.full.find(code);
    if (full == t.full.end()) {
      push(code, true);
    } else {
      for (std::size_t k = 0; k < full->second.size(); ++k) push(full->second[k], k == 0);
    }
  }
  sort_pending();
  return out;
}

// The canonical composition algorithm: each character joins the last starter, unless a character with an
// equal or higher combining class is between them.
std::vector<Changed> composed(const std::vector<Changed>& in) {
  const Tables& t = tables();
  std::vector<Changed> out;
  out.reserve(in.size());
  std::ptrdiff_t starter = -1;
  int last_class = -1;  // combining class of the latest character after the starter; -1: none
  for (const Changed& c : in) {
    if (starter >= 0 && last_class < static_cast<int>(c.combining)) {
      Changed& base = out[static_cast<std::size_t>(starter)];
      if (const std::uint32_t joined = t.compose(base.code, c.code)) {
        base.code = joined;
        base.change += c.change - 1;
        continue;
      }
    }
    out.push_back(c);
    if (c.combining == 0) {
      starter = static_cast<std::ptrdiff_t>(out.size()) - 1;
      last_class = -1;
    } else {
      last_class = c.combining;
    }
  }
  return out;
}

}  // namespace

bool surely_nfc(std::string_view text) {
  bool plain = true;
  for (const char c : text) plain &= static_cast<unsigned char>(c) < 0xCC;  // below U+0300
  if (plain) return true;
  const Tables& t = tables();
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead >= 0xCC && t.unsafe.contains(utf8_at(text.data() + i))) return false;
    i += utf8_length(lead);
  }
  return true;
}

AlignedText nfc(const TextView& view) {
  const AlignedText in(view);
  AlignedText out;
  out.text.reserve(in.text.size());
  std::size_t at = 0;
  std::string bytes;
  const auto skip = [&] {
    if (at < in.text.size()) at += utf8_length(static_cast<unsigned char>(in.text[at]));
  };
  for (const Changed& c : composed(decomposed(view.text))) {
    Span from{0, 0};
    if (c.change > 0) {
      if (at > 0) from = in.source[at - 1];
    } else if (at < in.source.size()) {
      from = in.source[at];
    }
    if (c.change <= 0) {
      for (int i = 0; i <= -c.change; ++i) skip();
    }
    bytes.clear();
    utf8_append(bytes, c.code);
    out.append(bytes, from);
  }
  return out;
}

}  // namespace octet::text
