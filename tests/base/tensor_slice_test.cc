// Blocks of tensors of any rank, against every index counted out.
#include "octet/base/tensor_slice.h"

#include <gtest/gtest.h>

#include <numeric>
#include <stdexcept>

#include "octet/base/error.h"

namespace octet::tensor_slice_test {
namespace {

using Extents = std::vector<std::int64_t>;

/// The elements of the slices, in their order in `memory`; -1 for places without an element.
std::vector<std::int64_t> named(const std::vector<TensorSlice>& slices, const float* memory,
                                std::size_t size) {
  std::vector<std::int64_t> elements(size, -1);
  for (const TensorSlice& slice : slices) {
    check_inside(slice);
    each_run(slice, [&](std::int64_t begin, std::int64_t count, const void* data) {
      const auto at = static_cast<const float*>(data) - memory;
      for (std::int64_t i = 0; i < count; ++i) elements.at(static_cast<std::size_t>(at + i)) = begin + i;
    });
  }
  return elements;
}

/// The elements of a block, counted out.
std::vector<std::int64_t> expected(const Extents& shape, const Extents& starts, const Extents& sizes) {
  std::vector<std::int64_t> elements{0};
  for (std::size_t d = 0; d < shape.size(); ++d) {
    std::vector<std::int64_t> further;
    for (const std::int64_t before : elements) {
      for (std::int64_t i = 0; i < sizes[d]; ++i) further.push_back(before * shape[d] + starts[d] + i);
    }
    elements = further;
  }
  return elements;
}

void expect_block(const Extents& shape, const Extents& starts, const Extents& sizes, std::size_t slices) {
  const auto count = static_cast<std::size_t>(
      std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>()));
  const std::vector<float> memory(count);
  const auto block =
      block_of({.name = "w", .shape = shape}, starts, sizes, const_cast<float*>(memory.data()));
  EXPECT_EQ(named(block, memory.data(), count), expected(shape, starts, sizes));
  EXPECT_EQ(block.size(), slices);
}

TEST(TensorSlice, OneNamesAnyBlockOfAMatrix) {
  expect_block({6, 8}, {0, 0}, {6, 8}, 1);
  expect_block({6, 8}, {2, 0}, {3, 8}, 1);
  expect_block({6, 8}, {0, 4}, {6, 4}, 1);
  expect_block({6, 8}, {1, 5}, {4, 2}, 1);
  expect_block({6, 8}, {5, 7}, {1, 1}, 1);
  expect_block({9}, {4}, {3}, 1);
  expect_block({}, {}, {}, 1);
  expect_block({6, 8}, {6, 0}, {0, 8}, 0);
}

TEST(TensorSlice, OneNamesExpertsAndTheirColumns) {
  expect_block({4, 5, 6}, {2, 0, 0}, {1, 5, 6}, 1);
  expect_block({4, 5, 6}, {1, 0, 3}, {3, 5, 2}, 1);
  expect_block({4, 5, 6}, {1, 2, 0}, {3, 2, 6}, 1);
  // A part of each dimension is a matrix for each expert.
  expect_block({4, 5, 6}, {1, 2, 3}, {3, 2, 2}, 3);
  expect_block({3, 4, 5, 6}, {0, 1, 0, 2}, {2, 3, 5, 3}, 2);
  expect_block({3, 4, 5, 6}, {1, 0, 1, 2}, {2, 3, 2, 3}, 6);
}

TEST(TensorSlice, RunsWithoutGapsAreOne) {
  std::vector<float> memory(40);
  TensorSlice slice{.name = "w", .shape = {5, 8}, .count = 8, .data = memory.data(), .rows = 5};
  slice.stride = slice.pitch = 8;
  int runs = 0;
  each_run(slice, [&](std::int64_t begin, std::int64_t count, void*) {
    EXPECT_EQ(begin, 0);
    EXPECT_EQ(count, 40);
    ++runs;
  });
  EXPECT_EQ(runs, 1);
  EXPECT_TRUE(slice.dense());
  slice.pitch = 9;
  EXPECT_FALSE(slice.dense());
}

TEST(TensorSlice, WhatLiesOutsideOrOverlapsIsRefused) {
  const TensorSlice good{
      .name = "w", .shape = {5, 8}, .begin = 6, .count = 2, .rows = 5, .stride = 8, .pitch = 2};
  EXPECT_NO_THROW(check_inside(good));
  const auto with = [&](auto change) {
    TensorSlice slice = good;
    change(slice);
    return slice;
  };
  EXPECT_THROW(check_inside(with([](TensorSlice& s) { s.rows = 6; })), std::logic_error);
  EXPECT_THROW(check_inside(with([](TensorSlice& s) { s.count = 3, s.pitch = 3; })), std::logic_error);
  EXPECT_THROW(check_inside(with([](TensorSlice& s) { s.stride = 1; })), std::logic_error);
  EXPECT_THROW(check_inside(with([](TensorSlice& s) { s.pitch = 1; })), std::logic_error);
  EXPECT_THROW(check_inside(with([](TensorSlice& s) { s.stride = INT64_MAX / 2; })), std::logic_error);
  EXPECT_THROW(check_inside(with([](TensorSlice& s) { s.begin = -1; })), std::logic_error);
  EXPECT_THROW(block_of({.name = "w", .shape = {5, 8}}, {0, 4}, {5, 5}, nullptr), std::logic_error);
  EXPECT_THROW(block_of({.name = "w", .shape = {5, 8}}, {0}, {5}, nullptr), std::logic_error);
}

}  // namespace
}  // namespace octet::tensor_slice_test
