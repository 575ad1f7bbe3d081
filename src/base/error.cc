#include "octet/base/error.h"

#include <utility>

namespace octet {
namespace {

std::string render(const Problem& p) {
  std::string text = p.what;
  const auto part = [&text](const char* label, const std::string& value) {
    if (!value.empty()) text += std::string("\n  ") + label + value;
  };
  part("expected: ", p.expected);
  part("found:    ", p.found);
  part("where:    ", p.where);
  part("to do:    ", p.fix);
  return text;
}

}  // namespace

Error::Error(Problem problem) : std::runtime_error(render(problem)), problem_(std::move(problem)) {}

void check(bool condition, const char* what) {
  if (!condition) throw std::logic_error(std::string("internal error: ") + what);
}

}  // namespace octet
