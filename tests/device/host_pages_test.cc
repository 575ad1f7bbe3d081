#include "../src/device/host_pages.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace octet::host_pages_test {
namespace {

std::size_t whole(std::size_t bytes) {
  return (bytes + kHugePage - 1) / kHugePage * kHugePage;
}

/// Returns how many pages of a range are in memory.
std::ptrdiff_t resident(void* memory, std::size_t bytes) {
  std::vector<unsigned char> there((bytes + 4095) / 4096);
  EXPECT_EQ(::mincore(memory, bytes, there.data()), 0);
  return std::count_if(there.begin(), there.end(), [](unsigned char page) { return (page & 1) != 0; });
}

TEST(HostPages, AreZeroAndAllInMemoryFromTheFirstToTheLastByte) {
  for (const std::size_t bytes : {std::size_t{1}, kHugePage, kHugePage + 1, (std::size_t{192} << 20) + 3}) {
    auto* const memory = static_cast<unsigned char*>(map_zeros(bytes));
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % kHugePage, 0U);
    EXPECT_EQ(resident(memory, whole(bytes)), static_cast<std::ptrdiff_t>(whole(bytes) / 4096));
    EXPECT_TRUE(std::all_of(memory, memory + whole(bytes), [](unsigned char byte) { return byte == 0; }));
    memory[0] = memory[whole(bytes) - 1] = 0x5A;
    unmap_zeros(memory, bytes);
    std::vector<unsigned char> there(1);
    EXPECT_NE(::mincore(memory, 4096, there.data()), 0) << "the first page was given back";
    EXPECT_NE(::mincore(memory + whole(bytes) - 4096, 4096, there.data()), 0) << "so was the last one";
  }
}

TEST(HostPages, AreNotToBeHadBeyondAnAddressSpace) {
  EXPECT_EQ(map_zeros(std::numeric_limits<std::size_t>::max() - 5), nullptr);
  EXPECT_EQ(map_zeros(std::size_t{1} << 60), nullptr);
}

}  // namespace
}  // namespace octet::host_pages_test
