// Direct writes give the same file, and leave no pages in the page cache.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <ctime>
#include <thread>

#include "octet/base/files.h"
#include "sample.h"

namespace octet::checkpoint::direct_test {
namespace {

bool takes_direct_writes(const std::string& folder) {
  const int fd = ::open((folder + "/probe").c_str(), O_WRONLY | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
  if (fd >= 0) ::close(fd);
  ::unlink((folder + "/probe").c_str());
  return fd >= 0;
}

/// Returns the share of a file's pages in the page cache.
double cached_share(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const auto bytes = static_cast<std::size_t>(::lseek(fd, 0, SEEK_END));
  void* map = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  std::vector<unsigned char> pages((bytes + 4095) / 4096);
  EXPECT_EQ(::mincore(map, bytes, pages.data()), 0);
  ::munmap(map, bytes);
  ::close(fd);
  const auto held = std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; });
  return static_cast<double>(held) / static_cast<double>(pages.size());
}

void save_directly(const std::string& folder, int ranks, std::int64_t shift, bool direct) {
  on_ranks(ranks, [&](comm::Channel& channel) {
    auto tensors = sample(7);
    auto contents = contents_of(tensors, 7, channel.rank(), ranks, shift);
    contents.direct = direct;
    save(channel, folder, contents);
  });
}

// Slices begin and end at arbitrary offsets, in the file and in memory.
TEST(Direct, GivesTheSameFile) {
  for (const int ranks : {1, 3}) {
    for (const std::int64_t shift : {0, 1, 1001}) {
      const Scratch one, other;
      save_directly(one.path(), ranks, shift, true);
      save_directly(other.path(), ranks, shift, false);
      for (const char* file : {"checkpoint.h5", "manifest.json"}) {
        EXPECT_TRUE(read_file(one.path() + "/checkpoint-7/" + file) ==
                    read_file(other.path() + "/checkpoint-7/" + file))
            << file << ", " << ranks << " ranks, " << shift;
      }
      expect_sample(one.path() + "/checkpoint-7");
    }
  }
}

// HDF5 groups and datasets can store their creation time in seconds.
TEST(Direct, TheTimeOfDayIsNotInTheFile) {
  const Scratch one, other;
  save_directly(one.path(), 1, 0, true);
  const std::time_t begun = std::time(nullptr);
  while (std::time(nullptr) == begun) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  save_directly(other.path(), 1, 0, true);
  EXPECT_TRUE(read_file(one.path() + "/checkpoint-7/checkpoint.h5") ==
              read_file(other.path() + "/checkpoint-7/checkpoint.h5"));
}

TEST(Direct, LeavesThePageCacheAlone) {
  const Scratch scratch;
  if (!takes_direct_writes(scratch.path())) GTEST_SKIP() << "this file system has no direct writes";
  std::vector<float> values(8 << 20, 1.5f);
  for (const std::size_t behind : {0, 3}) {  // aligned like the pages of the file, and unaligned
    on_ranks(1, [&](comm::Channel& channel) {
      const std::int64_t count = std::ssize(values) - 2048;
      const auto address = reinterpret_cast<std::uintptr_t>(values.data());
      float* data = values.data() + (4096 - address % 4096) % 4096 / sizeof(float) + behind;
      save(channel, scratch.path(),
           {.step = 1, .slices = {{"w", DType::f32, {count}, 0, count, data}}, .direct = true});
    });
    EXPECT_LT(cached_share(scratch / "checkpoint-1/checkpoint.h5"), 0.05);
  }
}

}  // namespace
}  // namespace octet::checkpoint::direct_test
