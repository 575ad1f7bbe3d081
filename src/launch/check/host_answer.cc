#include "check/host_answer.h"

#include "octet/base/strings.h"

namespace octet::launch {

HostAnswer::HostAnswer(std::string_view text) {
  for (const std::string& line : split(text, '\n')) {
    const std::size_t blank = line.find(' ');
    if (blank != std::string::npos) values_.emplace(line.substr(0, blank), line.substr(blank + 1));
  }
}

const std::string& HostAnswer::value(const std::string& word) const {
  static const std::string nothing;
  const auto found = values_.find(word);
  return found == values_.end() ? nothing : found->second;
}

std::optional<std::int64_t> HostAnswer::number(const std::string& word) const {
  constexpr std::size_t kMostDigits = 18;
  const std::string& text = value(word);
  if (text.empty() || text.size() > kMostDigits || text.find_first_not_of("0123456789") != std::string::npos)
    return std::nullopt;
  return std::stoll(text);
}

}  // namespace octet::launch
