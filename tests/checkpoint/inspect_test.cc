#include "octet/checkpoint/inspection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>

#include "octet/base/json.h"
#include "sample.h"
#include "support/page.h"

namespace octet::checkpoint::inspect_test {
namespace {

struct Values {
  std::string name;
  std::vector<float> values;
};

void save_values(const std::string& output_dir, std::vector<Values> all, std::int64_t step = 1,
                 int ranks = 1) {
  on_ranks(ranks, [&](comm::Channel& channel) {
    CheckpointContents contents;
    contents.step = step;
    contents.config_yaml = "seed: 42\n";
    contents.state = Json{{"epoch", 0.5}};
    for (auto& [name, values] : all) {
      const auto n = static_cast<std::int64_t>(values.size());
      const std::int64_t begin = n * channel.rank() / ranks, end = n * (channel.rank() + 1) / ranks;
      contents.slices.push_back({name, DType::f32, {n}, begin, end - begin, values.data() + begin});
    }
    save(channel, output_dir, contents);
  });
}

TEST(Inspect, ACheckpointWithTheNameOfAnotherStepIsRefused) {
  const Scratch scratch;
  save_values(scratch.path(), {{"w", {1.0f}}});
  std::filesystem::rename(scratch / "checkpoint-1", scratch / "checkpoint-2");
  save_values(scratch.path(), {{"w", {1.0f}}});
  const auto code_of = [](const std::function<void()>& work) {
    try {
      work();
    } catch (const Error& e) {
      return e.code();
    }
    return ExitCode::ok;
  };
  EXPECT_EQ(code_of([&] { inspect(scratch / "checkpoint-1", "", true); }), ExitCode::ok);
  EXPECT_EQ(code_of([&] { inspect(scratch / "checkpoint-2", "", true); }), ExitCode::no_valid_checkpoint);
  EXPECT_EQ(code_of([&] { diff(scratch / "checkpoint-1", scratch / "checkpoint-2"); }),
            ExitCode::no_valid_checkpoint);
  EXPECT_EQ(code_of([&] { diff(scratch / "checkpoint-2", scratch / "checkpoint-1"); }),
            ExitCode::no_valid_checkpoint);
}

TEST(Inspect, AnUnreadableDataFileIsADamagedCheckpoint) {
  for (const bool missing : {true, false}) {
    const Scratch scratch;
    save_values(scratch.path(), {{"w", {1.0f}}});
    const std::string data = scratch / "checkpoint-1/checkpoint.h5";
    std::filesystem::remove(data);
    if (!missing) std::filesystem::create_directory(data);
    try {
      inspect(scratch / "checkpoint-1", "", true);
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::no_valid_checkpoint) << e.what();
    }
  }
}

TEST(Inspect, TellsNormsRangesAndHashes) {
  const Scratch scratch;
  std::vector<float> large(600000, 0.5f);
  large[400000] = -3.0f;
  save_values(
      scratch.path(),
      {{"w", large}, {"exp_avg/w", {3.0f, -4.0f}}, {"odd", {NAN, 1.0f, -INFINITY, 2.0f}}, {"empty", {}}});
  const std::string path = scratch / "checkpoint-1";
  const Inspection all = inspect(path);
  ASSERT_EQ(all.tensors.size(), 4u);
  EXPECT_EQ(all.tensors_verified, 4);
  EXPECT_TRUE(all.problems.empty());
  EXPECT_EQ(all.tensors[1].name, "exp_avg/w");
  EXPECT_DOUBLE_EQ(all.tensors[1].l2, 5.0);
  EXPECT_EQ(all.tensors[1].low, -4.0);
  EXPECT_EQ(all.tensors[1].high, 3.0);
  EXPECT_EQ(all.tensors[2].not_finite, 2);
  EXPECT_EQ(all.tensors[2].high, 2.0);
  EXPECT_NEAR(all.tensors[3].l2, std::sqrt(599999 * 0.25 + 9.0), 1e-9);
  EXPECT_EQ(all.tensors[3].low, -3.0);
  EXPECT_EQ(all.tensors[3].hash, Checkpoint(path).at("w").hash);
  for (const char* part :
       {"exp_avg/w", "[600000]", "2,400,000", "seed: 42", "2 not finite", "4 of 4 tensors hashed"})
    EXPECT_PRED_FORMAT2(testing::IsSubstring, part, render(all));
  const Json json = to_json(all);
  EXPECT_EQ(json["tensors"][1]["l2"], 5.0);
  EXPECT_EQ(json["integrity"]["ok"], true);
  EXPECT_EQ(parse_json(json.dump(), "inspect")["config"], "seed: 42\n");

  EXPECT_EQ(inspect(path, "exp_avg/*").tensors.size(), 1u);
  EXPECT_EQ(inspect(path, "w").tensors.size(), 2u) << "without a glob, a part of the name";
  EXPECT_EQ(inspect(path, "[ow]*").tensors.size(), 2u);
  EXPECT_EQ(inspect(path, "exp_avg/*").tensors_verified, 1);
  EXPECT_EQ(inspect(path, "exp_avg/*", true).tensors_verified, 4);
}

TEST(Inspect, ReportsDamageInsteadOfStopping) {
  const Scratch scratch;
  save_values(scratch.path(), {{"a", {1.0f, 2.0f}}, {"b", {3.0f, 4.0f}}});
  const std::string path = scratch / "checkpoint-1";
  {
    std::fstream file(path + "/checkpoint.h5", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(Checkpoint(path).at("a").offset);
    file.put('x');
  }
  const Inspection inspection = inspect(path);
  EXPECT_EQ(inspection.problems.size(), 1u);
  EXPECT_NE(inspection.tensors[0].problem, "");
  EXPECT_EQ(inspection.tensors[1].problem, "");
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "1 DAMAGED", render(inspection));
  EXPECT_EQ(to_json(inspection)["integrity"]["ok"], false);
  EXPECT_EQ(inspect(path, "b").problems.size(), 0u);
  EXPECT_EQ(inspect(path, "b", true).problems.size(), 1u);
}

// Values read before the damage was found must be counted only once.
TEST(Inspect, OfADamagedTensorTellsTheFiguresOfWhatIsStored) {
  const Scratch scratch;
  save_values(scratch.path(), {{"w", std::vector<float>(3000000, 0.5f)}});
  const std::string path = scratch / "checkpoint-1";
  {
    const Checkpoint checkpoint(path);
    ASSERT_GT(checkpoint.at("w").chunks.size(), 1u);
    std::fstream file(path + "/checkpoint.h5", std::ios::in | std::ios::out | std::ios::binary);
    const float last = std::numeric_limits<float>::infinity();
    file.seekp(checkpoint.at("w").offset + 4 * 2999999);
    file.write(reinterpret_cast<const char*>(&last), sizeof last);
  }
  const Inspection inspection = inspect(path);
  ASSERT_EQ(inspection.problems.size(), 1u);
  EXPECT_NEAR(inspection.tensors[0].l2, std::sqrt(2999999 * 0.25), 1e-9);
  EXPECT_EQ(inspection.tensors[0].not_finite, 1);
}

// The exact output for a checkpoint, and for a comparison of two.
TEST(Inspect, SaysWhatIsThere) {
  const Scratch scratch;
  std::vector<float> large(600000, 0.5f);
  large[400000] = -3.0f;
  const std::vector<Values> all{
      {"w", large}, {"exp_avg/w", {3.0f, -4.0f}}, {"odd", {NAN, 1.0f, -INFINITY, 2.0f}}, {"empty", {}}};
  std::filesystem::create_directory(scratch / "a");
  std::filesystem::create_directory(scratch / "b");
  save_values(scratch / "a", all, 1234, 2);
  large[1] = 0.25f;
  save_values(
      scratch / "b",
      {{"w", large}, {"exp_avg/w", {3.0f, -4.0f, 5.0f}}, {"odd", {NAN, 1.0f, 3.0f, 2.0f}}, {"more", {1}}}, 7);
  const std::string a = scratch / "a/checkpoint-1234", b = scratch / "b/checkpoint-7";
  octet::test::expect_page("checkpoint/said/inspect.txt", [&](const std::string& question) {
    const bool json = question.find("json") != std::string::npos;
    const std::string filter = question.find("averages") != std::string::npos ? "exp_avg*" : "";
    std::string text;
    if (question.starts_with("two")) {
      const Difference difference = diff(a, question.find("itself") != std::string::npos ? a : b, filter);
      text = json ? to_json(difference).dump(2) : render(difference);
    } else {
      Inspection inspection = inspect(a, filter, question.find("all verified") != std::string::npos);
      inspection.file_bytes = 1234567;  // the real size depends on the HDF5 version
      if (question.find("damaged") != std::string::npos) inspection.problems = {"this is wrong", "that too"};
      if (question.find("damaged") != std::string::npos) inspection.tensors.front().problem = "this is wrong";
      text = json ? to_json(inspection).dump(2)
                  : render(inspection, question.find("without its configuration") == std::string::npos);
    }
    for (std::size_t at; (at = text.find(scratch.path())) != std::string::npos;)
      text.replace(at, scratch.path().size(), "FOLDER");
    return text;
  });
}

TEST(Diff, FindsEveryBitThatDiffers) {
  const Scratch scratch;
  std::vector<float> base(700000);
  for (std::size_t i = 0; i < base.size(); ++i) base[i] = static_cast<float>(i);
  std::vector<float> changed = base;
  changed[5] += 0.5f;
  changed[650000] -= 2.0f;
  save_values(scratch / "a",
              {{"same", base}, {"w", base}, {"zero", {0.0f}}, {"gone", {1.0f}}, {"shape", {1.0f}}}, 3, 1);
  save_values(scratch / "b",
              {{"same", base}, {"w", changed}, {"zero", {-0.0f}}, {"more", {1.0f}}, {"shape", {1.0f, 2.0f}}},
              4, 3);
  const Difference difference = diff(scratch / "a/checkpoint-3", scratch / "b/checkpoint-4");
  EXPECT_FALSE(difference.identical());
  ASSERT_EQ(difference.tensors.size(), 6u);
  const auto of = [&](const std::string& name) {
    return *std::find_if(difference.tensors.begin(), difference.tensors.end(),
                         [&](const auto& t) { return t.name == name; });
  };
  EXPECT_EQ(of("same").comparison, Comparison::identical);
  EXPECT_EQ(of("w").comparison, Comparison::different);
  EXPECT_EQ(of("w").count, 2);
  EXPECT_EQ(of("w").of, 700000);
  EXPECT_EQ(of("w").max_abs, 2.0);
  EXPECT_EQ(of("zero").count, 1) << "the sign of zero is a bit";
  EXPECT_EQ(of("zero").max_abs, 0.0);
  EXPECT_EQ(of("gone").comparison, Comparison::only_in_first);
  EXPECT_EQ(of("more").comparison, Comparison::only_in_second);
  EXPECT_EQ(of("shape").comparison, Comparison::other_shape);
  for (const char* part : {"2 of 700,000", "only in the first", "1 of 6 tensors are identical", "fp32 [2]"})
    EXPECT_PRED_FORMAT2(testing::IsSubstring, part, render(difference));
  EXPECT_EQ(to_json(difference)["identical"], false);
}

TEST(Diff, NothingIsFurtherApartThanNanFromANumber) {
  const Scratch scratch;
  save_values(scratch / "a", {{"w", {1.0f, 2.0f, 3.0f}}});
  save_values(scratch / "b", {{"w", {1.5f, NAN, 3.25f}}});
  const Difference difference = diff(scratch / "a/checkpoint-1", scratch / "b/checkpoint-1");
  ASSERT_EQ(difference.tensors.size(), 1u);
  EXPECT_EQ(difference.tensors[0].count, 3);
  EXPECT_EQ(difference.tensors[0].max_abs, INFINITY) << "what comes behind it does not hide it";
}

TEST(Diff, ADtypeIsADifference) {
  const Scratch scratch;
  float wide[] = {1.0f, 2.0f};
  std::uint16_t narrow[] = {0x3F80, 0x4000};  // the same values in bf16
  const auto saved = [&](const std::string& folder, DType dtype, void* values) {
    on_ranks(1, [&](comm::Channel& channel) {
      CheckpointContents contents;
      contents.step = 1;
      contents.config_yaml = "seed: 42\n";
      contents.slices.push_back({"w", dtype, {2}, 0, 2, values});
      save(channel, scratch / folder, contents);
    });
    return scratch / folder + "/checkpoint-1";
  };
  const std::string a = saved("a", DType::f32, wide), b = saved("b", DType::bf16, narrow);
  const Difference difference = diff(a, b);
  ASSERT_EQ(difference.tensors.size(), 1u);
  EXPECT_EQ(difference.tensors[0].comparison, Comparison::other_dtype);
  EXPECT_FALSE(difference.identical());
}

TEST(Diff, WorldSizeAndStepDoNotMatter) {
  const Scratch scratch;
  save_sample(scratch / "a", 6, 1);
  save_sample(scratch / "b", 6, 4, 17);
  const Difference difference = diff(scratch / "a/checkpoint-6", scratch / "b/checkpoint-6");
  EXPECT_TRUE(difference.identical());
  EXPECT_PRED_FORMAT2(testing::IsSubstring, "agrees in every bit", render(difference));
}

TEST(Resolve, TakesACheckpointOrTheNewestOfAFolder) {
  const Scratch scratch;
  EXPECT_ERROR("there is no valid checkpoint", resolve_checkpoint(scratch.path()));
  save_sample(scratch.path(), 1, 1);
  save_sample(scratch.path(), 2, 1);
  EXPECT_EQ(resolve_checkpoint(scratch / "checkpoint-1"), scratch / "checkpoint-1");
  EXPECT_EQ(resolve_checkpoint(scratch.path()), scratch / "checkpoint-2");
  put(scratch / "checkpoint-2/manifest.json", "{}");
  EXPECT_EQ(resolve_checkpoint(scratch.path()), scratch / "checkpoint-1");
}

}  // namespace
}  // namespace octet::checkpoint::inspect_test
