// How far apart two words are, counted in another way than the program counts, and how far a name that it
// offers may be.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

namespace octet::test {

/// Letters to change, to add, to leave out, or to exchange with a neighbour, until `a` is `b`.
inline std::size_t edits(const std::string& a, const std::string& b) {
  const std::size_t rows = b.size() + 1, unknown = a.size() + b.size() + 1;
  std::vector<std::size_t> known((a.size() + 1) * rows, unknown);
  const auto from = [&](const auto& self, std::size_t i, std::size_t j) -> std::size_t {
    if (i == a.size() || j == b.size()) return a.size() - i + b.size() - j;
    if (known[i * rows + j] != unknown) return known[i * rows + j];
    std::size_t least = self(self, i + 1, j + 1) + (a[i] == b[j] ? 0 : 1);
    least = std::min({least, self(self, i + 1, j) + 1, self(self, i, j + 1) + 1});
    const bool pair = i + 1 < a.size() && j + 1 < b.size();
    if (pair && a[i] == b[j + 1] && a[i + 1] == b[j]) least = std::min(least, self(self, i + 2, j + 2) + 1);
    return known[i * rows + j] = least;
  };
  return from(from, 0, 0);
}

/// Largest edit distance of a name that is offered in place of `word`.
inline std::size_t most_edits(const std::string& word) {
  if (word.size() < 2) return 0;
  if (word.size() < 5) return 1;
  return std::max<std::size_t>(2, word.size() / 4);
}

}  // namespace octet::test
