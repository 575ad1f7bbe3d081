#include "octet/base/long_array.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

namespace octet::long_array_test {
namespace {

using List = LongArray<std::int32_t>;

List counted(std::size_t size, std::size_t in_memory) {
  List list(in_memory);
  for (std::size_t i = 0; i < size; ++i) list.push_back(static_cast<std::int32_t>(i));
  return list;
}

TEST(LongArray, HoldsTheSameInMemoryAndInAFile) {
  for (const std::size_t in_memory : {std::size_t{0}, std::size_t{1000}, std::size_t{1} << 20}) {
    List list = counted(5000, in_memory);
    EXPECT_EQ(list.address().empty(), in_memory > 5000);
    list.append(counted(300, 10).span());
    list.resize(5400);
    list.writable()[7] = -7;
    ASSERT_EQ(list.size(), 5400u);
    EXPECT_EQ(list[7], -7);
    EXPECT_EQ(list[4999], 4999);
    EXPECT_EQ(list[5299], 299);
    EXPECT_EQ(list.back(), 0);
    const List copy = list;
    list.writable()[8] = 0;
    EXPECT_EQ(copy[8], 8) << "a copy owns its values";
    const List moved = std::move(list);
    EXPECT_EQ(moved.size(), 5400u);
    EXPECT_EQ(moved[8], 0);
  }
}

TEST(LongArray, WhatIsPutAwayIsStillThere) {
  // More than one growth step of the file, so that earlier pages are released.
  LongArray<std::uint64_t> list(16);
  std::vector<std::uint64_t> block(std::size_t{1} << 20);
  for (std::uint64_t b = 0; b < 20; ++b) {
    std::iota(block.begin(), block.end(), b << 20);
    list.append(block);
  }
  std::uint64_t wrong = 0;
  for (std::uint64_t i = 0; i < list.size(); ++i) wrong += list[i] != i ? 1 : 0;
  EXPECT_EQ(list.size(), std::uint64_t{20} << 20);
  EXPECT_EQ(wrong, 0u);
}

TEST(LongArray, AnotherReaderFindsTheFileByItsAddress) {
  const List list = counted(5000, 10);
  ASSERT_TRUE(is_shared_file(list.address()));
  const List other = view_shared_file<std::int32_t>(list.address(), list.size());
  EXPECT_EQ(other, list);
  EXPECT_FALSE(is_shared_file(list.address() + "1")) << "another file under the same name";
  EXPECT_FALSE(is_shared_file(""));
  EXPECT_THROW(view_shared_file<std::int32_t>(list.address(), std::size_t{1} << 30), Error);
  List changed = other;
  changed.push_back(1);
  EXPECT_EQ(other.size(), 5000u);
}

TEST(LongArray, AddingToAViewCopiesIt) {
  const List list = counted(5000, 10);
  List view = view_shared_file<std::int32_t>(list.address(), list.size());
  view.push_back(77);
  view.writable()[0] = 5;
  EXPECT_EQ(view[5000], 77);
  EXPECT_EQ(list[0], 0);
}

TEST(LongArray, AFullDiskIsAnError) {
  // A limit on file sizes simulates a full disk. With the signal ignored, the write returns the error.
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 1 << 20;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string said;
  try {
    counted(5000, 10);
  } catch (const Error& e) {
    said = e.what();
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(said.find("TMPDIR"), std::string::npos) << said;
}

}  // namespace
}  // namespace octet::long_array_test
