#include "host_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

namespace octet {
namespace {

constexpr std::size_t kSmallPage = 4096;

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + kHugePage - 1) / kHugePage * kHugePage;
}

/// Writes to every page of memory that begins on a huge page.
void touch(std::byte* begin, std::size_t bytes) {
  constexpr std::size_t kOfThread = std::size_t{64} << 20;
  constexpr std::size_t kMostThreads = 8;  // more are not faster, and other ranks do the same
  const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
  const std::size_t threads = std::clamp<std::size_t>(bytes / kOfThread, 1, std::min(cores, kMostThreads));
  const std::size_t part = whole_pages((bytes + threads - 1) / threads);
  const auto touch_part = [&](std::size_t number) {
    const std::size_t end = std::min((number + 1) * part, bytes);
    for (std::size_t at = number * part; at < end; at += kSmallPage) {
      *reinterpret_cast<volatile std::byte*>(begin + at) = std::byte{0};
    }
  };
  std::vector<std::jthread> others;
  for (std::size_t number = 1; number < threads; ++number) {
    try {
      others.emplace_back(touch_part, number);
    } catch (const std::system_error&) {  // the system starts no more threads
      touch_part(number);
    }
  }
  touch_part(0);
}

}  // namespace

void* map_zeros_on_demand(std::size_t bytes) {
  const std::size_t whole = whole_pages(bytes);
  if (whole < bytes || whole > SIZE_MAX - kHugePage) return nullptr;
  void* mapped =
      ::mmap(nullptr, whole + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  // Unmaps the memory before the first boundary and after the last byte.
  auto* const first = static_cast<std::byte*>(mapped);
  const std::size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(mapped) % kHugePage) % kHugePage;
  if (before > 0) ::munmap(first, before);
  if (kHugePage > before) ::munmap(first + before + whole, kHugePage - before);
  std::byte* const memory = first + before;
  ::madvise(memory, whole, MADV_HUGEPAGE);  // advice only
  return memory;
}

void* map_zeros(std::size_t bytes) {
  void* const memory = map_zeros_on_demand(bytes);
  if (memory != nullptr) touch(static_cast<std::byte*>(memory), whole_pages(bytes));
  return memory;
}

void unmap_zeros(void* memory, std::size_t bytes) noexcept {
  ::munmap(memory, whole_pages(bytes));
}

}  // namespace octet
