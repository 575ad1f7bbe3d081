// Extracts a part of an answer: the first group of a regular expression.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace re2 {
class RE2;
}

namespace octet::answers {

class Extraction {
 public:
  /// `pattern` is in RE2 syntax and has at least one group. `allow` lists the accepted results; empty: all.
  /// Throws Error (usage) for an invalid pattern or a pattern without a group.
  Extraction(const std::string& pattern, const std::vector<std::string>& allow);
  ~Extraction();
  Extraction(Extraction&&) noexcept;
  /// Returns the first group of the last match in `answer`, trimmed. The last match counts because models
  /// reason first. Thoughts (<think>…</think>) are not searched. Returns nullopt if nothing matches or the
  /// result is not allowed.
  std::optional<std::string> operator()(const std::string& answer) const;

 private:
  std::unique_ptr<re2::RE2> pattern_;
  std::vector<std::string> allow_;
};

}  // namespace octet::answers
