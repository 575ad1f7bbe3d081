#include "octet/base/error.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>
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

std::string memory_limit() {
  for (const auto& [resource, name] :
       {std::pair{RLIMIT_AS, "ulimit -v"}, std::pair{RLIMIT_DATA, "ulimit -d"}}) {
    rlimit limit{};
    if (::getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
      return std::to_string(limit.rlim_cur >> 10) + " KiB (" + name + ")";
  }
  return "";
}

ExitCode code_without_memory() {
  return memory_limit().empty() ? ExitCode::failure : ExitCode::usage;
}

Problem without_memory(std::string what, std::string expected, std::string where) {
  const std::string limit = memory_limit();
  return {.what = std::move(what),
          .expected = std::move(expected),
          .found = limit.empty() ? std::strerror(ENOMEM) : "a limit of " + limit,
          .where = std::move(where),
          .fix = limit.empty() ? "use fewer ranks on this node or a smaller model or batch"
                               : "raise the limit, or use a smaller model or batch",
          .code = code_without_memory()};
}

void require_memory_for(const char* what, std::size_t bytes) {
  void* room = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED)
    throw Error(without_memory("out of memory", std::to_string(bytes >> 20) + " MiB more for " + what));
  ::munmap(room, bytes);
}

}  // namespace octet
