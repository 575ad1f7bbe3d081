// Which rows are held out for evaluation.
#pragma once

#include <cstdint>
#include <set>

namespace octet::data {

/// Returns the numbers that hold_out() chooses: `count` of 0 to rows - 1.
std::set<std::int64_t> held_out_numbers(std::int64_t rows, std::int64_t count, std::uint64_t seed);

}  // namespace octet::data
