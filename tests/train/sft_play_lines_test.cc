// The lines at the start of a run that SFT-Play's guide quotes.
#include "octet/train/start_rows.h"

#include <gtest/gtest.h>

namespace octet::train::sft_play_lines_test {
namespace {

using Lines = std::vector<std::string>;

struct Start {
  const char* name;
  SftPlayStart start;
  Lines lines;
};

TEST(SftPlayLines, AreThoseOfItsGuide) {
  const std::uint64_t h200 = std::uint64_t{141} << 30;
  const std::vector<Start> all{
      {"the guide's two GPUs",
       {.gpus = {{"NVIDIA H200", h200}, {"NVIDIA H200", h200}},
        .batch = {.micro = 4, .accumulation = 4, .world = 2, .global = 32},
        .automatic = true},
       {"[train] Detected 2 GPUs:", "  GPU 0: NVIDIA H200 (141.0 GB)", "  GPU 1: NVIDIA H200 (141.0 GB)",
        "Total VRAM: 282.0 GB", "Auto-calculated batch size: 4 per GPU, gradient accumulation: 4",
        "Effective batch size: 32"}},
      {"one GPU and sizes that are given",
       {.gpus = {{"NVIDIA H100 80GB HBM3", std::uint64_t{79} << 30}},
        .batch = {.micro = 2, .accumulation = 8, .world = 1, .global = 16}},
       {"[train] Detected 1 GPU:", "  GPU 0: NVIDIA H100 80GB HBM3 (79.0 GB)", "Total VRAM: 79.0 GB",
        "Effective batch size: 16"}},
      {"CPUs",
       {.gpus = {}, .batch = {.micro = 8, .accumulation = 2, .world = 2, .global = 32}, .automatic = true},
       {"[train] Detected 0 GPUs: 2 ranks on CPUs", "Total VRAM: 0.0 GB",
        "Auto-calculated batch size: 8 per rank, gradient accumulation: 2", "Effective batch size: 32"}},
  };
  for (const Start& one : all) EXPECT_EQ(sft_play_lines(one.start), one.lines) << one.name;
}

TEST(SftPlayLines, ListEightGpusAtMost) {
  SftPlayStart start{.batch = {.micro = 1, .accumulation = 1, .world = 16, .global = 16}, .automatic = true};
  start.gpus.assign(16, {"NVIDIA H200", std::uint64_t{141} << 30});
  const Lines lines = sft_play_lines(start);
  EXPECT_EQ(lines.size(), 12u);
  EXPECT_EQ(lines[8], "  GPU 7: NVIDIA H200 (141.0 GB) and 8 more");
  EXPECT_EQ(lines[9], "Total VRAM: 2256.0 GB");
}

}  // namespace
}  // namespace octet::train::sft_play_lines_test
