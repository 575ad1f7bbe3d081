// Parquet and Arrow files of other programs: several row groups, compressions and types, with the samples of
// equal JSON lines. Also files that are damaged, have a wrong ending, or have other columns.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/data/dataset.h"
#include "support/temporary_folder.h"

#ifdef OCTET_HAVE_ARROW

#include <arrow/api.h>
#include <arrow/io/api.h>
#include <arrow/ipc/api.h>
#include <parquet/arrow/writer.h>

namespace octet::data::columns_test {
namespace {

constexpr int kRows = 1000;

class Columns : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  static std::string message(const std::function<void()>& body) {
    try {
      body();
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  }

 private:
  octet::test::TemporaryFolder scratch_{"columns"};
  const std::string& folder_ = scratch_.path();
};

template <typename T>
T value(arrow::Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().ToString());
  return std::move(result).ValueUnsafe();
}
void require(const arrow::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

template <typename Builder, typename Make>
std::shared_ptr<arrow::Array> column(Builder&& builder, int rows, Make make) {
  for (int i = 0; i < rows; ++i) require(make(builder, i));
  return value(builder.Finish());
}

std::shared_ptr<arrow::Table> table(
    const std::vector<std::pair<std::string, std::shared_ptr<arrow::Array>>>& columns) {
  arrow::FieldVector fields;
  arrow::ArrayVector arrays;
  for (const auto& [name, array] : columns) {
    fields.push_back(arrow::field(name, array->type()));
    arrays.push_back(array);
  }
  return arrow::Table::Make(arrow::schema(fields), arrays);
}

std::string question(int i) {
  return "Frage " + std::to_string(i) + " – wozu?";
}
std::string answer(int i) {
  return i % 10 == 7 ? "" : std::string(static_cast<std::size_t>(i % 50), 'a');
}

std::shared_ptr<arrow::Table> instructions(int rows, const std::string& answers = "output") {
  return table({{"instruction",
                 column(arrow::StringBuilder(), rows, [](auto& b, int i) { return b.Append(question(i)); })},
                {answers, column(arrow::LargeStringBuilder(), rows,
                                 [](auto& b, int i) { return b.Append(answer(i)); })},
                {"weight", column(arrow::DoubleBuilder(), rows, [](auto& b, int i) {
                   return i % 3 == 0 ? b.AppendNull() : b.Append(i / 8.0);
                 })}});
}

void write_parquet(const arrow::Table& rows, const std::string& path, std::int64_t group,
                   parquet::Compression::type compression = parquet::Compression::SNAPPY) {
  const auto out = value(arrow::io::FileOutputStream::Open(path));
  const auto properties = parquet::WriterProperties::Builder().compression(compression)->build();
  require(parquet::arrow::WriteTable(rows, arrow::default_memory_pool(), out, group, properties));
  require(out->Close());
}

void write_arrow(const arrow::Table& rows, const std::string& path, bool stream) {
  const auto out = value(arrow::io::FileOutputStream::Open(path));
  const auto writer = value(stream ? arrow::ipc::MakeStreamWriter(out, rows.schema())
                                   : arrow::ipc::MakeFileWriter(out, rows.schema()));
  require(writer->WriteTable(rows, 128));
  require(writer->Close());
  require(out->Close());
}

TEST_F(Columns, EveryRowOfManyRowGroupsInAnyOrder) {
  for (const auto compression :
       {parquet::Compression::UNCOMPRESSED, parquet::Compression::SNAPPY, parquet::Compression::GZIP,
        parquet::Compression::ZSTD, parquet::Compression::LZ4}) {
    write_parquet(*instructions(kRows), path("a.parquet"), 64, compression);
    const auto rows = open_rows(path("a.parquet"));
    ASSERT_EQ(rows->size(), kRows);
    for (int k = 0; k < 2 * kRows; ++k) {
      const int i =
          k < kRows
              ? k
              : k * 7919 % kRows;  // in order, then in jumps between more row groups than the cache holds
      const Json row = rows->row(i);
      ASSERT_EQ(row["instruction"], question(i));
      ASSERT_EQ(row["output"], answer(i));
      ASSERT_EQ(row["weight"], i % 3 == 0 ? Json(nullptr) : Json(i / 8.0));
    }
    EXPECT_NE(rows->where(64).find("a.parquet row 65"), std::string::npos);
  }
}

TEST_F(Columns, SamplesAreThoseOfTheSameRowsAsJsonLines) {
  const auto rows = instructions(kRows);
  write_parquet(*rows, path("a.parquet"), 300);
  write_arrow(*rows, path("b.arrow"), true);
  write_arrow(*rows, path("c.feather"), false);
  std::string lines;
  for (int i = 0; i < kRows; ++i) {
    lines += Json{{"instruction", question(i)}, {"output", answer(i)}}.dump() + "\n";
  }
  write("d.jsonl", lines);
  const auto expected = open_datasets({.dataset = {path("d.jsonl")}})[0];
  for (const char* name : {"a.parquet", "b.arrow", "c.feather"}) {
    const auto found = open_datasets({.dataset = {path(name)}})[0];
    ASSERT_EQ(found.rows, kRows) << name;
    for (int i = 0; i < kRows; ++i) {
      std::string why, why_expected;
      const auto sample = convert_row(found.files[0]->row(i), found.format, &why);
      const auto other = convert_row(expected.files[0]->row(i), expected.format, &why_expected);
      ASSERT_EQ(sample.has_value(), other.has_value()) << name << " row " << i << ": " << why;
      ASSERT_EQ(why, why_expected);
      if (!sample) continue;
      ASSERT_EQ(sample->turns.size(), other->turns.size());
      for (std::size_t t = 0; t < sample->turns.size(); ++t) {
        ASSERT_EQ(sample->turns[t].content, other->turns[t].content) << name << " row " << i;
      }
    }
  }
}

TEST_F(Columns, TypesBesideTextAreReadOrHaveNoValue) {
  const auto strings = std::make_shared<arrow::StringBuilder>();
  arrow::StringDictionaryBuilder coded;
  for (const char* word : {"yes", "no", "yes"}) require(coded.Append(word));
  arrow::ListBuilder list(arrow::default_memory_pool(), strings);
  for (int i = 0; i < 3; ++i) {
    require(list.Append());
    for (int k = 0; k < i; ++k) require(strings->Append("t" + std::to_string(k)));
  }
  const auto rows = table(
      {{"text", column(arrow::BinaryBuilder(), 3,
                       [](auto& b, int i) { return b.Append("täxt " + std::to_string(i)); })},
       {"image",
        column(arrow::BinaryBuilder(), 3, [](auto& b, int) { return b.Append("\xff\xd8\xff\xe0"); })},
       {"day", column(arrow::Date32Builder(), 3, [](auto& b, int i) { return b.Append(19000 + i); })},
       {"flag", column(arrow::BooleanBuilder(), 3, [](auto& b, int i) { return b.Append(i == 1); })},
       {"big", column(arrow::UInt64Builder(), 3,
                      [](auto& b, int i) { return b.Append(~0ULL - static_cast<std::uint64_t>(i)); })},
       {"coded", value(coded.Finish())},
       {"list", value(list.Finish())},
       {"length",
        column(arrow::DurationBuilder(arrow::duration(arrow::TimeUnit::SECOND), arrow::default_memory_pool()),
               3, [](auto& b, int i) { return b.Append(i); })}});
  write_arrow(*rows, path("a.arrow"), false);
  const Json row = open_rows(path("a.arrow"))->row(2);
  EXPECT_EQ(row["text"], "täxt 2");
  EXPECT_TRUE(row["image"].is_binary()) << "not null, which would be no image";
  EXPECT_EQ(row["day"], "2022-01-10");
  EXPECT_EQ(row["flag"], false);
  EXPECT_EQ(row["big"], ~0ULL - 2);
  EXPECT_EQ(row["coded"], "yes");
  EXPECT_EQ(row["list"], (Json{"t0", "t1"}));
  EXPECT_TRUE(row["length"].is_binary());
}

TEST_F(Columns, NoRowsAreAnEmptySet) {
  write_parquet(*instructions(0), path("none.parquet"), 10);
  EXPECT_EQ(open_rows(path("none.parquet"))->size(), 0);
  EXPECT_NE(message([&] { open_datasets({.dataset = {path("none.parquet")}}); }), "no error");
}

// Every error names the file and a fix.
TEST_F(Columns, TruncatedAndOverwrittenFilesAreRefusedByName) {
  write_parquet(*instructions(kRows), path("a.parquet"), 64);
  write_arrow(*instructions(kRows), path("a.arrow"), true);
  write_arrow(*instructions(kRows), path("a.feather"), false);
  for (const std::string name : {"a.parquet", "a.arrow", "a.feather"}) {
    const std::string whole = read_file(path(name)), ending = name.substr(1);
    for (const std::size_t kept : {std::size_t{0}, std::size_t{3}, std::size_t{11}, whole.size() / 3,
                                   whole.size() / 2, whole.size() - 1000, whole.size() - 9}) {
      const std::string cut = write("cut" + ending, whole.substr(0, kept));
      const std::string said = message([&] {
        const auto rows = open_rows(cut);
        for (std::int64_t i = 0; i < rows->size(); ++i) rows->row(i);
      });
      EXPECT_NE(said.find("cut" + ending), std::string::npos) << name << " of " << kept << " bytes: " << said;
      EXPECT_NE(said.find("convert"), std::string::npos) << said;
    }
  }
  // The footer of a Parquet file has its own length, and a wrong length must be refused.
  std::string lying = read_file(path("a.parquet"));
  lying.replace(lying.size() - 8, 4, std::string("\xff\xff\xff\x7f"));
  EXPECT_NE(message([&] { open_rows(write("lying.parquet", lying)); }).find("lying.parquet"),
            std::string::npos);
  // An overwritten page: Snappy's own length no longer matches.
  std::string torn = read_file(path("a.parquet"));
  torn.replace(40, 200, std::string(200, '\xff'));
  const std::string said = message([&] { open_rows(write("torn.parquet", torn))->row(0); });
  EXPECT_NE(said.find("torn.parquet"), std::string::npos) << said;
}

// Wrong offsets, lengths and counts must be detected before they are used.
TEST_F(Columns, BytesThatWereChangedAreReadOrRefusedAndDoNoHarm) {
  write_parquet(*instructions(20), path("a.parquet"), 8, parquet::Compression::UNCOMPRESSED);
  write_arrow(*instructions(20), path("a.arrow"), true);
  write_arrow(*instructions(20), path("a.feather"), false);
  for (const std::string name : {"a.parquet", "a.arrow", "a.feather"}) {
    const std::string whole = read_file(path(name));
    int refused = 0;
    for (std::size_t at = 0; at < whole.size(); at += 3) {
      std::string changed = whole;
      changed[at] = static_cast<char>(~changed[at]);
      const std::string file = write("changed" + name.substr(1), changed);
      try {
        const auto rows = open_rows(file);
        for (std::int64_t i = 0; i < std::min<std::int64_t>(rows->size(), 100); ++i) rows->row(i);
      } catch (const Error&) {
        ++refused;
      }
    }
    EXPECT_GT(refused, 20) << name;
  }
}

TEST_F(Columns, OtherKindsUnderTheseNamesAreRefused) {
  for (const char* name : {"lines.parquet", "lines.arrow", "lines.feather"}) {
    const std::string file = write(name, "{\"instruction\":\"q\",\"output\":\"a\"}\n");
    EXPECT_NE(message([&] { open_rows(file); }).find(name), std::string::npos);
  }
  EXPECT_NE(message([&] { open_rows(path("missing.parquet")); }).find("missing.parquet"), std::string::npos);
}

TEST_F(Columns, AColumnThatIsNotThereIsNamedWithItsNeighbour) {
  write_parquet(*instructions(20, "outptu"), path("a.parquet"), 10);
  write("dataset_info.json", R"({"set":{"file_name":"a.parquet"},
    "asked":{"file_name":"a.parquet","columns":{"prompt":"instruction","response":"output"}}})");
  const auto open = [&](const char* name) { open_datasets({.dataset = {name}, .dataset_dir = path("")}); };
  EXPECT_NE(message([&] { open("asked"); }).find("did you mean 'outptu'"), std::string::npos)
      << message([&] { open("asked"); });
  EXPECT_NE(message([&] { open("set"); }).find("'output'"), std::string::npos)
      << message([&] { open("set"); });
  const auto numbers =
      table({{"a", column(arrow::Int32Builder(), 4, [](auto& b, int i) { return b.Append(i); })}});
  write_parquet(*numbers, path("numbers.parquet"), 10);
  const std::string said = message([&] { open_datasets({.dataset = {path("numbers.parquet")}}); });
  EXPECT_NE(said.find("numbers.parquet"), std::string::npos) << said;
}

}  // namespace
}  // namespace octet::data::columns_test

#else

TEST(Columns, AreNotReadByThisBuild) {
  GTEST_SKIP() << "built without Apache Arrow (cmake says why)";
}

#endif
