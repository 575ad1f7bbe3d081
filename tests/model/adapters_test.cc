// Adapters against the merged model: the chain rule gives the adapters' gradients from the full gradients.
#include <algorithm>
#include <set>

#include "octet/base/random.h"
#include "support.h"

namespace octet::model::testing::adapters_test {
namespace {

using Values = std::vector<double>;

/// A Hugging Face tensor, stored by rows.
struct Named {
  std::int64_t rows = 0, cols = 1;
  Values values;
  double at(std::int64_t r, std::int64_t c) const { return values[static_cast<std::size_t>(r * cols + c)]; }
  double& at(std::int64_t r, std::int64_t c) { return values[static_cast<std::size_t>(r * cols + c)]; }
};
using Weights = std::map<std::string, Named>;

/// Returns random values for every tensor of a model, including adapters, biases and norms, large enough to
/// matter.
Weights random_weights(const ParameterLayout& layout) {
  Weights weights;
  for (const GroupSpec& group : layout.groups) {
    for (const SegmentSpec& segment : group.segments) {
      for (const TensorSpec& t : segment.tensors) {
        for (const NamedPart& part : t.parts) {
          Named& w = weights[part.name];
          w.rows = part.shape.empty() ? 1 : part.shape.front(), w.cols = part.count / w.rows;
          const bool norm = part.name.find("norm.weight") != std::string::npos;
          const bool magnitude = part.name.ends_with("magnitude_vector");
          const double size = part.name.find("lora_") != std::string::npos && !magnitude
                                  ? 0.4 / std::sqrt(static_cast<double>(w.cols))
                                  : 0.15;
          const std::uint64_t seed = hash64(part.name, 11);
          for (std::int64_t i = 0; i < part.count; ++i) {
            const double x = normal(seed, RandomUse::data, static_cast<std::uint64_t>(i));
            const double fixed = static_cast<double>(t.init_std);
            w.values.push_back(part.shape.empty() ? fixed
                               : magnitude        ? 1.2 + 0.3 * x
                               : norm             ? 1 + 0.1 * x
                                                  : size * x);
          }
        }
      }
    }
  }
  return weights;
}

void fill(ReplicatedSource& source, const Weights& weights) {
  const ParameterLayout& layout = source.layout();
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    for (std::size_t s = 0; s < layout.groups[g].segments.size(); ++s) {
      const auto& tensors = layout.groups[g].segments[s].tensors;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        std::vector<float> values;
        for (const NamedPart& part : tensors[i].parts) {
          for (const double v : weights.at(part.name).values) values.push_back(static_cast<float>(v));
        }
        source.set(g, s, i, values);
      }
    }
  }
}

/// Returns the modules with the rows of a module: itself, or gate and up of an expert for one adapter.
std::vector<std::string> parts_of(const std::string& module, const Weights& weights) {
  if (weights.contains(module + ".weight")) return {module};
  const std::string expert = module.substr(0, module.rfind('.') + 1);
  if (weights.contains(expert + "w1.weight")) return {expert + "w1", expert + "w3"};
  return {expert + "gate_proj", expert + "up_proj"};
}

Named weight_of(const std::string& module, const Weights& weights) {
  Named all;
  for (const std::string& part : parts_of(module, weights)) {
    const Named& w = weights.at(part + ".weight");
    all.rows += w.rows, all.cols = w.cols;
    all.values.insert(all.values.end(), w.values.begin(), w.values.end());
  }
  return all;
}

/// A module's adapter and weight, in double.
struct Module {
  Module(const std::string& called, const AdapterShape& of, const Weights& weights)
      : name(called), shape(of), w(weight_of(called, weights)) {
    a = weights.at(kAdapterPrefix + name + ".lora_A.weight");
    b = weights.at(kAdapterPrefix + name + ".lora_B.weight");
    if (shape.dora) magnitude = weights.at(kAdapterPrefix + name + ".lora_magnitude_vector");
    for (std::int64_t j = 0; j < w.rows; ++j) {
      double squares = 0;
      for (std::int64_t c = 0; c < w.cols; ++c) {
        for (std::int64_t r = 0; r < a.rows; ++r) w.at(j, c) += shape.factor * b.at(j, r) * a.at(r, c);
        squares += w.at(j, c) * w.at(j, c);
      }
      norms.push_back(std::sqrt(squares));
      scales.push_back(shape.dora ? magnitude.at(j, 0) / norms.back() : 1.0);
    }
  }
  Named merged() const {
    Named all = w;
    for (std::int64_t j = 0; j < w.rows; ++j) {
      for (std::int64_t c = 0; c < w.cols; ++c) all.at(j, c) *= scales[static_cast<std::size_t>(j)];
    }
    return all;
  }
  /// Returns the gradients of A, B and the magnitude by name, from the gradient of the merged weight.
  std::map<std::string, std::vector<float>> gradients(const std::vector<float>& d_merged) const {
    const auto d = [&](std::int64_t j, std::int64_t c) {
      return static_cast<double>(d_merged[static_cast<std::size_t>(j * w.cols + c)]) *
             scales[static_cast<std::size_t>(j)];
    };
    std::map<std::string, std::vector<float>> all;
    const std::string prefix = kAdapterPrefix + name;
    for (std::int64_t r = 0; r < a.rows; ++r) {
      for (std::int64_t c = 0; c < w.cols; ++c) {
        double sum = 0;
        for (std::int64_t j = 0; j < w.rows; ++j) sum += b.at(j, r) * d(j, c);
        all[prefix + ".lora_A.weight"].push_back(static_cast<float>(shape.factor * sum));
      }
    }
    for (std::int64_t j = 0; j < w.rows; ++j) {
      for (std::int64_t r = 0; r < a.rows; ++r) {
        double sum = 0;
        for (std::int64_t c = 0; c < w.cols; ++c) sum += d(j, c) * a.at(r, c);
        all[prefix + ".lora_B.weight"].push_back(static_cast<float>(shape.factor * sum));
      }
    }
    for (std::int64_t j = 0; j < w.rows && shape.dora; ++j) {
      double sum = 0;
      for (std::int64_t c = 0; c < w.cols; ++c) {
        sum += static_cast<double>(d_merged[static_cast<std::size_t>(j * w.cols + c)]) * w.at(j, c);
      }
      all[prefix + ".lora_magnitude_vector"].push_back(
          static_cast<float>(sum / norms[static_cast<std::size_t>(j)]));
    }
    return all;
  }
  std::string name;
  AdapterShape shape;
  Named w, a, b, magnitude;  ///< w: the merged weight
  std::vector<double> norms, scales;
};

HostBatch golden_batch(const std::string& name) {
  const weights::SafetensorsFile file(golden_folder(name) + "/golden.safetensors");
  return read_batch(file, "packed.");
}

Tuning tuning_of(const Architecture& a, const std::vector<std::string>& targets, const AdapterShape& shape) {
  Tuning tuning{.adapters = true};
  for (std::int64_t layer = 0; layer < a.layers; ++layer) {
    const std::string block = a.tensor_prefix + "layers." + std::to_string(layer) + ".";
    for (const std::string& target : targets) tuning.modules[block + target] = shape;
  }
  return tuning;
}

const std::vector<std::string> kAll = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                                       "self_attn.o_proj", "mlp.gate_proj",    "mlp.up_proj",
                                       "mlp.down_proj"};

class ChainRule : public ::testing::TestWithParam<const char*> {
 protected:
  void expect(const Tuning& tuning, bool biased, Recompute recompute) {
    const std::string name = GetParam();
    Architecture plain = read_architecture(golden_folder(name));
    if (biased) plain.qkv_bias = plain.output_bias = plain.mlp_bias = true;
    Architecture adapted = plain;
    adapted.tuning = tuning;
    const HostBatch batch = golden_batch(name);
    Machine with(adapted, batch, {.recompute = recompute}), merged(plain, batch, {});
    const Weights weights = random_weights(with.source.layout());
    Weights whole = weights;
    std::vector<Module> modules;
    for (const auto& [module, shape] : tuning.modules) {
      modules.emplace_back(module, shape, weights);
      const Named all = modules.back().merged();
      auto from = all.values.begin();
      for (const std::string& part : parts_of(module, weights)) {
        Values& to = whole.at(part + ".weight").values;
        const auto end = from + std::ssize(to);
        to.assign(from, end);
        from = end;
      }
    }
    fill(with.source, weights);
    fill(merged.source, whole);
    const RunResult got = with.run(batch, true), full = merged.run(batch, true);
    // Scores without a scale are larger, and so are their errors.
    EXPECT_LT(relative_l2(got.logits, full.logits), plain.value_norm ? 3e-5 : 1e-5);
    EXPECT_NEAR(got.loss_sum / full.loss_sum, 1, 1e-6);
    std::size_t compared = 0;
    for (const Module& module : modules) {
      std::vector<float> of_weight;
      for (const std::string& part : parts_of(module.name, weights)) {
        const std::vector<float>& rows = full.gradients.at(part + ".weight");
        of_weight.insert(of_weight.end(), rows.begin(), rows.end());
      }
      for (const auto& [tensor, gradient] : module.gradients(of_weight)) {
        // Both are fp32 sums in different orders. The difference depends on the CPU's GEMM kernels.
        EXPECT_LT(relative_l2(got.gradients.at(tensor), gradient), 3e-4) << tensor;
        ++compared;
      }
    }
    EXPECT_EQ(compared, got.gradients.size());
  }
};

TEST_P(ChainRule, GivesTheGradientsOfAdaptersFromThoseOfTheMergedModel) {
  const Architecture a = read_architecture(golden_folder(GetParam()));
  for (const bool dora : {false, true}) {
    for (const bool biased : {false, true}) {
      SCOPED_TRACE(std::string(dora ? "DoRA" : "LoRA") + (biased ? ", biases" : ""));
      expect(tuning_of(a, kAll, {.rank = 3, .factor = 1.7, .dora = dora}), biased, Recompute::none);
      expect(tuning_of(a, {"self_attn.q_proj", "self_attn.v_proj"}, {.rank = 5, .factor = 0.6, .dora = dora}),
             biased, Recompute::none);
      expect(tuning_of(a, {"self_attn.o_proj", "mlp.up_proj"}, {.rank = 1, .factor = 2, .dora = dora}),
             biased, Recompute::none);
    }
    // Adapters of one input that share a GEMM: all of them, some, and none, with different ranks and factors.
    Tuning tuning = tuning_of(a, kAll, {.rank = 8, .factor = 1.3, .dora = dora});
    expect(tuning, true, Recompute::none);
    for (auto& [name, shape] : tuning.modules) {
      if (name.ends_with("k_proj")) shape.factor = 0.4;
      if (name.ends_with("v_proj")) shape.rank = 5;
      if (name.ends_with("up_proj")) shape.rank = 16;
    }
    expect(tuning, true, Recompute::none);
    for (const Recompute level : {Recompute::norms, Recompute::qkv, Recompute::full}) {
      expect(tuning_of(a, kAll, {.rank = 7, .factor = 0.9, .dora = dora}), true, level);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ChainRule,
                         ::testing::Values("llama3", "mistral", "qwen2", "qwen2-tied", "qwen3", "gemma2",
                                           "gemma3", "olmo2"),
                         [](const auto& c) {
                           std::string name = c.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

// Families with other names of modules, parallel blocks or MLPs without a gate.
class FamilyChainRule : public ChainRule {
 protected:
  /// Adapters of all modules of linear layers that end with `end`.
  static Tuning of_modules(const Architecture& a, const std::string& end, const AdapterShape& shape) {
    Tuning tuning{.adapters = true};
    for (const GroupSpec& group : build_layout(a).groups) {
      for (const SegmentSpec& segment : group.segments) {
        for (const TensorSpec& t : segment.tensors) {
          for (const NamedPart& part : t.parts) {
            const std::string module = part.name.substr(0, part.name.rfind('.'));
            if (t.fp8 && module.ends_with(end)) tuning.modules[module] = shape;
          }
        }
      }
    }
    return tuning;
  }
};

TEST_P(FamilyChainRule, GivesTheGradientsOfAdaptersFromThoseOfTheMergedModel) {
  const Architecture a = read_architecture(golden_folder(GetParam()));
  for (const bool dora : {false, true}) {
    const AdapterShape shape{.rank = 3, .factor = 1.7, .dora = dora};
    for (const Recompute level : {Recompute::none, Recompute::norms, Recompute::qkv, Recompute::full})
      expect(of_modules(a, "", shape), false, level);
    expect(of_modules(a, "q_proj", shape), false, Recompute::none);
    expect(of_modules(a, a.names.up.empty() ? "down_proj" : std::string(a.names.up), shape), false,
           Recompute::none);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyChainRule,
                         ::testing::Values("glm4", "ernie4-5", "starcoder2", "cohere2", "apertus",
                                           "qwen3-5-text-tied", "qwen3-next-tied", "deepseek-v3-groups",
                                           "glm4-moe-lite", "gemma4"),
                         [](const auto& c) {
                           std::string name = c.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

class ExpertChainRule : public ChainRule {
 protected:
  /// Adapters of all modules of experts. `joined`: gate and up of an expert have one.
  static Tuning of_experts(const Architecture& a, const AdapterShape& shape, bool joined) {
    Tuning tuning{.adapters = true};
    for (const std::string& name : tensor_names(build_layout(a))) {
      if (name.find(".experts.") == std::string::npos) continue;
      const std::string module = name.substr(0, name.rfind('.'));
      const std::string expert = module.substr(0, module.rfind('.') + 1), word = module.substr(expert.size());
      const bool down = word == "down_proj" || word == "w2";
      tuning.modules[down || !joined ? module : expert + "gate_up_proj"] = shape;
    }
    return tuning;
  }
};

TEST_P(ExpertChainRule, GivesTheGradientsOfDoraOnExperts) {
  const Architecture a = read_architecture(golden_folder(GetParam()));
  const Tuning all = of_experts(a, {.rank = 4, .factor = 0.8, .dora = true}, false);
  Tuning mixed = of_experts(a, {.rank = 3, .factor = 1.1}, false);
  for (auto& [module, shape] : mixed.modules) shape.dora = module.find(".experts.1.") != std::string::npos;
  for (const Recompute level : {Recompute::none, Recompute::norms, Recompute::qkv, Recompute::full}) {
    expect(all, false, level);
    expect(mixed, false, level);
  }
}

TEST_P(ExpertChainRule, GivesTheGradientsOfAdaptersOnSharedExpertsAlone) {
  const Architecture a = read_architecture(golden_folder(GetParam()));
  if (a.experts.shared == 0) GTEST_SKIP() << "no shared expert";
  std::set<std::string> modules;
  for (const std::string& name : tensor_names(build_layout(a))) {
    // Gates of shared experts have no adapters.
    if (name.find(".shared_expert") != std::string::npos && name.find("_proj.") != std::string::npos)
      modules.insert(name.substr(0, name.rfind('.')));
  }
  for (const bool dora : {false, true}) {
    Tuning shared{.adapters = true};
    for (const std::string& module : modules)
      shared.modules[module] = {.rank = 4, .factor = 0.7, .dora = dora};
    for (const Recompute level : {Recompute::none, Recompute::norms, Recompute::full})
      expect(shared, false, level);
  }
}

TEST_P(ExpertChainRule, GivesTheGradientsOfOneAdapterForGateAndUp) {
  const Architecture a = read_architecture(golden_folder(GetParam()));
  for (const std::int64_t rank : {4, 8}) {
    for (const Recompute level : {Recompute::none, Recompute::full})
      expect(of_experts(a, {.rank = rank, .factor = 0.8}, true), false, level);
  }
}

TEST_P(ExpertChainRule, GivesTheGradientsOfAdaptersOnAttentionAndOnExperts) {
  const Architecture a = read_architecture(golden_folder(GetParam()));
  const Tuning attention = tuning_of(a, {"self_attn.q_proj", "self_attn.o_proj"}, {.rank = 3, .factor = 1.7});
  expect(attention, false, Recompute::none);
  Tuning all = attention, one = attention;
  Architecture plain = a;
  for (const std::string& name : tensor_names(build_layout(plain))) {
    if (name.find(".experts.") == std::string::npos) continue;
    const std::string module = name.substr(0, name.rfind('.'));
    all.modules[module] = {.rank = 4, .factor = 0.8};
    // Some modules of some experts.
    if (module.find(".experts.1.") != std::string::npos && !module.ends_with("up_proj") &&
        !module.ends_with("w3"))
      one.modules[module] = {.rank = 2, .factor = 1.1};
  }
  EXPECT_GT(all.modules.size(), one.modules.size());
  for (const Recompute level : {Recompute::none, Recompute::norms, Recompute::qkv, Recompute::full}) {
    expect(all, false, level);
    expect(one, false, level);
  }
}

/// GEMMs of adapters that the audit counted.
std::int64_t counted_adapters(const Machine& machine) {
  std::int64_t gemms = 0;
  for (const precision::AuditCount& c : machine.audit.counts()) {
    if (machine.audit.rows()[static_cast<std::size_t>(c.row)].name.ends_with(": adapters")) gemms += c.gemms;
  }
  return gemms;
}

/// Returns the relative difference of a value if the ops for all experts compute it. The rows of their
/// operands have other pitches, so oneDNN may choose another kernel on some processors. For the down
/// projection, other values are multiplied by the weights of rows, and rounded.
double most_apart(DType compute) {
  return compute == DType::f32 ? 1e-6 : 1e-2;
}

// The ops for all experts, which a GPU has, train like single GEMMs in turn.
TEST_P(ExpertChainRule, AdaptersOfAllExpertsTogetherTrainLikeOneExpertAfterTheOther) {
  Architecture a = read_architecture(golden_folder(GetParam()));
  const Architecture plain = a;
  const HostBatch batch = golden_batch(GetParam());
  const auto blocks = std::ranges::count_if(a.blocks, &BlockShape::mixes_experts);
  const auto run = [&](const RunOptions& options, std::int64_t& gemms) {
    Machine machine(a, batch, options);
    fill(machine.source, random_weights(build_layout(a)));
    const RunResult result = machine.run(batch, true);
    gemms = counted_adapters(machine);
    return result;
  };
  for (const bool joined : {false, true}) {
    Tuning even = of_experts(plain, {.rank = 8, .factor = 0.8}, joined), two = even, one = even;
    // Gate and up with factors of their own do not share a GEMM. An expert with another rank, or without an
    // adapter, has separate GEMMs, and so have all other experts.
    for (auto& [module, shape] : two.modules) {
      if (module.ends_with("up_proj") || module.ends_with("w3")) shape.factor = 0.3;
      if (module.find(".experts.1.") != std::string::npos) one.modules.at(module).rank = 16;
    }
    struct Part {
      const Tuning& tuning;
      bool together;
    };
    for (const Part& part : {Part{even, true}, Part{two, true}, Part{one, false}}) {
      a.tuning = part.tuning;
      for (const DType compute : {DType::f32, DType::bf16}) {
        for (const Recompute level : {Recompute::none, Recompute::full}) {
          const RunOptions options{.recipe = {.compute = compute}, .recompute = level};
          std::int64_t gemms_alone = 0, gemms = 0;
          const RunResult alone = run(options, gemms_alone);
          ::setenv("OCTETRUN_GROUPED_GEMM", "always", 1);
          const RunResult together = run(options, gemms);
          ::unsetenv("OCTETRUN_GROUPED_GEMM");
          const double most = part.together ? most_apart(compute) : 0;
          EXPECT_NEAR(together.loss_sum, alone.loss_sum, most * alone.loss_sum);
          EXPECT_LE(relative_l2(together.logits, alone.logits), most);
          for (const auto& [name, gradient] : together.gradients) {
            EXPECT_LE(relative_l2(gradient, alone.gradients.at(name)), most) << name;
          }
          if (!part.together) {
            EXPECT_EQ(gemms, gemms_alone) << "each expert has separate GEMMs";
            continue;
          }
          EXPECT_LT(gemms, gemms_alone);
          if (&part.tuning != &even) continue;
          // A x, and B of each module. In backward A x again, and both gradients of each. The first block
          // needs no gradient of its input.
          const std::int64_t modules = joined ? 1 : 2, remade = level == Recompute::full ? 1 + modules : 0;
          const std::int64_t gate_up = (1 + modules) + remade + (1 + modules + modules + 1) + 1;
          EXPECT_EQ(gemms, blocks * (gate_up + 2 + 1 + 4) - 1);
        }
      }
    }
  }
}

// Tokens are cast to FP8 before they are gathered, and gate times up while it is written. With delayed
// scaling, this gives the bits of casts of the rows of each expert.
TEST_P(ExpertChainRule, InFp8AdaptersOnExpertsTrainLikeOneExpertAfterTheOther) {
  Architecture a = read_architecture(golden_folder(GetParam()));
  a.tuning = of_experts(a, {.rank = 8, .factor = 0.8}, false);
  const HostBatch batch = golden_batch(GetParam());
  const Weights weights = random_weights(build_layout(a));
  const auto run = [&](Recompute level) {
    Machine machine(
        a, batch,
        {.recipe = {.kind = precision::RecipeKind::delayed, .compute = DType::bf16}, .recompute = level});
    fill(machine.source, weights);
    return machine.run(batch, true);
  };
  for (const Recompute level : {Recompute::none, Recompute::full}) {
    const RunResult together = run(level);
    ::setenv("OCTETRUN_GROUPED_GEMM", "never", 1);
    const RunResult alone = run(level);
    ::unsetenv("OCTETRUN_GROUPED_GEMM");
    ::setenv("OCTETRUN_GROUPED_GEMM", "always", 1);
    const RunResult with_adapters = run(level);
    ::unsetenv("OCTETRUN_GROUPED_GEMM");
    EXPECT_EQ(together.loss_sum, alone.loss_sum);
    EXPECT_EQ(together.logits, alone.logits);
    EXPECT_EQ(together.gradients, alone.gradients);
    EXPECT_EQ(with_adapters.logits, alone.logits);
    for (const auto& [name, gradient] : with_adapters.gradients)
      EXPECT_LE(relative_l2(gradient, alone.gradients.at(name)), most_apart(DType::bf16)) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, ExpertChainRule,
                         ::testing::Values("qwen3-moe-trained", "mixtral", "qwen2-moe", "olmoe",
                                           "glm4-moe-groups", "gpt-oss"),
                         [](const auto& c) {
                           std::string name = c.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

/// Runs with dropout, with noise for all tokens of a batch.
RunResult run_with_noise(Machine& machine, const HostBatch& host, std::uint64_t noise) {
  MicroBatch batch = machine.upload_batch(host);
  std::vector<std::uint64_t> names;
  for (std::int64_t t = 0; t < host.tokens(); ++t) {
    names.push_back(hash64(std::to_string(t), noise));
  }
  batch.names = machine.upload(names);
  RunResult result;
  machine.device->zero(*machine.stream, machine.loss, sizeof(double));
  machine.source.start_step();
  machine.core.train(machine.source, *machine.stream, batch, machine.loss);
  machine.device->copy_to_host(*machine.stream, &result.loss_sum, machine.loss, sizeof(double));
  machine.stream->synchronize();
  result.gradients = machine.source.named_gradients();
  return result;
}

// With fixed noise, the slope of the loss along a direction matches the gradients.
TEST(AdapterDropout, GradientsAreThoseOfWhatWasDropped) {
  Architecture a = read_architecture(golden_folder("llama3"));
  a.tuning = tuning_of(a, kAll, {.rank = 3, .factor = 1.5, .dropout = 0.4});
  const HostBatch batch = golden_batch("llama3");
  Weights weights = random_weights(build_layout(a));
  const auto run = [&](double along, const std::string& kind, std::uint64_t noise) {
    Weights moved = weights;
    double slope = 0;
    Machine machine(a, batch, {});
    for (auto& [name, w] : moved) {
      if (name.find(kind) == std::string::npos) continue;
      for (std::size_t i = 0; i < w.values.size(); ++i) {
        w.values[i] += along * normal(hash64(name, 5), RandomUse::data, i);
      }
    }
    fill(machine.source, moved);
    const RunResult result = run_with_noise(machine, batch, noise);
    for (const auto& [name, gradient] : result.gradients) {
      if (name.find(kind) == std::string::npos) continue;
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        slope += static_cast<double>(gradient[i]) * normal(hash64(name, 5), RandomUse::data, i);
      }
    }
    return std::pair{result.loss_sum, slope};
  };
  for (const char* kind : {"lora_A", "lora_B", "mlp.down_proj.lora", "layers.0.self_attn.q_proj.lora"}) {
    constexpr double h = 2e-3;
    const double found = (run(h, kind, 1).first - run(-h, kind, 1).first) / (2 * h);
    const double stated = run(0, kind, 1).second;
    EXPECT_NEAR(found / stated, 1, 5e-3) << kind;
  }
  EXPECT_NE(run(0, "lora_A", 1).first, run(0, "lora_A", 2).first);
}

/// Sets adapters with dropout on the experts of all blocks.
void drop_on_experts(Architecture& a, double dropout) {
  a.tuning = {.adapters = true};
  Architecture plain = a;
  plain.tuning = {};
  for (const std::string& name : tensor_names(build_layout(plain))) {
    if (name.find(".experts.") == std::string::npos) continue;
    a.tuning.modules[name.substr(0, name.rfind('.'))] = {.rank = 3, .factor = 1.5, .dropout = dropout};
  }
}

// Only the last block moves, so that no router chooses other experts.
TEST(AdapterDropout, OnExpertsGradientsAreThoseOfWhatWasDropped) {
  for (const char* model : {"qwen3-moe-trained", "mixtral"}) {
    Architecture a = read_architecture(golden_folder(model));
    drop_on_experts(a, 0.4);
    const HostBatch batch = golden_batch(model);
    const Weights weights = random_weights(build_layout(a));
    const std::string last = "layers." + std::to_string(a.layers - 1) + ".";
    const auto run = [&](double along, const std::string& kind, std::uint64_t noise) {
      Weights moved = weights;
      const auto moves = [&](const std::string& name) {
        return name.find(kind) != std::string::npos && name.find(last) != std::string::npos;
      };
      double slope = 0;
      Machine machine(a, batch, {});
      for (auto& [name, w] : moved) {
        if (!moves(name)) continue;
        for (std::size_t i = 0; i < w.values.size(); ++i)
          w.values[i] += along * normal(hash64(name, 5), RandomUse::data, i);
      }
      fill(machine.source, moved);
      const RunResult result = run_with_noise(machine, batch, noise);
      for (const auto& [name, gradient] : result.gradients) {
        if (!moves(name)) continue;
        for (std::size_t i = 0; i < gradient.size(); ++i)
          slope += static_cast<double>(gradient[i]) * normal(hash64(name, 5), RandomUse::data, i);
      }
      return std::pair{result.loss_sum, slope};
    };
    for (const char* kind : {"lora_A", "lora_B"}) {
      constexpr double h = 2e-3;
      const double found = (run(h, kind, 1).first - run(-h, kind, 1).first) / (2 * h);
      EXPECT_NEAR(found / run(0, kind, 1).second, 1, 1e-2) << model << ", " << kind;
    }
    EXPECT_NE(run(0, "lora_A", 1).first, run(0, "lora_A", 2).first);
  }
}

TEST(AdapterDropout, IsTheSameWhenBackwardMakesItAgainAndNoneInEvaluation) {
  for (const std::string name : {"llama3", "gemma2", "qwen3-moe-trained"}) {
    Architecture a = read_architecture(golden_folder(name));
    a.tuning = tuning_of(a, kAll, {.rank = 3, .factor = 1.5, .dropout = 0.1});
    if (name == "qwen3-moe-trained") drop_on_experts(a, 0.1);
    const HostBatch batch = golden_batch(name);
    const Weights weights = random_weights(build_layout(a));
    for (const precision::Recipe& recipe :
         {precision::Recipe{}, precision::Recipe{.compute = DType::bf16},
          precision::Recipe{.kind = precision::RecipeKind::current, .compute = DType::bf16}}) {
      Machine first(a, batch, {.recipe = recipe});
      fill(first.source, weights);
      const RunResult once = run_with_noise(first, batch, 3);
      for (const Recompute level : {Recompute::norms, Recompute::qkv, Recompute::full}) {
        Machine machine(a, batch, {.recipe = recipe, .recompute = level});
        fill(machine.source, weights);
        const RunResult again = run_with_noise(machine, batch, 3);
        EXPECT_EQ(again.loss_sum, once.loss_sum);
        EXPECT_EQ(again.gradients, once.gradients);
      }
      // An evaluation-only core with equal adapters but without dropout.
      Architecture still = a;
      for (auto& [module, shape] : still.tuning.modules) shape.dropout = 0;
      Machine with(a, batch, {.recipe = recipe, .gradients = false});
      Machine without(still, batch, {.recipe = recipe, .gradients = false});
      fill(with.source, weights), fill(without.source, weights);
      const double evaluated = with.run(batch, false).loss_sum;
      EXPECT_EQ(evaluated, without.run(batch, false).loss_sum);
      EXPECT_NE(evaluated, once.loss_sum);
    }
  }
}

}  // namespace
}  // namespace octet::model::testing::adapters_test
