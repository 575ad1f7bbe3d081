#include "zero_memory.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

namespace octet {

void zero_memory(void* memory, std::size_t bytes) {
  constexpr std::size_t kOfThread = std::size_t{64} << 20;
  constexpr std::size_t kMostThreads = 8;  // more read and write no faster, and other ranks do the same
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  const std::size_t threads = std::clamp<std::size_t>(bytes / kOfThread, 1, std::min(cores, kMostThreads));
  const std::size_t part = (bytes + threads - 1) / threads;
  auto* const begin = static_cast<unsigned char*>(memory);
  const auto zero_part = [&](std::size_t number) {
    const std::size_t from = std::min(number * part, bytes), to = std::min(from + part, bytes);
    std::memset(begin + from, 0, to - from);
  };
  std::vector<std::jthread> others;
  for (std::size_t number = 1; number < threads; ++number) {
    try {
      others.emplace_back(zero_part, number);
    } catch (const std::system_error&) {  // no more threads are to be had
      zero_part(number);
    }
  }
  zero_part(0);
}

}  // namespace octet
