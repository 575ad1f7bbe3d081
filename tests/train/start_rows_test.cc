// The table before the first step: each fact once, and rows of at most 80 columns.
#include "octet/train/start_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace octet::train::start_rows_test {
namespace {

StartFacts facts() {
  return {.model = "m",
          .family = "qwen3",
          .parameters = 4'022'468'096,
          .trained = 4'022'468'096,
          .method = "full",
          .rows = 57'600,
          .documents = 57'600,
          .tokens = 1'793'132,
          .trained_tokens = 573'926,
          .cutoff = 128,
          .device = "CPU (Some Processor, 2 threads)",
          .precision = "bf16",
          .parameters_in = "fp32",
          .gradients_in = "fp32",
          .moments_in = "fp32",
          .memory = std::size_t{3} << 29,
          .capacity = std::size_t{64} << 30,
          .batch = {.micro = 6, .accumulation = 4, .world = 1, .global = 24},
          .steps = 2400,
          .epochs = 1,
          .output = "runs/out"};
}

struct Row {
  const char* name;
  void (*change)(StartFacts&);
  std::map<std::string, std::string> rows;
};

TEST(StartRows, SayWhatTheRunIs) {
  const std::vector<Row> all{
      {"plain",
       [](StartFacts&) {},
       {{"model", "qwen3, 4,022,468,096 parameters, all trained"},
        {"data", "57,600 rows, 1,793,132 tokens, 573,926 trained, not packed"},
        {"devices", "CPU (Some Processor, 2 threads)"},
        {"precision", "bf16; states in fp32"},
        {"ZeRO", "stage 0: each rank holds all states"},
        {"memory", "1.50 GiB per rank; the host has 64.00 GiB"},
        {"batch", "24 sequences = 6 per rank x 4 accumulated x 1 rank"},
        {"steps", "2,400, 1 epoch"},
        {"output", "runs/out (details: training.log)"}}},
      {"adapters, fresh weights",
       [](StartFacts& f) { f.trained = 33'030'144, f.method = "lora", f.fresh = true; },
       {{"model", "qwen3, 4,022,468,096 parameters, 33,030,144 trained (0.821 %, lora), from scratch"}}},
      {"rows left out, packed",
       [](StartFacts& f) { f.documents = 57'000, f.sequences = 14'100; },
       {{"data", "57,000 rows of 57,600, 1,793,132 tokens, 573,926 trained, packed into 14,100 x 128"}}},
      {"streams", [](StartFacts& f) { f.streams = true; }, {{"data", "57,600 rows, streamed"}}},
      {"GPUs of two hosts, FP8",
       [](StartFacts& f) {
         f.device = "GPU 0: NVIDIA H200 (139.8 GiB)", f.on_gpu = true, f.hosts = 2;
         f.batch = {.micro = 2, .accumulation = 1, .world = 16, .global = 32};
         f.precision = "FP8, backend native, recipe delayed, format hybrid", f.moments_in = "int8";
         f.zero_stage = 2, f.least_seconds = 1.5, f.rates_of = "an H200";
       },
       {{"devices", "16 ranks, 2 hosts, first: GPU 0: NVIDIA H200 (139.8 GiB)"},
        {"precision",
         "FP8, backend native, recipe delayed, format hybrid; weights in fp32, gradients in fp32, moments in "
         "int8"},
        {"ZeRO", "stage 2: optimizer states and gradients are split among ranks"},
        {"memory", "1.50 GiB of 64.00 GiB per GPU"},
        {"batch", "32 sequences = 2 per rank x 1 accumulated x 16 ranks"},
        {"steps", "2,400, 1 epoch, at least 1:00:00 on an H200"}}},
      {"one rank, stage 3",
       [](StartFacts& f) { f.zero_stage = 3, f.parameters_in = "auto"; },
       {{"ZeRO", "stage 3: one rank, nothing is split"}, {"precision", "bf16"}}},
      {"sharding groups",
       [](StartFacts& f) { f.zero_stage = 1, f.batch.world = 16, f.group_size = 8; },
       {{"ZeRO", "stage 1: optimizer states are split among ranks, in groups of 8"}}},
      {"sharding groups of one rank",
       [](StartFacts& f) { f.zero_stage = 3, f.batch.world = 16, f.group_size = 1; },
       {{"ZeRO", "stage 3: groups of one rank, nothing is split"}}},
      {"resumed",
       [](StartFacts& f) {
         f.first_step = 1200, f.resumed_from = "runs/out/checkpoint-1200", f.epochs = 2.5;
       },
       {{"resumed", "step 1,200, runs/out/checkpoint-1200"}, {"steps", "2,400, 2.5 epochs"}}},
      {"resumed on a CPU",
       [](StartFacts& f) {
         f.first_step = 1200, f.resumed_from = "c", f.least_seconds = 0.5, f.rates_of = "this CPU";
       },
       {{"steps", "2,400, 1 epoch, at least 0:10:00 on this CPU"}}},
      {"complete already",
       [](StartFacts& f) { f.first_step = 2400, f.resumed_from = "c"; },
       {{"steps", "2,400, 1 epoch"}}},
  };
  for (const Row& row : all) {
    StartFacts f = facts();
    row.change(f);
    const StartRows got = start_rows(f);
    EXPECT_LE(got.size(), 10u);
    for (const auto& [name, value] : row.rows) {
      const auto found = std::ranges::find(got, name, &StartRows::value_type::first);
      ASSERT_NE(found, got.end()) << row.name << ": " << name;
      EXPECT_EQ(found->second, value) << row.name;
    }
  }
}

TEST(StartRows, FitOntoAScreenWithMessages) {
  StartFacts f = facts();
  f.device = "CPU (Intel(R) Xeon(R) Processor, 1 thread)", f.batch.world = 4;
  f.precision = "FP8, backend native, recipe delayed, format hybrid", f.moments_in = "int8";
  f.first_step = 1200, f.resumed_from = "runs/out/checkpoint-1200", f.least_seconds = 1,
  f.rates_of = "this CPU";
  f.output = "runs/quickstart/output";
  std::size_t rows = 1 + 3;  // heading, lines of Hugging Face
  for (const auto& [name, value] : start_rows(f)) rows += (12 + value.size()) / 80 + 1;
  EXPECT_LE(rows, 15u);  // five rows are left for notes and warnings
}

TEST(StartRows, LeaveToSftPlaysLinesWhatTheyName) {
  StartFacts f = facts();
  f.sft_play = true;
  StartRows rows = start_rows(f);
  for (const char* name : {"devices", "batch", "ZeRO"})
    EXPECT_EQ(std::ranges::find(rows, name, &StartRows::value_type::first), rows.end()) << name;
  // With lines for eight GPUs, a heading and a line on further messages, the screen has 20 rows.
  EXPECT_LE(rows.size() + 12 + 2, 20u);
  f.first_step = 1200, f.resumed_from = "runs/out/checkpoint-1200";
  rows = start_rows(f);
  EXPECT_LE(rows.size() + 12 + 2, 20u);
  EXPECT_EQ(std::ranges::find(rows, "steps", &StartRows::value_type::first)->second,
            "2,400, 1 epoch, resumed at step 1,200");
}

}  // namespace
}  // namespace octet::train::start_rows_test
