// Tables of upper, lower and title case, as in Python's str.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace octet::text {

/// Every `step`-th code point of [first, last] maps to itself plus `distance`.
struct CaseRun {
  std::uint32_t first, last, step;
  std::int32_t distance;
};

/// A code point that maps to two or three code points. Unused places are 0.
struct CaseWord {
  std::uint32_t code;
  std::array<std::uint32_t, 3> to;
};

struct CodeRange {
  std::uint32_t first, last;
};

struct CaseMap {
  std::span<const CaseRun> runs;
  std::span<const CaseWord> words;
};

/// All lists are sorted by code point.
struct CaseTables {
  CaseMap upper, lower, title;
  std::span<const CodeRange> is_upper, is_lower, is_title;
  std::span<const CodeRange> is_ignorable;  ///< the final-sigma rule skips these
  std::span<const CodeRange> is_digit, is_numeric;
};

const CaseTables& case_tables();

}  // namespace octet::text
