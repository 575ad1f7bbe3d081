#include "octet/weights/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>

#include "octet/weights/safetensors_writer.h"
#include "support/scratch.h"

namespace octet::weights::safetensors_test {
namespace {

// Returns a safetensors file with any header and `data_size` bytes 0, 1, 2, …
std::string file_of(const std::string& header, std::size_t data_size) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i)
    bytes[static_cast<std::size_t>(i)] = static_cast<char>(header.size() >> (8 * i));
  bytes += header;
  for (std::size_t i = 0; i < data_size; ++i) bytes += static_cast<char>(i);
  return bytes;
}

std::string entry(const std::string& shape, const std::string& offsets, const std::string& dtype = "F32") {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

struct Hostile {
  const char* name;
  std::string bytes;
  const char* message;
};

class HostileSafetensors : public testing::TestWithParam<Hostile> {};

TEST_P(HostileSafetensors, IsRefusedByName) {
  const Scratch scratch;
  put(scratch / "x.safetensors", GetParam().bytes);
  EXPECT_ERROR(GetParam().message, SafetensorsFile(scratch / "x.safetensors"));
  EXPECT_ERROR("x.safetensors", SafetensorsFile(scratch / "x.safetensors"));
}

std::vector<Hostile> hostile_files() {
  const std::string a = R"({"a":)", e = "}";
  std::string claims_more = file_of(a + entry("[2]", "[0,8]") + e, 8);
  claims_more[6] = 1;
  std::string whole_range = file_of("{}", 0);
  for (int i = 0; i < 8; ++i) whole_range[static_cast<std::size_t>(i)] = '\xff';
  std::string deep = R"({"a":)" + std::string(200000, '[') + std::string(200000, ']') + "}";
  return {
      {"Empty", "", "too short"},
      {"SevenBytes", "1234567", "too short"},
      {"HeaderLongerThanFile", claims_more, "length of the header"},
      {"HeaderLengthWraps", whole_range, "length of the header"},
      {"HeaderOver100MB",
       [] {
         std::string bytes = file_of("{}", 0);
         bytes[3] = 0x40;  // 1 GiB and 2 bytes
         return bytes;
       }(),
       "length of the header"},
      {"DoesNotStartWithBrace", file_of(" {}", 0), "does not start"},
      {"EmptyHeader", file_of("", 0), "does not start"},
      {"BrokenJson", file_of(a, 0), "not valid JSON"},
      {"TextBehindTheJson", file_of("{} x", 0), "not valid JSON"},
      {"InvalidUtf8", file_of("{\"\xff\":" + entry("[]", "[0,4]") + e, 4), "not valid JSON"},
      {"DeepNesting", file_of(deep, 0), "form of safetensors"},
      {"ProductWraps", file_of(a + entry("[4194305,4194305,211106198978564]", "[0,16]") + e, 16),
       "impossible"},
      {"BytesWrap", file_of(a + entry("[4611686018427387905]", "[0,4]") + e, 4), "disagree"},
      {"ExtentOverInt64", file_of(a + entry("[18446744073709551615]", "[0,4]") + e, 4), "impossible"},
      {"ExtentOverUint64", file_of(a + entry("[18446744073709551616]", "[0,4]") + e, 4),
       "form of safetensors"},
      {"NegativeExtent", file_of(a + entry("[-1]", "[0,4]") + e, 4), "negative number"},
      {"FractionalExtent", file_of(a + entry("[1.0]", "[0,4]") + e, 4), "1.0"},
      {"NegativeOffset", file_of(a + entry("[1]", "[-4,0]") + e, 4), "negative number"},
      {"ShapeDisagreesWithRange", file_of(a + entry("[2]", "[0,4]") + e, 4), "disagree"},
      {"RangeBackwards", file_of(a + entry("[1]", "[4,0]") + e, 4), "outside the file"},
      {"RangePastTheEnd", file_of(a + entry("[2]", "[0,8]") + e, 4), "outside the file"},
      {"RangeWraps", file_of(a + entry("[1]", "[18446744073709551612,0]") + e, 4), "outside the file"},
      {"Hole", file_of(a + entry("[1]", "[4,8]") + e, 8), "overlap or leave a gap"},
      {"Overlap", file_of(a + entry("[2]", "[0,8]") + R"(,"b":)" + entry("[2]", "[4,12]") + e, 12),
       "overlap"},
      {"SameRangeTwice", file_of(a + entry("[2]", "[0,8]") + R"(,"b":)" + entry("[2]", "[0,8]") + e, 8),
       "overlap"},
      {"EmptyTensorInsideAnother",
       file_of(a + entry("[2]", "[0,8]") + R"(,"b":)" + entry("[0]", "[4,4]") + e, 8), "overlap"},
      {"BytesBehindTheLastTensor", file_of(a + entry("[1]", "[0,4]") + e, 8), "do not cover"},
      {"DataWithoutTensors", file_of("{}", 1), "do not cover"},
      {"DuplicateName", file_of(a + entry("[1]", "[0,4]") + R"(,"a":)" + entry("[1]", "[4,8]") + e, 8),
       "twice"},
      {"UnknownDType", file_of(a + entry("[1]", "[0,4]", "F31") + e, 4), "F31"},
      {"MissingDType", file_of(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4), "incomplete"},
      {"MissingShape", file_of(R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4), "incomplete"},
      {"MissingOffsets", file_of(R"({"a":{"dtype":"F32","shape":[1]}})", 4), "incomplete"},
      {"FieldTwice", file_of(R"({"a":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}})", 4),
       "twice"},
      {"UnknownField", file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"x":1}})", 4),
       "unknown field"},
      {"ThreeOffsets", file_of(a + entry("[1]", "[0,4,8]") + e, 4), "a number"},
      {"OneOffset", file_of(a + entry("[1]", "[4]") + e, 4), "incomplete"},
      {"ShapeIsText", file_of(a + entry("\"1\"", "[0,4]") + e, 4), "a string"},
      {"EntryIsNumber", file_of(R"({"a":7})", 4), "a number"},
      {"EntryIsNull", file_of(R"({"a":null})", 4), "null"},
      {"MetadataIsText", file_of(R"({"__metadata__":"pt"})", 0), "a string"},
      {"MetadataHoldsNumbers", file_of(R"({"__metadata__":{"n":1}})", 0), "a number"},
  };
}

INSTANTIATE_TEST_SUITE_P(EachWay, HostileSafetensors, testing::ValuesIn(hostile_files()),
                         [](const auto& hostile) { return std::string(hostile.param.name); });

TEST(Safetensors, AMillionNamesAreReadInTimeProportionalToThem) {
  const Scratch scratch;
  std::string header = "{";
  for (int i = 0; i < 300000; ++i)
    header += (i ? ",\"t" : "\"t") + std::to_string(i) + "\":" + entry("[0]", "[0,0]", "U8");
  put(scratch / "x.safetensors", file_of(header + "}", 0));
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(SafetensorsFile(scratch / "x.safetensors").tensors().size(), 300000u);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20))
      << "a quadratic reader needs hours";
}

TEST(Safetensors, EmptyTensorsAndScalarsStandBetweenOthers) {
  const Scratch scratch;
  put(scratch / "x.safetensors",
      file_of(R"({"b":)" + entry("[]", "[4,8]", "I32") + R"(,"none":)" + entry("[0,7]", "[4,4]") +
                  R"(,"a":)" + entry("[4]", "[0,4]", "U8") + R"(,"__metadata__":{"format":"pt"}}   )",
              8));
  const SafetensorsFile file(scratch / "x.safetensors");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.at("none").count, 0);
  std::int64_t value = 0;
  file.read("b", 0, 1, &value);
  EXPECT_EQ(value, 0x07060504);
  std::int64_t bytes[2];
  file.read("a", 2, 2, bytes);
  EXPECT_EQ(bytes[1], 3);
  EXPECT_ERROR("outside its tensor", file.read("a", 3, 2, bytes));
  EXPECT_ERROR("outside its tensor", file.read("a", -1, 1, bytes));
  EXPECT_ERROR("outside its tensor", file.read("a", 5, INT64_MAX, bytes));
  float x = 0;
  EXPECT_ERROR("I32", file.read("b", 0, 1, &x));
  EXPECT_ERROR("nearest is 'none'", file.at("nome"));
}

class EveryFloat : public testing::TestWithParam<DType> {};

TEST_P(EveryFloat, ComesBackRoundedOnce) {
  const Scratch scratch;
  const DType dtype = GetParam();
  std::vector<float> values = {0.0f, -0.0f, 1.0f, -1.5f, 3.14159265f, 1e-8f, 440.0f, -123.456f, INFINITY};
  for (int i = 0; i < 70000; ++i) values.push_back(std::sin(static_cast<float>(i)) * 20.0f);
  const auto n = static_cast<std::int64_t>(values.size());
  SafetensorsWriter writer(scratch / "x.safetensors", {{"odd", DType::u8, {3}}, {"v", dtype, {n}}});
  for (const auto& tensor : writer.order()) {
    if (tensor.name == "odd") {
      writer.append_bytes("abc", 3);
    } else {
      writer.append(values.data(), 5);
      writer.append(values.data() + 5, n - 5);
    }
  }
  EXPECT_ERROR("x.safetensors", SafetensorsFile(scratch / "x.safetensors"))
      << "not there before it is published";
  writer.publish();
  const auto rounded = [dtype](float x) {
    switch (dtype) {
      case DType::bf16:
        return from_bf16(octet::to_bf16(x));
      case DType::f16:
        return from_f16(to_f16(x));
      case DType::e4m3:
      case DType::e5m2:
        return from_fp8(to_fp8(x, dtype), dtype);
      default:
        return x;
    }
  };
  const SafetensorsFile file(scratch / "x.safetensors");
  EXPECT_EQ(file.at("v").dtype, dtype);
  std::vector<float> read(values.size());
  std::vector<Bf16> halves(values.size());
  file.read("v", 0, n, read.data());
  file.read("v", 0, n, halves.data());
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(std::bit_cast<std::uint32_t>(read[i]), std::bit_cast<std::uint32_t>(rounded(values[i])))
        << values[i];
    ASSERT_EQ(halves[i].bits, octet::to_bf16(read[i]));
  }
  float some[3];
  file.read("v", n - 3, 3, some);
  EXPECT_EQ(some[2], read.back());
}

INSTANTIATE_TEST_SUITE_P(Floats, EveryFloat,
                         testing::Values(DType::f32, DType::f64, DType::bf16, DType::f16, DType::e4m3,
                                         DType::e5m2));

// Several threads share long ranges. Every element must be read once, and nothing else written.
TEST(Safetensors, LongRangesAreReadElementByElement) {
  const Scratch scratch;
  constexpr std::int64_t count = 1'300'001;
  const auto span = [](std::int64_t begin, std::int64_t bytes) {
    return "[" + std::to_string(begin) + "," + std::to_string(begin + bytes) + "]";
  };
  const std::string shape = "[" + std::to_string(count) + "]";
  put(scratch / "x.safetensors", file_of(R"({"half":)" + entry(shape, span(0, 2 * count), "BF16") +
                                             R"(,"whole":)" + entry(shape, span(2 * count, 4 * count)) + "}",
                                         static_cast<std::size_t>(6 * count)));
  const SafetensorsFile file(scratch / "x.safetensors");
  for (const char* name : {"half", "whole"}) {
    const auto bytes = file.bytes(file.at(name));
    for (const auto& [begin, length] :
         {std::pair<std::int64_t, std::int64_t>{0, count}, {7, 900'000}, {count - 3, 3}, {5, 0}}) {
      std::vector<float> got(static_cast<std::size_t>(length) + 2, 77.0f);
      file.read(name, begin, length, got.data() + 1);
      EXPECT_EQ(got.front(), 77.0f);
      EXPECT_EQ(got.back(), 77.0f);
      for (std::int64_t i = 0; i < length; ++i) {
        const auto at = static_cast<std::size_t>(begin + i);
        float want = 0;
        if (std::string(name) == "half") {
          std::uint16_t bits = 0;
          std::memcpy(&bits, &bytes[2 * at], sizeof bits);
          want = from_bf16(bits);
        } else {
          std::memcpy(&want, &bytes[4 * at], sizeof want);
        }
        ASSERT_EQ(std::memcmp(&got[static_cast<std::size_t>(i) + 1], &want, sizeof want), 0) << name << i;
      }
    }
  }
}

TEST(SafetensorsWriter, LeavesNothingWhenItIsNotPublished) {
  const Scratch scratch;
  {
    SafetensorsWriter writer(scratch / "x.safetensors", {{"a", DType::f32, {4}}});
    const float one = 1;
    writer.append(&one, 1);
    EXPECT_ERROR("12 bytes missing", writer.publish());
  }
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
  EXPECT_ERROR("twice", SafetensorsWriter(scratch / "x.safetensors",
                                          {{"a", DType::f32, {4}}, {"a", DType::f32, {4}}}));
  EXPECT_ERROR("cannot create", SafetensorsWriter(scratch / "no/x.safetensors", {}));
}

TEST(SafetensorsWriter, MetadataStandBeforeTheTensors) {
  const Scratch scratch;
  {
    SafetensorsWriter writer(scratch / "x.safetensors", {{"a", DType::f32, {1}}, {"b", DType::f32, {0, 3}}},
                             {{"format", "pt"}, {"a \"quoted\" key", "ä"}, {"third", ""}});
    const float one = 1;
    writer.append(&one, 1);
    writer.publish();
  }
  const SafetensorsFile file(scratch / "x.safetensors");
  using Metadata = std::map<std::string, std::string>;
  EXPECT_EQ(Metadata(file.metadata().begin(), file.metadata().end()),
            (Metadata{{"format", "pt"}, {"a \"quoted\" key", "ä"}, {"third", ""}}));
  EXPECT_EQ(file.at("b").shape, (std::vector<std::int64_t>{0, 3}));
  EXPECT_ERROR("twice", SafetensorsWriter(scratch / "y.safetensors", {{"__metadata__", DType::f32, {4}}}));
}

TEST(SafetensorsWriter, SaysAtOnceThatTheDiskIsFull) {
  const Scratch scratch;
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{1 << 20, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string message = error_of([&] {
    SafetensorsWriter(scratch / "x.safetensors", {{"a", DType::f32, {1 << 20}}});
  });
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_NE(message.find("free some disk space"), std::string::npos) << message;
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

// Writes three shards of 16, 16 and 40 bytes with their index.
void write_shards(const Scratch& scratch) {
  std::vector<TensorHeader> tensors;
  for (const char* name : {"a", "b", "c", "d"}) tensors.push_back({name, DType::f32, {2}});
  tensors.push_back({"e", DType::f32, {10}});
  const ShardPlan plan = plan_shards(tensors, 20);
  ASSERT_EQ(plan.files,
            (std::vector<std::string>{"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                      "model-00003-of-00003.safetensors"}));
  EXPECT_EQ(plan.total_bytes, 72);
  float value = 0;
  for (std::size_t i = 0; i < plan.files.size(); ++i) {
    SafetensorsWriter writer(scratch / plan.files[i], plan.tensors[i]);
    for (const auto& tensor : writer.order()) {
      for (std::int64_t k = 0; k < tensor.shape[0]; ++k) writer.append(&++value, 1);
    }
    writer.publish();
  }
  put(scratch / "model.safetensors.index.json", index_json(plan));
}

TEST(WeightFolder, ReadsShardsAsOne) {
  const Scratch scratch;
  EXPECT_FALSE(WeightFolder::exists(scratch.path()));
  EXPECT_ERROR("no weights found", WeightFolder(scratch.path()));
  write_shards(scratch);
  EXPECT_TRUE(WeightFolder::exists(scratch.path()));
  const WeightFolder folder(scratch.path());
  EXPECT_EQ(folder.tensors().size(), 5u);
  EXPECT_EQ(folder.expect("c", {2}).file, scratch / "model-00002-of-00003.safetensors");
  float two[2];
  folder.read("d", 0, 2, two);
  EXPECT_EQ(two[1], 8.0f);
  EXPECT_ERROR("[2, 1]", folder.expect("c", {2, 1}));
  EXPECT_ERROR("model-00002-of-00003.safetensors", folder.expect("c", {2, 1}));
  EXPECT_ERROR("'f' is missing", folder.expect("f", {2}));
}

// The stacked layout of transformers 5.
TEST(WeightFolder, StackedExpertsReadAsTheMatricesOfEach) {
  const std::string block = "model.layers.0.mlp.experts.";
  std::vector<float> up(2 * 6 * 5), down(2 * 5 * 3);
  for (std::size_t i = 0; i < up.size(); ++i) up[i] = static_cast<float>(i);
  for (std::size_t i = 0; i < down.size(); ++i) down[i] = -static_cast<float>(i);
  const TensorSlice gate_up_slice{block + "gate_up_proj", DType::f32, {2, 6, 5}, 0, 60, up.data()};
  const TensorSlice down_slice{block + "down_proj", DType::f32, {2, 5, 3}, 0, 30, down.data()};
  const Scratch scratch;
  write_safetensors(scratch / "model.safetensors", {gate_up_slice, down_slice});
  const WeightFolder folder(scratch.path());
  EXPECT_EQ(folder.tensors().size(), 6u);
  EXPECT_EQ(folder.find(block + "gate_up_proj"), nullptr);
  const auto expect = [&](const std::string& name, const std::vector<std::int64_t>& shape,
                          const float* from) {
    folder.expect(block + name + ".weight", shape);
    std::vector<float> values(static_cast<std::size_t>(shape[0] * shape[1]));
    folder.read(block + name + ".weight", 0, shape[0] * shape[1], values.data());
    EXPECT_EQ(values, std::vector<float>(from, from + values.size())) << name;
  };
  expect("0.gate_proj", {3, 5}, up.data());
  expect("0.up_proj", {3, 5}, up.data() + 15);
  expect("1.gate_proj", {3, 5}, up.data() + 30);
  expect("1.up_proj", {3, 5}, up.data() + 45);
  expect("0.down_proj", {5, 3}, down.data());
  expect("1.down_proj", {5, 3}, down.data() + 15);
  const TensorSlice again{block + "1.down_proj.weight", DType::f32, {5, 3}, 0, 15, down.data()};
  write_safetensors(scratch / "model.safetensors", {gate_up_slice, down_slice, again});
  EXPECT_ERROR("1.down_proj.weight' occurs twice", WeightFolder(scratch.path()));
}

// Covers names, dtypes, shapes and both ends of every tensor, in any file.
TEST(WeightFolder, ItsFingerprintIsThatOfItsTensors) {
  constexpr std::int64_t kCount = 40000;  // 160 KB: the ends do not meet
  struct Change {
    std::int64_t place = 0;
    float value = 0;
    std::vector<std::int64_t> shape = {kCount};
    const char* name = "w";
  };
  const auto fingerprint = [&](const Change& change) {
    const Scratch scratch;
    std::vector<float> values(kCount);
    values[static_cast<std::size_t>(change.place)] = change.value;
    float other = 1;
    write_safetensors(scratch / "model.safetensors",
                      {{change.name, DType::f32, change.shape, 0, kCount, values.data()},
                       {"z", DType::f32, {1}, 0, 1, &other}});
    return WeightFolder(scratch.path()).fingerprint();
  };
  const std::string same = fingerprint({});
  EXPECT_EQ(same, fingerprint({}));
  EXPECT_NE(same, fingerprint({.place = 0, .value = 1}));
  EXPECT_NE(same, fingerprint({.place = kCount - 1, .value = 1}));
  EXPECT_NE(same, fingerprint({.shape = {kCount / 2, 2}}));
  EXPECT_NE(same, fingerprint({.name = "v"}));
}

TEST(WeightFolder, ReadsABlockOfRowsAndColumns) {
  const Scratch scratch;
  std::vector<std::uint16_t> values(30);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = octet::to_bf16(static_cast<float>(i));
  write_safetensors(scratch / "model.safetensors", {{"w", DType::bf16, {5, 6}, 0, 30, values.data()}});
  const WeightFolder folder(scratch.path());
  std::vector<float> dense(6), wide(12, -1.0f);
  TensorSlice block = block_of({.name = "w", .shape = {5, 6}}, {1, 4}, {3, 2}, dense.data()).at(0);
  folder.read(block);
  EXPECT_EQ(dense, (std::vector<float>{10, 11, 16, 17, 22, 23}));
  block.data = wide.data();
  block.pitch = 5;
  folder.read(block);
  EXPECT_EQ(wide, (std::vector<float>{10, 11, -1, -1, -1, 16, 17, -1, -1, -1, 22, 23}));
  block.shape = {6, 5};
  EXPECT_ERROR("[6, 5]", folder.read(block));
}

TEST(WeightFolder, NamesWhatIsWrongWithItsIndex) {
  const Scratch scratch;
  write_shards(scratch);
  const std::string index = scratch / "model.safetensors.index.json";
  const std::string one = "model-00001-of-00003.safetensors", two = "model-00002-of-00003.safetensors";
  const auto with = [&](const std::string& map) {
    put(index, R"({"metadata":{"total_size":1,"deep":[{"x":null}]},"weight_map":{)" + map + "}}");
    return error_of([&] { WeightFolder{scratch.path()}; });
  };
  const std::string good = R"("a":")" + one + R"(","c":")" + two + "\"";
  EXPECT_EQ(with(good), "");
  EXPECT_NE(with(R"("c":")" + one + R"(","d":")" + two + "\"").find("in " + scratch.path() + "/" + two),
            std::string::npos);
  EXPECT_NE(with(good + R"(,"zz":")" + one + "\"").find("in no shard"), std::string::npos);
  EXPECT_NE(with(good + R"(,"a":")" + one + "\"").find("lists a tensor twice"), std::string::npos);
  EXPECT_NE(with(R"("a":"gone.safetensors")").find("gone.safetensors"), std::string::npos);
  for (const char* path :
       {"../a.safetensors", "/etc/passwd", "x/a.safetensors", "..", ".", "", "a\\\\b", "a\\u0000b"})
    EXPECT_NE(with(std::string(R"("a":")") + path + "\"").find("outside its folder"), std::string::npos)
        << path;
  EXPECT_NE(with(R"("a":5)").find("not a string"), std::string::npos);
  std::filesystem::copy_file(scratch / one, scratch / "copy.safetensors");
  EXPECT_NE(with(R"("a":")" + one + R"(","b":"copy.safetensors")").find("two shards"), std::string::npos);
  put(index, R"({"weight_map":["a"]})");
  EXPECT_ERROR("lists no tensors", WeightFolder(scratch.path()));
  put(index, "[]");
  EXPECT_ERROR("form of a safetensors index", WeightFolder(scratch.path()));
  put(index, "{}");
  EXPECT_ERROR("lists no tensors", WeightFolder(scratch.path()));
}

TEST(WeightFolder, ATruncatedShardIsNamed) {
  const Scratch scratch;
  write_shards(scratch);
  std::filesystem::resize_file(scratch / "model-00003-of-00003.safetensors", 100);
  EXPECT_ERROR("model-00003-of-00003.safetensors", WeightFolder(scratch.path()));
}

// Returns the resident bytes of mapped files in this process, or -1 if the kernel does not report them.
std::int64_t mapped_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssFile:")) return std::stoll(line.substr(8)) * 1024;
  }
  return -1;
}

TEST(SafetensorsMemory, AFileThatIsReadInPiecesDoesNotStayInTheProcess) {
  const Scratch scratch;
  constexpr std::int64_t kCount = std::int64_t{1} << 24, kPiece = std::int64_t{1} << 21;  // 64 MiB
  {
    std::vector<float> values(kCount);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1009);
    write_safetensors(scratch / "model.safetensors", {{"w", DType::f32, {kCount}, 0, kCount, values.data()}});
  }
  const SafetensorsFile file(scratch / "model.safetensors");
  const std::int64_t before = mapped_bytes();
  if (before < 0) GTEST_SKIP() << "/proc/self/status does not tell mapped files";
  std::vector<float> piece(kPiece);
  std::int64_t most = 0;
  for (int turn = 0; turn < 2; ++turn) {
    for (std::int64_t begin = 0; begin < kCount; begin += kPiece) {
      file.read("w", begin, kPiece, piece.data());
      EXPECT_EQ(piece.front(), static_cast<float>(begin % 1009));
      EXPECT_EQ(piece.back(), static_cast<float>((begin + kPiece - 1) % 1009));
      most = std::max(most, mapped_bytes() - before);
    }
  }
  EXPECT_LT(most, 8 << 20) << "of a file of 64 MiB";
}

}  // namespace
}  // namespace octet::weights::safetensors_test
