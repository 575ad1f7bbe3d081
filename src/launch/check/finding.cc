#include "check/finding.h"

#include <algorithm>
#include <utility>

#include "octet/base/terminal.h"

namespace octet::launch {
namespace {

// The columns of a line: verdict, subject, text.
constexpr std::size_t kVerdictWidth = 6, kSubjectWidth = 10;

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.resize(width, ' ');
  return text;
}

std::string word_for(Finding::Verdict verdict) {
  switch (verdict) {
    case Finding::Verdict::ok:
      return "ok";
    case Finding::Verdict::doubt:
      return "doubt";
    default:
      return "WRONG";
  }
}

}  // namespace

Finding ok(std::string subject, std::string text) {
  return {Finding::Verdict::ok, std::move(subject), std::move(text)};
}

Finding doubt(std::string subject, std::string text, std::string fix) {
  return {Finding::Verdict::doubt, std::move(subject), std::move(text), std::move(fix)};
}

Finding fault(std::string subject, std::string text, std::string fix) {
  return {Finding::Verdict::wrong, std::move(subject), std::move(text), std::move(fix)};
}

bool has_fault(const std::vector<Finding>& findings) {
  return std::ranges::find(findings, Finding::Verdict::wrong, &Finding::verdict) != findings.end();
}

std::string lines_of(const Finding& finding) {
  const auto line = [](const std::string& verdict, const std::string& subject, const std::string& text) {
    return printable("  " + padded(verdict, kVerdictWidth) + " " + padded(subject, kSubjectWidth) + " " +
                     text + "\n");
  };
  std::string lines = line(word_for(finding.verdict), finding.subject, finding.text);
  if (finding.verdict != Finding::Verdict::ok) lines += line("", "", "to do: " + finding.fix);
  return lines;
}

}  // namespace octet::launch
