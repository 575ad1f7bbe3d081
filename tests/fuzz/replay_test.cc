// Runs the findings of the fuzzers and their first inputs again. No function may crash, hang, or throw
// another exception than Error.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "fuzz.h"
#include "octet/base/files.h"
#include "scratch.h"

namespace octet::fuzz::replay_test {
namespace {

class Replay : public testing::Test {
 protected:
  ~Replay() override { std::filesystem::remove_all(scratch_folder()); }
  void SetUp() override { std::filesystem::create_directories(scratch_folder()); }
};

int replay(const std::string& name, void (*function)(std::string_view)) {
  std::vector<std::string> inputs;
  for (const auto& entry :
       std::filesystem::directory_iterator(OCTET_SOURCE_DIR "/tests/fuzz/corpus/" + name)) {
    inputs.push_back(entry.path().string());
  }
  std::ranges::sort(inputs);
  for (const auto& input : inputs) {
    SCOPED_TRACE(input);
    const std::string bytes = read_file(input);
    EXPECT_NO_THROW(function(bytes)) << input;
    // Truncated, and with one bit flipped: inputs close to known ones.
    EXPECT_NO_THROW(function(std::string_view(bytes).substr(0, bytes.size() / 2))) << input;
    for (const std::size_t place : {bytes.size() / 3, bytes.size() * 3 / 4}) {
      if (place >= bytes.size()) continue;
      std::string other = bytes;
      other[place] = static_cast<char>(other[place] ^ 0x10);
      EXPECT_NO_THROW(function(other)) << input << " at " << place;
    }
  }
  return static_cast<int>(inputs.size());
}

TEST_F(Replay, TokenizerFiles) {
  EXPECT_GE(replay("tokenizer_json", tokenizer_json), 3);
}
TEST_F(Replay, DatasetDescriptions) {
  EXPECT_GE(replay("dataset_info", dataset_info), 3);
}
TEST_F(Replay, RowsOfDataFiles) {
  EXPECT_GE(replay("rows", rows), 3);
}
TEST_F(Replay, Configurations) {
  EXPECT_GE(replay("yaml", yaml), 3);
}
TEST_F(Replay, ManifestsOfCheckpoints) {
  EXPECT_GE(replay("manifest", manifest), 3);
}
TEST_F(Replay, StatesOfRuns) {
  EXPECT_GE(replay("run_state", run_state), 3);
}
TEST_F(Replay, PartsOfCheckpointsInMemory) {
  EXPECT_GE(replay("memory_part", memory_part), 3);
}
TEST_F(Replay, Hostfiles) {
  EXPECT_GE(replay("hostfile", hostfile), 3);
}
TEST_F(Replay, WhatJobsPrint) {
  EXPECT_GE(replay("job_messages", job_messages), 3);
}
TEST_F(Replay, RecordsOfIncidents) {
  EXPECT_GE(replay("incidents", incidents), 3);
}
TEST_F(Replay, Safetensors) {
  EXPECT_GE(replay("safetensors", safetensors), 3);
}
TEST_F(Replay, ModelConfigurations) {
  EXPECT_GE(replay("config_json", config_json), 3);
}
TEST_F(Replay, ChatTemplates) {
  EXPECT_GE(replay("jinja", jinja), 3);
}

}  // namespace
}  // namespace octet::fuzz::replay_test
