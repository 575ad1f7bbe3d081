#include "extraction.h"

#include <re2/re2.h>

#include <algorithm>

#include "octet/base/error.h"
#include "octet/base/strings.h"

namespace octet::answers {
namespace {

// Returns the text after the last thought of an answer. An unclosed thought leaves no text.
std::string_view behind_thoughts(std::string_view answer) {
  constexpr std::string_view kEnd = "</think>";
  const std::size_t end = answer.rfind(kEnd);
  if (end != std::string_view::npos) return answer.substr(end + kEnd.size());
  return answer.find("<think>") == std::string_view::npos ? answer : std::string_view();
}

}  // namespace

Extraction::Extraction(const std::string& pattern, const std::vector<std::string>& allow)
    : pattern_(std::make_unique<re2::RE2>(pattern, re2::RE2::Quiet)), allow_(allow) {
  if (!pattern_->ok()) {
    throw Error({.what = "--extract is not a valid regular expression",
                 .found = pattern + " (" + pattern_->error() + ")",
                 .where = "command line",
                 .fix = "write it in RE2's syntax (github.com/google/re2/wiki/Syntax)",
                 .code = ExitCode::usage});
  }
  if (pattern_->NumberOfCapturingGroups() < 1) {
    throw Error({.what = "--extract has no group",
                 .expected = "parentheses around the wanted text, as in \"Final Answer: (\\w{2})\"",
                 .found = pattern,
                 .where = "command line",
                 .fix = "put parentheses around the part that is the answer",
                 .code = ExitCode::usage});
  }
}

Extraction::~Extraction() = default;
Extraction::Extraction(Extraction&&) noexcept = default;

std::optional<std::string> Extraction::operator()(const std::string& answer) const {
  const std::string_view said = behind_thoughts(answer);
  re2::StringPiece rest(said.data(), said.size());
  std::optional<std::string> last;
  std::string found;
  while (true) {
    const char* before = rest.data();
    if (!re2::RE2::FindAndConsume(&rest, *pattern_, &found)) break;
    last = std::string(trim(found));
    if (rest.data() == before && !rest.empty()) rest.remove_prefix(1);  // the pattern matches the empty text
    if (rest.empty()) break;
  }
  if (last && !allow_.empty() && std::ranges::find(allow_, *last) == allow_.end()) return std::nullopt;
  return last;
}

}  // namespace octet::answers
