#include "unicode/normal_forms.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <vector>

#include "unicode/unicode.h"

namespace octet::text {
namespace {

constexpr std::uint32_t kHangulS = 0xAC00, kHangulL = 0x1100, kHangulV = 0x1161, kHangulT = 0x11A7;
constexpr std::uint32_t kHangulVs = 21, kHangulTs = 28, kHangulSs = 19 * kHangulVs * kHangulTs;

bool is_compatible(NormalForm form) {
  return form == NormalForm::nfkc || form == NormalForm::nfkd;
}

bool is_composed(NormalForm form) {
  return form == NormalForm::nfc || form == NormalForm::nfkc;
}

/// The tables of the canonical forms, or of the compatible forms.
struct Tables {
  std::unordered_map<std::uint32_t, std::uint8_t> classes;
  std::unordered_map<std::uint32_t, std::vector<std::uint32_t>> full;  ///< full decompositions
  std::unordered_map<std::uint64_t, std::uint32_t> pairs;              ///< compositions
  CharSet unsafe;      ///< characters that composition may change, move or join to the previous one
  CharSet decomposes;  ///< characters that decomposition may change or move

  explicit Tables(bool compatible) {
    Ranges changing{{kHangulV, kHangulV + kHangulVs - 1}, {kHangulT + 1, kHangulT + kHangulTs - 1}};
    Ranges split{{kHangulS, kHangulS + kHangulSs - 1}};
    for (const auto& run : combining_runs()) {
      for (std::uint32_t c = run.first; c <= run.last; ++c) classes[c] = run.value;
      changing.emplace_back(run.first, run.last);
      split.emplace_back(run.first, run.last);
    }
    std::unordered_map<std::uint32_t, const Decomposition*> steps;
    for (const auto& d : decompositions()) steps[d.code] = &d;
    for (const auto& d : decompositions()) {
      expand(steps, d.code, full[d.code]);
      split.emplace_back(d.code, d.code);
      if (d.composes) {
        pairs[static_cast<std::uint64_t>(d.first) << 32 | d.second] = d.code;
        changing.emplace_back(d.second, d.second);
      } else {
        changing.emplace_back(d.code, d.code);
      }
    }
    if (compatible) {
      each_compatible([&](std::uint32_t code, std::u32string_view to) {
        full[code].assign(to.begin(), to.end());
        changing.emplace_back(code, code);
        split.emplace_back(code, code);
      });
    }
    unsafe = CharSet(std::move(changing));
    decomposes = CharSet(std::move(split));
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

const Tables& tables(NormalForm form) {
  static const Tables canonical(false);
  if (!is_compatible(form)) return canonical;
  static const Tables compatible(true);
  return compatible;
}

/// A character and its change of the character count: 0 replaces one source character, 1 is inserted, and -n
/// replaces n + 1 source characters.
struct Changed {
  std::uint32_t code;
  int change;
  std::uint8_t combining;
};

std::vector<Changed> decomposed(const Tables& t, std::string_view text) {
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
std::vector<Changed> composed(const Tables& t, const std::vector<Changed>& in) {
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

bool surely_normal(NormalForm form, std::string_view text) {
  // No character below U+00A0 changes, and none below U+0300 joins the character before it.
  const unsigned char first = form == NormalForm::nfc ? 0xCC : 0xC2;
  bool plain = true;
  for (const char c : text) plain &= static_cast<unsigned char>(c) < first;
  if (plain) return true;
  const Tables& t = tables(form);
  const CharSet& changing = is_composed(form) ? t.unsafe : t.decomposes;
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    if (lead >= first && changing.contains(utf8_at(text.data() + i))) return false;
    i += utf8_length(lead);
  }
  return true;
}

AlignedText normal(NormalForm form, const TextView& view) {
  const Tables& t = tables(form);
  const AlignedText in(view);
  AlignedText out;
  out.text.reserve(in.text.size());
  std::size_t at = 0;
  std::string bytes;
  const auto skip = [&] {
    if (at < in.text.size()) at += utf8_length(static_cast<unsigned char>(in.text[at]));
  };
  std::vector<Changed> characters = decomposed(t, view.text);
  if (is_composed(form)) characters = composed(t, characters);
  for (const Changed& c : characters) {
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
