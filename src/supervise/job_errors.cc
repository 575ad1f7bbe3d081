#include "octet/supervise/job_errors.h"

#include <algorithm>

#include "octet/base/strings.h"
#include "octet/base/terminal.h"

namespace octet::supervise {
namespace {

constexpr std::size_t kLongestLine = 4096;  // longer lines are no messages of this program

// Message of ranks that continue without others: "warning: rank 3 has ended, and the other 3 ranks go on
// ...".
constexpr std::string_view kWarning = "warning: ", kEnded = " ended, and the other ";
constexpr std::string_view kError = "error: ", kFound = "  found:    ", kWhere = "  where:    ";
// Open MPI's text about a host that no longer answers.
constexpr std::string_view kLostDaemon = "Remote daemon:", kOnNode = " on node ";

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Returns the description of ranks that begins at `at`, like "rank 2 on node7" or "ranks 1, 3".
std::string ranks_at(std::string_view text, std::size_t at) {
  const std::size_t end = std::min(text.find('(', at), text.find(';', at));
  return std::string(trim(text.substr(at, end == std::string_view::npos ? end : end - at)));
}

// Parses a message of text_of().
std::optional<Lost> lost_in(std::string_view line) {
  const std::string_view text = line.substr(kWarning.size());
  const std::size_t ended = text.find(kEnded);
  if (!text.starts_with("rank") || ended == std::string_view::npos) return std::nullopt;
  const std::string_view subject = text.substr(0, ended);  // ends with "has" or "have"
  Lost lost{.who = std::string(subject.substr(0, subject.rfind(' ')))};
  for (const char c : text.substr(ended + kEnded.size())) {
    if (!is_digit(c) || lost.left > (1 << 24)) break;
    lost.left = 10 * lost.left + (c - '0');
  }
  if (lost.left == 0 || text != text_of(lost)) return std::nullopt;
  return lost;
}

// Returns the ranks that a text names; "" if it names none.
std::string ranks_in(std::string_view text) {
  for (std::size_t at = text.find("rank"); at != std::string_view::npos; at = text.find("rank", at + 1)) {
    std::size_t digits = at + 4;
    if (digits < text.size() && text[digits] == 's') ++digits;
    if (digits + 1 < text.size() && text[digits] == ' ' && is_digit(text[digits + 1]))
      return ranks_at(text, at);
  }
  return "";
}

}  // namespace

std::string text_of(const Lost& lost) {
  const bool several = lost.who.starts_with("ranks");
  return lost.who + (several ? " have" : " has") + std::string(kEnded) + std::to_string(lost.left) +
         (lost.left == 1 ? " rank continues" : " ranks continue") + " without " + (several ? "them" : "it");
}

void Messages::hear(std::string_view bytes) {
  for (const char c : bytes) {
    if (c == '\n' || c == '\r') {
      hear_line(std::move(line_));
      line_.clear();
    } else if (line_.size() < kLongestLine) {
      line_ += c;
    }
  }
}

void Messages::hear_line(std::string line) {
  line = printable(line);
  if (line.starts_with(kError)) {
    // The first error is the cause; others follow from it.
    in_error_ = fault_.what.empty();
    if (in_error_) fault_.what = line.substr(kError.size());
    return;
  }
  if (line.starts_with(kWarning)) {
    if (auto lost = lost_in(line)) lost_ = std::move(lost);
  }
  if (const std::size_t at = line.find(kLostDaemon); at != std::string::npos) {
    const std::size_t host = line.find(kOnNode, at);
    if (host != std::string::npos) {
      const std::string name(trim(line.substr(host + kOnNode.size())));
      if (std::ranges::find(fault_.lost_hosts, name) == fault_.lost_hosts.end())
        fault_.lost_hosts.push_back(name);
      fault_.who = "host " + name;
    }
    return;
  }
  in_error_ = in_error_ && line.starts_with("  ");
  if (!in_error_ || !fault_.lost_hosts.empty()) return;
  // `found` names the rank without messages; `where` names the rank that noticed it.
  if (line.starts_with(kFound) || (line.starts_with(kWhere) && fault_.who.empty())) {
    std::string who = ranks_in(line);
    if (who.empty() && line.starts_with(kWhere)) who = trim(line.substr(kWhere.size()));
    if (!who.empty()) fault_.who = who;
  }
}

}  // namespace octet::supervise
