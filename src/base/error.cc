#include "octet/base/error.h"

#include <new>
#include <system_error>
#include <utility>

#include "octet/base/memory_room.h"

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

std::optional<Problem> problem_of(const std::exception& exception) {
  if (const auto* error = dynamic_cast<const Error*>(&exception)) return error->problem();
  if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr) return without_memory("out of memory");
  const auto* refused = dynamic_cast<const std::system_error*>(&exception);
  if (refused != nullptr && refused->code() == std::errc::not_enough_memory)
    return without_memory(refused->what());
  if (refused != nullptr && refused->code() == std::errc::resource_unavailable_try_again) {
    return Problem{.what = "the system refuses more threads or memory to this process",
                   .found = refused->what(),
                   .fix = "use fewer ranks on this node, or raise the limits (ulimit -u, ulimit -v)",
                   .code = code_without_memory()};
  }
  return std::nullopt;
}

void check(bool condition, const char* what) {
  if (!condition) throw std::logic_error(std::string("internal error: ") + what);
}

}  // namespace octet
