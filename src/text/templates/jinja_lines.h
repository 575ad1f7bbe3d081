// Parts of a Jinja chat template that is written from a row of the table.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace octet::text {

/// Returns `text` as a Jinja string in single quotes.
inline std::string jinja_string(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    // Line ends are escaped, because a copy of the file may have other line ends.
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\r') {
      out += "\\r";
    } else {
      if (c == '\\' || c == '\'') out += '\\';
      out += c;
    }
  }
  return out + "'";
}

/// An expression that concatenates texts.
class Joined {
 public:
  void literal(std::string_view text) {
    if (!text.empty()) terms_.push_back(jinja_string(text));
  }
  void expression(std::string text) { terms_.push_back(std::move(text)); }
  std::string text() const {
    std::string out;
    for (const std::string& term : terms_) out += (out.empty() ? "" : " + ") + term;
    return out.empty() ? "''" : out;
  }

 private:
  std::vector<std::string> terms_;
};

/// The lines of a template.
class Lines {
 public:
  Lines& tag(const std::string& statement) {
    text_ += "{%- " + statement + " -%}\n";
    return *this;
  }
  Lines& print(const std::string& expression) {
    text_ += "{{- " + expression + " -}}\n";
    return *this;
  }
  Lines& set(const std::string& name, const std::string& expression) {
    return tag("set " + name + " = " + expression);
  }
  std::string text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace octet::text
