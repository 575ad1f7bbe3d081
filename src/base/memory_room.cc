#include "octet/base/memory_room.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "octet/base/error.h"

namespace octet {

void require_memory_for(const char* what, std::size_t bytes) {
  void* room = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) {
    throw Error(
        {.what = "out of memory",
         .expected = std::to_string(bytes >> 20) + " MiB more for " + what,
         .found = std::strerror(errno),
         .fix = "use fewer ranks on this node or a smaller model or batch, or raise the limit of a process "
                "(ulimit -v)"});
  }
  ::munmap(room, bytes);
}

}  // namespace octet
