// Golden matrices are kept as samples of their rows, so that twelve models fit a small repository.
#pragma once

#include <cstdint>
#include <vector>

namespace octet::test {

/// Returns the rows of `whole` that a golden tensor of `kept` elements holds: row 0 and every s-th row of
/// `cols` elements after it, with s = whole.size() / kept. (Logits [rows, length, vocabulary] count as rows x
/// length rows.) Empty if s is not an integer.
inline std::vector<float> sampled_rows(const std::vector<float>& whole, std::size_t kept, std::int64_t cols) {
  if (kept == 0 || whole.size() % kept != 0) return {};
  const std::size_t width = static_cast<std::size_t>(cols), step = whole.size() / kept;
  std::vector<float> rows;
  rows.reserve(kept);
  for (std::size_t begin = 0; begin + width <= whole.size(); begin += step * width) {
    rows.insert(rows.end(), whole.begin() + static_cast<std::ptrdiff_t>(begin),
                whole.begin() + static_cast<std::ptrdiff_t>(begin + width));
  }
  return rows;
}

}  // namespace octet::test
