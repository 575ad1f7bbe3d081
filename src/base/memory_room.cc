#include "octet/base/memory_room.h"

#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace octet {

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
