// Adapters compute what PEFT computes (tests/golden/adapters), and what cannot be is refused.
#include "octet/setup/adapters.h"
#include "octet/config/config.h"

#include <gtest/gtest.h>

#include "model/support.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/model/layout.h"
#include "octet/runtime/adapter_file.h"
#include "octet/weights/safetensors_writer.h"
#include "support/program.h"
#include "support/scratch.h"

namespace octet::setup::adapters_test {
namespace {

using namespace model::testing;
using model::Architecture;
using model::Recompute;

/// The base of a golden adapter: one of the models of the model's tests, or another folder.
std::string base_of(const std::string& name) {
  const std::string own = std::string(OCTET_SOURCE_DIR) + "/tests/golden/adapters/base/" + name;
  return path_exists(own + "/config.json") ? own : golden_folder(name);
}

struct Case {
  explicit Case(const std::string& name)
      : folder(std::string(OCTET_SOURCE_DIR) + "/tests/golden/adapters/" + name),
        numbers(read_json(folder + "/golden.json")),
        golden(folder + "/golden.safetensors"),
        base(base_of(numbers["base"].get<std::string>())),
        architecture(model::read_architecture(base)) {
    const std::string config = folder + "/adapter/adapter_config.json";
    architecture.tuning = tuning_of(read_adapter_config(read_json(config), config), architecture);
  }
  RunResult run(const RunOptions& options) const {
    const HostBatch batch = read_batch(golden, "");
    Machine machine(architecture, batch, options);
    machine.source.load(base, folder + "/adapter/adapter_model.safetensors");
    machine.arena.reserve("spare", 256);
    return machine.run(batch, options.gradients);
  }
  std::string folder;
  Json numbers;
  weights::SafetensorsFile golden;
  std::string base;
  Architecture architecture;
};

/// Bounds of one precision; the reference is fp32.
struct Bounds {
  precision::Recipe recipe;
  double logits, loss, gradients;
};

class Peft : public testing::TestWithParam<const char*> {
 protected:
  void expect_like(const Bounds& bounds, Recompute recompute) {
    const Case c(GetParam());
    const RunResult result = c.run({.recipe = bounds.recipe, .recompute = recompute});
    EXPECT_LT(relative_l2(result.logits, read_floats(c.golden, "logits")), bounds.logits);
    const auto labels = c.numbers["label_tokens"].get<double>();
    EXPECT_NEAR(result.loss_sum / labels, c.numbers["loss"].get<double>(), bounds.loss);
    std::size_t trained = 0, elements = 0;
    for (const weights::StoredTensor& tensor : c.golden.tensors()) {
      if (!tensor.name.starts_with("grad.")) continue;
      const std::string name = tensor.name.substr(5);
      // The golden file has a tied table under both names, and Octet has it under one.
      const bool twice = c.architecture.tied && name == "base_model.model.lm_head.weight";
      if (twice) continue;
      ++trained, elements += static_cast<std::size_t>(tensor.count);
      const auto found = result.gradients.find(name);
      ASSERT_NE(found, result.gradients.end()) << name << " is trained";
      EXPECT_LT(relative_l2(found->second, read_floats(c.golden, tensor.name), 1 / labels), bounds.gradients)
          << name;
    }
    EXPECT_EQ(trained, result.gradients.size()) << "and nothing else";
    EXPECT_EQ(elements, c.numbers["trainable_parameters"].get<std::size_t>());
  }
};

constexpr precision::Recipe kFp32{};
constexpr precision::Recipe kBf16{.compute = DType::bf16};

TEST_P(Peft, GivesTheLogitsTheLossAndTheGradientsOfPeft) {
  expect_like({.recipe = kFp32, .logits = 1e-4, .loss = 1e-5, .gradients = 1e-3}, Recompute::none);
}

TEST_P(Peft, WhatIsMadeAgainInBackwardIsTheSame) {
  for (const Recompute recompute : {Recompute::norms, Recompute::qkv, Recompute::full}) {
    expect_like({.recipe = kFp32, .logits = 1e-4, .loss = 1e-5, .gradients = 1e-3}, recompute);
  }
}

TEST_P(Peft, InBf16ItIsNear) {
  // Experts and latents add roundings, and a token with nearly equal scores of experts may select others.
  const double factor = Case(GetParam()).architecture.has_latents() ? 3 : 1;
  expect_like({.recipe = kBf16, .logits = factor * 0.04, .loss = factor * 0.03, .gradients = factor * 0.12},
              Recompute::none);
}

INSTANTIATE_TEST_SUITE_P(Cases, Peft,
                         testing::Values("llama3-lora", "qwen2-lora", "llama3-rslora", "llama3-qv",
                                         "llama3-save", "llama3-tied-save", "llama3-patterns", "qwen3-lora",
                                         "gemma2-lora", "llama3-dora", "qwen2-dora", "phi3-lora",
                                         "smollm3-lora", "olmo2-lora", "olmo3-lora", "granite-lora",
                                         "seed-oss-lora", "exaone4-lora", "hunyuan-lora", "ministral3-lora",
                                         "gemma1-lora", "glm4-lora", "ernie4-5-lora", "starcoder2-lora",
                                         "cohere2-lora", "apertus-lora", "qwen3-next-lora", "qwen3-5-lora",
                                         "deepseek-v3-lora", "glm4-moe-lite-lora", "gemma4-lora"),
                         [](const auto& c) {
                           std::string name = c.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

/// Adapters of parameters of all experts (target_parameters). PEFT has one tensor for all experts of a block.
class PeftOfExperts : public testing::TestWithParam<const char*> {};

TEST_P(PeftOfExperts, GivesTheLogitsTheLossAndTheGradientsOfPeft) {
  const Case c(GetParam());
  const Architecture& a = c.architecture;
  ASSERT_FALSE(a.tuning.stacked.empty());
  // The adapter under the names of the trained parameters.
  runtime::AdapterFile file(c.folder + "/adapter", a.tuning);
  file.require_fit(model::build_layout(a));
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const model::GroupSpec& group : model::build_layout(a).groups) {
    for (const model::SegmentSpec& segment : group.segments) {
      for (const model::TensorSpec& tensor : segment.tensors) {
        for (const model::NamedPart& part : tensor.parts)
          if (part.name.find(".lora_") != std::string::npos) shapes[part.name] = part.shape;
      }
    }
  }
  std::vector<std::vector<float>> values;
  values.reserve(shapes.size());
  std::vector<TensorSlice> slices;
  for (const auto& [name, shape] : shapes) {
    std::vector<float>& own = values.emplace_back(static_cast<std::size_t>(shape[0] * shape[1]));
    file.read(name, 0, std::ssize(own), own.data());
    slices.push_back({name, DType::f32, shape, 0, std::ssize(own), own.data()});
  }
  const test::TemporaryFolder folder("peft_of_experts");
  weights::write_safetensors(folder / "single.safetensors", slices);

  const HostBatch batch = read_batch(c.golden, "");
  const auto labels = c.numbers["label_tokens"].get<double>();
  for (const Recompute recompute : {Recompute::none, Recompute::full}) {
    Machine machine(a, batch, {.recompute = recompute});
    machine.source.load(c.base, folder / "single.safetensors");
    machine.arena.reserve("spare", 256);
    const RunResult result = machine.run(batch, true);
    EXPECT_LT(relative_l2(result.logits, read_floats(c.golden, "logits")), 1e-4);
    EXPECT_NEAR(result.loss_sum / labels, c.numbers["loss"].get<double>(), 1e-5);
    EXPECT_EQ(result.gradients.size(), shapes.size());
    std::size_t elements = 0;
    for (const auto& [name, gradient] : result.gradients) {
      const auto place = runtime::stacked_matrix(a.tuning, name);
      const std::vector<float> all = read_floats(c.golden, "grad." + (place ? place->tensor : name));
      std::vector<float> expected;
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        const auto at = static_cast<std::int64_t>(i);
        expected.push_back(all.at(place ? static_cast<std::size_t>(place->element(shapes.at(name), at)) : i));
      }
      EXPECT_LT(relative_l2(gradient, expected, 1 / labels), 1e-3) << name;
      elements += gradient.size();
    }
    EXPECT_EQ(elements, c.numbers["trainable_parameters"].get<std::size_t>());
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, PeftOfExperts,
                         testing::Values("qwen3-moe-stacked", "mixtral-stacked", "qwen2-moe-stacked",
                                         "gpt-oss-stacked"),
                         [](const auto& c) {
                           std::string name = c.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

// FP8 rounds the operands of the weight's GEMMs, but not the operands of adapters. So gradients are as close
// as without adapters.
void expect_beside_fp8(const char* adapters) {
  const Case c(adapters);
  for (const precision::RecipeKind kind :
       {precision::RecipeKind::current, precision::RecipeKind::delayed, precision::RecipeKind::block}) {
    precision::Recipe recipe{.kind = kind, .compute = DType::bf16, .history_length = 4};
    if (kind == precision::RecipeKind::block) recipe.gradient_format = DType::e4m3;
    for (const Recompute recompute : {Recompute::none, Recompute::norms, Recompute::qkv, Recompute::full}) {
      const RunResult result = c.run({.recipe = recipe, .recompute = recompute});
      EXPECT_LT(relative_l2(result.logits, read_floats(c.golden, "logits")), 0.15);
      for (const auto& [name, gradient] : result.gradients) {
        const double labels = c.numbers["label_tokens"].get<double>();
        EXPECT_LT(relative_l2(gradient, read_floats(c.golden, "grad." + name), 1 / labels), 0.4) << name;
      }
    }
  }
}

TEST(Adapters, StandBesideAnFp8Weight) {
  expect_beside_fp8("llama3-lora");
}

TEST(Adapters, WithMagnitudesStandBesideAnFp8Weight) {
  expect_beside_fp8("llama3-dora");
}

// B at zero: the base, to the bit, and a gradient in B alone.
TEST(Adapters, ThatAreNewChangeNothing) {
  const Case c("llama3-lora");
  const HostBatch batch = read_batch(c.golden, "");
  Architecture plain = c.architecture;
  plain.tuning = {};
  Machine with(c.architecture, batch, {.recipe = kBf16}), without(plain, batch, {.recipe = kBf16});
  with.source.initialise(5);
  without.source.initialise(5);
  with.arena.reserve("spare", 256), without.arena.reserve("spare", 256);
  const RunResult a = with.run(batch, true), b = without.run(batch, true);
  EXPECT_EQ(a.logits, b.logits);
  EXPECT_EQ(a.loss_sum, b.loss_sum);
  double in_a = 0, in_b = 0;
  for (const auto& [name, gradient] : a.gradients) {
    for (const float g : gradient) (name.find("lora_A") != std::string::npos ? in_a : in_b) += std::abs(g);
  }
  EXPECT_EQ(in_a, 0);
  EXPECT_GT(in_b, 0);
}

TEST(Adapters, BeginUniformAndByName) {
  const model::NamedPart part{.name = "x.lora_A.weight", .shape = {4, 100}, .count = 400};
  const auto values = model::uniform_values(part, 3, 0, 400);
  EXPECT_LE(std::ranges::max(values), 0.1f);
  EXPECT_GE(std::ranges::min(values), -0.1f);
  double sum = 0, squares = 0;
  for (const float v : values) sum += v, squares += static_cast<double>(v) * v;
  EXPECT_NEAR(sum / 400, 0, 0.01);
  EXPECT_NEAR(squares / 400, 0.01 / 3, 0.0006);
  const auto part_of = model::uniform_values(part, 3, 130, 7);
  EXPECT_TRUE(std::equal(part_of.begin(), part_of.end(), values.begin() + 130));
  model::NamedPart other = part;
  other.name = "y.lora_A.weight";
  EXPECT_NE(model::uniform_values(other, 3, 0, 400), values);
  EXPECT_NE(model::uniform_values(part, 4, 0, 400), values);
}

class WrongAdapters : public testing::Test {
 protected:
  std::string refusal(const std::string& config, const std::string& model = "llama3") {
    try {
      const Architecture a = model::read_architecture(golden_folder(model));
      tuning_of(read_adapter_config(parse_json(config, "adapter_config.json"), "adapter_config.json"), a);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }
};

TEST_F(WrongAdapters, AreRefusedByName) {
  const auto lora = [](const std::string& more) {
    return R"({"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"])" + more + "}";
  };
  EXPECT_EQ(refusal(lora("")), "accepted");
  // Without training nothing is dropped.
  EXPECT_EQ(refusal(lora(R"(, "use_dora": true, "lora_dropout": 0.1)")), "accepted");
  EXPECT_EQ(refusal(lora(R"(, "qalora_group_size": 16, "use_dora": true, "eva_config": null)")), "accepted");
  for (const char* harmless :
       {R"("init_lora_weights": true)", R"("init_lora_weights": false)", R"("init_lora_weights": "gaussian")",
        R"("init_lora_weights": "eva", "eva_config": {"rho": 2.0})", R"("init_lora_weights": "orthogonal")",
        R"("loftq_config": {"loftq_bits": 4})", R"("megatron_core": "megatron.core")",
        R"("task_type": "CAUSAL_LM")", R"("peft_version": "0.21.2")",
        R"("auto_mapping": {"base_model_class": "LlamaForCausalLM"})", R"("revision": "main")",
        R"("layers_pattern": "layers")", R"("wholly_new": null, "newer": false)"}) {
    EXPECT_EQ(refusal(lora(std::string(", ") + harmless)), "accepted") << harmless;
  }
  const std::pair<std::string, std::string> cases[] = {
      {R"({"peft_type": "IA3"})", "peft_type"},
      {lora(R"(, "bias": "all")"), "bias: none"},
      {lora(R"(, "lora_bias": true)"), "lora_bias"},
      {lora(R"(, "lora_dropout": 1)"), "below 1"},
      {lora(R"(, "use_qalora": true)"), "QA-LoRA"},
      {lora(R"(, "layer_replication": [[0, 1]])"), "layer_replication"},
      {lora(R"(, "lora_alpha": "x")"), "lora_alpha"},
      {lora(R"(, "modules_to_save": ["norm"])"), "together with adapters"},
      {lora(R"(, "rank_pattern": {"q_proj": 0})"), "q_proj"},
      {lora(R"(, "rank_pattern": {"(": 4})"), "("},
      {R"({"peft_type": "LORA", "r": 0, "target_modules": ["q_proj"]})", "0"},
      {R"({"peft_type": "LORA", "r": 100000, "target_modules": ["q_proj"]})", "smaller side"},
      {R"({"peft_type": "LORA", "target_modules": ["q_prj"]})", "did you mean 'q_proj'"},
      {R"({"peft_type": "LORA", "target_modules": ["qkv_proj"]})",
       "use q_proj, k_proj, v_proj in place of it"},
      {R"({"peft_type": "LORA", "target_modules": ["gate_up_proj"]})",
       "use gate_proj, up_proj in place of it"},
      {R"({"peft_type": "LORA", "target_modules": ["c_fc"]})", "use up_proj in place of it"},
      {R"({"peft_type": "LORA", "target_modules": ["c_proj"]})", "use down_proj in place of it"},
      {R"({"peft_type": "LORA", "target_modules": ["lm_head"]})", "not a linear module"},
      {R"({"peft_type": "LORA", "target_modules": ["input_layernorm"]})", "not a linear module"},
      {R"({"peft_type": "LORA", "target_modules": "model.layers.9.*"})", "matches no module"},
      {R"({"peft_type": "LORA", "target_modules": [3]})", "list of names"},
      {R"({"peft_type": "LORA", "target_modules": []})", "nothing would be trained"},
      {R"([1])", "object"},
      // These take a part out of the base when they begin.
      {lora(R"(, "init_lora_weights": "pissa")"), "'init_lora_weights'"},
      {lora(R"(, "init_lora_weights": "pissa_niter_16")"), "pissa_niter_16"},
      {lora(R"(, "init_lora_weights": "olora")"), "olora"},
      {lora(R"(, "init_lora_weights": "corda")"), "corda"},
      {lora(R"(, "init_lora_weights": "loftq", "loftq_config": {"loftq_bits": 4})"), "loftq"},
      {lora(R"(, "init_lora_weights": "lora_ga")"), "lora_ga"},
      {lora(R"(, "init_lora_weights": "mica")"), "mica"},
      {lora(R"(, "init_lora_weights": 3)"), "'init_lora_weights'"},
      {lora(R"(, "layers_to_transform": [0])"), "layers_to_transform"},
      {lora(R"(, "layers_to_transform": 0)"), "layers_to_transform"},
      {lora(R"(, "exclude_modules": ["q_proj"])"), "exclude_modules"},
      {lora(R"(, "trainable_token_indices": [1])"), "trainable_token_indices"},
      {lora(R"(, "target_parameters": ["mlp.experts.down_proj"])"), "the model has no experts"},
      {lora(R"(, "target_parameters": "mlp.experts.down_proj")"), "'target_parameters'"},
      {lora(R"(, "alora_invocation_tokens": [1])"), "alora_invocation_tokens"},
      {lora(R"(, "arrow_config": {"top_k": 3})"), "arrow_config"},
      {lora(R"(, "kasa_config": {"beta": 1})"), "kasa_config"},
      {lora(R"(, "velora_config": {"num_groups": 8})"), "velora_config"},
      {lora(R"(, "monteclora_config": {"num_samples": 8})"), "monteclora_config"},
      {lora(R"(, "use_bdlora": {"nblocks": 2})"), "use_bdlora"},
      {lora(R"(, "megatron_config": {"tensor_model_parallel_size": 2})"), "megatron_config"},
      {lora(R"(, "fan_in_fan_out": true)"), "fan_in_fan_out"},
      {lora(R"(, "wholly_new": 1)"), "'wholly_new'"},
      {lora(R"(, "lora_alfa": 16)"), "'lora_alpha'"},
  };
  for (const auto& [config, says] : cases) {
    EXPECT_NE(refusal(config).find(says), std::string::npos) << config << " says: " << refusal(config);
  }
}

TEST_F(WrongAdapters, OfParametersOfExpertsAreRefusedByName) {
  const auto lora = [](const std::string& parameters, const std::string& more = "") {
    return R"({"peft_type": "LORA", "r": 4, "target_modules": ["q_proj"], "target_parameters": [)" +
           parameters + "]" + more + "}";
  };
  const std::string down = R"("mlp.experts.down_proj")";
  struct Row {
    std::string config, says;
  };
  for (const char* model : {"qwen3-moe", "mixtral", "qwen2-moe"}) {
    EXPECT_EQ(refusal(lora(down), model), "accepted");
    EXPECT_EQ(refusal(lora(R"("gate_up_proj", "down_proj")"), model), "accepted");
    EXPECT_EQ(refusal(lora(R"("model.layers.0.mlp.experts.gate_up_proj")"), model), "accepted");
    const Row rows[] = {
        {lora(R"("mlp.experts")"), "no parameter that can have an adapter is called 'mlp.experts'"},
        {lora(R"("gate.weight")"), "mlp.experts.gate_up_proj, mlp.experts.down_proj"},
        {lora(down + R"(, "model.layers.99.mlp.experts.down_proj")"), "model.layers.99"},
        {lora("3"), "list of names"},
        {lora(down, R"(, "use_dora": true)"), "PEFT has no DoRA for adapters of parameters"},
        {lora(down, R"(, "lora_dropout": 0.1)"), "PEFT has no dropout for adapters of parameters"},
        {lora(down, R"(, "rank_pattern": {"experts.down_proj": 1000})"), "smaller side"},
        {lora(down, R"(, "exclude_modules": ["q_proj"])"), "exclude_modules"},
    };
    for (const auto& [config, says] : rows) {
      EXPECT_NE(refusal(config, model).find(says), std::string::npos)
          << model << ": " << config << " says: " << refusal(config, model);
    }
  }
}

// PEFT trains a copy of one table and leaves the other, unless ensure_weight_tying ties the copies.
TEST(AdapterTargets, OneOfTwoTiedTablesIsTrainedOnlyIfTheyStayTied) {
  Architecture a = model::read_architecture(golden_folder("llama3"));
  const auto accepted = [&](const Json& whole, bool ties) {
    const Json config{{"peft_type", "LORA"},
                      {"target_modules", {"q_proj"}},
                      {"modules_to_save", whole},
                      {"ensure_weight_tying", ties}};
    try {
      tuning_of(read_adapter_config(config, "adapter_config.json"), a);
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("ensure_weight_tying"), std::string::npos) << error.what();
      return false;
    }
    return true;
  };
  for (const bool tied : {false, true}) {
    a.tied = tied;
    for (const char* one : {"lm_head", "embed_tokens", "model.embed_tokens"}) {
      EXPECT_EQ(accepted({one}, false), !tied) << one;
      EXPECT_TRUE(accepted({one}, true)) << one;
    }
    EXPECT_TRUE(accepted({"lm_head", "embed_tokens"}, false));
  }
}

// A written adapter_config.json describes the trained adapters, in names that every version of PEFT knows.
TEST(AdapterTargets, AreWrittenAsPeftDoes) {
  const Architecture a = model::read_architecture(golden_folder("llama3"));
  EXPECT_EQ(adapter_config({.all = true}, a, "base")["target_modules"],
            Json::array({"down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"}));
  EXPECT_EQ(adapter_config({.targets = {"v_proj", "q_proj", "v_proj"}}, a, "base")["target_modules"],
            Json::array({"q_proj", "v_proj"}));
  EXPECT_EQ(adapter_config({.expression = ".*up_proj"}, a, "base")["target_modules"], ".*up_proj");
  Architecture images = a;
  images.multimodal = true;
  const Json expression = adapter_config({.all = true}, images, "base")["target_modules"];
  EXPECT_EQ(expression, ".*language_model.*\\.(down_proj|gate_proj|k_proj|o_proj|q_proj|up_proj|v_proj)")
      << "and not the modules that see images";
  for (const AdapterWish& wish :
       {AdapterWish{.all = true}, AdapterWish{.targets = {"q_proj"}},
        AdapterWish{.rank = 4, .alpha = 2, .rslora = true, .targets = {"o_proj"}}}) {
    const Json written = adapter_config(wish, a, "base");
    EXPECT_EQ(tuning_of(read_adapter_config(written, "written"), a), tuning_of(wish, a)) << written;
  }
}

// PEFT names modules as transformers 5 does. Weight files may name the same tensors otherwise.
TEST(AdapterTargets, OfAVisionLanguageModelAreNamedAsModules) {
  for (const auto& [model, prefix, head] :
       {std::tuple{"qwen2-5-vl", std::string("model."), std::string("lm_head")},
        {"qwen3-vl", std::string("model.language_model."), std::string("lm_head")},
        {"mistral3", std::string("language_model.model."), std::string("language_model.lm_head")}}) {
    Architecture a = model::read_architecture(golden_folder(model));
    model::name_tensors(a, [&](const std::string& name) { return name == prefix + "embed_tokens.weight"; });
    a.tied = false;
    const std::string module = prefix + "layers.1.self_attn.q_proj";
    const AdapterWish named{.rank = 4,
                            .targets = {"model.language_model.layers.1.self_attn.q_proj"},
                            .whole = {"lm_head", "model.language_model.embed_tokens"}};
    const model::Tuning tuning = tuning_of(named, a);
    ASSERT_EQ(tuning.modules.size(), 1u) << model;
    EXPECT_EQ(tuning.modules.begin()->first, module);
    EXPECT_EQ(tuning.whole, (std::set<std::string>{head, prefix + "embed_tokens"}));
    EXPECT_EQ(adapter_config(named, a, "")["target_modules"],
              Json::array({"model.language_model.layers.1.self_attn.q_proj"}));
    const Json written = adapter_config({.rank = 4, .targets = {"self_attn.q_proj", "up_proj"}}, a, "");
    EXPECT_EQ(written["target_modules"], ".*language_model.*\\.(self_attn\\.q_proj|up_proj)");
    EXPECT_EQ(tuning_of(read_adapter_config(written, "written"), a).modules.size(), 4u) << model;
    const std::string peft = "base_model.model.";
    EXPECT_EQ(runtime::name_in_peft(a, peft + module + ".lora_A.weight"),
              peft + "model.language_model.layers.1.self_attn.q_proj.lora_A.weight");
    EXPECT_EQ(runtime::name_in_peft(a, peft + head + ".weight"), peft + "lm_head.weight");
    EXPECT_ERROR("no module of the model is called 'visual.merger'",
                 tuning_of({.rank = 4, .targets = {"visual.merger"}}, a));
  }
}

// Experts of gpt-oss are parameters in every version of transformers, and no modules.
TEST(AdapterTargets, OfGptOssAreAttentionOrParametersOfExperts) {
  const Architecture a = model::read_architecture(golden_folder("gpt-oss"));
  const AdapterWish all{.rank = 4, .all = true};
  for (const auto& [name, shape] : tuning_of(all, a).modules)
    EXPECT_EQ(name.find(".experts."), std::string::npos) << name;
  EXPECT_EQ(adapter_config(all, a, "base")["target_modules"],
            Json::array({"k_proj", "o_proj", "q_proj", "v_proj"}));
  const model::Tuning tuning =
      tuning_of({.rank = 4, .parameters = {"mlp.experts.gate_up_proj"}, .whole = {"router"}}, a);
  const model::StackedAdapter& stacked = tuning.stacked.at("model.layers.1.mlp.experts.2.gate_up_proj");
  EXPECT_TRUE(stacked.transposed && stacked.alternates);
  EXPECT_TRUE(tuning.whole.contains("model.layers.0.mlp.router"));
  Architecture tuned = a;
  tuned.tuning = tuning;
  const std::set<std::string> names = model::tensor_names(model::build_layout(tuned));
  EXPECT_TRUE(names.contains("base_model.model.model.layers.0.mlp.router.weight"));
  EXPECT_TRUE(names.contains("base_model.model.model.layers.0.mlp.router.bias"));
  EXPECT_ERROR("no module of the model is called 'gate_proj'",
               tuning_of({.rank = 4, .targets = {"gate_proj"}}, a));
  EXPECT_ERROR("embed_tokens, lm_head, router", tuning_of({.rank = 4, .whole = {"gate"}}, a));
}

// Files of phi3 have one module for gate and up. Its name is also the name of a parameter of experts.
TEST(AdapterTargets, OfPhi3AreItsFusedModules) {
  const Architecture a = model::read_architecture(golden_folder("phi3"));
  EXPECT_EQ(adapter_config({.rank = 4, .all = true}, a, "base")["target_modules"],
            Json::array({"down_proj", "gate_up_proj", "o_proj", "qkv_proj"}));
  config::TuningKeys keys;
  keys.lora_target = {"qkv_proj", "gate_up_proj"};
  const AdapterWish wish = adapter_wish(keys);
  const model::Tuning tuning = tuning_of(wish, a);
  EXPECT_EQ(tuning.modules.size(), 4u);
  EXPECT_TRUE(tuning.modules.contains("model.layers.1.mlp.gate_up_proj"));
  EXPECT_TRUE(tuning.stacked.empty());
  const Json written = adapter_config(wish, a, "base");
  EXPECT_EQ(written["target_modules"], Json::array({"gate_up_proj", "qkv_proj"}));
  EXPECT_FALSE(written.contains("target_parameters"));
  EXPECT_EQ(tuning_of(read_adapter_config(written, "written"), a), tuning);
  EXPECT_ERROR("no module of the model is called 'q_proj'", tuning_of({.rank = 4, .targets = {"q_proj"}}, a));
}

// A parameter of all experts has one adapter per expert. PEFT's names of the tensors depend on the other
// parameters of the block.
TEST(AdapterTargets, AreParametersOfExperts) {
  for (const std::string name : {"qwen3-moe", "mixtral"}) {
    const Architecture a = model::read_architecture(golden_folder(name));
    const std::string expert =
        name == "mixtral" ? "model.layers.0.block_sparse_moe.experts.3." : "model.layers.0.mlp.experts.3.";
    const std::string down = expert + (name == "mixtral" ? "w2" : "down_proj");
    const AdapterWish wish{.rank = 4,
                           .alpha = 8,
                           .targets = {"q_proj"},
                           .parameters = {"mlp.experts.down_proj", "mlp.experts.gate_up_proj"},
                           .ranks = {{"experts.gate_up_proj", 2}}};
    const model::Tuning both = tuning_of(wish, a);
    EXPECT_EQ(both.modules.at(down).rank, 4);
    EXPECT_EQ(both.modules.at(down).factor, 2.0);
    EXPECT_EQ(both.modules.at(expert + "gate_up_proj").rank, 2);
    EXPECT_EQ(both.modules.at(expert + "gate_up_proj").factor, 4.0);
    EXPECT_TRUE(both.modules.contains("model.layers.0.self_attn.q_proj"));
    EXPECT_EQ(both.stacked.at(down),
              (model::StackedAdapter{"model.layers.0.mlp.experts", 3, a.experts.count}));
    EXPECT_EQ(both.stacked.at(expert + "gate_up_proj"),
              (model::StackedAdapter{"model.layers.0.mlp.experts.base_layer", 3, a.experts.count}));
    const model::Tuning one = tuning_of({.rank = 4, .parameters = {"experts.gate_up_proj"}}, a);
    EXPECT_EQ(one.stacked.at(expert + "gate_up_proj").tensors, "model.layers.0.mlp.experts");
    EXPECT_FALSE(one.modules.contains(down));
    const Json written = adapter_config(wish, a, "base");
    EXPECT_EQ(written["target_parameters"],
              Json::array({"mlp.experts.down_proj", "mlp.experts.gate_up_proj"}));
    EXPECT_EQ(written["target_modules"], Json::array({"q_proj"}));
    EXPECT_EQ(tuning_of(read_adapter_config(written, "written"), a), both);
  }
}

// PEFT with transformers 5 takes gate_proj, up_proj and down_proj for names of parameters of experts. Other
// modules with these names are written as parameters, too.
TEST(AdapterTargets, NextToParametersOfExpertsAreWrittenAsPeftReadsThem) {
  for (const char* name : {"qwen2-moe", "qwen3-moe"}) {
    const Architecture a = model::read_architecture(golden_folder(name));
    const AdapterWish wish{.rank = 4,
                           .alpha = 8,
                           .targets = {"q_proj", "gate_proj", "down_proj"},
                           .parameters = {"mlp.experts.down_proj"}};
    const Json written = adapter_config(wish, a, "base");
    EXPECT_EQ(written["target_modules"], Json::array({"q_proj"}));
    EXPECT_EQ(written["target_parameters"],
              Json::array({"down_proj.weight", "gate_proj.weight", "mlp.experts.down_proj"}));
    const model::Tuning tuning = tuning_of(wish, a);
    EXPECT_EQ(tuning_of(read_adapter_config(written, "written"), a), tuning);
    const bool shared = a.experts.shared > 0;
    EXPECT_TRUE(tuning.modules.contains(shared ? "model.layers.0.mlp.shared_expert.down_proj"
                                               : "model.layers.1.mlp.down_proj"));
  }
}

TEST(AdapterTargets, ThatPeftDoesNotReadAreNamed) {
  const auto said = [](const char* name, const AdapterWish& wish) {
    return unread_by_peft(wish, tuning_of(wish, model::read_architecture(golden_folder(name))));
  };
  const AdapterWish all{.rank = 2, .all = true};
  EXPECT_EQ(said("llama3", all), "");
  EXPECT_EQ(said("mixtral", all), "");
  EXPECT_NE(said("qwen3-moe", all).find("mlp.experts.gate_up_proj"), std::string::npos) << "a dense block";
  EXPECT_NE(said("qwen2-moe", all).find("mlp.experts.gate_up_proj"), std::string::npos) << "a shared expert";
  EXPECT_NE(said("mixtral", {.rank = 2, .dora = true, .all = true}).find("with DoRA"), std::string::npos);
  EXPECT_NE(said("mixtral", {.rank = 2, .dropout = 0.1, .all = true}).find("with dropout"),
            std::string::npos);
  EXPECT_EQ(said("mixtral", {.rank = 2, .dora = true, .targets = {"q_proj"}}), "");
  EXPECT_EQ(said("qwen2-moe", {.rank = 2,
                               .targets = {"q_proj", "gate_proj"},
                               .parameters = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"}}),
            "");
}

TEST(AdapterTargets, AreSharedExpertsAlone) {
  const Architecture a = model::read_architecture(golden_folder("qwen2-moe"));
  const model::Tuning tuning = tuning_of(
      {.rank = 2, .targets = {"shared_expert.gate_proj", "shared_expert.up_proj", "shared_expert.down_proj"}},
      a);
  EXPECT_EQ(tuning.modules.size(), static_cast<std::size_t>(3 * a.layers));
  EXPECT_TRUE(tuning.modules.contains("model.layers.1.mlp.shared_expert.down_proj"));
  const Architecture glm = model::read_architecture(golden_folder("glm4-moe"));
  EXPECT_EQ(tuning_of({.rank = 2, .targets = {"shared_experts.down_proj"}}, glm).modules.size(),
            static_cast<std::size_t>(std::ranges::count_if(glm.blocks, &model::BlockShape::mixes_experts)));
  // Without "shared_expert.", the name also selects modules of experts.
  EXPECT_EQ(tuning_of({.rank = 2, .targets = {"down_proj"}}, a).modules.size(),
            static_cast<std::size_t>((1 + a.experts.count) * a.layers));
}

TEST(AdapterTargets, OfLatentsHaveTheirOwnNames) {
  const Architecture a = model::read_architecture(golden_folder("deepseek-v3-groups"));
  const auto modules = [&](const std::vector<std::string>& targets) {
    return std::ssize(tuning_of({.rank = 2, .targets = targets}, a).modules);
  };
  EXPECT_EQ(modules({"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"}), 5 * a.layers);
  const auto said = [&](const char* target) {
    try {
      modules({target});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("not refused");
  };
  EXPECT_NE(said("q_proj").find("use q_b_proj in place of it"), std::string::npos) << said("q_proj");
  EXPECT_NE(said("v_proj").find("use kv_b_proj in place of it"), std::string::npos) << said("v_proj");
}

TEST(AdapterTargets, OfTheKeyNameModulesOrParametersOfExperts) {
  config::Config c;
  c.finetuning_type = "lora";
  c.lora_target = {"q_proj", "down_proj", "shared_experts.down_proj", "mlp.experts.gate_up_proj",
                   "experts.down_proj"};
  const AdapterWish wish = adapter_wish(c);
  EXPECT_EQ(wish.targets, (std::vector<std::string>{"q_proj", "down_proj", "shared_experts.down_proj"}));
  EXPECT_EQ(wish.parameters, (std::vector<std::string>{"mlp.experts.gate_up_proj", "experts.down_proj"}));
}

TEST(AdapterTargets, AreNamesOrAnExpression) {
  const Architecture a = model::read_architecture(golden_folder("llama3"));
  const auto modules = [&](const AdapterWish& wish) {
    std::string names;
    for (const auto& [name, shape] : tuning_of(wish, a).modules)
      names += name + ":" + std::to_string(shape.rank) + " ";
    return names;
  };
  EXPECT_EQ(modules({.rank = 2, .alpha = 4, .expression = ".*\\.1\\..*v_proj"}),
            "model.layers.1.self_attn.v_proj:2 ");
  EXPECT_EQ(modules({.rank = 2, .targets = {"layers.0.mlp.up_proj"}}), "model.layers.0.mlp.up_proj:2 ");
  EXPECT_EQ(tuning_of({.rank = 2, .all = true}, a).modules.size(), static_cast<std::size_t>(7 * a.layers));
  EXPECT_EQ(tuning_of({.rank = 4, .alpha = 6, .all = true}, a).modules.begin()->second.factor, 1.5);
  EXPECT_EQ(tuning_of({.rank = 4, .alpha = 6, .rslora = true, .all = true}, a).modules.begin()->second.factor,
            3);
  const auto shape =
      tuning_of({.rank = 4, .dora = true, .dropout = 0.25, .all = true}, a).modules.begin()->second;
  EXPECT_TRUE(shape.dora);
  EXPECT_EQ(shape.dropout, 0.25);
}

config::Config freezing(std::int64_t layers, config::Strings modules, config::Strings extra = {}) {
  config::Config c;
  c.finetuning_type = "freeze";
  c.freeze_trainable_layers = layers;
  c.freeze_trainable_modules = std::move(modules);
  c.freeze_extra_modules = std::move(extra);
  return c;
}

// As LLaMA-Factory counts blocks and names modules.
TEST(Freezing, NamesTheModulesThatAreTrained) {
  Architecture a = model::read_architecture(golden_folder("llama3"));
  a.layers = 4;
  a.blocks.resize(4);
  const auto trained = [&](const config::Config& c) { return *tuned(c, a).tuning.only; };
  using Set = std::set<std::string>;
  EXPECT_EQ(trained(freezing(2, {"all"})), (Set{"model.layers.2", "model.layers.3"}));
  EXPECT_EQ(trained(freezing(-1, {"all"})), (Set{"model.layers.0"}));
  EXPECT_EQ(trained(freezing(99, {"mlp"})).size(), 4u);
  EXPECT_EQ(trained(freezing(-99, {"mlp"})).size(), 4u);
  EXPECT_EQ(trained(freezing(1, {"mlp", "input_layernorm"}, {"norm", "lm_head"})),
            (Set{"model.layers.3.mlp", "model.layers.3.input_layernorm", "model.norm", "lm_head"}));
  EXPECT_EQ(trained(freezing(0, {"all"}, {"embed_tokens"})), (Set{"model.embed_tokens"}));
  const auto refused = [&](const config::Config& c) {
    try {
      tuned(c, a);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(refused(freezing(2, {"mpl"})).find("did you mean 'mlp'"), std::string::npos);
  EXPECT_NE(refused(freezing(2, {"q_proj"})).find("self_attn"), std::string::npos);
  EXPECT_NE(refused(freezing(2, {"all"}, {"mlp"})).find("freeze_extra_modules"), std::string::npos);
  EXPECT_NE(refused(freezing(0, {"all"})).find("nothing would be trained"), std::string::npos);
  a.tied = true;
  EXPECT_NE(refused(freezing(2, {"all"}, {"lm_head"})).find("embed_tokens"), std::string::npos);
}

TEST(AdapterTargets, DoraIsNotTrainedOnWithDropout) {
  const test::TemporaryFolder folder("dora_with_dropout");
  test::spill(
      folder / "adapter_config.json",
      R"({"peft_type": "LORA", "r": 4, "target_modules": ["q_proj"], "use_dora": true, "lora_dropout": 0.1})");
  config::Config c;
  c.finetuning_type = "lora";
  c.adapter_name_or_path = folder / ".";
  try {
    adapter_wish(c);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("training DoRA with dropout"), std::string::npos);
  }
}

TEST(AdapterTargets, AnAdapterThatIsTrainedOnTakesTheRatioOfTheConfiguration) {
  const test::TemporaryFolder folder("lora_plus_goes_on");
  test::spill(folder / "adapter_config.json",
              R"({"peft_type": "LORA", "r": 4, "target_modules": ["q_proj"]})");
  config::Config c;
  c.finetuning_type = "lora";
  c.adapter_name_or_path = folder / ".";
  EXPECT_EQ(adapter_wish(c).output_rate, 1.0);
  c.loraplus_lr_ratio = 16;
  EXPECT_EQ(adapter_wish(c).output_rate, 16.0);
}

TEST(AdapterTargets, TheRatioOfRatesIsThatOfBAndMagnitudes) {
  config::Config c;
  c.finetuning_type = "lora";
  c.use_dora = true;
  c.loraplus_lr_ratio = 16;
  const auto layout = model::build_layout(tuned(c, model::read_architecture(golden_folder("llama3"))));
  std::size_t rows = 0;
  for (const auto& segment : layout.groups[1].segments) {
    for (const auto& tensor : segment.tensors) {
      const bool a = tensor.name.ends_with(".lora_A"),
                 adapter = tensor.name.find(".lora_") != std::string::npos;
      EXPECT_EQ(tensor.rate, adapter && !a ? 16.0f : 1.0f) << tensor.name;
      EXPECT_TRUE(!adapter || tensor.decay) << tensor.name;
      rows += adapter;
    }
  }
  // The A of modules that read the same input are one tensor: four of a block.
  EXPECT_EQ(rows, 4u + 2u * 7u);
}

}  // namespace
}  // namespace octet::setup::adapters_test
