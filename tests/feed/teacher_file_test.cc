// The file of a teacher: its listed tokens are given to the label rows of micro-batches.
#include "octet/feed/teacher_file.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "octet/base/dtype.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "support/program.h"

namespace octet::feed::teacher_file_test {
namespace {

using checkpoint::Array;
using checkpoint::ArraysFile;
using checkpoint::ArrayType;
using Ids = std::vector<std::int32_t>;

template <typename T>
Array array(ArrayType type, std::vector<std::int64_t> shape, const std::vector<T>& values) {
  return {type, std::move(shape), {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)}};
}

std::vector<std::uint16_t> halves(const std::vector<double>& probabilities) {
  std::vector<std::uint16_t> out;
  for (const double p : probabilities) out.push_back(checkpoint::rounded_to_f16(std::log(p)));
  return out;
}

/// Two rows, 5 6 7 and 5 8, with the three most probable of ten tokens.
ArraysFile contents() {
  ArraysFile file;
  file.arrays = {{"offsets", array<std::int64_t>(ArrayType::i64, {3}, {0, 3, 5})},
                 {"logprob_offsets", array<std::int64_t>(ArrayType::i64, {3}, {0, 2, 3})},
                 {"ids", array<std::uint32_t>(ArrayType::u32, {5}, {5, 6, 7, 5, 8})},
                 {"top_ids", array<std::uint32_t>(ArrayType::u32, {3, 3}, {6, 1, 2, 3, 7, 4, 8, 9, 0})},
                 {"top_logprobs",
                  array<std::uint16_t>(ArrayType::f16, {3, 3},
                                       halves({0.5, 0.25, 0.125, 0.5, 0.25, 0.0625, 0.75, 0.125, 0.0625}))},
                 {"rest", array<float>(ArrayType::f32, {3}, {0.125f, 0.1875f, 0.0625f})}};
  file.texts = {{"format", "octet scores"}, {"tokenizer", "abc"}};
  file.numbers = {{"version", 1}, {"vocabulary", 10}, {"best", 3}};
  return file;
}

class TeacherFiles : public testing::Test {
 protected:
  TeacherFiles() { write(contents()); }
  void write(const ArraysFile& file) const {
    write_file_atomically(path_, checkpoint::arrays_file_bytes(file));
  }
  /// Returns the message of an Error (usage) that names the file.
  std::string refusal(const std::function<void()>& act) const {
    try {
      act();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_NE(std::string(error.what()).find(path_), std::string::npos) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "nothing was refused";
    return "";
  }
  void expect_refused(const ArraysFile& file, const std::string& part, const TeacherUse& use) const {
    write(file);
    const std::string said = refusal([&] { TeacherFile(path_, use); });
    EXPECT_NE(said.find(part), std::string::npos) << said;
  }
  static runtime::HostBatch batch_of(const std::vector<Ids>& documents) {
    runtime::HostBatch batch;
    batch.cu_seqlens.push_back(0);
    for (const Ids& ids : documents) {
      batch.rows.push_back(10 + std::ssize(batch.rows));
      runtime::add_document(batch, ids, ids);
    }
    return batch;
  }

  test::TemporaryFolder folder_{"teacher"};
  std::string path_ = folder_ / "scores.h5";
  TeacherUse use_{.vocabulary = 10, .ranks = 2};
};

TEST_F(TeacherFiles, GiveTheirTokensToLabelRows) {
  const TeacherFile file(path_, use_);
  runtime::HostBatch batch = batch_of({{5, 8}, {5, 6, 7}});
  // Only the second label of the second document is trained.
  batch.label_rows = {0, 3}, batch.targets = {8, 7};
  file.add_to(batch);
  EXPECT_EQ(batch.teacher_ids, (Ids{8, 9, 3, 7}));
  ASSERT_EQ(batch.teacher_logprobs.size(), 4u);
  const double wanted[] = {0.75, 0.125, 0.5, 0.25};
  for (std::size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(std::exp(batch.teacher_logprobs[i]), wanted[i], 1e-3 * wanted[i]);
  // The third listed token belongs to the rest.
  ASSERT_EQ(batch.teacher_rest.size(), 2u);
  EXPECT_NEAR(batch.teacher_rest[0], 0.125, 1e-4);
  EXPECT_NEAR(batch.teacher_rest[1], 0.25, 1e-4);
}

TEST_F(TeacherFiles, RefuseDocumentsWithoutARow) {
  const TeacherFile file(path_, use_);
  for (const Ids& ids : {Ids{5, 6}, Ids{5, 6, 8}, Ids{5, 6, 7, 9}}) {
    runtime::HostBatch batch = batch_of({{5, 8}, ids});
    const std::string said = refusal([&] { file.add_to(batch); });
    EXPECT_NE(said.find("row 11 of the data has no row"), std::string::npos) << said;
    data::Encoded set;
    set.append(Ids{5, 8}, Ids{5, 8}, 3);
    file.require(set);
    set.append(ids, ids, 4);
    EXPECT_NE(refusal([&] { file.require(set); }).find("row 4 of the data"), std::string::npos);
  }
}

TEST_F(TeacherFiles, OfOtherModelsAreRefused) {
  ArraysFile file = contents();
  file.numbers["vocabulary"] = 11;
  expect_refused(file, "another vocabulary", use_);
  file = contents();
  expect_refused(file, "fewer tokens than kd_topk", {.vocabulary = 10, .ranks = 4});
  write(contents());
  EXPECT_EQ(TeacherFile(path_, use_).tokenizer(), "abc");
}

TEST_F(TeacherFiles, ThatAreDamagedAreRefused) {
  ArraysFile file = contents();
  file.texts["format"] = "octet answers";
  expect_refused(file, "another format", use_);
  for (const char* name : {"offsets", "top_ids", "top_logprobs", "rest"}) {
    file = contents();
    file.arrays.erase(name);
    expect_refused(file, "missing datasets", use_);
  }
  file = contents();
  file.arrays["rest"] = array<float>(ArrayType::f32, {2}, {0, 0});
  expect_refused(file, "other lengths", use_);
  file = contents();
  file.arrays["offsets"] = array<std::int64_t>(ArrayType::i64, {3}, {0, 2, 5});
  expect_refused(file, "rows of other lengths", use_);
  const std::string bytes = checkpoint::arrays_file_bytes(contents());
  write_file_atomically(path_, bytes.substr(0, bytes.size() / 2));
  refusal([&] { TeacherFile(path_, use_); });
  const auto expect_batch_refused = [&](const ArraysFile& damaged) {
    write(damaged);
    const TeacherFile read(path_, use_);
    runtime::HostBatch batch = batch_of({{5, 8}});
    EXPECT_NE(refusal([&] { read.add_to(batch); }).find("damaged"), std::string::npos);
  };
  for (const std::vector<std::uint32_t>& last : {std::vector<std::uint32_t>{8, 8, 0}, {8, 10, 0}}) {
    file = contents();
    std::vector<std::uint32_t> ids{6, 1, 2, 3, 7, 4};
    ids.insert(ids.end(), last.begin(), last.end());
    file.arrays["top_ids"] = array<std::uint32_t>(ArrayType::u32, {3, 3}, ids);
    expect_batch_refused(file);
  }
  file = contents();
  file.arrays["rest"] = array<float>(ArrayType::f32, {3}, {0.125f, 0.1875f, std::nanf("")});
  expect_batch_refused(file);
}

TEST_F(TeacherFiles, ThatAreMissingAreRefused) {
  EXPECT_THROW(TeacherFile(folder_ / "none.h5", use_), Error);
}

}  // namespace
}  // namespace octet::feed::teacher_file_test
