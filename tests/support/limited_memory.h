// A limit of the address space of this process.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <cstddef>
#include <fstream>

// A sanitizer reserves memory for each thread, so no limit fits.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define OCTET_TEST_LIMITED_MEMORY 1

namespace octet::test {

/// Until its end the process may have at most `bytes` more of address space (RLIMIT_AS).
class LimitedMemory {
 public:
  explicit LimitedMemory(std::size_t bytes) {
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    ::getrlimit(RLIMIT_AS, &before_);
    const rlimit less{.rlim_cur = pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + bytes,
                      .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_AS, &less);
  }
  ~LimitedMemory() { ::setrlimit(RLIMIT_AS, &before_); }
  LimitedMemory(const LimitedMemory&) = delete;
  LimitedMemory& operator=(const LimitedMemory&) = delete;

 private:
  rlimit before_{};
};

}  // namespace octet::test

#endif
