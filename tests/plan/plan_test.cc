#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "octet/base/error.h"
#include "octet/model/layout.h"
#include "octet/model/shapes.h"
#include "octet/plan/memory.h"
#include "octet/plan/time.h"

namespace octet::plan::plan_test {
namespace {

using model::Recompute;

Work llama8b(precision::RecipeKind kind = precision::RecipeKind::none) {
  return {.architecture = model::find_shape("llama-3.1-8b"),
          .recipe = {.kind = kind, .compute = DType::bf16},
          .tokens = 24576,
          .length = 4096,
          .optimizer_bytes = 8.03e9 * 14};
}

double row(const Time& time, const std::string& name) {
  for (const TimeRow& r : time.rows) {
    if (r.name == name) return r.seconds;
  }
  return 0;
}

TEST(Time, GemmsTakeTheirFlopsAtTheRateOfTheirFormat) {
  // 6 x the 6.98e9 parameters of the blocks' matrices x tokens; waves of these shapes fill the GPU to within
  // a tenth.
  const double flops = 2 * 6.979e9 * 24576;
  const Time bf16 = time_of(llama8b());
  const Time fp8 = time_of(llama8b(precision::RecipeKind::delayed));
  for (const char* name : {"forward GEMMs", "dgrad GEMMs", "wgrad GEMMs"}) {
    EXPECT_GE(row(bf16, name), 0.999 * flops / 750e12) << name;
    EXPECT_LE(row(bf16, name), 1.10 * flops / 750e12) << name;
    EXPECT_NEAR(row(fp8, name) / row(bf16, name), 750.0 / 1350, 0.02) << name;
  }
  EXPECT_EQ(row(bf16, "quantisation"), 0);
  EXPECT_GT(row(fp8, "quantisation"), 0);
}

TEST(Time, SmallProductsDoNotFillTheGpu) {
  // 128 tokens of Llama-3.1-8B. On 132 multiprocessors q, k and v [6144] are best made in 96 tiles of 64 x
  // 128, which reach 0.6 of the rate; output and down [4096] in 128 of 64 x 64, which reach 0.4. Gate and up
  // [28672] wait for their weights.
  Work work = llama8b();
  work.tokens = work.length = 128;
  const auto gemms = [](double rows, double cols, double share) {
    return 2 * 128 * rows * cols / 750e12 / share;
  };
  const double gate_up = 2 * (128.0 * 4096 + 28672.0 * 4096 + 128.0 * 28672) / 4.2e12;
  const double expected = gemms(6144, 4096, 0.6 * 96 / 132) + gemms(4096, 4096, 0.4 * 128 / 132) + gate_up +
                          gemms(4096, 14336, 0.4 * 128 / 132);
  EXPECT_NEAR(row(time_of(work), "forward GEMMs") / (32 * expected), 1, 1e-9);
}

TEST(Time, AttentionMakesTwoProductsForwardAndFiveBackwardAtTheirRates) {
  // Causal scores of 32 heads of 128 over sequences of 4,096: each product takes half of 2 x tokens x length
  // x width operations.
  const double gemm_kind = 24576.0 * 4096 * 4096, layers = 32;
  const double forward = layers * 2 * gemm_kind / 613e12, backward = layers * 5 * gemm_kind / 480e12;
  EXPECT_NEAR(row(time_of(llama8b()), "attention") / (forward + backward), 1, 1e-9);
  // A rate of one of both changes its share alone.
  Rates rates;
  rates.attention_backward /= 2;
  EXPECT_NEAR(row(time_of(llama8b(), rates), "attention") / (forward + 2 * backward), 1, 1e-9);
  rates = {};
  rates.attention_forward /= 2;
  EXPECT_NEAR(row(time_of(llama8b(), rates), "attention") / (2 * forward + backward), 1, 1e-9);
  // A sequence is no longer than the micro-batch that holds it.
  Work alone = llama8b();
  alone.tokens = 1024;
  Work exact = alone;
  exact.length = 1024;
  EXPECT_EQ(row(time_of(alone), "attention"), row(time_of(exact), "attention"));
}

TEST(Time, IsBelowWhatWasMeasuredAndNotFarBelow) {
  // Measured on an H200 with cuBLASLt and cuDNN alone, in one step: 1.95 s in bf16, 1.26 s in FP8.
  const double bf16 = time_of(llama8b()).seconds;
  const double fp8 = time_of(llama8b(precision::RecipeKind::delayed)).seconds;
  EXPECT_LT(bf16, 1.95);
  EXPECT_GT(bf16, 0.85 * 1.95);
  EXPECT_LT(fp8, 1.26);
  EXPECT_GT(fp8, 0.8 * 1.26);
}

TEST(Time, RecomputationCostsMoreTheMoreItMakesAgain) {
  double before = -1;
  Work work = llama8b();
  for (const Recompute level : kRecompute) {
    work.recompute = level;
    const Time time = time_of(work);
    EXPECT_GT(time.recompute_seconds, before);
    before = time.recompute_seconds;
    double sum = 0;
    for (const TimeRow& r : time.rows) sum += r.seconds;
    EXPECT_NEAR(sum, time.seconds, 1e-9 * sum);
  }
  EXPECT_GT(before, 0.2 * time_of(llama8b()).seconds);
  EXPECT_LT(before, 0.34 * time_of(llama8b()).seconds);
}

// 12 bytes a parameter each way; FP8 weights are made of masters that pass again, once more where their
// scales are taken from them.
TEST(Time, StateInHostMemoryPassesTheLinkOnceAStep) {
  const char* name = "optimizer's state, over PCIe";
  Work work = llama8b();
  EXPECT_EQ(row(time_of(work), name), 0);
  const double without = time_of(work).seconds;
  work.host_state_bytes = 96e9, work.host_master_bytes = 32e9;
  EXPECT_NEAR(row(time_of(work), name), 96e9 / 55e9, 1e-9);
  EXPECT_NEAR(time_of(work).seconds, without + 96e9 / 55e9, 1e-9);
  work.micro_batches = 4;
  EXPECT_NEAR(row(time_of(work), name), 96e9 / 55e9, 1e-9) << "an update is one of a step";
  const auto again = [&](precision::RecipeKind kind) {
    work.recipe.kind = kind;
    return (bytes_from_host(work) - 96e9) / 32e9;
  };
  const double share = 6.979e9 / 8.030e9;  // share of the parameters that are matrices of blocks
  EXPECT_NEAR(again(precision::RecipeKind::delayed), share, 1e-3);
  EXPECT_NEAR(again(precision::RecipeKind::current), 2 * share, 2e-3);
  EXPECT_EQ(again(precision::RecipeKind::block), 0);
}

TEST(Time, AccumulationRepeatsAllButTheOptimizer) {
  Work work = llama8b();
  const Time one = time_of(work);
  work.micro_batches = 3;
  const Time three = time_of(work);
  const double optimizer = row(one, "optimizer");
  EXPECT_GT(optimizer, 0);
  EXPECT_NEAR(three.seconds - optimizer, 3 * (one.seconds - optimizer), 1e-9);
}

TEST(Fp8, PaysForLargeProductsAndNotForSmallOnes) {
  for (const auto kind : {precision::RecipeKind::delayed, precision::RecipeKind::current}) {
    const auto large = fp8_balance(llama8b(kind));
    ASSERT_EQ(large.size(), 4u);
    for (const Fp8Balance& b : large) EXPECT_TRUE(b.pays()) << b.name;
    EXPECT_EQ(fp8_warning(llama8b(kind)), "");
    Work small = llama8b(kind);
    small.architecture = model::find_shape("tiny");
    small.tokens = 512;
    const std::string warning = fp8_warning(small);
    for (const char* part :
         {"FP8 does not pay here: with 512 tokens per micro-batch it makes each layer's GEMMs ",
          " microseconds slower, and its quantised copies cost ", "fp8: false is faster"}) {
      EXPECT_NE(warning.find(part), std::string::npos) << warning;
    }
  }
  EXPECT_TRUE(fp8_balance(llama8b()).empty());
  EXPECT_EQ(fp8_warning(llama8b()), "");
}

TEST(Fp8, CostsTheKernelsThatItAdds) {
  // Four per layer that computes the scales of inputs and gradients and casts them. With delayed scaling, one
  // makes the transposed copy of a norm's output, and two make the copies of attention. The copies of the
  // weights are one more per step.
  const auto kernels = [](const Work& work) {
    constexpr double kLaunch = 1e-5;
    Rates slow, fast;
    slow.launch = 2 * kLaunch, fast.launch = kLaunch;
    std::map<std::string, double> all;
    const auto a = fp8_balance(work, slow), b = fp8_balance(work, fast);
    for (std::size_t i = 0; i < a.size(); ++i) all[a[i].name] = (a[i].cost - b[i].cost) / kLaunch;
    return all;
  };
  Work work = llama8b(precision::RecipeKind::current);
  work.micro_batches = 4;
  for (const auto& [name, count] : kernels(work)) EXPECT_NEAR(count, 4 + 0.25, 1e-6) << name;
  work.recipe.kind = precision::RecipeKind::delayed;
  for (const auto& [name, count] : kernels(work)) {
    EXPECT_NEAR(count, (name == "output" ? 2 : 1) + 0.25, 1e-6) << name;
  }
  work.transposes_at_use = true;  // in each micro-batch
  EXPECT_NEAR(kernels(work).at("down"), 2 + 0.25, 1e-6);
}

TEST(Fp8, OfWhichFewTokensMakeALossPaysFromTheNumberThatIsSaid) {
  Work work = llama8b(precision::RecipeKind::delayed);
  work.architecture = model::find_shape("qwen2.5-0.5b");
  const auto sum = [&](std::int64_t tokens) {
    work.tokens = tokens;
    double left = 0;
    for (const Fp8Balance& b : fp8_balance(work)) left += b.gain - b.cost;
    return left;
  };
  // Measured on an H200 with 24,576 tokens: 138,588 tokens a second in FP8, 120,286 in bf16.
  EXPECT_GT(sum(24576), 0);
  EXPECT_LT(sum(16), 0);
  work.tokens = 16;
  const std::string warning = fp8_warning(work);
  const auto at = warning.find("pays from about ");
  ASSERT_NE(at, std::string::npos) << warning;
  std::string digits;
  for (const char c : warning.substr(at + 16)) {
    if (c == ' ') break;
    if (c != ',') digits += c;
  }
  const std::int64_t enough = std::stoll(digits);
  EXPECT_GT(sum(enough), 0);
  EXPECT_LE(sum(enough / 2), 0);
}

TEST(Fp8, PaysWhereItWasMeasuredTo) {
  // Steps of one H200 with and without FP8 (docs/lab/gpu_step.md): seconds in bf16 divided by seconds in FP8.
  struct Measured {
    const char* model;
    std::int64_t tokens;
    double gain;
  };
  for (const Measured& m : {Measured{"qwen2.5-0.5b", 256, 0.90}, Measured{"qwen2.5-0.5b", 1024, 0.99},
                            Measured{"qwen2.5-0.5b", 2048, 1.06}, Measured{"qwen2.5-0.5b", 4096, 1.14},
                            Measured{"llama-3.2-1b", 512, 0.98}, Measured{"llama-3.2-1b", 2048, 1.22}}) {
    Work work = llama8b(precision::RecipeKind::delayed);
    work.architecture = model::find_shape(m.model);
    work.tokens = work.length = m.tokens;
    work.micro_batches = 1;
    const bool said = fp8_warning(work).starts_with("FP8 does not pay here");
    EXPECT_EQ(said, m.gain < 1) << m.model << ", " << m.tokens << " tokens: " << fp8_warning(work);
  }
}

TEST(Fp8, SaysWhichLayersLose) {
  Work work = llama8b(precision::RecipeKind::delayed);
  work.architecture = model::find_shape("qwen2.5-0.5b");
  for (work.tokens = 16; work.tokens <= 1 << 20; work.tokens *= 2) {
    bool any = false, all = true;
    double left = 0;
    for (const Fp8Balance& b : fp8_balance(work)) {
      any = any || b.pays(), all = all && b.pays();
      left += b.gain - b.cost;
    }
    const std::string warning = fp8_warning(work);
    EXPECT_EQ(warning.empty(), all) << work.tokens;
    EXPECT_EQ(warning.starts_with("FP8 pays, but not in "), !all && left > 0) << warning;
    EXPECT_EQ(warning.starts_with("FP8 does not pay here"), left <= 0) << warning;
  }
}

TEST(Time, TransposingAtUseReadsAndWritesTheWeightsInEveryMicroBatch) {
  Work work = llama8b(precision::RecipeKind::delayed);
  work.micro_batches = 4;
  const double kept = time_of(work).seconds;
  work.transposes_at_use = true;
  const Time time = time_of(work);
  EXPECT_NEAR(time.seconds - kept, 4 * 2 * 6.979e9 / 4.2e12, 1e-4);
  EXPECT_NEAR(row(time, "transposed weights"), time.seconds - kept, 1e-9);
  work.recipe = llama8b().recipe;
  EXPECT_EQ(row(time_of(work), "transposed weights"), 0);
}

TEST(Time, MessagesTravelAtTheRateOfTheirLink) {
  const std::span<const Link> all = links();
  ASSERT_EQ(all.size(), 7u);
  // Measured between two H200: 64 MiB at 368 GB/s.
  EXPECT_STREQ(all[0].name, "NVLink");
  EXPECT_NEAR(message_seconds(0x1p26, all[0], 8) / (0x1p26 / 368e9), 1, 0.01);
  // A network by its name, which all ranks of a host share.
  for (const Link& link : all.subspan(2)) {
    EXPECT_TRUE(link.between_hosts);
    const double gigabits = std::stod(link.name);
    EXPECT_DOUBLE_EQ(message_seconds(1e9, link, 1), 8 / gigabits) << link.name;
    EXPECT_DOUBLE_EQ(message_seconds(1e9, link, 4), 32 / gigabits) << link.name;
  }
  EXPECT_EQ(message_seconds(0, all[6], 8), 0);
}

TEST(Advice, FindsTheLargestThatFitsAtEachLevel) {
  // Ten bytes a sample without recomputation, and less with it.
  int asked = 0;
  const BytesOf bytes = [&asked](const Choice& c) {
    ++asked;
    return static_cast<std::size_t>(c.micro) * (10 - 3 * static_cast<std::size_t>(c.level.recompute)) + 5;
  };
  const std::vector<Level> levels{{Recompute::none}, {Recompute::norms}, {Recompute::qkv}, {Recompute::full}};
  const std::vector<Choice> expected{{2, levels[0]}, {4, levels[1]}, {8, levels[2]}, {16, levels[3]}};
  EXPECT_EQ(largest_that_fit({1, 2, 4, 8, 16}, levels, 37, bytes), expected);
  EXPECT_LE(asked, 4 * 4);
  EXPECT_TRUE(largest_that_fit({1, 2}, levels, 5, bytes).empty());
  EXPECT_EQ(largest_that_fit({1, 2}, {{Recompute::none}}, 25, bytes),
            (std::vector<Choice>{{2, {Recompute::none}}}));
}

TEST(Advice, PrefersTheFirstOfEquals) {
  const std::vector<Choice> all{{1, {Recompute::none}}, {8, {Recompute::norms}}, {16, {Recompute::full}}};
  EXPECT_EQ(fastest(all, [](const Choice&) { return 1.0; }), all[0]);
  EXPECT_EQ(fastest(all, [](const Choice& c) { return c.micro == 8 ? 1.0 : 2.0; }), all[1]);
  EXPECT_EQ(fastest({}, [](const Choice&) { return 1.0; }), std::nullopt);
}

TEST(Advice, NamesALevelByTheKeysThatSetIt) {
  EXPECT_EQ(keys_of({}), "recompute=none");
  EXPECT_EQ(keys_of({Recompute::qkv, true}), "recompute=qkv fp8_transposed_weights=at_use");
}

TEST(Memory, AddsUpReservationsByName) {
  const std::unique_ptr<Device> dry = make_dry_device();
  Arena arena(*dry);
  arena.reserve("parameters/master", 1024);
  arena.reserve("activations/qkv", 512);
  arena.reserve("activations/qkv", 512);
  arena.reserve("optimizer/exp_avg", 256);
  arena.reserve("gradients", 256);
  arena.reserve("gradients/sums", 768);
  const Memory memory = memory_of(arena, {{"messages", 100}, {"nothing", 0}});
  EXPECT_EQ(memory.bytes, 1024u + 1024 + 256 + 256 + 768 + 100);
  EXPECT_EQ(memory.of_tokens(), 1024u);
  ASSERT_EQ(memory.by_part().size(), 5u);
  EXPECT_EQ(memory.rows.back().name, "messages");
}

// Each row by itself: whether it counts for the tokens of a micro-batch.
TEST(Memory, EveryRowCountsForTokensAsItIsUsed) {
  struct Case {
    const char* name;
    std::size_t tokens;
  };
  const Case cases[] = {{"activations/qkv", 1},
                        {"activations", 1},
                        {"head/logits", 1},
                        {"workspace/gemm", 1},
                        {"batch/words", 1},
                        {"parameters/master", 0},
                        {"parameters/other", 0},
                        {"parameters/copies", 0},
                        {"parameters/transposed", 0},
                        {"optimizer/exp_avg", 0},
                        {"optimizer", 0},
                        {"gradients", 0},
                        {"gradients/partial", 0},
                        {"gradients/sums", 0},
                        {"messages", 0},
                        {"batches", 0}};
  Memory all;
  std::size_t tokens = 0;
  for (std::size_t i = 0; const Case& c : cases) {
    const std::size_t bytes = std::size_t{1000} << i++;
    const Memory memory{.rows = {{c.name, bytes}}};
    EXPECT_EQ(memory.of_tokens(), c.tokens * bytes) << c.name;
    all.rows.push_back({c.name, bytes});
    tokens += c.tokens * bytes;
  }
  EXPECT_EQ(all.of_tokens(), tokens);
  const std::vector<MemoryRow> parts = all.by_part();
  ASSERT_EQ(parts.size(), 9u);
  EXPECT_EQ(parts.front().name, "batches") << "the largest comes first";
  for (std::size_t i = 1; i < parts.size(); ++i) EXPECT_GE(parts[i - 1].bytes, parts[i].bytes);
  EXPECT_EQ(library_bytes(DeviceKind::cuda), std::size_t{768} << 20);
  EXPECT_EQ(library_bytes(DeviceKind::cpu), 0u);
}

TEST(Memory, OfTheHostHasRowsOfItsOwn) {
  const std::unique_ptr<Device> dry = make_dry_device({.stands_for = DeviceKind::cuda});
  Arena arena(*dry);
  arena.reserve("batch/words", 512);
  arena.reserve("batch/words", 1024, MemoryKind::pinned);
  arena.reserve("batch/words", 1024, MemoryKind::pinned);
  arena.expect_passing("state/saved", 5000, MemoryKind::host);
  const Memory memory = memory_of(arena);
  EXPECT_EQ(memory.bytes, 512u);
  ASSERT_EQ(memory.pinned.size(), 1u);
  EXPECT_EQ(memory.pinned[0].bytes, 2048u);
  ASSERT_EQ(memory.host.size(), 1u);
  EXPECT_EQ(memory.host[0].name, "state/saved");
  EXPECT_EQ(memory.host[0].bytes, 5000u);
}

TEST(Memory, StateInHostMemoryIsNoneOfTheDevices) {
  const std::unique_ptr<Device> dry = make_dry_device({.stands_for = DeviceKind::cuda});
  Arena arena(*dry);
  arena.reserve("parameters/master", 512);
  arena.reserve("parameters/master", 2048, MemoryKind::pinned);
  arena.reserve("optimizer/exp_avg", 1024, MemoryKind::pinned);
  arena.reserve("optimizer/exp_avg_sq", 1024, MemoryKind::pinned);
  arena.reserve("batch/words", 256, MemoryKind::pinned);
  const Memory memory = memory_of(arena);
  EXPECT_EQ(memory.bytes, 512u);
  EXPECT_EQ(memory.masters_of_host(), 2048u);
  EXPECT_EQ(memory.state_of_host(), 4096u);
  EXPECT_EQ(memory.pinned_bytes(), 4352u);
  EXPECT_EQ(Memory{}.state_of_host(), 0u);
}

TEST(Memory, SizesAreReadWithTheirUnits) {
  EXPECT_EQ(parse_bytes("141GB", ""), 141000000000u);
  EXPECT_EQ(parse_bytes("80 GiB", ""), std::size_t{80} << 30);
  EXPECT_EQ(parse_bytes("1.5MiB", ""), std::size_t{3} << 19);
  EXPECT_EQ(parse_bytes("4096", ""), 4096u);
  for (const char* text : {"80gib", "80GIB", "80 Gib"})
    EXPECT_EQ(parse_bytes(text, ""), std::size_t{80} << 30) << text;
  const std::pair<const char*, double> units[] = {
      {"2B", 2},      {"2KB", 2e3},      {"2MB", 2e6},         {"2GB", 2e9},           {"2TB", 2e12},
      {"2KiB", 2048}, {"2MiB", 2097152}, {"2GiB", 2147483648}, {"2TiB", 2199023255552}};
  for (const auto& [text, bytes] : units)
    EXPECT_EQ(static_cast<double>(parse_bytes(text, "")), bytes) << text;
  EXPECT_EQ(parse_bytes("4194304 TiB", ""), std::size_t{1} << 62);
  for (const char* wrong : {"", "GB", "12 parsecs", "-3GB", "nan", "inf", "1e300TB", "0", "4194305 TiB"}) {
    EXPECT_THROW(parse_bytes(wrong, "memory"), Error) << wrong;
  }
}

}  // namespace
}  // namespace octet::plan::plan_test
