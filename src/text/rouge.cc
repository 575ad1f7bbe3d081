#include "octet/text/rouge.h"

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace octet::text {
namespace {

// Characters outside of ASCII count as letters, so words of other scripts are not split.
bool is_of_word(unsigned char c) {
  return c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z');
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  bool inside = false;
  for (const char each : text) {
    const char c = each >= 'A' && each <= 'Z' ? static_cast<char>(each - 'A' + 'a') : each;
    const bool was_inside = std::exchange(inside, is_of_word(static_cast<unsigned char>(c)));
    if (!inside) continue;
    if (!was_inside) words.emplace_back();
    words.back() += c;
  }
  return words;
}

// Length of the longest common subsequence, by rows of the usual table.
std::size_t common(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<std::size_t> row(b.size() + 1, 0);
  for (const int word : a) {
    std::size_t corner = 0;  // value of the previous row, one column to the left
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t above = row[j + 1];
      row[j + 1] = word == b[j] ? corner + 1 : std::max(above, row[j]);
      corner = above;
    }
  }
  return row.back();
}

}  // namespace

double rouge_l(std::string_view answer, std::string_view expected) {
  std::unordered_map<std::string, int> numbers;
  const auto numbered = [&numbers](std::string_view text) {
    std::vector<int> all;
    for (std::string& word : words_of(text)) {
      all.push_back(numbers.try_emplace(std::move(word), static_cast<int>(numbers.size())).first->second);
    }
    return all;
  };
  const std::vector<int> said = numbered(answer), wanted = numbered(expected);
  if (said.empty() || wanted.empty()) return 0;
  // 2PR / (P + R) of P = common / said and R = common / wanted.
  return 2.0 * static_cast<double>(common(said, wanted)) / static_cast<double>(said.size() + wanted.size());
}

}  // namespace octet::text
