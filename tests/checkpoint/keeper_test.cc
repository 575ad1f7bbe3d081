// Counting and removal of checkpoints that are read back.
#include "octet/checkpoint/folder.h"

#include <gtest/gtest.h>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "sample.h"
#include "support/threads.h"

namespace octet::checkpoint::keeper_test {
namespace {

std::vector<std::int64_t> steps_in(const std::string& folder) {
  std::vector<std::int64_t> steps;
  for (const auto& [step, path] : list_checkpoints(folder)) steps.push_back(step);
  return steps;
}

// Changes the byte in the middle of a file.
void flip(const std::string& path) {
  std::string bytes = read_file(path);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
  write_file_atomically(path, bytes);
}

TEST(ReadBack, SeesEveryKindOfDamage) {
  const Scratch scratch;
  save_sample(scratch.path(), 3, 2);
  const std::string path = scratch.path() + "/checkpoint-3";
  read_back(path);
  for (const char* file : {"checkpoint.h5", "manifest.json"}) {
    const std::string before = read_file(path + "/" + file);
    flip(path + "/" + file);
    try {
      read_back(path);
      ADD_FAILURE() << file;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::storage) << e.what();
    }
    write_file_atomically(path + "/" + file, before);
  }
  read_back(path);
}

// A tensor is read to its end, even if the end is a partial chunk.
TEST(ReadBack, SeesTheLastByteOfEveryTensor) {
  const Scratch scratch;
  save_sample(scratch.path(), 3, 2);
  const std::string path = scratch.path() + "/checkpoint-3", data = path + "/checkpoint.h5";
  const std::string before = read_file(data);
  int tensors = 0;
  const Checkpoint checkpoint(path);
  for (const auto& tensor : checkpoint.tensors()) {
    if (tensor.bytes == 0) continue;
    std::string bytes = before;
    char& last = bytes[static_cast<std::size_t>(tensor.offset + tensor.bytes - 1)];
    last = static_cast<char>(last ^ 1);
    write_file_atomically(data, bytes);
    EXPECT_THROW(read_back(path), Error) << tensor.name;
    ++tensors;
  }
  EXPECT_EQ(tensors, 12);
  write_file_atomically(data, before);
  read_back(path);
}

TEST(Keeper, OldOnesGoWhenNewerOnesHaveBeenReadBack) {
  const Scratch scratch;
  Keeper keeper(scratch.path(), 2);
  for (const std::int64_t step : {1, 2, 3}) {
    save_sample(scratch.path(), step, 1);
    keeper.saved(step);
  }
  EXPECT_EQ(steps_in(scratch.path()), (std::vector<std::int64_t>{1, 2, 3})) << "the third counts later";
  EXPECT_EQ(keeper.settle(), "");
  EXPECT_EQ(steps_in(scratch.path()), (std::vector<std::int64_t>{2, 3}));
}

TEST(Keeper, ReadsBackBehindTheSteps) {
  const Scratch scratch;
  std::vector<float> values(std::size_t{16} << 20,
                            1.0f);  // large enough that the test observes the read in progress
  Keeper keeper(scratch.path(), 1);
  bool seen = false;
  for (std::int64_t step = 1; step <= 10 && !seen; ++step) {
    on_ranks(1, [&](comm::Channel& channel) {
      const auto count = static_cast<std::int64_t>(values.size());
      save(
          channel, scratch.path(),
          {.step = step,
           .slices = {
               {.name = "w", .dtype = DType::f32, .shape = {count}, .count = count, .data = values.data()}}});
    });
    keeper.saved(step);
    while (!keeper.is_read() && !seen) seen = test::a_thread_runs_behind();
    EXPECT_EQ(keeper.settle(), "");
  }
  EXPECT_TRUE(seen);
}

TEST(Keeper, ADamagedOneNeitherCountsNorSendsAGoodOneAway) {
  const Scratch scratch;
  save_sample(scratch.path(), 1, 1);
  Keeper keeper(scratch.path(), 1);
  keeper.trust(1);
  for (const std::int64_t step : {2, 3}) {
    save_sample(scratch.path(), step, 1);
    flip(scratch.path() + "/" + folder_name(step) + "/checkpoint.h5");
    keeper.saved(step);
    EXPECT_NE(keeper.settle().find("returns other bytes"), std::string::npos);
    EXPECT_EQ(steps_in(scratch.path()).front(), 1);
  }
  save_sample(scratch.path(), 4, 1);
  keeper.saved(4);
  EXPECT_EQ(keeper.settle(), "");
  EXPECT_EQ(steps_in(scratch.path()), (std::vector<std::int64_t>{4}));
}

}  // namespace
}  // namespace octet::checkpoint::keeper_test
