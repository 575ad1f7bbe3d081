#include "host_names.h"

#include <algorithm>
#include <cctype>
#include <cstdint>

#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "octet/base/terminal.h"

namespace octet::launch {
namespace {

[[noreturn]] void refuse_range(const std::string& name, const std::string& where) {
  throw Error({.what = "a range of host names is not valid",
               .expected = "names such as node[01-04,07], with at most " + std::to_string(kMostHosts) +
                           " hosts in ascending ranges",
               .found = printable_line(name),
               .where = printable_line(where),
               .fix = "correct the brackets, or write one host per line",
               .code = ExitCode::usage});
}

bool is_digits(std::string_view text) {
  constexpr std::size_t kMostDigits = 9;
  return !text.empty() && text.size() <= kMostDigits &&
         std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c) != 0; });
}

/// Appends the numbers of `01-04`, or of a single number. Returns false for any other text.
bool append_numbers(std::string_view range, std::vector<std::string>& numbers) {
  const std::size_t hyphen = range.find('-');
  const std::string_view first = range.substr(0, hyphen);
  const std::string_view last = hyphen == std::string_view::npos ? first : range.substr(hyphen + 1);
  if (!is_digits(first) || !is_digits(last)) return false;
  const std::int64_t from = std::stoll(std::string(first)), to = std::stoll(std::string(last));
  const auto count = static_cast<std::size_t>(std::max<std::int64_t>(0, to - from + 1));
  if (count == 0 || numbers.size() + count > kMostHosts) return false;
  for (std::int64_t number = from; number <= to; ++number) {
    std::string text = std::to_string(number);
    if (text.size() < first.size()) text.insert(0, first.size() - text.size(), '0');
    numbers.push_back(std::move(text));
  }
  return true;
}

}  // namespace

std::vector<std::string> split_host_list(std::string_view list) {
  std::vector<std::string> names(1);
  bool in_brackets = false;
  for (const char c : list) {
    if (c == '[') in_brackets = true;
    if (c == ']') in_brackets = false;
    if (c == ',' && !in_brackets) {
      names.emplace_back();
    } else {
      names.back() += c;
    }
  }
  return names;
}

bool is_compressed(std::string_view name) {
  const std::size_t open = name.find('[');
  return open != std::string_view::npos &&
         name.substr(open, name.find(']', open) - open).find(':') == std::string_view::npos;
}

std::vector<std::string> expand_host_name(const std::string& name, const std::string& where) {
  std::vector<std::string> names{""};
  std::string_view rest = name;
  while (is_compressed(rest)) {
    const std::size_t open = rest.find('['), close = rest.find(']');
    if (close == std::string_view::npos || close < open) refuse_range(name, where);
    std::vector<std::string> numbers;
    for (const std::string& range : split(rest.substr(open + 1, close - open - 1), ','))
      if (!append_numbers(range, numbers)) refuse_range(name, where);
    if (names.size() * numbers.size() > kMostHosts) refuse_range(name, where);
    std::vector<std::string> longer;
    for (const std::string& begin : names) {
      for (const std::string& number : numbers)
        longer.push_back(begin + std::string(rest.substr(0, open)) + number);
    }
    names = std::move(longer);
    rest.remove_prefix(close + 1);
  }
  for (std::string& begin : names) begin += rest;
  return names;
}

}  // namespace octet::launch
