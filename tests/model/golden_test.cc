// The core against results of Hugging Face transformers for equal models.
#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "support.h"
#include "support/golden_models.h"
#include "support/samples.h"

namespace octet::model::testing::golden_test {
namespace {

constexpr precision::Recipe kF32{};
constexpr precision::Recipe kBf16{.compute = DType::bf16};
constexpr precision::Recipe kCurrent{.kind = precision::RecipeKind::current};
constexpr precision::Recipe kBlock{.kind = precision::RecipeKind::block, .gradient_format = DType::e4m3};
constexpr precision::Recipe kDelayed{.kind = precision::RecipeKind::delayed, .history_length = 4};
constexpr precision::Recipe kCurrentInParts{.kind = precision::RecipeKind::current, .scale_parts = true};
constexpr precision::Recipe kDelayedInParts{
    .kind = precision::RecipeKind::delayed, .history_length = 4, .scale_parts = true};

struct Golden {
  explicit Golden(const std::string& name)
      : folder(golden_folder(name)),
        architecture(golden_architecture(name)),
        file(folder + "/golden.safetensors"),
        numbers(read_json(folder + "/golden.json")) {}
  std::string folder;
  Architecture architecture;
  weights::SafetensorsFile file;
  Json numbers;
};

RunResult run(const Golden& golden, const HostBatch& batch, const RunOptions& options) {
  Machine machine(golden.architecture, batch, options);
  machine.source.load(golden.folder);
  machine.arena.reserve("spare", 256);
  return machine.run(batch, options.gradients);
}

/// Returns the distance between the golden tensor and the same rows of `whole`.
double distance(const Golden& golden, const std::string& name, const std::vector<float>& whole,
                double factor = 1.0) {
  const weights::StoredTensor& tensor = golden.file.at(name);
  return relative_l2(test::sampled_rows(whole, static_cast<std::size_t>(tensor.count), tensor.shape.back()),
                     read_floats(golden.file, name), factor);
}

/// Compares every gradient of the file under `prefix` with the run's gradient, which is of the sum of the
/// losses.
void expect_gradients(const Golden& golden, const std::string& prefix, const RunResult& result,
                      std::int64_t label_tokens, double bound) {
  std::size_t compared = 0;
  for (const auto& [name, gradient] : result.gradients) {
    if (golden.file.find(prefix + name) == nullptr) continue;
    ++compared;
    const double error = distance(golden, prefix + name, gradient, 1.0 / static_cast<double>(label_tokens));
    EXPECT_LT(error, bound) << prefix << name;
    EXPECT_FALSE(std::isnan(error)) << prefix << name;
  }
  EXPECT_GE(compared, 8u);
}

/// Factor of bounds in fp32 of models with delta rules. A delta rule has differences of values and of what
/// its state returns for their keys, and transformers sums a chunk in another order.
double of_delta_rules(const Architecture& a) {
  return a.has_delta_rule() ? 10 : 1;
}

class GoldenModel : public ::testing::TestWithParam<std::string> {};

/// Factor of bounds of gradients. In models without input norms, biases of queries and keys are much larger
/// than the other part of their sums. A norm of all heads then removes most of the gradient, but not of its
/// rounding errors.
double cancellation(const Architecture& a) {
  return !a.input_norms && a.qk_norm_of_all_heads && a.qkv_bias ? 3 : 1;
}

TEST_P(GoldenModel, LossLogitsAndEveryGradientAgree) {
  const Golden golden(GetParam());
  const HostBatch batch = read_batch(golden.file, "");
  const RunResult result = run(golden, batch, {.recipe = kF32});
  const std::int64_t labels = batch.label_tokens();
  EXPECT_EQ(labels, golden.numbers["label_tokens"].get<std::int64_t>());
  EXPECT_NEAR(result.loss_sum / static_cast<double>(labels), golden.numbers["loss"].get<double>(), 2e-6);
  const double factor = of_delta_rules(golden.architecture);
  EXPECT_LT(distance(golden, "logits", result.logits), factor * 3e-6);
  expect_gradients(golden, "grad.", result, labels, factor * 1e-5);
}

TEST_P(GoldenModel, PackedDocumentsDoNotSeeEachOther) {
  const Golden golden(GetParam());
  const HostBatch batch = read_batch(golden.file, "packed.");
  ASSERT_EQ(batch.cu_seqlens.size(), 4u);
  const RunResult result = run(golden, batch, {.recipe = kF32});
  EXPECT_NEAR(result.loss_sum / static_cast<double>(batch.label_tokens()),
              golden.numbers["packed_loss"].get<double>(), 2e-6);
  EXPECT_LT(distance(golden, "packed.logits", result.logits), of_delta_rules(golden.architecture) * 3e-6);
  if (golden.file.find("packed.grad.model.norm.weight") != nullptr) {
    expect_gradients(golden, "packed.grad.", result, batch.label_tokens(), 1e-5);
  }
}

TEST_P(GoldenModel, TheOlderSpellingOfTheConfigMeansTheSame) {
  const std::string path = golden_folder(GetParam()) + "/config.legacy.json";
  EXPECT_EQ(read_architecture(read_json(path), path), read_architecture(golden_folder(GetParam())));
}

TEST_P(GoldenModel, RecomputationGivesTheSameBits) {
  const Golden golden(GetParam());
  HostBatch batch = read_batch(golden.file, "");
  batch.drop_unlabelled_rows();
  for (const precision::Recipe& recipe :
       {kF32, kBf16, kCurrent, kDelayed, kCurrentInParts, kDelayedInParts}) {
    const RunResult kept = run(golden, batch, {.recipe = recipe});
    for (const Recompute level : {Recompute::norms, Recompute::qkv, Recompute::full}) {
      SCOPED_TRACE(static_cast<int>(level));
      const RunResult again = run(golden, batch, {.recipe = recipe, .recompute = level});
      EXPECT_EQ(kept.loss_sum, again.loss_sum);
      EXPECT_TRUE(kept.logits == again.logits);
      for (const auto& [name, gradient] : kept.gradients) {
        EXPECT_TRUE(gradient == again.gradients.at(name)) << name;
      }
    }
  }
}

TEST_P(GoldenModel, Bf16StaysWithinItsRounding) {
  // A path through a block rounds eleven activations (stream twice, two norms, qkv, attention, …) and four
  // weights. Each rounding is at most 2^-9 relative. Embedding, last norm and head add four. Independent
  // errors add as squares; a softmax may double them. Backward takes the path twice.
  const Golden golden(GetParam());
  // A token with nearly equal scores of experts may select others.
  const double experts = golden.architecture.experts.count > 0 ? 8 : 1;
  // A delta rule also rounds its inputs, states and gates. transformers in bf16 is farther away.
  const double delta = golden.architecture.has_delta_rule() ? 8 : 1;
  const double bound =
      experts * delta * 2 * std::sqrt(15.0 * static_cast<double>(golden.architecture.layers) + 4) / 512;
  const HostBatch batch = read_batch(golden.file, "");
  const RunResult result = run(golden, batch, {.recipe = kBf16});
  const double error = distance(golden, "logits", result.logits);
  EXPECT_LT(error, bound);
  EXPECT_GT(error, 1e-4) << "this did not run in bf16";
  expect_gradients(golden, "grad.", result, batch.label_tokens(),
                   2 * bound * cancellation(golden.architecture));
}

TEST_P(GoldenModel, AWorkerStreamAndLargerBuffersChangeNothing) {
  const Golden golden(GetParam());
  const HostBatch batch = read_batch(golden.file, "packed.");
  for (const precision::Recipe& recipe : {kF32, kCurrent, kDelayed, kCurrentInParts}) {
    const RunResult in_line = run(golden, batch, {.recipe = recipe});
    const RunResult worker = run(golden, batch, {.recipe = recipe, .worker = true, .spare_tokens = 37});
    EXPECT_EQ(in_line.loss_sum, worker.loss_sum);
    EXPECT_TRUE(in_line.gradients == worker.gradients);
  }
}

TEST_P(GoldenModel, RowsWithoutALabelNeedNoLogits) {
  const Golden golden(GetParam());
  HostBatch batch = read_batch(golden.file, "");
  const RunResult all = run(golden, batch, {.recipe = kF32});
  batch.drop_unlabelled_rows();
  const RunResult few = run(golden, batch, {.recipe = kF32, .logits_bytes = 7 * 192 * sizeof(float)});
  EXPECT_NEAR(all.loss_sum, few.loss_sum, 1e-7 * all.loss_sum);
  EXPECT_EQ(few.logits.size(), batch.rows.size() * static_cast<std::size_t>(golden.architecture.vocabulary));
  for (const auto& [name, gradient] : all.gradients) {
    // A bias of keys changes all scores of a query by nearly the same amount, so large addends cancel.
    const double bound = name.ends_with("k_proj.bias") ? 2e-6 : 1e-6;
    EXPECT_LT(relative_l2(few.gradients.at(name), gradient), bound * cancellation(golden.architecture))
        << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenModel, ::testing::ValuesIn(test::golden_models()),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase(name, '-');
                           return name;
                         });

// With longrope, a document has the frequencies of its own length, whatever the lengths of others in its row.
TEST(Longrope, DocumentsOfBothLengthsTrainAsAlone) {
  const Golden golden("phi3-longrope");
  const HostBatch row = read_batch(golden.file, "");
  HostBatch batch;
  std::vector<HostBatch> alone;
  std::size_t at = 0;
  for (const std::size_t length : {10u, 30u, 9u, 7u, 24u}) {
    const std::vector<std::int32_t> ids(row.ids.begin() + static_cast<std::ptrdiff_t>(at),
                                        row.ids.begin() + static_cast<std::ptrdiff_t>(at + length));
    batch.add_document(ids, ids);
    alone.emplace_back().add_document(ids, ids);
    at += length;
  }
  const RunResult together = run(golden, batch, {.recipe = kF32});
  std::vector<float> logits;
  std::map<std::string, std::vector<float>> gradients;
  for (const HostBatch& one : alone) {
    const RunResult result = run(golden, one, {.recipe = kF32});
    logits.insert(logits.end(), result.logits.begin(), result.logits.end());
    for (const auto& [name, gradient] : result.gradients) {
      std::vector<float>& sum = gradients[name];
      sum.resize(gradient.size());
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
    }
  }
  EXPECT_LT(relative_l2(together.logits, logits), 1e-6);
  for (const auto& [name, gradient] : together.gradients)
    EXPECT_LT(relative_l2(gradient, gradients.at(name)), 2e-6) << name;
  // The frequencies matter: without the long ones, the logits differ.
  Golden plain("phi3-longrope");
  plain.architecture.ropes.front().long_factors = plain.architecture.ropes.front().short_factors;
  EXPECT_GT(relative_l2(run(plain, batch, {.recipe = kF32}).logits, logits), 1e-3);
}

// The frequencies of transformers would depend on the length.
TEST(DynamicRope, RefusesDocumentsThatAreTooLong) {
  Golden golden("llama");
  golden.architecture.ropes.front().kind = RopeKind::dynamic;
  const HostBatch batch = read_batch(golden.file, "");
  golden.architecture.ropes.front().original_max_positions = batch.max_length;
  EXPECT_LT(distance(golden, "logits", run(golden, batch, {.recipe = kF32}).logits), 3e-6);
  golden.architecture.ropes.front().original_max_positions = batch.max_length - 1;
  try {
    run(golden, batch, {.recipe = kF32});
    FAIL() << "a document is too long";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    EXPECT_NE(std::string(e.what()).find("max_position_embeddings"), std::string::npos) << e.what();
  }
}

TEST(Fp8Core, CurrentScalingAgreesWithTheReferenceOfFusedOperands) {
  const Golden golden("llama3");
  const HostBatch batch = read_batch(golden.file, "");
  const RunResult result = run(golden, batch, {.recipe = kCurrent});
  EXPECT_NEAR(result.loss_sum / static_cast<double>(batch.label_tokens()),
              golden.numbers["fp8_fused_loss"].get<double>(), 2e-6);
  EXPECT_LT(distance(golden, "fp8_fused.logits", result.logits), 1e-6);
  // Far from the fp32 result, so that the agreement proves the use of FP8.
  EXPECT_GT(distance(golden, "logits", result.logits), 0.1);
  // After scaling, one gradient of layer 1's gate is 703.99994 of 57344, also in exact arithmetic. 704 is a
  // midpoint of E5M2, and the reference rounded up. One such value changes every later gradient, like another
  // summation order. Gradients before it in backward agree to fp32 accuracy.
  const auto error = [&](const std::string& name) {
    return distance(golden, "fp8_fused.grad." + name, result.gradients.at(name),
                    1.0 / static_cast<double>(batch.label_tokens()));
  };
  for (const char* name : {"lm_head.weight", "model.norm.weight", "model.layers.1.mlp.down_proj.weight",
                           "model.layers.1.mlp.up_proj.weight"}) {
    EXPECT_LT(error(name), 2e-6) << name;
  }
  EXPECT_LT(error("model.layers.1.mlp.gate_proj.weight"), 1e-3) << "the value that falls the other way";
  for (const char* part : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
    const std::string name = std::string("model.layers.1.self_attn.") + part + ".weight";
    EXPECT_LT(error(name), 1e-2) << name;
  }
  expect_gradients(golden, "fp8_fused.grad.", result, batch.label_tokens(), 5e-2);
}

TEST(Fp8Core, CurrentScalingInPartsAgreesWithTheReferenceOfTensors) {
  const Golden golden("llama3");
  const HostBatch batch = read_batch(golden.file, "");
  const RunResult result = run(golden, batch, {.recipe = kCurrentInParts});
  EXPECT_NEAR(result.loss_sum / static_cast<double>(batch.label_tokens()) /
                  golden.numbers["fp8_split_loss"].get<double>(),
              1.0, 2e-7);
  EXPECT_LT(distance(golden, "fp8_split.logits", result.logits), 1e-6);
  EXPECT_GT(distance(golden, "logits", result.logits), 0.1) << "this did not run in FP8";
  expect_gradients(golden, "fp8_split.grad.", result, batch.label_tokens(), 2e-6);
}

TEST(Fp8Core, BlockScalingAgreesWithItsReference) {
  const Golden golden("llama3");
  const weights::SafetensorsFile block(golden.folder + "/block.safetensors");
  const HostBatch batch = read_batch(golden.file, "");
  const auto far = [&](const std::string& name, const std::vector<float>& whole, double factor) {
    const weights::StoredTensor& tensor = block.at(name);
    return relative_l2(test::sampled_rows(whole, static_cast<std::size_t>(tensor.count), tensor.shape.back()),
                       read_floats(block, name), factor);
  };
  for (const Recompute recompute : {Recompute::none, Recompute::norms, Recompute::qkv, Recompute::full}) {
    const RunResult result = run(golden, batch, {.recipe = kBlock, .recompute = recompute});
    const auto labels = static_cast<double>(batch.label_tokens());
    EXPECT_NEAR(result.loss_sum / labels / static_cast<double>(read_floats(block, "loss")[0]), 1.0, 2e-7);
    EXPECT_LT(far("logits", result.logits, 1.0), 1e-6);
    EXPECT_GT(distance(golden, "logits", result.logits), 0.05) << "this did not run in FP8";
    std::size_t compared = 0;
    for (const auto& [name, gradient] : result.gradients) {
      if (block.find("grad." + name) == nullptr) continue;
      ++compared;
      EXPECT_LT(far("grad." + name, gradient, 1.0 / labels), 1e-6) << name;
    }
    EXPECT_EQ(compared, 6u);
  }
}

TEST(Fp8Core, DelayedScalingOfConstantDataBecomesCurrentScaling) {
  // Each pass over equal data makes the scale of one more tensor follow its own amax: eight inputs forward,
  // eight gradients backward, and one pass to use them.
  const Golden golden("llama3");
  const HostBatch batch = read_batch(golden.file, "");
  const precision::Recipe recent{
      .kind = precision::RecipeKind::delayed, .history_length = 4, .most_recent = true};
  for (const Recompute recompute : {Recompute::none, Recompute::norms, Recompute::qkv, Recompute::full}) {
    Machine machine(golden.architecture, batch, {.recipe = recent, .recompute = recompute});
    machine.source.load(golden.folder);
    const RunResult current = run(golden, batch, {.recipe = kCurrent});
    RunResult result;
    for (int pass = 0; pass < 17; ++pass) {
      result = machine.run(batch, true);
      if (pass == 0) {
        EXPECT_FALSE(result.logits == current.logits);
      }
      machine.core.activation_scales()->update(*machine.stream);
    }
    EXPECT_TRUE(result.logits == current.logits);
    for (const auto& [name, gradient] : result.gradients) {
      EXPECT_TRUE(gradient == current.gradients.at(name)) << name;
    }
  }
}

TEST(Fp8Core, EvaluationAndRecomputationDoNotRecord) {
  const Golden golden("llama3");
  const HostBatch batch = read_batch(golden.file, "");
  const auto amaxes = [&](Machine& machine) {
    precision::ScaleSet& scales = *machine.core.activation_scales();
    return machine.download({scales.amaxes(), DType::f32, 1, scales.count(), scales.count()});
  };
  Machine keeping(golden.architecture, batch, {.recipe = kDelayed});
  keeping.source.load(golden.folder);
  keeping.run(batch, true);
  for (const Recompute level : {Recompute::norms, Recompute::qkv, Recompute::full}) {
    Machine machine(golden.architecture, batch, {.recipe = kDelayed, .recompute = level});
    machine.source.load(golden.folder);
    machine.run(batch, false);
    for (const float amax : amaxes(machine)) EXPECT_EQ(amax, 0.0f);
    machine.run(batch, true);
    const std::vector<float> recomputed = amaxes(machine);
    for (const float amax : recomputed) EXPECT_GT(amax, 0.0f);
    EXPECT_TRUE(recomputed == amaxes(keeping));
  }
}

TEST(Fp8Core, TheAuditCountsEveryProductThatRan) {
  const Golden golden("llama3");
  const HostBatch batch = read_batch(golden.file, "");
  Machine machine(golden.architecture, batch, {.recipe = kCurrent});
  machine.source.load(golden.folder);
  machine.run(batch, true);
  const std::int64_t linears = 4 * golden.architecture.layers;
  EXPECT_EQ(machine.audit.fp8_gemms(), 3 * linears);
  EXPECT_EQ(machine.audit.counted(ops::GemmKind::wgrad, DType::e4m3), linears);
  EXPECT_EQ(machine.audit.counted(ops::GemmKind::forward, DType::f32), 1);
  EXPECT_EQ(machine.audit.rows().size(), 5u);
  machine.audit.require_fp8();
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> by_place;
  for (const precision::AuditCount& c : machine.audit.counts()) {
    EXPECT_EQ(c.outcome.way, c.row < 4 ? ops::GemmWay::emulated : ops::GemmWay::f32) << "row " << c.row;
    EXPECT_EQ(c.outcome.a == DType::e5m2, c.row < 4 && c.gemm_kind != ops::GemmKind::forward);
    by_place[{c.row, c.layer}] += c.gemms;
  }
  EXPECT_EQ(std::ssize(by_place), linears + 1);
  for (const auto& [place, count] : by_place) EXPECT_EQ(count, 3) << place.first << " " << place.second;
}

// Models with experts, with the load-balancing loss of all routers.
class BalancedExperts : public ::testing::TestWithParam<std::string> {};

TEST_P(BalancedExperts, LossAndGradientsAgree) {
  Golden golden(GetParam());
  EXPECT_EQ(golden.architecture.experts.balance, 0) << "off, as the configuration says";
  golden.architecture.experts.balance = golden.numbers["balance"].get<double>();
  for (const std::string prefix : {"", "packed."}) {
    const HostBatch batch = read_batch(golden.file, prefix);
    const std::string kind = prefix.empty() ? "balanced" : "packed_balanced";
    const auto labels = static_cast<double>(batch.label_tokens());
    for (const Recompute level : {Recompute::none, Recompute::norms, Recompute::qkv, Recompute::full}) {
      const RunResult result = run(golden, batch, {.recipe = kF32, .recompute = level});
      EXPECT_NEAR(result.loss_sum / labels, golden.numbers[kind + "_loss"].get<double>(), 2e-6);
      EXPECT_GT(std::abs(result.loss_sum / labels -
                         golden.numbers[prefix.empty() ? "loss" : "packed_loss"].get<double>()),
                1e-2);
      std::size_t compared = 0;
      for (const auto& [name, gradient] : result.gradients) {
        const std::string reference = kind + ".grad." + name;
        if (golden.file.find(reference) == nullptr) continue;
        ++compared;
        EXPECT_LT(distance(golden, reference, gradient, 1.0 / labels), 1e-5) << reference;
      }
      EXPECT_GE(compared, 5u);
    }
  }
}

// The load is per micro-batch, and the logged load covers all micro-batches.
TEST_P(BalancedExperts, EachMicroBatchHasALoadOfItsOwn) {
  Golden golden(GetParam());
  golden.architecture.experts.balance = 0.5;
  const HostBatch batch = read_batch(golden.file, "");
  Machine machine(golden.architecture, batch, {.recipe = kF32});
  machine.source.load(golden.folder);
  const double first = machine.run(batch, true).loss_sum;
  EXPECT_EQ(machine.run(batch, true).loss_sum, first);
  machine.run(batch, false);  // an evaluation is not counted
  const std::int64_t rows = 2 * batch.tokens() * golden.architecture.experts.taken;
  const ExpertLoads loads = machine.core.take_expert_loads();
  EXPECT_EQ(std::ssize(loads), std::ranges::count_if(golden.architecture.blocks, &BlockShape::mixes_experts));
  for (const auto& [block, load] : loads)
    EXPECT_EQ(std::accumulate(load.rows.begin(), load.rows.end(), std::int64_t{0}), rows)
        << "no token is dropped";
  for (const auto& [block, load] : machine.core.take_expert_loads())
    EXPECT_EQ(std::accumulate(load.rows.begin(), load.rows.end(), std::int64_t{0}), 0) << "they were taken";
}

// The load-balancing loss is part of training only.
TEST_P(BalancedExperts, EvaluationHasTheLossOfTheLabelsAlone) {
  Golden golden(GetParam());
  const HostBatch batch = read_batch(golden.file, "");
  const RunResult off = run(golden, batch, {.recipe = kF32, .gradients = false});
  golden.architecture.experts.balance = 0.5;
  EXPECT_EQ(run(golden, batch, {.recipe = kF32, .gradients = false}).loss_sum, off.loss_sum);
}

INSTANTIATE_TEST_SUITE_P(Cases, BalancedExperts,
                         ::testing::Values("qwen3-moe-trained", "mixtral", "qwen2-moe", "olmoe", "gpt-oss"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase(name, '-');
                           return name;
                         });

/// The z-loss of all routers.
class ZLoss : public ::testing::TestWithParam<std::string> {
 protected:
  std::string block(std::int64_t layer) const { return "model.layers." + std::to_string(layer) + "."; }
  /// Returns the name of the router of a block.
  std::string router(std::int64_t layer) const {
    const bool mixtral = golden_.architecture.experts.names == ExpertShape::Names::mixtral;
    return block(layer) + (mixtral ? "block_sparse_moe" : "mlp") + ".gate.weight";
  }

  Golden golden_{GetParam()};
  HostBatch batch_ = read_batch(golden_.file, "");
};

// Routers of zeros have equal logits of 0, so that each logarithm is that of the number of experts.
TEST_P(ZLoss, IsTheSumOverBlocksOfAMeanOverTokensTimesTheLabels) {
  const auto loss = [&](double coefficient) {
    Machine machine(golden_.architecture, batch_, {.recipe = kF32, .router_z_loss = coefficient});
    machine.source.load(golden_.folder);
    for (std::int64_t layer = 0; layer < golden_.architecture.layers; ++layer) {
      if (!golden_.architecture.block(layer).mixes_experts) continue;
      machine.source.change(golden_.folder, router(layer), [](float, std::size_t) { return 0.0f; });
    }
    const double first = machine.run(batch_, true).loss_sum;
    EXPECT_EQ(machine.run(batch_, true).loss_sum, first) << "each micro-batch has its own";
    return first;
  };
  const auto blocks = std::ranges::count_if(golden_.architecture.blocks, &BlockShape::mixes_experts);
  const double log = std::log(static_cast<double>(golden_.architecture.experts.count));
  const double expected =
      0.25 * log * log * static_cast<double>(blocks) * static_cast<double>(batch_.label_tokens());
  EXPECT_NEAR(loss(0.25) - loss(0), expected, 1e-5 * expected);
}

// Tensors of the last block change no choice of a later router, so that the loss is smooth.
TEST_P(ZLoss, ItsGradientIsTheDifferenceAtEveryLevel) {
  const std::int64_t last = golden_.architecture.layers - 1;
  for (const std::string& name : {router(last), block(last) + "post_attention_layernorm.weight",
                                  block(last) + "self_attn.o_proj.weight"}) {
    SCOPED_TRACE(name);
    // The gradient of a run with the tensor moved along `direction`.
    const auto moved = [&](double coefficient, Recompute level, const std::vector<float>& direction,
                           float distance) {
      Machine machine(golden_.architecture, batch_,
                      {.recipe = kF32, .recompute = level, .router_z_loss = coefficient});
      machine.source.load(golden_.folder);
      if (!direction.empty()) {
        machine.source.change(golden_.folder, name,
                              [&](float value, std::size_t i) { return value + distance * direction[i]; });
      }
      return machine.run(batch_, true);
    };
    const std::vector<float> without = moved(0, Recompute::none, {}, 0).gradients.at(name);
    std::vector<float> direction = moved(0.5, Recompute::none, {}, 0).gradients.at(name);
    double square = 0;
    for (std::size_t i = 0; i < direction.size(); ++i) {
      direction[i] -= without[i];
      square += static_cast<double>(direction[i]) * static_cast<double>(direction[i]);
    }
    const double length = std::sqrt(square);
    ASSERT_GT(length, 1e-3);
    for (float& d : direction) d = static_cast<float>(d / length);
    const auto z = [&](float distance) {
      return moved(0.5, Recompute::none, direction, distance).loss_sum -
             moved(0, Recompute::none, direction, distance).loss_sum;
    };
    constexpr float kDistance = 0.01f;
    EXPECT_NEAR((z(kDistance) - z(-kDistance)) / (2.0 * kDistance), length, 5e-3 * length);
    const RunResult kept = moved(0.5, Recompute::none, {}, 0);
    for (const Recompute level : {Recompute::norms, Recompute::qkv, Recompute::full})
      EXPECT_EQ(moved(0.5, level, {}, 0).gradients, kept.gradients);
  }
}

// As the load-balancing loss, it is part of training only.
TEST_P(ZLoss, EvaluationHasNone) {
  const RunResult off = run(golden_, batch_, {.recipe = kF32, .gradients = false});
  EXPECT_EQ(run(golden_, batch_, {.recipe = kF32, .gradients = false, .router_z_loss = 0.5}).loss_sum,
            off.loss_sum);
}

INSTANTIATE_TEST_SUITE_P(Cases, ZLoss, ::testing::Values("qwen3-moe-trained", "mixtral", "glm4-moe"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase(name, '-');
                           return name;
                         });

/// A capacity of experts.
class ExpertCapacity : public ZLoss {};

// With an even share of rows at least, nothing is dropped.
TEST_P(ExpertCapacity, ALargeFactorChangesNoBit) {
  const RunResult whole = run(golden_, batch_, {.recipe = kF32});
  const RunResult large = run(golden_, batch_, {.recipe = kF32, .expert_capacity = 1e3});
  EXPECT_EQ(whole.loss_sum, large.loss_sum);
  EXPECT_EQ(whole.gradients, large.gradients);
}

TEST_P(ExpertCapacity, LimitsEachExpertInTrainingAlone) {
  for (const double factor : {0.5, 1.0}) {
    Machine machine(golden_.architecture, batch_, {.recipe = kF32, .expert_capacity = factor});
    machine.source.load(golden_.folder);
    const RunResult first = machine.run(batch_, true);
    const ExpertShape& experts = golden_.architecture.experts;
    const std::int64_t rows = batch_.tokens() * experts.taken;
    const double even = static_cast<double>(rows) / static_cast<double>(experts.count);
    std::int64_t dropped = 0;
    for (const auto& [block, load] : machine.core.take_expert_loads()) {
      EXPECT_EQ(std::accumulate(load.rows.begin(), load.rows.end(), load.dropped), rows);
      for (const std::int64_t of_expert : load.rows) EXPECT_LE(of_expert, std::ceil(factor * even));
      dropped += load.dropped;
    }
    EXPECT_GT(dropped, factor < 1 ? rows / 3 : 0);
    EXPECT_EQ(machine.run(batch_, true).gradients, first.gradients);
    Machine whole(golden_.architecture, batch_, {.recipe = kF32});
    whole.source.load(golden_.folder);
    EXPECT_EQ(machine.run(batch_, false).loss_sum, whole.run(batch_, false).loss_sum);
    for (const auto& [block, load] : machine.core.take_expert_loads(LoadOf::evaluation)) {
      EXPECT_EQ(load.dropped, 0);
      EXPECT_EQ(std::accumulate(load.rows.begin(), load.rows.end(), std::int64_t{0}), rows);
    }
  }
}

TEST_P(ExpertCapacity, ItsGradientIsTheDifferenceAtEveryLevel) {
  const std::int64_t last = golden_.architecture.layers - 1;
  for (const std::string& name : {router(last), block(last) + "post_attention_layernorm.weight",
                                  block(last) + "self_attn.o_proj.weight"}) {
    SCOPED_TRACE(name);
    const auto moved = [&](Recompute level, const std::vector<float>& direction, float distance) {
      Machine machine(golden_.architecture, batch_,
                      {.recipe = kF32, .recompute = level, .expert_capacity = 0.75});
      machine.source.load(golden_.folder);
      if (!direction.empty()) {
        machine.source.change(golden_.folder, name,
                              [&](float value, std::size_t i) { return value + distance * direction[i]; });
      }
      return machine.run(batch_, true);
    };
    const RunResult kept = moved(Recompute::none, {}, 0);
    std::vector<float> direction = kept.gradients.at(name);
    double square = 0;
    for (const float d : direction) square += static_cast<double>(d) * static_cast<double>(d);
    const double length = std::sqrt(square);
    for (float& d : direction) d = static_cast<float>(d / length);
    constexpr float kDistance = 0.0002f;  // no other row is dropped
    const double difference = moved(Recompute::none, direction, kDistance).loss_sum -
                              moved(Recompute::none, direction, -kDistance).loss_sum;
    EXPECT_NEAR(difference / (2.0 * kDistance), length, 1e-2 * length);
    for (const Recompute level : {Recompute::norms, Recompute::qkv, Recompute::full})
      EXPECT_EQ(moved(level, {}, 0).gradients, kept.gradients);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, ExpertCapacity,
                         ::testing::Values("qwen3-moe-trained", "qwen2-moe", "glm4-moe"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase(name, '-');
                           return name;
                         });

/// Experts that a micro-batch gives.
class GivenExperts : public ZLoss {
 protected:
  /// Returns the experts t, t + 1, … of token t, modulo their number, beginning at another expert in each
  /// block.
  std::vector<std::int32_t> in_turn() const {
    const ExpertShape& shape = golden_.architecture.experts;
    std::vector<std::int32_t> experts;
    for (std::int64_t block = 0; block < blocks(); ++block) {
      for (std::int64_t i = 0; i < batch_.tokens() * shape.taken; ++i)
        experts.push_back(
            static_cast<std::int32_t>((i / shape.taken + i % shape.taken + block) % shape.count));
    }
    return experts;
  }
  std::int64_t blocks() const {
    return std::ranges::count_if(golden_.architecture.blocks, &BlockShape::mixes_experts);
  }
};

TEST_P(GivenExperts, AreTakenWhateverTheRouterChooses) {
  HostBatch given = batch_;
  given.experts = in_turn();
  const std::int64_t taken = golden_.architecture.experts.taken;
  double losses[2] = {};
  for (const bool changed : {false, true}) {
    Machine machine(golden_.architecture, batch_, {.recipe = kF32, .recompute = Recompute::full});
    machine.source.load(golden_.folder);
    for (std::int64_t layer = 0; changed && layer < golden_.architecture.layers; ++layer) {
      if (golden_.architecture.block(layer).mixes_experts)
        machine.source.change(golden_.folder, router(layer), [](float value, std::size_t) { return -value; });
    }
    losses[changed ? 1 : 0] = machine.run(given, true).loss_sum;
    std::int64_t ordinal = 0;
    for (const auto& [block, load] : machine.core.take_expert_loads()) {
      std::vector<std::int64_t> expected(load.rows.size());
      const std::int64_t first = ordinal++ * batch_.tokens() * taken;
      for (std::int64_t i = first; i < first + batch_.tokens() * taken; ++i)
        ++expected[static_cast<std::size_t>(given.experts[static_cast<std::size_t>(i)])];
      EXPECT_EQ(load.rows, expected) << "block " << block;
    }
  }
  EXPECT_NE(losses[0], losses[1]) << "weights are scores of the router";
}

TEST_P(GivenExperts, BelowZeroAreChosenByTheRouter) {
  HostBatch none = batch_;
  none.experts.assign(in_turn().size(), -1);
  const RunResult whole = run(golden_, batch_, {.recipe = kF32});
  const RunResult found = run(golden_, none, {.recipe = kF32});
  EXPECT_EQ(found.loss_sum, whole.loss_sum);
  EXPECT_EQ(found.gradients, whole.gradients);
}

INSTANTIATE_TEST_SUITE_P(Cases, GivenExperts,
                         ::testing::Values("qwen3-moe-trained", "mixtral", "glm4-moe-groups", "deepseek-v2"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::erase(name, '-');
                           return name;
                         });

// The bias of a router is stored with the trained vectors, and has no gradient.
TEST(SigmoidRouter, TheBiasOfItsChoiceIsReadAndNotTrained) {
  const Golden golden("glm4-moe-groups");
  const std::string name = "model.layers.1.mlp.gate.e_score_correction_bias";
  const HostBatch batch = read_batch(golden.file, "");
  Machine machine(golden.architecture, batch, {.recipe = kF32});
  machine.source.load(golden.folder);
  const RunResult result = machine.run(batch, true);
  for (const float d : result.gradients.at(name)) EXPECT_EQ(d, 0);
  const ParameterLayout layout = build_layout(golden.architecture);
  EXPECT_EQ(layout.parameter_count() - trained_parameters(layout), 8);
  std::int64_t found = 0;
  for (const SegmentSpec& segment : layout.groups[2].segments) {
    for (const TensorSpec& t : segment.tensors) {
      if (t.parts.front().name != name) continue;
      ++found;
      EXPECT_TRUE(segment.trainable) << "it is in checkpoints";
      EXPECT_EQ(t.rate, 0);
      EXPECT_FALSE(t.decay);
    }
  }
  EXPECT_EQ(found, 1);
  // Adapters freeze the model around it.
  Architecture adapted = golden.architecture;
  adapted.tuning.adapters = true;
  adapted.tuning.whole = {"model.layers.1.mlp.gate"};
  EXPECT_EQ(trained_parameters(build_layout(adapted)), 8 * golden.architecture.hidden);
}

TEST(Fp8Experts, EachExpertHasAScaleOfItsWeights) {
  const ParameterLayout layout = build_layout(read_architecture(golden_folder("qwen3-moe-trained")));
  std::size_t found = 0;
  for (const SegmentSpec& segment : layout.groups[1].segments) {
    for (const TensorSpec& t : segment.tensors) {
      if (!segment.expert || !t.fp8) continue;
      for (const bool each_part : {false, true}) {
        const std::vector<ScaledPart> parts = scaled_parts(t, each_part);
        ASSERT_EQ(parts.size(), 6u);
        EXPECT_EQ(parts[5].begin, 5 * t.count() / 6);
        EXPECT_EQ(parts[5].count, t.count() / 6);
      }
      ++found;
    }
  }
  EXPECT_EQ(found, 2u) << "gate and up, down";
}

// The grouped GEMM of all experts, which a Hopper GPU has, gives the gradients of single GEMMs in turn.
TEST(GroupedExperts, TrainLikeOneExpertAfterTheOther) {
  const Golden golden("qwen3-moe-trained");
  const HostBatch batch = read_batch(golden.file, "");
  const RunResult alone = run(golden, batch, {.recipe = kBf16});
  ::setenv("OCTETRUN_GROUPED_GEMM", "always", 1);
  Machine machine(golden.architecture, batch, {.recipe = kBf16});
  machine.source.load(golden.folder);
  const RunResult together = machine.run(batch, true);
  ::unsetenv("OCTETRUN_GROUPED_GEMM");
  EXPECT_EQ(together.loss_sum, alone.loss_sum);
  for (const auto& [name, gradient] : together.gradients)
    EXPECT_LT(relative_l2(gradient, alone.gradients.at(name)), 1e-6) << name;
  std::int64_t counted = 0;
  for (const precision::AuditCount& c : machine.audit.counts()) {
    if (machine.audit.rows()[static_cast<std::size_t>(c.row)].name.starts_with("experts'"))
      counted += c.gemms;
  }
  const auto blocks = std::ranges::count_if(golden.architecture.blocks, &BlockShape::mixes_experts);
  EXPECT_EQ(counted, 3 * 2 * blocks) << "three products of two weights";
}

// With delayed scaling the values do not depend on the rows that are cast together.
TEST(GroupedExperts, InFp8TrainLikeOneExpertAfterTheOther) {
  for (const char* name :
       {"qwen3-moe-trained", "mixtral", "qwen2-moe", "olmoe", "glm4-moe", "glm4-moe-groups"}) {
    const Golden golden(name);
    const HostBatch batch = read_batch(golden.file, "");
    const RunResult together = run(golden, batch, {.recipe = kDelayed});
    ::setenv("OCTETRUN_GROUPED_GEMM", "never", 1);
    const RunResult alone = run(golden, batch, {.recipe = kDelayed});
    ::unsetenv("OCTETRUN_GROUPED_GEMM");
    EXPECT_EQ(together.loss_sum, alone.loss_sum) << name;
    EXPECT_EQ(together.logits, alone.logits) << name;
    EXPECT_EQ(together.gradients, alone.gradients) << name;
  }
}

// Hopper multiplies all experts in one kernel only if there is a multiple of 16 rows for weight gradients.
// Rows of zeros are added, which change no bit.
TEST(Fp8Experts, RowsArePaddedForTheKernelOfAllExperts) {
  for (const char* name : {"qwen3-moe-trained", "mixtral", "glm4-moe"}) {
    const Golden golden(name);
    HostBatch batch;
    std::vector<std::int32_t> ids;
    for (std::int32_t i = 0; i < 13; ++i) ids.push_back(5 + i * i % 40);
    batch.add_document(ids, ids);
    ASSERT_NE(13 * golden.architecture.experts.taken % 16, 0);
    for (const precision::Recipe& recipe : {kDelayed, kCurrent}) {
      for (const Recompute level : {Recompute::none, Recompute::full}) {
        SCOPED_TRACE(name);
        const auto trained = [&](const char* wish, std::int64_t room) {
          if (wish != nullptr) ::setenv("OCTETRUN_GROUPED_GEMM", wish, 1);
          Machine machine(golden.architecture, batch,
                          {.recipe = recipe, .recompute = level, .spare_tokens = room});
          machine.source.load(golden.folder);
          const RunResult result = machine.run(batch, true);
          ::unsetenv("OCTETRUN_GROUPED_GEMM");
          std::int64_t gradients = 0;
          for (const precision::AuditCount& c : machine.audit.counts()) {
            const bool of_experts =
                machine.audit.rows()[static_cast<std::size_t>(c.row)].name.starts_with("experts'");
            if (of_experts && c.gemm_kind == ops::GemmKind::wgrad) gradients += c.gemms;
          }
          return std::pair(result, gradients);
        };
        const auto blocks = std::ranges::count_if(golden.architecture.blocks, &BlockShape::mixes_experts);
        const auto [whole, kernels] = trained(nullptr, 16);
        const auto [padded, of_padded] = trained("hopper", 16);
        EXPECT_EQ(padded.loss_sum, whole.loss_sum);
        EXPECT_EQ(padded.gradients, whole.gradients);
        EXPECT_EQ(kernels, 2 * blocks);
        EXPECT_EQ(of_padded, 2 * blocks);
        // Without room for these rows, each expert with rows has a separate GEMM.
        EXPECT_GT(trained("hopper", 0).second, 2 * blocks);
      }
    }
  }
}

TEST(Fp8Experts, EveryGroupedProductIsCountedInEachRecipe) {
  const Golden golden("qwen3-moe-trained");
  const HostBatch batch = read_batch(golden.file, "");
  const RunResult wide = run(golden, batch, {.recipe = kF32});
  for (const precision::Recipe& recipe : {kCurrent, kDelayed, kBlock, kCurrentInParts}) {
    Machine machine(golden.architecture, batch, {.recipe = recipe});
    machine.source.load(golden.folder);
    RunResult result = machine.run(batch, true);
    std::size_t rows = 0;
    for (const precision::AuditRow& row : machine.audit.rows()) rows += row.name.starts_with("experts'");
    EXPECT_EQ(rows, 2u) << "gate and up, down";
    std::map<std::pair<std::int64_t, ops::GemmKind>, std::int64_t> counted;
    for (const precision::AuditCount& c : machine.audit.counts()) {
      const precision::AuditRow& row = machine.audit.rows()[static_cast<std::size_t>(c.row)];
      if (!row.name.starts_with("experts'")) continue;
      EXPECT_EQ(c.outcome.way, ops::GemmWay::emulated) << row.name;
      counted[{c.layer, c.gemm_kind}] += c.gemms;
    }
    EXPECT_EQ(counted.size(), 6u) << "three passes of two blocks";
    // One kernel multiplies all experts, except with block scales.
    const std::int64_t kernels = recipe.blocks() ? golden.architecture.experts.count : 1;
    for (const auto& [place, count] : counted) EXPECT_EQ(count, 2 * kernels);
    if (recipe.kind == precision::RecipeKind::delayed) {
      for (int pass = 0; pass < 20; ++pass) {
        machine.core.activation_scales()->update(*machine.stream);
        result = machine.run(batch, true);
      }
    }
    const double error = relative_l2(result.logits, wide.logits);
    EXPECT_GT(error, 1e-3) << "this did not run in FP8";
    EXPECT_LT(error, 0.5);
    for (const auto& [name, gradient] : result.gradients) {
      const double far = relative_l2(gradient, wide.gradients.at(name));
      EXPECT_LT(far, 1.5) << name;
    }
  }
}

TEST(Core, GradientsOfTwoMicroBatchesAddUp) {
  const Golden golden("llama3-tied");
  const HostBatch batch = read_batch(golden.file, "");
  Machine machine(golden.architecture, batch, {.recipe = kF32});
  machine.source.load(golden.folder);
  const RunResult once = machine.run(batch, true);
  const MicroBatch device_batch = machine.upload_batch(batch);
  machine.core.train(machine.source, *machine.stream, device_batch, machine.loss);
  machine.stream->synchronize();
  // If a GEMM starts with the existing values, as on ARM, the second pass rounds sums that include the first.
  // If it adds them at the end, it rounds its own sum alone.
  for (const auto& [name, gradient] : machine.source.named_gradients()) {
    EXPECT_LT(relative_l2(gradient, once.gradients.at(name), 0.5), 0x1p-22) << name;
  }
}

TEST(Core, AMicroBatchWithoutTokensTakesPartAndLeavesZeros) {
  for (const char* name : {"llama", "llama3-tied", "llama-mha-bias"}) {
    const Golden golden(name);
    const HostBatch shape = read_batch(golden.file, "");
    for (const precision::Recipe& recipe : {kF32, kCurrent, kDelayed}) {
      Machine machine(golden.architecture, shape, {.recipe = recipe});
      machine.source.load(golden.folder);
      HostBatch empty;
      empty.cu_seqlens = {0};
      const RunResult result = machine.run(empty, true);
      EXPECT_EQ(result.loss_sum, 0.0);
      EXPECT_EQ(machine.source.given_back, golden.architecture.layers + 2);
      for (const auto& [tensor, gradient] : result.gradients) {
        for (const float g : gradient) ASSERT_EQ(g, 0.0f) << tensor;
      }
    }
  }
}

TEST(Core, AMicroBatchThatIsTooLargeIsRefused) {
  const Golden golden("llama");
  const HostBatch batch = read_batch(golden.file, "");
  HostBatch larger = batch;
  larger.add_document({1, 2, 3}, {1, 2, 3});
  Machine machine(golden.architecture, batch, {.recipe = kF32});
  machine.source.load(golden.folder);
  EXPECT_THROW(machine.run(larger, true), Error);
}

}  // namespace
}  // namespace octet::model::testing::golden_test
