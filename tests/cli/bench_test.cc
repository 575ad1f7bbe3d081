// Speed on synthetic data: the training path itself, without data sets, weights and output folder.
#include <algorithm>

#include "cli/task.h"
#include "octet/base/json.h"

namespace octet::test::bench_test {
namespace {

Json bench(const std::string& arguments, int np = 0) {
  const Outcome run = trainer(
      "bench --json steps=2 --warmup 1 seed=5 cutoff_len=48 "
      "per_device_train_batch_size=2 device=cpu " +
          arguments,
      np);
  EXPECT_EQ(run.code, 0) << run.both();
  return run.code == 0 ? parse_json(run.out, "standard output") : Json::object();
}

TEST(Bench, MeasuresTheStepsOfAFolderWithoutWeights) {
  const Json r = bench(Task::get().model() + " gradient_accumulation_steps=3 fp8=true label_share=0.25");
  ASSERT_TRUE(r.contains("tokens"));
  EXPECT_EQ(r["tokens"], 2 * 48 * 3);
  EXPECT_EQ(r["precision"], "FP8 delayed in bf16");
  EXPECT_GT(r["seconds_median"].get<double>(), 0);
  EXPECT_LE(r["seconds_min"].get<double>(), r["seconds_median"].get<double>());
  EXPECT_GE(r["seconds_max"].get<double>(), r["seconds_median"].get<double>());
  EXPECT_NEAR(r["tokens_per_second"].get<double>() * r["seconds_median"].get<double>(), 288, 1e-6);
  // Width 32, two blocks, 512 tokens in a tied table: 6 x parameters, and 6 x 2 x 48 x 32 for attention.
  const double parameters = 512 * 32 + 2 * (2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48 + 64) + 32;
  EXPECT_EQ(r["parameters"].get<double>(), parameters);
  EXPECT_NEAR(r["tflops"].get<double>() / (1e-12 * (6 * parameters + 6 * 2 * 48 * 32)),
              r["tokens_per_second"].get<double>(), 1e-6 * r["tokens_per_second"].get<double>());
  EXPECT_TRUE(r["mfu"].is_null()) << "a CPU has no yardstick";
  EXPECT_EQ(r["comm_bytes"], 0.0);
  EXPECT_GT(r["used_bytes"].get<double>(), r["reserved_bytes"].get<double>());
  EXPECT_GT(r["setup_seconds"].get<double>(), 0);
  EXPECT_GT(r["reserved_bytes"].get<double>(), 4.0 * r["parameters"].get<double>());
}

// On a CPU, GEMMs of FP8 values are exact, and the list of GEMMs reports it.
TEST(Bench, SaysWhatEveryProductWas) {
  const Json r = bench(Task::get().model() + " fp8=true", 2);
  std::int64_t fp8 = 0, others = 0;
  for (const Json& one : r["products"]) {
    const bool head = one["product"] == "head";
    EXPECT_EQ(one["way"], head ? "bf16" : "emulated") << one.dump();
    EXPECT_EQ(one["layers"], head ? "0" : "0-1") << one.dump();
    EXPECT_EQ(one["products"], one["calls"]);
    (head ? others : fp8) += one["products"].get<std::int64_t>();
  }
  EXPECT_EQ(fp8, 2 * 3 * 4 * 2 * 3)
      << "two ranks, three steps, four layers in each of two blocks, three passes";
  EXPECT_EQ(others, 2 * 3 * 3);
}

TEST(Bench, MakesTheStatisticsOfALoggedStepWhenAsked) {
  const std::string model = Task::get().model() + " fp8=true ";
  const Json plain = bench(model), logged = bench(model + "logged=true");
  EXPECT_FALSE(plain.contains("fp8"));
  EXPECT_EQ(logged["fp8"].size(), 4u);
  EXPECT_EQ(logged["last_loss"], plain["last_loss"]) << "watching changes no bit";
}

TEST(Bench, SaysWhenGradientsAreSummedFast) {
  EXPECT_EQ(bench("tiny fp8=true fp8_fast_accumulation=all")["precision"],
            "FP8 delayed in bf16, fp8_fast_accumulation: all");
}

TEST(Bench, TrainsWithTheSameNumbersAtEveryStage) {
  const Json alone = bench("tiny bf16=false", 2);
  const Json cut = bench("tiny bf16=false zero_stage=3", 2);
  EXPECT_EQ(alone["ranks"], 2);
  EXPECT_EQ(alone["tokens"], 2 * 48 * 2);
  EXPECT_EQ(alone["last_loss"], cut["last_loss"]);
  // Random tokens cannot be learned: the loss is that of a uniform guess among 4,096.
  EXPECT_NEAR(alone["first_loss"].get<double>(), std::log(4096.0), 0.2);
  EXPECT_LT(cut["reserved_bytes"].get<double>(), alone["reserved_bytes"].get<double>());
}

// Each of two ranks sends half of all gradients after both micro-batches, and half of the weights once.
TEST(Bench, CountsTheBytesOfAStep) {
  const Json r = bench("tiny bf16=false gradient_accumulation_steps=2", 2);
  const double half = 4 * r["parameters"].get<double>() / 2;
  EXPECT_GE(r["comm_bytes"].get<double>(), 3 * half);
  EXPECT_LE(r["comm_bytes"].get<double>(), 1.02 * 3 * half + 2000);
  EXPECT_GT(r["comm_seconds"].get<double>(), 0);
  EXPECT_LE(r["comm_exposed_seconds"].get<double>(), r["comm_seconds"].get<double>());
  // Rank 0 is one of two ranks, so it waits least or most.
  const Json& waited = r["comm_exposed_seconds"];
  EXPECT_LE(r["comm_exposed_seconds_least"].get<double>(), r["comm_exposed_seconds_most"].get<double>());
  EXPECT_TRUE(waited == r["comm_exposed_seconds_least"] || waited == r["comm_exposed_seconds_most"]) << r;
  EXPECT_LE(r["comm_seconds"].get<double>(), 1.01 * r["seconds_max"].get<double>());
}

TEST(Bench, AProfileAccountsForTheWholeStep) {
  const Json r = bench("tiny fp8=true profile=true recompute=full cutoff_len=128");
  double sum = 0;
  std::map<std::string, double> calls;
  for (const Json& row : r["profile"]) {
    EXPECT_FALSE(calls.contains(row["kind"].get<std::string>()));
    calls[row["kind"].get<std::string>()] = row["calls"].get<double>();
    sum += row["seconds"].get<double>();
  }
  // With two timed steps, mean and median are equal.
  EXPECT_NEAR(sum / r["seconds_median"].get<double>(), 1, 1e-6);
  const std::map<std::string, double> expected{{"forward, qkv", 4},
                                               {"wgrad, down", 4},
                                               {"dgrad, head", 1},
                                               {"attention backward", 4},
                                               {"recompute: forward, qkv", 4},
                                               {"waiting and gaps", 0}};
  for (const auto& [kind, count] : expected) EXPECT_EQ(calls.at(kind), count) << kind;
  for (const char* kind : {"norms", "optimizer", "quantisation", "head: loss and rows"}) {
    EXPECT_GT(calls[kind], 0) << kind;
  }
  EXPECT_FALSE(bench("tiny").contains("profile"));
}

TEST(Bench, AProfileNamesTheOpsOfEachFamily) {
  const std::map<std::string, std::vector<const char*>> expected{
      {"qwen3-5", {"delta rule forward", "delta rule backward", "delta rule inputs", "output gates"}},
      {"deepseek-v3", {"latent heads"}},
      {"cohere2", {"norms"}},
      {"apertus", {"activation"}}};
  for (const auto& [family, kinds] : expected) {
    const Json r = bench(std::string(OCTET_SOURCE_DIR) + "/tests/golden/models/" + family +
                         " profile=true cutoff_len=16 per_device_train_batch_size=1");
    std::map<std::string, double> calls;
    for (const Json& row : r["profile"]) calls[row["kind"].get<std::string>()] = row["calls"].get<double>();
    for (const char* kind : kinds) EXPECT_GT(calls[kind], 0) << family << ": " << kind;
  }
}

TEST(Bench, PrintsATableAndRefusesWhatItDoesNotKnow) {
  const Outcome run = trainer("bench tiny steps=1 warmup=0 cutoff_len=16 device=cpu");
  EXPECT_EQ(run.code, 0) << run.both();
  for (const char* word :
       {"tokens per second", "time per step      median", "model FLOPs used", "memory", "loss"}) {
    EXPECT_NE(run.out.find(word), std::string::npos) << word;
  }
  const Outcome unknown = trainer("bench llama-3.1-9b device=cpu");
  EXPECT_EQ(unknown.code, 64);
  EXPECT_NE(unknown.err.find("did you mean 'llama-3.1-8b'"), std::string::npos) << unknown.err;
  EXPECT_EQ(trainer("bench tiny steps=0").code, 64);
  EXPECT_EQ(trainer("bench tiny stepps=3").code, 64);
}

// Raw writes and checkpoints of equal size take turns, and all files are removed.
TEST(Bench, TimesSavesBesideRawWrites) {
  const TemporaryFolder folder("bench_saves");
  for (const int np : {0, 2}) {
    const Outcome run = trainer("bench --json save=12MiB device=cpu output_dir=" + folder.path(), np);
    ASSERT_EQ(run.code, 0) << run.both();
    const Json r = parse_json(run.out, "standard output");
    EXPECT_EQ(r["bytes"], 12 << 20);
    EXPECT_EQ(r["ranks"], std::max(1, np));
    const auto middle = [&](const char* kind) {
      std::vector<double> seconds = r[kind].get<std::vector<double>>();
      EXPECT_EQ(seconds.size(), 5u) << kind;
      std::ranges::sort(seconds);
      return seconds.at(2);
    };
    double raw = middle("seconds_buffered");
    if (!r["seconds_direct"].empty()) raw = std::min(raw, middle("seconds_direct"));
    EXPECT_GT(raw, 0);
    EXPECT_NEAR(r["ratio"].get<double>(), raw / middle("seconds_saved"), 1e-9);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  }
  EXPECT_EQ(trainer("bench save=much").code, 64);
  EXPECT_EQ(trainer("bench save=1MiB output_dir=/proc/nothing").code, 64);
}

const std::string kTiny = OCTET_SOURCE_DIR "/tests/bench/tiny.json";

Json decode_bench(const std::string& arguments) {
  const Outcome run = trainer("bench " + kTiny + " --json --decode device=cpu " + arguments);
  EXPECT_EQ(run.code, 0) << run.both();
  return run.code == 0 ? parse_json(run.out, "standard output") : Json::object();
}

TEST(Bench, MeasuresDecodingSteps) {
  const Json r = decode_bench("sequences=3 context=40 steps=4 warmup=1 bf16=false");
  ASSERT_TRUE(r.contains("tokens_per_second"));
  EXPECT_EQ(r["precision"], "fp32");
  EXPECT_EQ(r["sequences"], 3);
  EXPECT_EQ(r["context"], 40);
  EXPECT_EQ(r["steps"], 4);
  const double median = r["seconds_median"].get<double>();
  EXPECT_GT(median, 0);
  EXPECT_LE(r["seconds_min"].get<double>(), median);
  EXPECT_GE(r["seconds_max"].get<double>(), median);
  EXPECT_NEAR(r["tokens_per_second"].get<double>() * median, 3, 1e-9);
  // All weights except the embedding table, with the padding of segments.
  const double weights = 4 * (r["parameters"].get<double>() - 4096 * 256);
  EXPECT_GE(r["weight_bytes"].get<double>(), weights);
  EXPECT_LE(r["weight_bytes"].get<double>(), 1.01 * weights);
  // Four blocks with four KV heads of dimension 32. The first timed step attends to 40 prompt tokens, to the
  // tokens of the warm-up, and to itself.
  EXPECT_NEAR(r["cache_bytes"].get<double>(), 3.0 * 2 * 4 * 4 * 32 * 4 * (42 + 43 + 44 + 45) / 4, 1e-6);
  EXPECT_NEAR(r["bytes_per_second"].get<double>() * median,
              r["weight_bytes"].get<double>() + r["cache_bytes"].get<double>(), 1);
  EXPECT_GT(r["prompt_tokens_per_second"].get<double>(), 0);
  EXPECT_EQ(r["replayed"], 0) << "a CPU records nothing";
  EXPECT_GT(r["reserved_bytes"].get<double>(), r["weight_bytes"].get<double>());
  EXPECT_FALSE(r.contains("profile"));
}

TEST(Bench, DecodesInTheDtypeThatIsAskedForAndShowsWhereTheTimeGoes) {
  const Json r = decode_bench("sequences=33 context=9 steps=2 profile=true");
  EXPECT_EQ(r["precision"], "bf16");
  EXPECT_LE(r["weight_bytes"].get<double>(), 1.01 * 2 * (r["parameters"].get<double>() - 4096 * 256));
  std::map<std::string, double> calls;
  double sum = 0;
  for (const Json& row : r["profile"]) {
    calls[row["name"].get<std::string>()] = row["calls"].get<double>();
    sum += row["seconds"].get<double>();
  }
  EXPECT_EQ(calls["cached_attention"], 4);
  EXPECT_EQ(calls["qkv/product forward"], 4);
  // With two steps, mean and median are equal.
  EXPECT_NEAR(sum / r["seconds_median"].get<double>(), 1, 1e-6);
}

TEST(Bench, DecodesWithWeightsAndCacheInE4m3) {
  const std::string small = "sequences=3 context=40 steps=2 warmup=1 ";
  const Json wide = decode_bench(small), weights = decode_bench(small + "fp8=true");
  const Json both = decode_bench(small + "fp8=true kv_cache_dtype=fp8");
  EXPECT_EQ(weights["precision"], "FP8 rows in bf16");
  EXPECT_EQ(both["precision"], "FP8 rows in bf16, cache in FP8");
  // Embedding and head, 4,096 x 256 each, stay in bf16. The 4-byte scale of an output adds little to 256 or
  // more bytes.
  const double parameters = wide["parameters"].get<double>(), blocks = parameters - 2 * 4096 * 256;
  EXPECT_NEAR(weights["weight_bytes"].get<double>(), 2 * 4096 * 256 + blocks, 0.03 * blocks);
  EXPECT_EQ(weights["cache_bytes"], wide["cache_bytes"]);
  // Heads of dimension 32: in bf16, or as 32 codes and a scale.
  EXPECT_NEAR(both["cache_bytes"].get<double>() / wide["cache_bytes"].get<double>(), 36.0 / 64, 1e-9);
  EXPECT_LT(both["reserved_bytes"].get<double>(), weights["reserved_bytes"].get<double>());
}

TEST(Bench, RefusesDecodingThatItCannotMeasure) {
  const auto refused = [](const std::string& arguments, const std::string& words, int np = 0) {
    const Outcome run = trainer("bench tiny device=cpu steps=1 " + arguments, np);
    EXPECT_EQ(run.code, 64) << arguments << run.both();
    EXPECT_NE(run.err.find(words), std::string::npos) << run.both();
  };
  refused("sequences=2", "give --decode");
  refused("context=20", "give --decode");
  refused("--decode save=1MiB", "exclude each other");
  refused("--decode fp8=true fp8_recipe=delayed", "fp8_recipe current or block");
  refused("kv_cache_dtype=fp8", "give --decode");
  refused("--decode kv_cache_dtype=int8", "kv_cache_dtype");
  refused("--decode context=0", "context");
  refused("--decode finetuning_type=lora", "finetuning_type=lora");
  refused("--decode quantization_bit=4 finetuning_type=lora", "whole weights");
  refused("--decode", "does not fit the split of the model", 2);
  const Outcome table =
      trainer("bench tiny device=cpu --decode steps=1 warmup=0 context=20 fp8=true fp8_recipe=block");
  EXPECT_EQ(table.code, 0) << table.both();
  for (const char* word :
       {"FP8 block in bf16", "20 tokens of context", "tokens per second", "bytes per step"}) {
    EXPECT_NE(table.out.find(word), std::string::npos) << word << table.out;
  }
}

}  // namespace
}  // namespace octet::test::bench_test
