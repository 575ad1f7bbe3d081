#include "octet/checkpoint/checkpoint.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include "octet/base/files.h"

#include "sample.h"

namespace octet::checkpoint::checkpoint_test {
namespace {

class CheckpointAtRanks : public testing::TestWithParam<int> {};

TEST_P(CheckpointAtRanks, ReadsBackAtEveryOtherNumberOfRanks) {
  const Scratch scratch;
  save_sample(scratch.path(), 40, GetParam());
  for (const int readers : {1, 2, 3, 4, 5}) {
    on_ranks(readers, [&](comm::Channel& channel) {
      const Found found = find_latest(channel, scratch.path());
      ASSERT_EQ(found.path, scratch / "checkpoint-40");
      const Checkpoint checkpoint(found.path);
      EXPECT_EQ(checkpoint.step(), 40);
      EXPECT_EQ(checkpoint.manifest().world, GetParam());
      EXPECT_EQ(checkpoint.manifest().zero_stage, 1);
      EXPECT_EQ(checkpoint.config_yaml(), "output_dir: runs\nlearning_rate: 1e-3\n");
      EXPECT_EQ(checkpoint.state()["data"]["position"], 12345678901234);
      EXPECT_EQ(checkpoint.state()["name"], "größe");
      auto expected = sample(40);
      auto found_values = expected;
      for (auto& tensor : found_values) std::fill(tensor.values.begin(), tensor.values.end(), std::byte{0});
      const auto mine = slices_of(found_values, channel.rank(), readers, 13);
      checkpoint.read(mine);
      const auto wanted = slices_of(expected, channel.rank(), readers, 13);
      for (std::size_t i = 0; i < mine.size(); ++i) {
        if (mine[i].count == 0) continue;
        EXPECT_EQ(std::memcmp(mine[i].data, wanted[i].data,
                              static_cast<std::size_t>(mine[i].count) * size_of(mine[i].dtype)),
                  0)
            << mine[i].name;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, CheckpointAtRanks, testing::Values(1, 2, 3, 4, 5));

TEST(Checkpoint, ContentHashesDoNotDependOnWhoWroteWhat) {
  const Scratch scratch;
  save_sample(scratch / "one", 7, 1);
  save_sample(scratch / "four", 7, 4, 29);
  save_sample(scratch / "other", 8, 4);
  const Checkpoint one(scratch / "one/checkpoint-7"), four(scratch / "four/checkpoint-7"),
      other(scratch / "other/checkpoint-8");
  ASSERT_EQ(one.tensors().size(), sample(7).size());
  std::set<std::string> hashes;
  for (const auto& tensor : one.tensors()) {
    EXPECT_EQ(tensor.hash, four.at(tensor.name).hash) << tensor.name;
    EXPECT_EQ(tensor.chunks, four.at(tensor.name).chunks) << tensor.name;
    if (tensor.bytes > 0) {
      EXPECT_NE(tensor.hash, other.at(tensor.name).hash) << tensor.name;
    }
    hashes.insert(tensor.hash);
  }
  EXPECT_EQ(hashes.size(), one.tensors().size());
}

TEST(Checkpoint, AFolderOfAnotherProgramWithItsNameIsKept) {
  const Scratch scratch;
  float value = 1;
  const auto save_one = [&] {
    on_ranks(1, [&](comm::Channel& channel) {
      CheckpointContents contents{.step = 5};
      contents.slices.push_back({"w", DType::f32, {1}, 0, 1, &value});
      save(channel, scratch.path(), contents);
    });
  };
  for (const char* kept : {"checkpoint-5.kept", "checkpoint-5.kept-2"}) {
    std::filesystem::remove_all(scratch / "checkpoint-5");
    std::filesystem::create_directory(scratch / "checkpoint-5");
    put(scratch / "checkpoint-5/pytorch_model.bin", "mine");
    save_one();
    EXPECT_EQ(Checkpoint(scratch / "checkpoint-5").step(), 5);
    EXPECT_EQ(read_file(scratch / (std::string(kept) + "/pytorch_model.bin")), "mine");
  }
  save_one();  // replaces a checkpoint of the same step
  EXPECT_FALSE(path_exists(scratch / "checkpoint-5.kept-3"));
}

TEST(Checkpoint, RunsAreReadAsColumnsAndColumnsAsRuns) {
  for (const int writers : {1, 2, 3}) {
    const Scratch scratch;
    save_sample(scratch / "runs", 7, writers);
    on_ranks(writers, [&](comm::Channel& channel) {
      auto tensors = sample(7);
      CheckpointContents contents = contents_of(tensors, 7, channel.rank(), writers);
      contents.slices = columns_of(tensors, channel.rank(), writers);
      save(channel, scratch / "columns", contents);
    });
    expect_sample(scratch / "columns/checkpoint-7");
    const Checkpoint runs(scratch / "runs/checkpoint-7"), columns(scratch / "columns/checkpoint-7");
    for (const auto& tensor : runs.tensors()) {
      EXPECT_EQ(tensor.hash, columns.at(tensor.name).hash) << tensor.name << ", " << writers << " writers";
    }
    for (const int readers : {1, 2, 4}) {
      for (const Checkpoint* checkpoint : {&runs, &columns}) {
        auto found = sample(7);
        for (auto& tensor : found) std::fill(tensor.values.begin(), tensor.values.end(), std::byte{0xEE});
        // All ranks read into the same memory, one after another. A rank must not write the columns of
        // others.
        for (int rank = readers; rank-- > 0;) checkpoint->read(columns_of(found, rank, readers));
        const auto expected = sample(7);
        for (std::size_t i = 0; i < found.size(); ++i) {
          EXPECT_TRUE(found[i].values == expected[i].values)
              << found[i].header.name << ", " << writers << " writers, " << readers << " readers";
        }
      }
    }
  }
}

TEST(Checkpoint, ColumnsThatAreGivenTwiceOrNotAtAllAreNamed) {
  const Scratch scratch;
  std::vector<float> values(24);
  const auto save_columns = [&](std::int64_t first, std::int64_t second) {
    on_ranks(1, [&](comm::Channel& channel) {
      CheckpointContents contents;
      const TensorSlice w{.name = "w", .dtype = DType::f32, .shape = {4, 6}};
      for (const auto& [from, to] : {std::pair<std::int64_t, std::int64_t>{0, first}, {second, 6}}) {
        for (TensorSlice block : block_of(w, {0, from}, {4, to - from}, values.data())) {
          contents.slices.push_back(block);
        }
      }
      save(channel, scratch.path(), contents);
    });
  };
  EXPECT_ERROR("twice", save_columns(4, 3));
  EXPECT_ERROR("none from element 2", save_columns(2, 3));
  EXPECT_NO_THROW(save_columns(2, 2));
}

TEST(Checkpoint, ConvertsFloatsToTheDTypeAsked) {
  const Scratch scratch;
  std::vector<float> values(300000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) * 1.001f - 77.0f;
  const auto n = static_cast<std::int64_t>(values.size());
  on_ranks(1, [&](comm::Channel& channel) {
    CheckpointContents contents;
    contents.slices = {{"w", DType::f32, {n}, 0, n, values.data()}};
    save(channel, scratch.path(), contents);
  });
  const Checkpoint checkpoint(scratch / "checkpoint-0");
  EXPECT_TRUE(checkpoint.state().is_null());
  std::vector<std::uint16_t> halves(200000);
  checkpoint.read({TensorSlice{"w", DType::bf16, {n}, 99999, 200000, halves.data()}});
  for (std::size_t i = 0; i < halves.size(); ++i) ASSERT_EQ(halves[i], to_bf16(values[99999 + i])) << i;
  float last = 0;
  checkpoint.read("w", n - 1, 1, &last);
  EXPECT_EQ(last, values.back());
  EXPECT_ERROR("another shape", checkpoint.read({TensorSlice{"w", DType::f32, {n, 1}, 0, n, values.data()}}));
  EXPECT_ERROR("another kind of dtype",
               checkpoint.read({TensorSlice{"w", DType::i64, {n}, 0, 1, values.data()}}));
  EXPECT_ERROR("is not in the checkpoint",
               checkpoint.read({TensorSlice{"v", DType::f32, {n}, 0, 1, values.data()}}));
}

// Returns the Error message of each rank ("" for none) when ranks save these slices.
std::vector<std::string> errors_of_saving(const std::string& output_dir,
                                          const std::vector<std::vector<TensorSlice>>& slices) {
  std::vector<std::string> errors(slices.size(), "none");
  on_ranks(static_cast<int>(slices.size()), [&](comm::Channel& channel) {
    CheckpointContents contents;
    contents.slices = slices[static_cast<std::size_t>(channel.rank())];
    try {
      save(channel, output_dir, contents);
    } catch (const Error& e) {
      errors[static_cast<std::size_t>(channel.rank())] = e.what();
    }
  });
  return errors;
}

TEST(Checkpoint, EveryElementMustBeGivenExactlyOnce) {
  const Scratch scratch;
  float values[10] = {};
  const auto slice = [&](std::int64_t begin, std::int64_t count, std::vector<std::int64_t> shape = {10},
                         DType dtype = DType::f32) {
    return TensorSlice{"w", dtype, std::move(shape), begin, count, values};
  };
  using Slices = std::vector<std::vector<TensorSlice>>;
  const std::vector<std::pair<Slices, const char*>> cases = {
      {{{slice(0, 5)}, {slice(4, 6)}}, "from element 4, by ranks 0 and 1"},
      {{{}, {slice(0, 5)}, {slice(4, 6)}}, "from element 4, by ranks 1 and 2"},
      {{{slice(0, 10)}, {slice(0, 10)}}, "twice"},
      {{{slice(0, 5)}, {slice(6, 4)}}, "none from element 5"},
      {{{slice(0, 5)}, {slice(5, 4)}}, "none from element 9"},
      {{{slice(1, 5)}, {slice(6, 4)}}, "none from element 0"},
      {{{slice(0, 5)}, {slice(5, 5, {5, 2})}}, "ranks disagree"},
      {{{slice(0, 5)}, {slice(5, 5, {10}, DType::i32)}}, "ranks disagree"},
  };
  for (const auto& [slices, message] : cases) {
    const auto errors = errors_of_saving(scratch / "out", slices);
    EXPECT_NE(errors[0].find(message), std::string::npos) << errors[0];
    EXPECT_NE(errors[1], "none") << "every rank must learn of it";
    EXPECT_FALSE(std::filesystem::exists(scratch / "out"));
  }
  EXPECT_EQ(errors_of_saving(scratch / "empty", {{slice(0, 10)}, {slice(5, 0)}})[0], "none");
  std::filesystem::remove_all(scratch / "empty");
  auto odd = slice(0, 10);
  odd.name = "a//b";
  EXPECT_NE(errors_of_saving(scratch / "out", {{odd}})[0].find("is not valid in an HDF5 file"),
            std::string::npos);
  odd.name = "parameters/w";
  EXPECT_NE(errors_of_saving(scratch / "out", {{odd, slice(0, 10)}})[0].find("same place"),
            std::string::npos);
  EXPECT_TRUE(std::filesystem::is_empty(scratch / "out"));
}

TEST(Checkpoint, TheSameStepIsReplacedWhole) {
  const Scratch scratch;
  save_sample(scratch.path(), 5, 2);
  const auto before = Checkpoint(scratch / "checkpoint-5").manifest();
  on_ranks(3, [&](comm::Channel& channel) {
    auto tensors = sample(6);
    save(channel, scratch.path(), contents_of(tensors, 5, channel.rank(), 3));
  });
  const Checkpoint after(scratch / "checkpoint-5");
  EXPECT_EQ(after.manifest().world, 3);
  EXPECT_NE(after.at("counts").hash, before.tensors[0].hash);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(scratch.path()), {}), 1);
}

TEST(Rotate, KeepsTheLastOnesAndTheBest) {
  const Scratch scratch;
  for (const std::int64_t step : {2, 10, 9, 100, 30}) save_sample(scratch.path(), step, 1);
  std::filesystem::create_directory(scratch /
                                    "checkpoint-1");  // no manifest, so not a checkpoint of this program
  put(scratch / "checkpoint-1/model.safetensors", "weights");
  rotate(scratch.path(), 0);
  EXPECT_EQ(list_checkpoints(scratch.path()).size(), 6u);
  rotate(scratch.path(), 2, scratch / "checkpoint-9");
  std::vector<std::int64_t> steps;
  for (const auto& [step, path] : list_checkpoints(scratch.path())) steps.push_back(step);
  EXPECT_EQ(steps, (std::vector<std::int64_t>{1, 9, 30, 100}));
  for (const int step : {9, 30, 100}) expect_sample(scratch / folder_name(step));
}

TEST(FindLatest, AnEmptyOrMissingFolderHasNone) {
  const Scratch scratch;
  EXPECT_EQ(latest(scratch.path()).path, "");
  EXPECT_EQ(latest(scratch / "missing").path, "");
  for (const char* name :
       {"checkpoint-007", "checkpoint--1", "checkpoint-", "checkpoint-5x", "checkpoints-5"})
    std::filesystem::create_directory(scratch / name);
  EXPECT_EQ(latest(scratch.path()).path, "");
  EXPECT_TRUE(list_checkpoints(scratch.path()).empty());
}

}  // namespace
}  // namespace octet::checkpoint::checkpoint_test
