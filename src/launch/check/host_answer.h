// The answer of a host to the questions of launch/check-hosts.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace octet::launch {

/// Facts about a host, a value for each word. Lines that login scripts print have other words.
class HostAnswer {
 public:
  HostAnswer() = default;
  /// Reads lines of a word, a blank and a value. The first line of a word counts.
  explicit HostAnswer(std::string_view text);
  /// Returns the value; "" if the host did not give any.
  const std::string& value(const std::string& word) const;
  /// Returns the value if it has digits only. "unlimited" is no number.
  std::optional<std::int64_t> number(const std::string& word) const;

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

/// What became of the question to a host.
struct HostReply {
  HostAnswer answer;
  int code = 0;                 ///< exit code of ssh
  bool is_late = false;         ///< there was no answer in time
  std::string errors;           ///< output of ssh
  double began = 0, ended = 0;  ///< by the clock of this host, in seconds since 1970
};

}  // namespace octet::launch
