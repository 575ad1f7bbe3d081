#include "../src/device/zero_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace octet {
namespace {

TEST(ZeroMemory, IsZeroFromTheFirstToTheLastByteAndNoFurther) {
  for (const std::size_t bytes :
       {std::size_t{0}, std::size_t{1}, std::size_t{1000}, (std::size_t{192} << 20) + 3}) {
    std::vector<unsigned char> memory(bytes + 2, 0x5A);
    zero_memory(memory.data() + 1, bytes);
    EXPECT_EQ(memory.front(), 0x5A);
    EXPECT_EQ(memory.back(), 0x5A);
    EXPECT_EQ(std::count(memory.begin() + 1, memory.end() - 1, 0), static_cast<std::ptrdiff_t>(bytes));
  }
}

}  // namespace
}  // namespace octet
