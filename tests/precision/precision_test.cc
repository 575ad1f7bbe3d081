#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/ops/quantize.h"
#include "octet/precision/audit.h"
#include "octet/precision/quantizer.h"

namespace octet::precision::precision_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Machine {
  std::unique_ptr<Device> device = make_cpu_device({.threads = 1});
  Arena arena{*device};
  std::unique_ptr<Stream> stream = device->make_stream({.name = "test"});
};

Recipe delayed(std::int64_t length, bool most_recent = false, int margin = 0) {
  return {
      .kind = RecipeKind::delayed, .history_length = length, .most_recent = most_recent, .margin = margin};
}

TEST(ScaleSet, StartsAtOne) {
  Machine m;
  const ScaleSet scales(m.arena, "s", delayed(4), {DType::e4m3, DType::e5m2}, {"a", "b"});
  EXPECT_EQ(*scales.scale(1), 1.0f);
  EXPECT_EQ(*scales.scale_inv(0), 1.0f);
  EXPECT_EQ(*scales.scale_inv(1), 1.0f);
  EXPECT_EQ(*scales.amax(0), 0.0f);
  for (const int i : {0, 1}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(scales.scale_inv(i)) % 16, 0u) << "products want it there";
  }
}

TEST(ScaleSet, DelayedScaleIsTheFormatsMaximumOverTheHistorysMaximum) {
  Machine m;
  ScaleSet scales(m.arena, "s", delayed(3), {DType::e4m3, DType::e5m2}, {"a", "b"});
  const std::vector<float> amaxes = {2.0f, 8.0f, 1.0f, 1.0f, 1.0f, 0.0f, kInfinity};
  // The maximum of the last three that counted; 0 does not enter, an infinity keeps the scale.
  const std::vector<float> maxima = {2.0f, 8.0f, 8.0f, 8.0f, 1.0f, 1.0f, 1.0f};
  for (std::size_t i = 0; i < amaxes.size(); ++i) {
    *scales.amax(0) = amaxes[i];
    *scales.amax(1) = amaxes[i];
    scales.update(*m.stream);
    EXPECT_EQ(*scales.scale(0), 448.0f / maxima[i]) << i;
    EXPECT_EQ(*scales.scale(1), 57344.0f / maxima[i]) << i;
    EXPECT_EQ(*scales.scale_inv(0), 1.0f / *scales.scale(0));
    EXPECT_EQ(*scales.amax(0), 0.0f);
  }
}

TEST(ScaleSet, MostRecentAndMarginAreFollowed) {
  Machine m;
  ScaleSet scales(m.arena, "s", delayed(8, true, 2), {DType::e4m3}, {"a"});
  for (const float amax : {8.0f, 2.0f}) {
    *scales.amax(0) = amax;
    scales.update(*m.stream);
    EXPECT_EQ(*scales.scale(0), 448.0f / 4.0f / amax);
  }
}

TEST(ScaleSet, CurrentScalingSetsOneTensorAlone) {
  Machine m;
  ScaleSet scales(m.arena, "s", {.kind = RecipeKind::current}, {DType::e4m3, DType::e4m3, DType::e5m2},
                  {"a", "b", "c"});
  *scales.amax(0) = 3.0f;
  *scales.amax(1) = 7.0f;
  scales.update_one(*m.stream, 1);
  EXPECT_EQ(*scales.scale(1), 448.0f / 7.0f);
  EXPECT_EQ(*scales.amax(1), 0.0f);
  EXPECT_EQ(*scales.scale(0), 1.0f);
  EXPECT_EQ(*scales.amax(0), 3.0f);
  *scales.amax(2) = 1e-38f;
  scales.update(*m.stream);
  EXPECT_EQ(*scales.scale(0), 448.0f / 3.0f);
  EXPECT_EQ(*scales.scale(1), 1.0f) << "an amax of zero";
  EXPECT_EQ(*scales.scale(2), std::numeric_limits<float>::max()) << "an infinite quotient";
  EXPECT_EQ(*scales.amax(0), 0.0f);
}

// The amax values of one part of a micro-batch are reduced while the next part collects more. Each part has
// separate slots, which start empty.
TEST(ScaleSet, PartsOfAMicroBatchAreSetAsideAndTakenEachByItself) {
  Machine m;
  ScaleSet s(m.arena, "s", delayed(4), {DType::e4m3, DType::e4m3, DType::e4m3}, {"a", "b", "c"});
  *s.amax(0) = 2.0f;
  float* const forward = s.set_aside(*m.stream, 0);
  m.stream->synchronize();
  EXPECT_EQ(*s.amax(0), 0.0f) << "the next part begins anew";
  *s.amax(1) = 4.0f;
  float* const rest = s.set_aside(*m.stream, 1);
  m.stream->synchronize();
  EXPECT_EQ(std::vector<float>(forward, forward + 3), (std::vector<float>{2, 0, 0}));
  EXPECT_EQ(std::vector<float>(rest, rest + 3), (std::vector<float>{0, 4, 0}));
  forward[0] = 8.0f;  // another rank had more
  s.update_from(*m.stream, 0);
  m.stream->synchronize();
  EXPECT_EQ(*s.scale(0), 448.0f / 8);
  EXPECT_EQ(*s.scale(1), 1.0f) << "of the other part";
  s.update_from(*m.stream, 1);
  m.stream->synchronize();
  EXPECT_EQ(*s.scale(0), 448.0f / 8);
  EXPECT_EQ(*s.scale(1), 448.0f / 4);
  EXPECT_EQ(*s.scale(2), 1.0f) << "nobody raised it";
  EXPECT_EQ(*s.scale_inv(1), 4.0f / 448);
  EXPECT_ANY_THROW(s.set_aside(*m.stream, 2));
  EXPECT_ANY_THROW(s.update_from(*m.stream, -1));
  ScaleSet other(m.arena, "t", delayed(4), {DType::e4m3, DType::e4m3, DType::e4m3}, {"a", "b", "d"});
  EXPECT_ANY_THROW(other.take(*m.stream, s)) << "of other tensors";
  EXPECT_THROW(ScaleSet(m.arena, "u", delayed(0), {DType::e4m3}, {"a"}), Error);
}

// A decoder takes them from the model in training.
TEST(ScaleSet, AnotherSetTakesTheScalesAndTheirInversesOfAllTensors) {
  Machine m;
  const std::vector<DType> formats(6, DType::e4m3);
  const std::vector<std::string> names = {"a", "b", "c", "d", "e", "f"};
  ScaleSet trained(m.arena, "s", {.kind = RecipeKind::current}, formats, names);
  for (int i = 0; i < 6; ++i) *trained.amax(i) = static_cast<float>(i + 2);
  trained.update(*m.stream);
  ScaleSet taken(m.arena, "t", {.kind = RecipeKind::current}, formats, names);
  taken.take(*m.stream, trained);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(*taken.scale(i), 448.0f / static_cast<float>(i + 2));
    EXPECT_EQ(*taken.scale_inv(i), *trained.scale_inv(i)) << i;
    EXPECT_NE(*taken.scale_inv(i), 1.0f) << i;
  }
}

TEST(ScaleSet, StateBringsAnotherSetToTheSamePlace) {
  Machine m;
  ScaleSet a(m.arena, "s", delayed(3), {DType::e4m3, DType::e5m2}, {"a", "b"});
  for (const float amax : {5.0f, 3.0f}) {
    *a.amax(0) = *a.amax(1) = amax;
    a.update(*m.stream);
  }
  ScaleSet b(m.arena, "s", delayed(3), {DType::e4m3, DType::e5m2}, {"a", "b"});
  const auto from = a.state(), to = b.state();
  ASSERT_EQ(from.size(), 2u);
  for (std::size_t i = 0; i < from.size(); ++i) {
    EXPECT_EQ(from[i].name, to[i].name);
    std::copy_n(static_cast<const float*>(from[i].data), from[i].count, static_cast<float*>(to[i].data));
  }
  EXPECT_EQ(from[1].shape, (std::vector<std::int64_t>{3, 2}));
  *b.amax(1) = 9.0f;  // of something before
  b.restore(*m.stream);
  EXPECT_EQ(*b.scale(1), *a.scale(1));
  for (const float amax : {1.0f, 1.0f}) {
    EXPECT_EQ(*a.scale_inv(0), *b.scale_inv(0));
    *a.amax(0) = *b.amax(0) = amax;
    a.update(*m.stream);
    b.update(*m.stream);
    EXPECT_EQ(*a.scale(0), *b.scale(0));
  }
}

struct Sample {
  std::vector<float> values = {0.5f, -3.0f, 1.25f, 2.0f, 0.0f, -0.001f};
  ops::ConstMatrix matrix() const { return {values.data(), DType::f32, 2, 3, 3}; }
  std::vector<std::uint8_t> row = std::vector<std::uint8_t>(6, 0xAA);
  Fp8Copy copy() { return {.row = row.data()}; }
};

TEST(Quantizer, WithoutFp8TheMatrixIsTheOperand) {
  Machine m;
  Quantizer q(m.arena, "q", {}, {{"x", TensorRole::input}});
  const Sample s;
  const ops::Operand o = q.prepare(*m.stream, Quantizer::kPlain, s.matrix(), {}, true);
  EXPECT_EQ(o.data, s.values.data());
  EXPECT_EQ(o.dtype, DType::f32);
  EXPECT_EQ(o.scale_inv, nullptr);
  EXPECT_EQ(q.scales(), nullptr);
}

TEST(Quantizer, CurrentScalingSpreadsTheTensorOverTheFormat) {
  Machine m;
  Quantizer q(m.arena, "q", {.kind = RecipeKind::current},
              {{"x", TensorRole::input}, {"g", TensorRole::output_gradient}});
  for (const std::int64_t i : {0, 1}) {
    Sample s;
    const ops::Operand o = q.prepare(*m.stream, i, s.matrix(), s.copy(), true);
    const DType format = i == 0 ? DType::e4m3 : DType::e5m2;
    EXPECT_EQ(o.dtype, format);
    EXPECT_EQ(o.rows, 2);
    EXPECT_EQ(o.cols, 3);
    const float scale = fp8_max(format) / 3.0f;
    EXPECT_EQ(*o.scale_inv, 1.0f / scale);
    for (std::size_t e = 0; e < s.values.size(); ++e) {
      EXPECT_EQ(static_cast<const std::uint8_t*>(o.data)[e], to_fp8(s.values[e] * scale, format));
    }
  }
}

TEST(Quantizer, AFusedProducerAndAFinishedMatrixGiveTheSameBits) {
  for (const RecipeKind kind : {RecipeKind::current, RecipeKind::delayed}) {
    Machine m;
    Quantizer q(m.arena, "q", {.kind = kind, .history_length = 2}, {{"x", TensorRole::input}});
    Sample apart, fused;
    const float apart_scale = *q.prepare(*m.stream, 0, apart.matrix(), apart.copy(), false).scale_inv;
    ops::quantize(*m.stream, fused.matrix(), q.fuse(0, fused.copy(), false));
    const ops::Operand o = q.finish(*m.stream, 0, fused.matrix(), fused.copy());
    EXPECT_EQ(apart.row, fused.row);
    EXPECT_EQ(apart_scale, *o.scale_inv);
  }
}

TEST(Quantizer, DelayedScalingUsesYesterdaysScaleAndRecordsOnlyWhenAsked) {
  Machine m;
  Quantizer q(m.arena, "q", delayed(2), {{"x", TensorRole::input}});
  Sample s;
  q.prepare(*m.stream, 0, s.matrix(), s.copy(), false);
  EXPECT_EQ(*q.scales()->amax(0), 0.0f);
  q.prepare(*m.stream, 0, s.matrix(), s.copy(), true);
  EXPECT_EQ(*q.scales()->amax(0), 3.0f);
  EXPECT_EQ(s.row[1], to_fp8(-3.0f, DType::e4m3)) << "the scale of the first step is one";
  q.scales()->update(*m.stream);
  q.prepare(*m.stream, 0, s.matrix(), s.copy(), true);
  EXPECT_EQ(s.row[1], to_fp8(-448.0f, DType::e4m3));
}

TEST(Quantizer, PartsOfATensorAreScaledAlone) {
  for (const RecipeKind kind : {RecipeKind::current, RecipeKind::delayed}) {
    Machine m;
    Quantizer q(m.arena, "q", {.kind = kind, .history_length = 2},
                {{"x", TensorRole::input, {}}, {"g", TensorRole::output_gradient, {1, 2}}});
    EXPECT_EQ(q.scales()->count(), 3);
    Sample s;
    EXPECT_EQ(q.fuse(1, s.copy(), true).amax, nullptr) << "a producer cannot tell the parts apart";
    EXPECT_THROW(q.finish(*m.stream, 1, s.matrix(), s.copy()), std::logic_error);
    for (int pass = 0; pass < 2; ++pass) {
      const auto operands = q.finish_parts(*m.stream, 1, s.matrix(), s.copy(), true);
      ASSERT_EQ(operands.size(), 2u);
      if (kind == RecipeKind::delayed) {
        EXPECT_EQ(*q.scales()->amax(1), 2.0f);
        EXPECT_EQ(*q.scales()->amax(2), 3.0f);
        q.scales()->update(*m.stream);
        if (pass == 0) continue;
      }
      const float first = 57344.0f / 2.0f, second = 57344.0f / 3.0f;
      EXPECT_EQ(*operands[0].scale_inv, 1.0f / first);
      EXPECT_EQ(*operands[1].scale_inv, 1.0f / second);
      // Columns {0} of both rows, then columns {1, 2} of both rows.
      const float scaled[] = {0.5f * first,   2.0f * first, -3.0f * second,
                              1.25f * second, 0.0f,         -0.001f * second};
      for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(s.row[i], to_fp8(scaled[i], DType::e5m2)) << i;
      EXPECT_EQ(operands[1].data, s.row.data() + 2);
      EXPECT_EQ(operands[1].cols, 2);
    }
    const auto whole = q.finish_parts(*m.stream, 0, s.matrix(), s.copy(), true);
    EXPECT_EQ(whole.size(), 1u);
    // The transposed copies are stored one after the other, too.
    std::vector<std::uint8_t> flipped(6);
    Fp8Copy both = s.copy();
    both.transposed = flipped.data();
    const auto parts = q.finish_parts(*m.stream, 1, s.matrix(), both, true);
    EXPECT_EQ(parts[0].transposed, flipped.data());
    EXPECT_EQ(parts[1].transposed, flipped.data() + 2);
  }
}

// Watching does not change the bits of a cast. Statistics are reported by tensor name. Casts that are not
// recorded, or no longer watched, are not reported.
TEST(Quantizer, TellsWhatRecordedCastsMetWhileTheyAreWatched) {
  for (const RecipeKind kind : {RecipeKind::current, RecipeKind::delayed, RecipeKind::block}) {
    Machine m;
    Quantizer q(
        m.arena, "q", {.kind = kind, .history_length = 2},
        {{"a/input", TensorRole::input, {}}, {"a/output_gradient", TensorRole::output_gradient, {1, 2}}},
        kind == RecipeKind::block ? std::vector<std::string>{"a/weight"} : std::vector<std::string>{});
    std::vector<float> scales(8), flipped(8);
    const auto cast = [&](bool record) {
      Sample s;
      Fp8Copy copy = s.copy();
      copy.scales = scales.data(), copy.transposed_scales = flipped.data();
      if (kind == RecipeKind::delayed) {
        ops::quantize(*m.stream, s.matrix(), q.fuse(0, copy, record));
      } else {
        q.prepare(*m.stream, 0, s.matrix(), copy, record);
      }
      q.finish_parts(*m.stream, 1, s.matrix(), copy, record);
      if (kind == RecipeKind::block) q.weight(*m.stream, 0, s.matrix(), copy);
      return s.row;
    };
    const auto plain = cast(true);
    q.casts()->watch(*m.stream);
    const auto watched = cast(true);
    if (kind == RecipeKind::delayed) cast(false);
    q.casts()->stop();
    cast(true);
    q.casts()->collect(*m.stream);
    m.stream->synchronize();
    if (kind != RecipeKind::delayed) {
      EXPECT_EQ(plain, watched);
    }
    const auto rows = q.cast_rows();
    std::map<std::string, std::uint64_t> values;
    for (const CastRow& row : rows) {
      values[row.name] += row.seen.values;
      EXPECT_GT(row.seen.scale, 0) << row.name;
      EXPECT_GT(row.seen.amax, 0) << row.name;
    }
    std::map<std::string, std::uint64_t> want{{"a/input", 6}, {"a/output_gradient", 6}};
    if (kind == RecipeKind::block) want["a/weight"] = 6;
    EXPECT_EQ(values, want) << static_cast<int>(kind);
    EXPECT_EQ(std::ssize(rows), 3) << "two parts, or a weight";
    EXPECT_EQ(rows[0].seen.amax, 3.0f);
    const float scale = kind == RecipeKind::current   ? 448.0f / 3
                        : kind == RecipeKind::delayed ? 1.0f
                                                      : 128.0f;
    EXPECT_EQ(rows[0].seen.scale, scale);
    // Watched again, it begins anew.
    q.casts()->watch(*m.stream);
    q.casts()->collect(*m.stream);
    m.stream->synchronize();
    EXPECT_EQ(q.cast_rows()[0].seen.values, 0u);
  }
}

constexpr ops::GemmOutcome kDirect{.way = ops::GemmWay::fp8, .a = DType::e5m2, .b = DType::e4m3, .calls = 1};
constexpr ops::GemmOutcome kDecoded{.way = ops::GemmWay::decoded,
                                    .reason = ops::GemmReason::columns,
                                    .a = DType::bf16,
                                    .b = DType::bf16,
                                    .calls = 3};
constexpr ops::GemmOutcome kEmulated{
    .way = ops::GemmWay::emulated, .a = DType::e4m3, .b = DType::e4m3, .calls = 1};

TEST(Audit, SaysWhatRanAndRefusesARunWithoutFp8) {
  Audit audit({.kind = RecipeKind::current});
  audit.plan({.name = "MLP down", .layers = 2, .rows = 64, .cols = 128, .fp8 = true});
  audit.plan({.name = "head", .layers = 1, .rows = 192, .cols = 64, .reason = "kept in the compute dtype"});
  EXPECT_NE(audit.table().find("E4M3 x E4M3  E5M2 x E4M3  E5M2 x E4M3"), std::string::npos) << audit.table();
  EXPECT_NE(audit.table().find("kept in the compute dtype"), std::string::npos);
  EXPECT_NO_THROW(audit.require_fp8()) << "nothing ran at all";
  audit.count({.row = 1}, ops::GemmKind::forward, {.way = ops::GemmWay::f32, .calls = 1});
  try {
    audit.require_fp8();
    ADD_FAILURE() << "no GEMM ran in FP8";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
  }
  audit.count({.row = 0}, ops::GemmKind::dgrad, kDirect);
  EXPECT_NO_THROW(audit.require_fp8());
  EXPECT_EQ(audit.counted(ops::GemmKind::dgrad, DType::e4m3), 1);
  EXPECT_EQ(audit.fp8_gemms(), 1);
  EXPECT_EQ(audit.gemms(), 2);
  EXPECT_NE(audit.summary().find("1 of 2"), std::string::npos);
  EXPECT_EQ(audit.table().find("fp8_fast_accumulation"), std::string::npos);
  EXPECT_NE(
      Audit({.kind = RecipeKind::current, .fast_gradients = true}).table().find("fp8_fast_accumulation"),
      std::string::npos);
  Audit bf16({.compute = DType::bf16});
  bf16.plan({.name = "MLP down"});
  bf16.count({}, ops::GemmKind::forward, {.way = ops::GemmWay::bf16, .calls = 1});
  EXPECT_NO_THROW(bf16.require_fp8());
}

Audit two_layers() {
  Audit audit({.kind = RecipeKind::current});
  audit.plan({.name = "MLP down", .layers = 2, .fp8 = true});
  audit.plan({.name = "head", .layers = 1});
  return audit;
}

// Decoded GEMMs count as bf16, even if FP8 was requested: a run with only these had no FP8.
TEST(Audit, DecodedProductsAreNotInFp8) {
  Audit audit = two_layers();
  audit.count({.row = 0, .layer = 1}, ops::GemmKind::forward, kDecoded);
  EXPECT_EQ(audit.counted(ops::GemmKind::forward, DType::bf16), 1);
  EXPECT_EQ(audit.fp8_gemms(), 0);
  try {
    audit.require_fp8();
    ADD_FAILURE() << "a run without FP8 passed";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("no GEMM ran in FP8"), std::string::npos);
    EXPECT_NE(
        std::string(e.what()).find("MLP down (forward; layers 1): 1 decoded into bf16, because the columns"),
        std::string::npos)
        << e.what();
  }
  for (const ops::GemmWay way : {ops::GemmWay::fp8, ops::GemmWay::filled, ops::GemmWay::emulated}) {
    Audit one = two_layers();
    one.count({}, ops::GemmKind::wgrad, {.way = way, .calls = 1});
    EXPECT_EQ(one.counted(ops::GemmKind::wgrad, DType::e4m3), 1);
    EXPECT_NO_THROW(one.require_fp8());
  }
}

TEST(Audit, CountsByRowLayerPassAndOutcome) {
  Audit audit = two_layers();
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    audit.count({.row = 0, .layer = layer}, ops::GemmKind::forward, kEmulated);
    audit.count({.row = 0, .layer = layer}, ops::GemmKind::dgrad, layer == 0 ? kDirect : kDecoded);
  }
  audit.count({.row = 0, .layer = 1}, ops::GemmKind::dgrad, kDecoded);
  audit.count({.row = 1}, ops::GemmKind::forward, {});  // nothing was multiplied
  EXPECT_EQ(audit.gemms(), 5);
  const Json json = audit.to_json();
  ASSERT_EQ(json.size(), 3u) << json.dump();
  const auto find = [&](const std::string& way) {
    for (const Json& one : json) {
      if (one["way"] == way) return one;
    }
    return Json();
  };
  EXPECT_EQ(find("decoded"), (Json{{"product", "MLP down"},
                                   {"pass", "dgrad"},
                                   {"layers", "1"},
                                   {"way", "decoded"},
                                   {"reason", "the columns of the result are no multiple of 16"},
                                   {"a", "bf16"},
                                   {"b", "bf16"},
                                   {"products", 2},
                                   {"calls", 6}}));
  EXPECT_EQ(find("emulated")["layers"], "0-1");
  EXPECT_FALSE(find("emulated").contains("reason"));
  EXPECT_EQ(find("fp8")["a"], "fp8_e5m2");
  EXPECT_NE(audit.summary().find("emulated: a CPU"), std::string::npos);
  // Another rank's counts double all of them.
  audit.add(audit.counts());
  EXPECT_EQ(audit.gemms(), 10);
  EXPECT_EQ(audit.to_json()[0]["products"].get<int>() % 2, 0);
}

TEST(Audit, TellsEachFallbackOnce) {
  Audit audit = two_layers();
  audit.count({.row = 0}, ops::GemmKind::forward, kDirect);
  audit.count({.row = 1}, ops::GemmKind::forward, {.way = ops::GemmWay::bf16, .calls = 1});
  EXPECT_TRUE(audit.take_fallbacks().empty()) << "the head is not meant to be in FP8";
  audit.count({.row = 0, .layer = 1}, ops::GemmKind::dgrad, kDecoded);
  audit.count({.row = 0, .layer = 0}, ops::GemmKind::wgrad, kDecoded);
  const auto lines = audit.take_fallbacks();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0],
            "MLP down (dgrad, wgrad; layers 0-1): decoded into bf16, because the columns of the result "
            "are no multiple of 16");
  audit.count({.row = 0, .layer = 0}, ops::GemmKind::wgrad, kDecoded);
  EXPECT_TRUE(audit.take_fallbacks().empty());
  ops::GemmOutcome refused = kDecoded;
  refused.reason = ops::GemmReason::refused;
  audit.count({.row = 0, .layer = 0}, ops::GemmKind::wgrad, refused);
  ASSERT_EQ(audit.take_fallbacks().size(), 1u);
}

TEST(Audit, ShapesThatMustDecodeAreToldBeforeAnythingRan) {
  Audit audit({.kind = RecipeKind::current, .compute = DType::bf16});
  ops::GemmOutcome filled = kDirect;
  filled.way = ops::GemmWay::filled;
  filled.reason = ops::GemmReason::inner;
  audit.plan({.name = "MLP down", .layers = 2, .fp8 = true, .planned = {filled, kDecoded, kDecoded}});
  const std::string table = audit.table();
  EXPECT_NE(table.find("E4M3 x E4M3  bf16         bf16"), std::string::npos) << table;
  EXPECT_NE(table.find("dgrad decoded into bf16, because the columns"), std::string::npos) << table;
  EXPECT_NE(table.find("forward in FP8 from copies, because the dimension"), std::string::npos) << table;
  const auto lines = audit.take_fallbacks();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_TRUE(lines[0].starts_with("MLP down (dgrad, wgrad): decoded")) << lines[0];
  audit.count({}, ops::GemmKind::dgrad, kDecoded);
  EXPECT_TRUE(audit.take_fallbacks().empty()) << "it was told already";
}

}  // namespace
}  // namespace octet::precision::precision_test
