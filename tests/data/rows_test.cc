#include <gtest/gtest.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <numeric>
#include <set>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/data/encoder.h"
#include "support/limited_memory.h"
#include "support/temporary_folder.h"

namespace octet::data::rows_test {
namespace {

class Rows : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(folder_ + "/" + name).parent_path());
    std::ofstream(folder_ + "/" + name) << text;
    return folder_ + "/" + name;
  }
  std::string write_gzip(const std::string& name, const std::string& text) {
    const std::string path = folder_ + "/" + name;
    const gzFile file = ::gzopen(path.c_str(), "wb");
    ::gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
    ::gzclose(file);
    return path;
  }
  std::vector<DataSource> open(const std::string& name) {
    return open_datasets({.dataset = {name}, .dataset_dir = folder_});
  }
  template <typename Body>
  static std::string message(const Body& body) {
    try {
      body();
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }
  octet::test::TemporaryFolder scratch_{"rows"};
  const std::string& folder_ = scratch_.path();
};

#define EXPECT_SAYS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(Rows, CsvCellsMayHoldSeparatorsQuotesAndLineEnds) {
  const auto rows = open_rows(write("a.csv",
                                    "\xEF\xBB\xBFinstruction,input,output\r\n"
                                    "\"Say \"\"hi\"\", twice\",,\"line 1\nline 2\"\r\n"
                                    "\n"
                                    "q,\"\",ä\n"));
  ASSERT_EQ(rows->size(), 2);
  EXPECT_EQ(rows->row(0)["instruction"], "Say \"hi\", twice");
  EXPECT_TRUE(rows->row(0)["input"].is_null());
  EXPECT_EQ(rows->row(0)["output"], "line 1\nline 2");
  EXPECT_EQ(rows->row(1)["input"], "");
  EXPECT_EQ(rows->row(1)["output"], "ä");
  EXPECT_SAYS(rows->where(1), "a.csv:5");
}

TEST_F(Rows, CsvQuotesInsideOfACellAreText) {
  const auto rows = open_rows(write("a.csv", "x,y\n5\" wide,a\n\"b\"\"\nc\",d\n"));
  ASSERT_EQ(rows->size(), 2);
  EXPECT_EQ(rows->row(0)["x"], "5\" wide");
  EXPECT_EQ(rows->row(1)["x"], "b\"\nc");
}

TEST_F(Rows, CsvMistakesNameTheirLine) {
  const auto rows = open_rows(write("a.csv", "x,y\n1,2\n1,2,3\n"));
  EXPECT_EQ(rows->row(0)["y"], "2");
  EXPECT_SAYS(message([&] { rows->row(1); }), "a.csv:3");
  EXPECT_SAYS(message([&] { rows->row(1); }), "3 cells for 2 columns");
  EXPECT_SAYS(message([&] { open_rows(write("b.csv", "x,y\n1,\"2\n3,4\n")); }), "b.csv:2");
  EXPECT_SAYS(message([&] { open_rows(write("c.csv", "x,x\n1,2\n")); }), "same name");
  EXPECT_EQ(open_rows(write("d.csv", ""))->size(), 0);
}

TEST_F(Rows, JsonListsAreFoundByTheirBrackets) {
  const auto rows = open_rows(write("a.json", " [ {\"a\":\"]},[\\\"\"},\n{\"b\":[1,{\"c\":2}]} , 3 ]\n"));
  ASSERT_EQ(rows->size(), 3);
  EXPECT_EQ(rows->row(0)["a"], "]},[\"");
  EXPECT_EQ(rows->row(1)["b"][1]["c"], 2);
  EXPECT_SAYS(rows->where(1), "a.json:2 (row 2)");
  EXPECT_EQ(open_rows(write("b.json", "[]"))->size(), 0);
  EXPECT_EQ(open_rows(write("c.json", "{\"a\":1}\n{\"a\":2}\n"))->size(), 2) << "an object a line";
  for (const char* broken : {"[{\"a\":1}", "[1,2] 3", "[}]", "3", "", "[\"a"}) {
    EXPECT_THROW(open_rows(write("d.json", broken)), Error) << broken;
  }
  const auto holes = open_rows(write("e.json", "[1,,2]"));
  EXPECT_SAYS(message([&] { holes->row(1); }), "row 2");
}

// Row files of many shapes, also with each other's endings.
TEST_F(Rows, AWholeJsonTextGivesItsRowsWhateverItsName) {
  const std::string a = R"({"prompt": "one", "completion": "{]"})",
                    b = R"({"prompt": "two", "completion": "b"})";
  const std::string tall = "{\n  \"prompt\": \"one\",\n  \"completion\": \"{]\"\n}";
  const std::vector<std::pair<std::string, std::string>> shapes{
      {"lines", a + "\n" + b + "\n"},
      {"a list", "[" + a + ", " + b + "]"},
      {"a list over lines", "[\n" + a + ",\n" + b + "\n]\n"},
      {"a list below data", "{\n \"version\": 1,\n \"data\": [\n" + a + ",\n" + b + "\n ]\n}\n"},
      {"in one line", "{\"rows\": [" + a + "," + b + "], \"license\": \"x\"}"},
      {"beside another list", "{\"labels\": [\"x\", \"y\"], \"train\": [" + a + "," + b + "]}"},
      {"objects over lines", tall + "\n" + b + "\n"},
      {"with blanks", "\xEF\xBB\xBF \n" + tall + "\n\n" + b},
  };
  for (const auto& [what, text] : shapes) {
    for (const char* name : {"a.json", "a.jsonl", "a.ndjson"}) {
      const auto rows = open_rows(write(name, text));
      ASSERT_EQ(rows->size(), 2) << what << " in " << name;
      EXPECT_EQ(rows->row(0)["completion"], "{]") << what << " in " << name;
      EXPECT_EQ(rows->row(1)["prompt"], "two") << what << " in " << name;
    }
  }
  EXPECT_EQ(open_rows(write("b.json", tall))->size(), 1) << "one row";
  EXPECT_EQ(open_rows(write("c.json", R"({"messages": [{"role": "user"}]})"))->row(0)["messages"].size(), 1u)
      << "a row, not a list of rows";
  for (const char* row : {R"({"talk": [{"role": "user", "content": "q"}]})",
                          R"({"talk": [{"from": "human"}]})", R"({"q": "a", "marks": [{"by": "x"}]})",
                          R"({"segments": [{"text": "a", "label": false}, {"text": "b", "label": true}]})",
                          R"({"conversation": [{"input": "q", "output": "a"}]})",
                          R"({"turns": [{"prompt": "q", "completion": "a"}], "id": 3})"})
    EXPECT_EQ(open_rows(write("c.json", row))->row(0), parse_json(row, "row")) << "a row";
  EXPECT_EQ(open_rows(write("d.jsonl", "[1]\n[2]\n"))->size(), 2) << "lists as rows";
  for (const char* name : {"e.json", "e.jsonl"}) {
    EXPECT_SAYS(message([&] { open_rows(write(name, "{\"train\": [" + a + "], \"test\": [" + b + "]}")); }),
                "'train', 'test'");
    EXPECT_SAYS(message([&] { open_rows(write(name, "[" + a + ", " + b.substr(0, 20))); }), "has no end");
  }
  // A broken row counts as one row.
  const auto rows = open_rows(write("f.jsonl", "{\n" + a + "\n" + b + "\n"));
  ASSERT_EQ(rows->size(), 3);
  EXPECT_EQ(rows->row(2)["prompt"], "two");
}

TEST_F(Rows, CellsMayBeSeparatedBySemicolonsTabsOrBars) {
  for (const char* separator : {",", ";", "\t", "|"}) {
    for (const char* name : {"a.csv", "a.tsv"}) {
      const std::string s = separator;
      for (const std::string& header : {"prompt" + s + "completion", "\"prompt\"" + s + "\"completion\""}) {
        const auto rows = open_rows(write(name, header + "\r\n\"a" + s + "\nb\"" + s + "c\r\n"));
        ASSERT_EQ(rows->size(), 1) << name << separator;
        EXPECT_EQ(rows->row(0)["prompt"], "a" + s + "\nb") << name << separator;
        EXPECT_EQ(rows->row(0)["completion"], "c") << name << separator;
      }
    }
  }
  EXPECT_EQ(open_rows(write("b.csv", "text\na; b\n"))->row(0)["text"], "a; b") << "one column";
  EXPECT_EQ(open_rows(write("c.csv", "x,y;z\n1,2\n"))->row(0)["y;z"], "2");
}

TEST_F(Rows, MistakesInJsonAreToldInPlainWords) {
  const std::vector<std::pair<std::string, std::string>> rows{
      {"{\"a\": nope}", "column 8: invalid literal"},
      {"{\"a\": 1,}", "column 9: unexpected '}'"},
      {"{\"a\": \"b\\q\"}", "column 10: invalid string"},
      {"{\"a\": ", "column 7: unexpected end of input"},
      {"{\"a\": 1e999}", "number overflow"},
  };
  for (const auto& [row, words] : rows) {
    const std::string said = message([&] { open_rows(write("a.jsonl", row + "\n{}\n"))->row(0); });
    EXPECT_SAYS(said, words);
    EXPECT_EQ(said.find("json.exception"), std::string::npos) << said;
    EXPECT_EQ(said.find("parse error"), std::string::npos) << said;
  }
}

TEST_F(Rows, CompressedFilesReadLikePlainOnes) {
  std::string text;
  for (int i = 0; i < 5000; ++i) text += "{\"text\":\"row " + std::to_string(i) + "\"}\n";
  const auto plain = open_rows(write("a.jsonl", text));
  const auto packed = open_rows(write_gzip("b.jsonl.gz", text));
  ASSERT_EQ(packed->size(), plain->size());
  EXPECT_EQ(packed->row(4999), plain->row(4999));
  EXPECT_SAYS(packed->where(4999), "b.jsonl.gz:5000");
  EXPECT_EQ(open_rows(write_gzip("c.csv.gz", "x\n1\n"))->row(0)["x"], "1");
  EXPECT_EQ(open_rows(write_gzip("d.json.gz", "[1,2]"))->size(), 2);
  const std::string whole = read_file(folder_ + "/b.jsonl.gz");
  EXPECT_SAYS(message([&] { open_rows(write("cut.jsonl.gz", whole.substr(0, whole.size() / 2))); }),
              "damaged");
  EXPECT_SAYS(message([&] { open_rows(write("not.jsonl.gz", "plain")); }), "not compressed");
  EXPECT_THROW(open_rows(folder_ + "/missing.jsonl.gz"), Error);
}

TEST_F(Rows, ColumnFilesAreReadOrTheConversionIsNamed) {
  const std::string golden = OCTET_SOURCE_DIR "/tests/golden/data/";
  for (const char* name : {"rows.parquet", "rows-stream.arrow", "rows-file.arrow"}) {
#ifdef OCTET_HAVE_ARROW
    const auto rows = open_rows(golden + name);
    ASSERT_EQ(rows->size(), 5) << name;
    const Json row = rows->row(4);
    EXPECT_EQ(row["messages"][0]["content"], "Question 4?") << name;
    EXPECT_EQ(row["messages"][1]["content"], "Antwort № 4") << name;
    EXPECT_EQ(row["n"], 5);
    EXPECT_EQ(row["tag"], "a");
    EXPECT_TRUE(rows->row(2)["n"].is_null());
    EXPECT_TRUE(rows->row(3)["score"].is_null());
    const std::string whole = read_file(golden + name);
    const std::string ending = std::string(name).substr(std::string(name).find('.'));
    EXPECT_THROW(open_rows(write("cut" + ending, whole.substr(0, whole.size() / 2)))->row(4), Error) << name;
#else
    EXPECT_SAYS(message([&] { open_rows(golden + name); }), "convert the file") << name;
#endif
  }
}

TEST_F(Rows, EntriesChooseSplitFolderAndSubset) {
  const std::string row = "{\"instruction\":\"q\",\"output\":\"a\"}\n";
  write("set/en/train-00000.jsonl", row + row);
  write("set/en/test-00000.jsonl", row);
  write("set/en/dataset_info.json", "{}");
  write("flat/part1.jsonl", row + row + row);
  write("dataset_info.json", R"({
    "train":{"file_name":"set","subset":"en"},
    "test":{"file_name":"set","subset":"en","split":"test"},
    "dev":{"file_name":"set","subset":"en","split":"dev"},
    "nosuch":{"file_name":"set","folder":"de"},
    "slice":{"file_name":"set","subset":"en","split":"train[:10]"},
    "flat":{"file_name":"flat"},
    "file":{"file_name":"flat/part1.jsonl","split":"test"}})");
  EXPECT_EQ(open("train")[0].rows, 2);
  EXPECT_EQ(open("test")[0].rows, 1);
  EXPECT_EQ(open("flat")[0].rows, 3);
  EXPECT_SAYS(message([&] { open("dev"); }), "split 'dev' of data set 'dev' is not there");
  EXPECT_SAYS(message([&] { open("nosuch"); }), "set/de");
  EXPECT_SAYS(message([&] { open("slice"); }), "slices");
  EXPECT_SAYS(message([&] { open("file"); }), "no splits");
}

TEST_F(Rows, AColumnThatIsNotThereIsNamedWithItsNeighbour) {
  write("a.jsonl", "{\"question\":\"q\",\"answer\":\"a\"}\n");
  write("dataset_info.json", R"({
    "near":{"file_name":"a.jsonl","columns":{"prompt":"question","response":"anwser"}},
    "far":{"file_name":"a.jsonl"},
    "chat":{"file_name":"a.jsonl","formatting":"sharegpt"},
    "right":{"file_name":"a.jsonl","columns":{"prompt":"question","response":"answer"}}})");
  EXPECT_SAYS(message([&] { open("near"); }), "did you mean 'answer'");
  EXPECT_SAYS(message([&] { open("far"); }), "no column 'instruction'");
  EXPECT_SAYS(message([&] { open("chat"); }), "'answer', 'question'");
  EXPECT_EQ(open("right")[0].rows, 1);
}

// One token per character, all trained.
class Letters : public Encoder {
 public:
  EncodedSample encode(const Sample& sample) const override {
    EncodedSample::Document d;
    d.ids.assign(sample.text.begin(), sample.text.end());
    d.labels = d.ids;
    return {.documents = {d}};
  }
  std::string decode(std::span<const std::int32_t>) const override { return ""; }
};

TEST_F(Rows, BrokenRowsAreCountedNamedAndLimited) {
  write("a.jsonl",
        "{\"text\":\"one\"}\n{\"text\":\n{\"text\":\"tw\xff\"}\n{\"text\":\"three\"}\n{\"other\":1}\n");
  const RowMix mix(open("a.jsonl"), {});
  const Encoded set = encode_rows(mix, Letters(), {.last_row = 5, .threads = 2, .max_broken = 2});
  EXPECT_EQ(set.documents(), 2);
  EXPECT_EQ(set.counts.broken, 2);
  EXPECT_EQ(set.counts.invalid, 1);
  ASSERT_EQ(set.counts.reasons.size(), 3u);
  EXPECT_SAYS(set.counts.reasons[0], "a.jsonl:2");
  EXPECT_SAYS(set.counts.reasons[1], "a.jsonl:3");
  const auto limited = [&] { encode_rows(mix, Letters(), {.last_row = 5, .max_broken = 1}); };
  EXPECT_SAYS(message(limited), "a.jsonl:2");
  EXPECT_SAYS(message(limited), "max_broken_rows");
}

TEST_F(Rows, EmptyAnswersAndFieldsThatAreNotReadAreCounted) {
  write("a.jsonl",
        R"({"prompt":"q","completion":""})"
        "\n"
        R"({"prompt":"q","completion":" \n","documents":["d"]})"
        "\n"
        R"({"prompt":"","completion":"a","documents":["d"]})"
        "\n"
        R"({"prompt":"q","completion":[{"role":"assistant","content":"","reasoning_content":"w"}]})"
        "\n"
        R"({"prompt":"q","completion":[{"role":"assistant","content":"","weight":0}]})"
        "\n");
  write("b.jsonl", "{\"text\":\"\"}\n{\"text\":\"x\"}\n");
  const RowMix mix(open("a.jsonl"), {});
  const Encoded set = encode_rows(mix, Letters(), {.last_row = 5});
  EXPECT_EQ(set.counts.empty_answers, 2);
  EXPECT_EQ(set.counts.notes, (std::map<std::string, std::int64_t>{{"a column 'documents'", 2}}));
  EXPECT_EQ(encode_rows(RowMix(open("b.jsonl"), {}), Letters(), {.last_row = 2}).counts.empty_answers, 1);
}

TEST_F(Rows, ColumnsThatAreReadAndThatAreNotAreListed) {
  write("a.jsonl",
        R"({"messages":[],"system":"s","source":"x","score":3,"tags":["t"],"id":"","more":[],"images":["i"]})"
        "\n"
        R"({"messages":[],"enable_thinking":true,"late":"x","prompt":[{"role":"user"}]})"
        "\n");
  const ColumnUse use = column_use(open("a.jsonl")[0]);
  EXPECT_EQ(use.read, (std::vector<std::string>{"enable_thinking", "messages", "system"}));
  EXPECT_EQ(use.unread_texts, (std::vector<std::string>{"late", "prompt", "source", "tags"}));
  EXPECT_EQ(use.message_fields, std::vector<std::string>());
  const std::pair<const char*, bool> kDecides[] = {
      {R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],"id":"1"})", false},
      {R"({"messages":[{"role":"user","content":"q","name":"n"}],"system":"s"})", false},
      {R"({"messages":[{"role":"assistant","content":"a","weight":0}]})", true},
      {R"({"messages":[{"role":"assistant","content":"","function_call":{"name":"f"}}]})", true},
      {R"({"messages":[{"role":"assistant","content":"a","reasoning_content":"r"}]})", true},
      {R"({"messages":[{"role":"user","content":"q"}],"chat_template_kwargs":{"enable_thinking":false}})",
       true},
      {R"({"conversations":[{"from":"human","value":"q","weight":null}]})", false},
      {R"({"prompt":"q","completion":"a"})", false}};
  for (const auto& [row, decides] : kDecides) {
    write("d.jsonl", row);
    EXPECT_EQ(column_use(open("d.jsonl")[0]).decides, decides) << row;
  }
  write("c.jsonl",
        R"({"messages":[{"role":"user","content":"q","name":"n"},{"role":"assistant","content":null,)"
        R"("function_call":{"name":"f","arguments":"{}"},"weight":1,"thinking":null,"id":"1"}]})");
  EXPECT_EQ(column_use(open("c.jsonl")[0]).message_fields,
            (std::vector<std::string>{"content", "function_call", "role", "weight"}));
  write("b.jsonl", R"({"text":"x","system":"s"})");
  EXPECT_EQ(column_use(open("b.jsonl")[0]).unread_texts, (std::vector<std::string>{"system"}));
}

class Mixes : public Rows {
 protected:
  Mixes() {
    const std::map<std::string, int> sizes{{"a", 4}, {"b", 10}, {"c", 7}};
    for (const auto& [name, rows] : sizes) {
      std::string text;
      for (int i = 0; i < rows; ++i) text += "{\"text\":\"" + name + std::to_string(i) + "\"}\n";
      write(name + ".jsonl", text);
    }
    sources_ = open_datasets({.dataset = {"a.jsonl", "b.jsonl", "c.jsonl"}, .dataset_dir = folder_});
  }
  static std::vector<std::string> texts(const RowMix& mix) {
    std::vector<std::string> texts;
    for (std::int64_t i = 0; i < mix.size(); ++i) {
      const auto place = mix.at(i);
      texts.push_back(place.file->row(place.row)["text"]);
    }
    return texts;
  }
  static std::map<char, int> counts(const std::vector<std::string>& texts) {
    std::map<char, int> counts;
    for (const auto& text : texts) ++counts[text[0]];
    return counts;
  }
  std::vector<DataSource> sources_;
};

TEST_F(Mixes, SetsTakeTurnsUntilTheFirstOrTheLastHasRunOut) {
  EXPECT_EQ(RowMix(sources_, {}).size(), 21);
  const auto under = texts(RowMix(sources_, {.strategy = "interleave_under"}));
  EXPECT_EQ(under, (std::vector<std::string>{"a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2", "a3"}));
  const auto over = texts(RowMix(sources_, {.strategy = "interleave_over"}));
  EXPECT_EQ(over.size(), 29u) << "ten turns, the last of which ends with set b";
  EXPECT_EQ(over[12], "a0") << "a short set begins again";
  EXPECT_EQ(over.back(), "b9");
  auto once = texts(RowMix(sources_, {.strategy = "interleave_once"}));
  EXPECT_EQ(once.size(), 21u);
  EXPECT_EQ(once.back(), "b9");
  std::ranges::sort(once);
  EXPECT_EQ(std::ranges::adjacent_find(once), once.end()) << "each row once";
}

TEST_F(Mixes, WeightsAreSharesOfTheRowsAndTheSeedDecidesTheOrder) {
  const MixOptions options{.strategy = "interleave_over", .weights = {0.2, 0.7, 0.1}, .seed = 3};
  // Large sets, made by repeating rows like num_samples.
  auto large = sources_;
  for (auto& source : large) {
    source.sampled = true;
    source.rows = 20000;
  }
  const RowMix mix(large, options);
  const auto seen = counts(texts(mix));
  const auto total = static_cast<double>(mix.size());
  EXPECT_NEAR(seen.at('a') / total, 0.2, 0.01);
  EXPECT_NEAR(seen.at('b') / total, 0.7, 0.01);
  EXPECT_EQ(texts(RowMix(sources_, options)), texts(RowMix(sources_, options)));
  MixOptions other = options;
  other.seed = 4;
  EXPECT_NE(texts(RowMix(sources_, options)), texts(RowMix(sources_, other)));
  EXPECT_SAYS(message([&] {
                RowMix(sources_, {.strategy = "interleave_over", .weights = {1, 2}});
              }),
              "3 numbers");
  EXPECT_SAYS(message([&] {
                RowMix(sources_, {.strategy = "interleave_over", .weights = {1, 2, 0}});
              }),
              "above 0");
}

TEST_F(Mixes, ASetThatHasRunOutLeavesItsShareToAllOthersByTheirWeights) {
  auto sets = sources_;
  for (auto& source : sets) {
    source.sampled = true;
    source.rows = &source == &sets[0] ? 20 : 4000;
  }
  const RowMix mix(sets, {.strategy = "interleave_once", .weights = {0.6, 0.2, 0.2}, .seed = 3});
  const auto all = texts(mix);
  const auto seen = counts({all.begin() + 100, all.begin() + 4100});
  EXPECT_EQ(seen.count('a'), 0u) << "the first set ends within the first rows";
  EXPECT_NEAR(seen.at('b') / 4000.0, 0.5, 0.03);
}

TEST_F(Mixes, NoCopyOfAHeldOutRowIsTrained) {
  const RowMix mix(sources_, {.strategy = "interleave_over"});
  const auto distinct = mix.distinct_rows();
  ASSERT_EQ(distinct.size(), 29u);
  EXPECT_EQ(*std::ranges::max_element(distinct), 20);
  EXPECT_TRUE(RowMix(sources_, {}).distinct_rows().empty());
  const Encoded all = encode_rows(mix, Letters(), {.last_row = mix.size()});
  const auto [training, held] = hold_out(all, {.rows = 21, .count = 6, .seed = 1, .distinct = distinct});
  EXPECT_EQ(held.documents(), 6);
  for (const auto place : held.rows) {
    for (const auto trained : training.rows) {
      EXPECT_NE(distinct[static_cast<std::size_t>(place)], distinct[static_cast<std::size_t>(trained)]);
    }
  }
}

TEST_F(Mixes, ARowThatStandsTwiceIsChosenOnce) {
  const RowMix mix(sources_, {.strategy = "interleave_over"});
  ASSERT_EQ(mix.size(), 29);
  const auto places = mix.choose(mix.size(), 7);
  const auto distinct = mix.distinct_rows();
  std::set<std::int64_t> rows;
  for (const auto place : places) {
    EXPECT_TRUE(rows.insert(distinct[static_cast<std::size_t>(place)]).second) << place;
  }
  EXPECT_EQ(places.size(), 21u) << "so many rows there are, and each of them was asked for";
  EXPECT_TRUE(std::ranges::is_sorted(places));
  EXPECT_LE(mix.choose(10, 7).size(), 10u);
  EXPECT_NE(mix.choose(10, 7), mix.choose(10, 8)) << "the seed decides";
  EXPECT_TRUE(mix.choose(0, 7).empty());
}

TEST_F(Mixes, RowsOfSeveralFilesStandOneBehindTheOther) {
  const RowMix mix(open_datasets({.dataset = {folder_ + "/[ab].jsonl", "c.jsonl"}, .dataset_dir = folder_}),
                   {});
  ASSERT_EQ(mix.sources().size(), 2u);
  ASSERT_EQ(mix.sources()[0].files.size(), 2u);
  std::vector<std::string> expected;
  for (const auto& [name, rows] : {std::pair{'a', 4}, {'b', 10}, {'c', 7}}) {
    for (int i = 0; i < rows; ++i) expected.push_back(name + std::to_string(i));
  }
  EXPECT_EQ(texts(mix), expected);
  EXPECT_EQ(mix.at(13).source, &mix.sources()[0]);
  EXPECT_EQ(mix.at(14).source, &mix.sources()[1]);
  EXPECT_ANY_THROW(mix.at(-1));
  EXPECT_ANY_THROW(mix.at(21));
  // Three files in one set: the index of a row includes all earlier files.
  const RowMix all(open_datasets({.dataset = {folder_ + "/?.jsonl"}}), {});
  EXPECT_EQ(texts(all), expected);
}

TEST_F(Mixes, ASetThatRepeatsItsRowsIsNoticedBehindOneThatDoesNot) {
  auto sets = sources_;
  sets[2].sampled = true;
  sets[2].rows = 9;
  const auto distinct = RowMix(sets, {}).distinct_rows();
  ASSERT_EQ(distinct.size(), 23u);
  EXPECT_EQ(std::set<std::int64_t>(distinct.begin(), distinct.end()).size(), 21u);
  sets[2].rows = 7;
  EXPECT_TRUE(RowMix(sets, {}).distinct_rows().empty()) << "each once";
}

// More rows than one work item of a thread.
TEST_F(Mixes, ManyRowsComeOnceAndInTheirOrderHoweverManyThreadsTakeThem) {
  std::string text;
  for (int i = 0; i < 1100; ++i) text += i == 700 ? "{\n" : "{\"text\":\"ab\"}\n";
  write("many.jsonl", text);
  const RowMix mix(open_datasets({.dataset = {"many.jsonl"}, .dataset_dir = folder_}), {});
  std::vector<std::int64_t> places;
  for (std::int64_t i = 0; i < mix.size(); i += 2) places.push_back(i);
  const auto rows_of = [&](const EncodeShare& share) {
    const Encoded made = encode_rows(mix, Letters(), share);
    EXPECT_EQ(made.counts.documents, made.documents());
    EXPECT_EQ(made.counts.rows, share.last_row - share.first_row);
    return std::vector<std::int64_t>(made.rows.begin(), made.rows.end());
  };
  const auto expected = [&](std::int64_t first, std::int64_t last, std::int64_t step) {
    std::vector<std::int64_t> rows;
    for (std::int64_t i = first; i < last; ++i) {
      if (i * step != 700) rows.push_back(i * step);
    }
    return rows;
  };
  for (const int threads : {0, 1, 3}) {
    EXPECT_EQ(rows_of({.last_row = 1100, .threads = threads}), expected(0, 1100, 1));
    EXPECT_EQ(rows_of({.first_row = 100, .last_row = 613, .threads = threads}), expected(100, 613, 1));
    EXPECT_EQ(rows_of({.first_row = 10, .last_row = 540, .threads = threads, .places = &places}),
              expected(10, 540, 2));
    EXPECT_TRUE(rows_of({.first_row = 5, .last_row = 5, .threads = threads}).empty());
    EXPECT_THROW(rows_of({.last_row = 1100, .threads = threads, .max_broken = 0}), Error);
  }
}

#ifdef OCTET_TEST_LIMITED_MEMORY
TEST_F(Mixes, FewerThreadsTakeAllRowsIfTheSystemStartsNoMore) {
  constexpr int kThreads = 12, kRows = 256 * kThreads;
  std::string text;
  for (int i = 0; i < kRows; ++i) text += "{\"text\":\"ab\"}\n";
  write("many.jsonl", text);
  const RowMix mix(open_datasets({.dataset = {"many.jsonl"}, .dataset_dir = folder_}), {});
  const test::LimitedMemory limit(std::size_t{40} << 20);  // four stacks of 8 MiB
  EXPECT_EQ(encode_rows(mix, Letters(), {.last_row = kRows, .threads = kThreads}).documents(), kRows);
}
#endif

TEST_F(Mixes, AnyShareOfTheRowsIsTheSameWhoeverTakesIt) {
  const RowMix mix(sources_, {.strategy = "interleave_over", .weights = {3, 1, 2}});
  const Encoded whole = encode_rows(mix, Letters(), {.last_row = mix.size()});
  Encoded parts;
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    parts.append(encode_rows(mix, Letters(),
                             {.first_row = mix.size() * rank / 3, .last_row = mix.size() * (rank + 1) / 3}));
  }
  EXPECT_EQ(parts.fingerprint(), whole.fingerprint());
  EXPECT_EQ(parts.rows, whole.rows);
}

}  // namespace
}  // namespace octet::data::rows_test
