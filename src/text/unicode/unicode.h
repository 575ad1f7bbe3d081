// Unicode data: general categories of version 16, canonical decompositions and combining classes of version
// 9, and fast sets of code points.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "unicode/utf8.h"

namespace octet::text {

/// General categories, in the order of make_unicode_tables.py.
enum Category : std::uint8_t {
  kLu,
  kLl,
  kLt,
  kLm,
  kLo,
  kMn,
  kMc,
  kMe,
  kNd,
  kNl,
  kNo,
  kPc,
  kPd,
  kPs,
  kPe,
  kPi,
  kPf,
  kPo,
  kSm,
  kSc,
  kSk,
  kSo,
  kZs,
  kZl,
  kZp,
  kCc,
  kCf,
  kCs,
  kCo,
  kCn
};

/// The canonical combining class of code points [first, last].
struct CombiningRun {
  std::uint32_t first, last;
  std::uint8_t value;
};

/// One step of canonical decomposition. `second` is 0 for singletons. `composes`: NFC composes it again.
struct Decomposition {
  std::uint32_t code, first, second;
  std::uint8_t composes;
};

std::span<const std::uint32_t> category_runs();
std::span<const CombiningRun> combining_runs();
std::span<const Decomposition> decompositions();

constexpr std::uint32_t kMaxCodePoint = 0x10FFFF;

/// Closed ranges of code points. They are sorted and disjoint after normalise_ranges().
using Ranges = std::vector<std::pair<std::uint32_t, std::uint32_t>>;

/// Sorts ranges, and joins adjacent and overlapping ranges.
void normalise_ranges(Ranges& ranges);
/// Returns the complement within [0, 0x10FFFF]. `ranges` must be normalised.
Ranges complement(const Ranges& ranges);
/// Returns the code points of the categories with a set bit.
Ranges category_ranges(std::uint32_t category_mask);
/// Returns the mask of a category name of one or two letters ("L", "Lu"); 0 if unknown.
std::uint32_t category_mask(std::string_view name);
/// Code points with the property White_Space.
Ranges white_space();
/// Letters, marks, decimal digits, letter numbers, connector punctuation and other alphabetic signs.
Ranges word_characters();
/// \w of Rust's regex: word_characters() and the two joiners.
Ranges words_and_joiners();
/// \w of Oniguruma: word_characters() and the superscript digits and fractions of Latin-1.
Ranges regex_word_characters();

/// Adds the other cases of the ASCII letters in the set, and U+017F and U+212A, which fold to s and k.
/// Returns false if the set has some, but not all, cased letters beyond ASCII. This is not supported.
bool close_under_ascii_case(Ranges& ranges);

/// A set of code points with constant-time membership. Immutable, about 9 KiB.
class CharSet {
 public:
  CharSet() : CharSet(Ranges{}) {}
  explicit CharSet(Ranges ranges);
  bool contains(std::uint32_t code) const {
    if (code < 128) return (pages_[page_of_[0]][code >> 6] >> (code & 63)) & 1;
    return (pages_[page_of_[code >> 8]][(code >> 6) & 3] >> (code & 63)) & 1;
  }
  const Ranges& ranges() const { return ranges_; }

 private:
  std::array<std::uint16_t, 0x1100> page_of_;
  std::vector<std::array<std::uint64_t, 4>> pages_;
  Ranges ranges_;
};

}  // namespace octet::text
