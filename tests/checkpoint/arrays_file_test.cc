// Array files: round trips, reading with libhdf5's own tool, and error messages for damaged files.
#include "octet/checkpoint/arrays_file.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "octet/base/dtype.h"
#include "octet/base/files.h"
#include "sample.h"

namespace octet::checkpoint::arrays_file_test {
namespace {

template <typename T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

ArraysFile some_arrays() {
  ArraysFile file;
  file.arrays["ids"] = {ArrayType::u32, {3}, raw<std::uint32_t>({7, 0, 4'000'000'000u})};
  file.arrays["halves"] = {
      ArrayType::f16,
      {2, 2},
      raw<std::uint16_t>({to_f16(-0.5f), to_f16(0.333251953125f), to_f16(6e-8f), 0xfbff})};
  file.arrays["floats"] = {ArrayType::f32, {1}, raw<float>({1e-7f})};
  file.arrays["doubles"] = {ArrayType::f64, {2}, raw<double>({-1.1, 1e300})};
  file.arrays["numbers"] = {ArrayType::i64, {2}, raw<std::int64_t>({-1, std::int64_t{1} << 40})};
  file.arrays["none"] = {ArrayType::f16, {0, 4}, ""};
  file.arrays["large"] = {ArrayType::f32, {100'000}, std::string(400'000, '\3')};
  file.texts = {{"format", "some arrays"}, {"empty", ""}};
  file.numbers = {{"version", 1}, {"below", -5}};
  return file;
}

TEST(ArraysFile, WhatGoesInComesOut) {
  const ArraysFile file = some_arrays();
  const ArraysFile again = read_arrays_file(arrays_file_bytes(file), "some.h5");
  EXPECT_EQ(again.texts, file.texts);
  EXPECT_EQ(again.numbers, file.numbers);
  ASSERT_EQ(again.arrays.size(), file.arrays.size());
  for (const auto& [name, array] : file.arrays) {
    SCOPED_TRACE(name);
    EXPECT_EQ(again.arrays.at(name).type, array.type);
    EXPECT_EQ(again.arrays.at(name).shape, array.shape);
    EXPECT_EQ(again.arrays.at(name).bytes, array.bytes);
  }
}

TEST(ArraysFile, EqualContentsGiveEqualBytesInAnotherSecond) {
  const std::string bytes = arrays_file_bytes(some_arrays());
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  EXPECT_EQ(arrays_file_bytes(some_arrays()), bytes);
}

TEST(ArraysFile, TheToolOfHdf5ReadsIt) {
  const Scratch scratch;
  write_file_atomically(scratch / "some.h5", arrays_file_bytes(some_arrays()));
  FILE* pipe = ::popen(("h5dump -m %.9g -w 200 " + (scratch / "some.h5") + " 2>&1").c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string text;
  char buffer[4096];
  while (const std::size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, n);
  if (::pclose(pipe) != 0) GTEST_SKIP() << "h5dump (hdf5-tools) is not installed: " << text;
  for (const char* part : {"(0): 7, 0, 4000000000", "(0,0): -0.5, 0.333251953", "(0): 1.00000001e-07",
                           "(0): -1, 1099511627776", "H5T_STD_U32LE", "some arrays", "(0): -5"}) {
    EXPECT_PRED_FORMAT2(testing::IsSubstring, part, text.substr(0, 20'000) + text.substr(text.size() - 2000));
  }
}

TEST(ArraysFile, HalvesAreRoundedOnce) {
  for (const std::uint16_t code : {0x3c00, 0xbc01, 0xc4ff, 0x8001, 0x0000, 0xfbfe}) {
    const double low = from_f16(code), high = from_f16(static_cast<std::uint16_t>(code + 1));
    const double middle = (low + high) / 2, little = (high - low) * 1e-12;
    const auto even = static_cast<std::uint16_t>(code % 2 == 0 ? code : code + 1);
    EXPECT_EQ(rounded_to_f16(low), code);
    EXPECT_EQ(rounded_to_f16(middle), even) << code;
    // The difference is smaller than the spacing of floats.
    EXPECT_EQ(rounded_to_f16(middle - little), code) << code;
    EXPECT_EQ(rounded_to_f16(middle + little), code + 1) << code;
  }
  EXPECT_EQ(rounded_to_f16(-1e300), 0xfbff);
  EXPECT_EQ(rounded_to_f16(1e300), 0x7bff);
}

TEST(ArraysFile, WhatIsNoneOrCutShortIsNamed) {
  const auto expect_error = [](const std::string& bytes, const std::string& what) {
    try {
      (void)read_arrays_file(bytes, "some.h5");
      ADD_FAILURE() << "taken: " << bytes.size() << " bytes";
    } catch (const Error& e) {
      EXPECT_EQ(e.problem().what, what);
      EXPECT_EQ(e.problem().where, "some.h5");
      EXPECT_FALSE(e.problem().found.empty());
      EXPECT_EQ(e.code(), ExitCode::usage);
    }
  };
  expect_error("", "this is not an HDF5 file");
  expect_error("{\"ids\": [1]}\n", "this is not an HDF5 file");
  const std::string bytes = arrays_file_bytes(some_arrays());
  for (const std::size_t size :
       {std::size_t{8}, std::size_t{40}, std::size_t{2000}, bytes.size() / 2, bytes.size() - 1}) {
    expect_error(bytes.substr(0, size), "an HDF5 file is cut short or damaged");
  }
}

TEST(ArraysFile, BytesThatAreNotTheShapesAreNoArray) {
  ArraysFile file;
  file.arrays["ids"] = {ArrayType::u32, {3}, "1234"};
  EXPECT_THROW((void)arrays_file_bytes(file), std::logic_error);
}

}  // namespace
}  // namespace octet::checkpoint::arrays_file_test
