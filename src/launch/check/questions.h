// The scripts that a shell on each host runs for launch/check-hosts (POSIX sh). They need no program of
// Octet, because a host may have none. Each line of their output is a word and a value.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octet::launch {

/// What the hosts are asked about.
struct Question {
  std::string program, folder;
  std::string token;               ///< the name of a file in `folder`
  std::vector<std::string> paths;  ///< files and folders that each host must have
};

/// Returns a script that prints the facts about its host. HostAnswer reads them.
std::string facts_script(const Question& question);

/// Returns a script that listens on a port of each range until its input ends, and sends `word` to each
/// connection. It prints `addresses ADDRESS...`, `port KIND NUMBER` for each range with a free port (KIND
/// counts the ranges from 0), then `listens`. A range is FIRST-LAST, or several with commas; 0-0 means any
/// port.
std::string listen_script(const std::string& word, const std::vector<std::string>& ranges);

/// A port that a host connects to.
struct Target {
  std::string address;
  int port = 0;
  std::string word;    ///< what the listener sends
  std::string answer;  ///< the line that the script prints if it receives the word
};

/// Returns a script that connects to all targets concurrently. Each connection has a limit of four seconds.
std::string connect_script(const std::vector<Target>& targets);

// The answer of a host to the questions of launch/check-hosts.

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
