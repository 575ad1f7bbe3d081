// A small training state, distributed over ranks in several ways.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "octet/base/json.h"
#include "octet/base/random.h"
#include "octet/base/tensor_slice.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/checkpoint/folder.h"
#include "octet/checkpoint/save.h"
#include "octet/comm/thread_ranks.h"
#include "octet/device/device.h"
#include "support/scratch.h"

namespace octet::checkpoint {

struct SampleTensor {
  weights::TensorHeader header;
  std::vector<std::byte> values;
};

/// Returns tensors of every dtype: scalars, empty tensors, tensors of several chunks, names of every group.
/// Values depend on `step`.
inline std::vector<SampleTensor> sample(std::int64_t step) {
  const std::vector<weights::TensorHeader> headers = {
      {"model.embed_tokens.weight", DType::f32, {700, 900}},  // 2.4 chunks
      {"exp_avg/model.embed_tokens.weight", DType::bf16, {700, 900}},
      {"exp_avg_sq/model.embed_tokens.weight", DType::f32, {700, 900}},
      {"model.norm.weight", DType::f32, {7}},
      {"exp_avg/model.norm.weight", DType::bf16, {7}},
      {"half", DType::f16, {3, 5}},
      {"lm_head.weight", DType::e4m3, {31, 3}},
      {"fp8/activations/scale", DType::f32, {11}},
      {"fp8/activations/amax_history", DType::f32, {16, 11}},
      {"fp8/gradients/codes", DType::e5m2, {257}},
      {"counts", DType::i64, {}},
      {"nothing", DType::f32, {0, 4}},
      {"mask", DType::boolean, {5}},
  };
  std::vector<SampleTensor> tensors;
  for (const auto& header : headers) {
    SampleTensor tensor{header,
                        std::vector<std::byte>(static_cast<std::size_t>(weights::byte_count(header)))};
    for (std::size_t i = 0; i < tensor.values.size(); i += 4) {
      const auto bits = philox(static_cast<std::uint64_t>(step), RandomUse::init, i,
                               static_cast<std::uint32_t>(tensors.size()))[0];
      std::memcpy(tensor.values.data() + i, &bits, std::min<std::size_t>(4, tensor.values.size() - i));
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

/// Returns the slices of rank `rank` of `world`: shares of one flat run over all tensors, like ZeRO shards.
/// Most boundaries are inside tensors and chunks. `shift` moves the boundaries.
inline std::vector<TensorSlice> slices_of(std::vector<SampleTensor>& tensors, int rank, int world,
                                          std::int64_t shift = 0) {
  std::int64_t total = 0;
  for (const auto& tensor : tensors) total += element_count(tensor.header.shape, tensor.header.name);
  const auto cut = [&](int r) {
    return r == 0 ? 0 : r == world ? total : std::min(total, total * r / world + shift);
  };
  const std::int64_t from = cut(rank), to = cut(rank + 1);
  std::vector<TensorSlice> slices;
  std::int64_t at = 0;
  for (auto& tensor : tensors) {
    const std::int64_t count = element_count(tensor.header.shape, tensor.header.name);
    const std::int64_t begin = std::clamp(from - at, std::int64_t{0}, count);
    const std::int64_t end = std::clamp(to - at, std::int64_t{0}, count);
    if (end > begin || (count == 0 && rank == 0)) {
      slices.push_back(
          {.name = tensor.header.name,
           .dtype = tensor.header.dtype,
           .shape = tensor.header.shape,
           .begin = begin,
           .count = end - begin,
           .data = tensor.values.data() + static_cast<std::size_t>(begin) * size_of(tensor.header.dtype)});
    }
    at += count;
  }
  return slices;
}

/// Returns the columns of rank `rank` of `world` in every matrix, strided between the columns of other ranks.
/// Tensors that are not matrices belong to rank 0.
inline std::vector<TensorSlice> columns_of(std::vector<SampleTensor>& tensors, int rank, int world) {
  std::vector<TensorSlice> slices;
  for (auto& tensor : tensors) {
    const auto& shape = tensor.header.shape;
    const std::size_t width = size_of(tensor.header.dtype);
    TensorSlice of{.name = tensor.header.name, .dtype = tensor.header.dtype, .shape = shape};
    if (shape.size() != 2 || shape[0] == 0) {
      of.count = element_count(shape, tensor.header.name);
      of.data = tensor.values.data();
      if (rank == 0) slices.push_back(of);
      continue;
    }
    const std::int64_t from = shape[1] * rank / world, to = shape[1] * (rank + 1) / world;
    for (TensorSlice block : block_of(of, {0, from}, {shape[0], to - from}, nullptr)) {
      block.data = tensor.values.data() + static_cast<std::size_t>(block.begin) * width;
      block.pitch = shape[1];
      slices.push_back(block);
    }
  }
  return slices;
}

inline CheckpointContents contents_of(std::vector<SampleTensor>& tensors, std::int64_t step, int rank,
                                      int world, std::int64_t shift = 0) {
  CheckpointContents contents;
  contents.step = step;
  contents.zero_stage = 1;
  contents.slices = slices_of(tensors, rank, world, shift);
  contents.state =
      Json{{"step", step}, {"data", {{"epoch", 1}, {"position", 12345678901234}}}, {"name", "größe"}};
  contents.config_yaml = "output_dir: runs\nlearning_rate: 1e-3\n";
  return contents;
}

inline void on_ranks(int ranks, const std::function<void(comm::Channel&)>& body) {
  comm::run_ranks_as_threads({.ranks = ranks}, [&](comm::Job& job, Device&) { body(job); });
}

/// Saves the sample of `step` from `ranks` ranks.
inline void save_sample(const std::string& output_dir, std::int64_t step, int ranks, std::int64_t shift = 0) {
  on_ranks(ranks, [&](comm::Channel& channel) {
    auto tensors = sample(step);
    save(channel, output_dir, contents_of(tensors, step, channel.rank(), ranks, shift));
  });
}

/// Expects that the whole checkpoint equals the sample of its step.
inline void expect_sample(const std::string& path) {
  const Checkpoint checkpoint(path);
  auto expected = sample(checkpoint.step());
  auto found = expected;
  for (auto& tensor : found) std::fill(tensor.values.begin(), tensor.values.end(), std::byte{0xEE});
  checkpoint.read(slices_of(found, 0, 1));
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(found[i].values == expected[i].values) << found[i].header.name << " in " << path;
  EXPECT_EQ(checkpoint.state()["step"], checkpoint.step());
}

inline Found latest(const std::string& output_dir, const FindOptions& options = {}) {
  Found found;
  on_ranks(1, [&](comm::Channel& channel) { found = find_latest(channel, output_dir, options); });
  return found;
}

}  // namespace octet::checkpoint
