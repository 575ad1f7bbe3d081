// The scripts that a shell on each host runs for launch/check-hosts (POSIX sh). They need no program of
// Octet, because a host may have none. Each line of their output is a word and a value.
#pragma once

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

}  // namespace octet::launch
