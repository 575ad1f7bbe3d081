// Layers that differ between blocks, parts of the blocks on separate cores, and the work that layers state.
#include <algorithm>

#include "octet/device/profile.h"
#include "octet/model/work.h"
#include "support.h"

namespace octet::model::testing::layers_test {
namespace {

using precision::Recipe;
using precision::RecipeKind;

constexpr Recompute kLevels[] = {Recompute::none, Recompute::norms, Recompute::qkv, Recompute::full};

const Recipe kRecipes[] = {
    {},
    {.compute = DType::bf16},
    {.kind = RecipeKind::delayed, .compute = DType::bf16},
    {.kind = RecipeKind::current, .compute = DType::bf16, .scale_parts = true},
    {.kind = RecipeKind::block, .compute = DType::bf16, .gradient_format = DType::e4m3}};

HostBatch golden_batch(const std::string& name) {
  const weights::SafetensorsFile file(golden_folder(name) + "/golden.safetensors");
  return read_batch(file, "packed.");
}

/// Returns the initial values of a stored tensor.
std::vector<float> fresh(const TensorSpec& tensor) {
  const std::unique_ptr<Device> host = make_cpu_device();
  const std::unique_ptr<Stream> stream = host->make_stream({.name = "fresh weights"});
  std::vector<float> values(static_cast<std::size_t>(tensor.count()));
  model::initialise(*stream, tensor, {.seed = 7, .count = tensor.count(), .out = values.data()});
  // Large enough that every path through the block changes the loss.
  for (float& v : values) v *= tensor.init == InitRule::normal ? 8.0f : 1.0f;
  return values;
}

/// Returns `from` [rows, cols] in the corner of a matrix of zeros. Each part's rows are padded separately.
std::vector<float> padded(const std::vector<float>& from, const TensorSpec& small, const TensorSpec& large) {
  std::vector<float> to(static_cast<std::size_t>(large.count()), 0.0f);
  for (std::size_t part = 0; part < small.parts.size(); ++part) {
    const std::int64_t rows = small.parts[part].count / small.cols;
    for (std::int64_t r = 0; r < rows; ++r) {
      const float* row = from.data() + small.parts[part].begin + r * small.cols;
      std::copy_n(row, small.cols, to.data() + large.parts[part].begin + r * large.cols);
    }
  }
  return to;
}

/// Returns a model of three blocks with MLPs of different widths and one sliding window.
Architecture uneven() {
  Architecture a = read_architecture(golden_folder("llama3"));
  a.layers = 3;
  a.blocks.assign(3, {});
  a.blocks[0].intermediate = 48;
  a.blocks[1].intermediate = 112;
  a.blocks[2].intermediate = 80;
  a.blocks[1].window = 3;
  return a;
}

void fill_fresh(ReplicatedSource& source) {
  const ParameterLayout& layout = source.layout();
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    for (std::size_t s = 0; s < layout.groups[g].segments.size(); ++s) {
      const auto& tensors = layout.groups[g].segments[s].tensors;
      for (std::size_t i = 0; i < tensors.size(); ++i) source.set(g, s, i, fresh(tensors[i]));
    }
  }
}

/// Writes the weights of `small` to a model with wider MLPs; additional rows and columns are zero.
void fill_padded(ReplicatedSource& large, const ParameterLayout& small) {
  const ParameterLayout& layout = large.layout();
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    for (std::size_t s = 0; s < layout.groups[g].segments.size(); ++s) {
      const auto& tensors = layout.groups[g].segments[s].tensors;
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        const TensorSpec& narrow = small.groups[g].segments[s].tensors[i];
        large.set(g, s, i, padded(fresh(narrow), narrow, tensors[i]));
      }
    }
  }
}

// A wider MLP with zeros in its additional rows and columns gives equal results, and equal gradients of the
// common part.
TEST(Layers, BlocksOfDifferentWidthsComputeWhatEqualOnesWithZerosDo) {
  const Architecture narrow = uneven();
  Architecture wide = narrow;
  for (BlockShape& block : wide.blocks) block.intermediate = 112;
  const HostBatch batch = golden_batch("llama3");
  for (const Recipe& recipe : {kRecipes[0], kRecipes[3]}) {
    for (const Recompute level : kLevels) {
      Machine a(narrow, batch, {.recipe = recipe, .recompute = level});
      Machine b(wide, batch, {.recipe = recipe, .recompute = level});
      fill_fresh(a.source);
      fill_padded(b.source, a.source.layout());
      const RunResult small = a.run(batch, true), large = b.run(batch, true);
      const double bound = recipe.fp8() ? 2e-2 : 1e-5;
      EXPECT_NEAR(small.loss_sum / large.loss_sum, 1, bound);
      for (const GroupSpec& group : a.source.layout().groups) {
        for (const SegmentSpec& segment : group.segments) {
          for (const TensorSpec& t : segment.tensors) {
            for (const NamedPart& part : t.parts) {
              const std::vector<float>& got = small.gradients.at(part.name);
              const std::vector<float>& all = large.gradients.at(part.name);
              // In the wide model, down has longer rows, and gate and up have additional rows at the end.
              const bool longer = all.size() > got.size() && part.name.find("down_proj") != std::string::npos;
              const std::int64_t stride = longer ? static_cast<std::int64_t>(all.size()) / t.rows : t.cols;
              std::vector<float> expected;
              for (std::int64_t r = 0; r < part.count / t.cols; ++r) {
                expected.insert(expected.end(), all.data() + r * stride, all.data() + r * stride + t.cols);
              }
              EXPECT_LT(relative_l2(got, expected), bound) << part.name;
            }
          }
        }
      }
    }
  }
}

TEST(Layers, BlocksOfDifferentShapesGiveTheSameBitsAtEveryLevelOfRecomputation) {
  const Architecture a = uneven();
  const HostBatch batch = golden_batch("llama3");
  for (const Recipe& recipe : kRecipes) {
    std::map<std::string, std::vector<float>> kept;
    for (const Recompute level : kLevels) {
      Machine machine(a, batch, {.recipe = recipe, .recompute = level});
      fill_fresh(machine.source);
      const auto gradients = machine.run(batch, true).gradients;
      if (level == Recompute::none) kept = gradients;
      EXPECT_EQ(gradients, kept) << static_cast<int>(level);
    }
    // If nothing is trained, blocks share buffers.
    Machine training(a, batch, {.recipe = recipe}), looking(a, batch, {.recipe = recipe, .gradients = false});
    fill_fresh(training.source);
    fill_fresh(looking.source);
    EXPECT_EQ(looking.run(batch, false).loss_sum, training.run(batch, false).loss_sum);
  }
}

TEST(Layers, AWindowOfOneBlockIsItsOwn) {
  Architecture with = uneven(), without = uneven(), other = uneven();
  without.blocks[1].window = 0;
  std::swap(other.blocks[1].window, other.blocks[2].window);
  const HostBatch batch = golden_batch("llama3");
  std::vector<double> losses;
  for (const Architecture& a : {with, without, other}) {
    Machine machine(a, batch, {});
    fill_fresh(machine.source);
    losses.push_back(machine.run(batch, true).loss_sum);
  }
  EXPECT_NE(losses[0], losses[1]);
  EXPECT_NE(losses[0], losses[2]);
}

TEST(Layers, GemmsCountAtTheRowOfTheirShapeAndTheirOwnLayer) {
  const Architecture a = uneven();
  const HostBatch batch = golden_batch("llama3");
  Machine machine(a, batch, {.recipe = kRecipes[3]});
  fill_fresh(machine.source);
  machine.run(batch, true);
  std::map<std::int64_t, std::int64_t> down;
  for (const precision::AuditCount& c : machine.audit.counts()) {
    const precision::AuditRow& row = machine.audit.rows()[static_cast<std::size_t>(c.row)];
    EXPECT_EQ(row.layers, row.name.starts_with("attention") ? 3 : 1) << row.name;
    if (row.name != "MLP down") continue;
    EXPECT_EQ(row.cols, a.block(c.layer).intermediate);
    down[c.layer] += c.gemms;
  }
  EXPECT_EQ(down, (std::map<std::int64_t, std::int64_t>{{0, 3}, {1, 3}, {2, 3}}));
}

/// Returns gradients and loss of a model with its blocks on two cores, split before block `cut`.
RunResult run_in_parts(const Architecture& a, const HostBatch& host, const RunOptions& options, int cut) {
  Machine machine(a, host, options);
  fill_fresh(machine.source);
  machine.source.start_step();
  const auto part = [&](int first, int last) {
    return std::make_unique<Transformer>(a, options.recipe, machine.arena,
                                         TransformerOptions{.max_tokens = host.tokens(),
                                                            .max_length = host.max_length,
                                                            .recompute = options.recompute,
                                                            .first_block = first,
                                                            .last_block = last});
  };
  const auto front = part(0, cut), back = part(cut, -1);
  const auto hidden = [&] {
    const std::size_t bytes =
        static_cast<std::size_t>(host.tokens() * a.hidden) * size_of(options.recipe.compute);
    return ops::Matrix{.data = machine.arena.reserve("hidden states", bytes),
                       .dtype = options.recipe.compute,
                       .rows = host.tokens(),
                       .cols = a.hidden,
                       .ld = a.hidden};
  };
  const ops::Matrix states = hidden(), gradient = hidden();
  const MicroBatch batch = machine.upload_batch(host);
  Stream& stream = *machine.stream;
  machine.device->zero(stream, machine.loss, sizeof(double));
  front->forward(machine.source, stream, batch, {}, states, machine.loss);
  back->forward(machine.source, stream, batch, states, {}, machine.loss);
  back->backward(machine.source, stream, batch, {}, gradient);
  front->backward(machine.source, stream, batch, gradient, {});
  RunResult result;
  machine.device->copy_to_host(stream, &result.loss_sum, machine.loss, sizeof(double));
  stream.synchronize();
  EXPECT_TRUE(machine.source.at_rest());
  result.gradients = machine.source.named_gradients();
  return result;
}

TEST(Layers, TwoCoresWithAPartOfTheBlocksEachGiveTheBitsOfOne) {
  for (const char* name : {"llama3-tied", "llama-mha-bias", "qwen3", "gemma3"}) {
    const Architecture a = read_architecture(golden_folder(name));
    const HostBatch batch = golden_batch(name);
    for (const Recipe& recipe : kRecipes) {
      for (const Recompute level : {Recompute::none, Recompute::qkv, Recompute::full}) {
        const RunOptions options{.recipe = recipe, .recompute = level};
        Machine whole(a, batch, options);
        fill_fresh(whole.source);
        const RunResult one = whole.run(batch, true);
        const RunResult two = run_in_parts(a, batch, options, 1);
        EXPECT_EQ(one.loss_sum, two.loss_sum) << name;
        EXPECT_EQ(one.gradients, two.gradients) << name << " " << static_cast<int>(level);
      }
    }
  }
}

TEST(Layers, ImpossiblePartsOfTheBlocksAreRefused) {
  const Architecture a = uneven();
  const std::unique_ptr<Device> dry = make_dry_device();
  Arena arena(*dry);
  const auto build = [&](int first, int last) {
    const Transformer core(a, {}, arena,
                           {.max_tokens = 8, .max_length = 8, .first_block = first, .last_block = last});
  };
  build(1, 2);
  EXPECT_THROW(build(0, 4), Error);
  EXPECT_THROW(build(2, 2), Error);
  EXPECT_THROW(build(-1, 2), Error);
}

TEST(Layers, APartOfTheBlocksNeedsItsShareOfTheMemoryAlone) {
  const Architecture a = uneven();
  const auto bytes = [&](int first, int last, const std::string& name) {
    const std::unique_ptr<Device> dry = make_dry_device();
    Arena arena(*dry);
    const Transformer core(a, {}, arena,
                           {.max_tokens = 256, .max_length = 256, .first_block = first, .last_block = last});
    std::size_t sum = 0;
    for (const Reservation& r : arena.reservations()) sum += r.name == name ? r.bytes : 0;
    return sum;
  };
  EXPECT_EQ(bytes(0, 3, "activations/gate and up"), 256u * 2 * (48 + 112 + 80) * 4);
  EXPECT_EQ(bytes(1, 2, "activations/gate and up"), 256u * 2 * 112 * 4);
  EXPECT_EQ(bytes(1, 2, "head/logits"), 0u);
  EXPECT_GT(bytes(1, 3, "head/logits"), 0u);
}

TEST(Layers, AFrozenHeadTakesHalfTheLogitsAtATime) {
  const auto bytes = [](bool frozen) {
    Architecture a = uneven();
    if (frozen) {
      a.tuning.adapters = true;
      a.tuning.modules["model.layers.0.self_attn.q_proj"] = {.rank = 2};
    }
    const std::unique_ptr<Device> dry = make_dry_device();
    Arena arena(*dry);
    const auto row = static_cast<std::size_t>(a.vocabulary) * sizeof(float);
    const Transformer core(a, {}, arena,
                           {.max_tokens = 4096, .max_length = 4096, .logits_bytes = 1024 * row});
    for (const Reservation& r : arena.reservations()) {
      if (r.name == "head/logits") return r.bytes / row;
    }
    return std::size_t{0};
  };
  EXPECT_EQ(bytes(false), 1024u) << "each chunk adds to the gradient of all weights";
  EXPECT_EQ(bytes(true), 512u);
}

/// Returns the number of calls of an op in a profile, under any label.
std::int64_t calls_of(const std::map<std::string, Profile::Row>& rows, const std::string& op) {
  std::int64_t calls = 0;
  for (const auto& [name, row] : rows) {
    const std::size_t slash = name.rfind('/');
    if ((slash == std::string::npos ? name : name.substr(slash + 1)) == op) calls += row.calls;
  }
  return calls;
}

// The work that layers state is the work that they enqueue, at every level of recomputation.
TEST(Work, OperationsAreThoseThatAMicroBatchEnqueues) {
  for (const char* name : {"llama3", "qwen3", "gemma3"}) {
    const Architecture a = read_architecture(golden_folder(name));
    const HostBatch batch = golden_batch(name);
    for (const Recompute level : kLevels) {
      Machine machine(a, batch, {.recompute = level});
      fill_fresh(machine.source);
      machine.source.start_step();
      const MicroBatch uploaded = machine.upload_batch(batch);
      Profile profile(*machine.stream);
      machine.core.train(machine.source, *machine.stream, uploaded, machine.loss);
      machine.stream->synchronize();
      const auto seen = profile.collect();
      const auto stated = operations(a, batch.tokens(), batch.max_length);
      const auto count = [&](OperationKind kind, bool backward) {
        std::int64_t sum = 0;
        for (const Operation& o : stated) {
          if (o.kind == kind && o.backward == backward) sum += 1 + o.again[static_cast<std::size_t>(level)];
        }
        return sum;
      };
      const auto same = [&](OperationKind kind, const char* forward, const char* backward) {
        EXPECT_EQ(count(kind, false), calls_of(seen, forward)) << name << " " << forward;
        EXPECT_EQ(count(kind, true), calls_of(seen, backward)) << name << " " << backward;
      };
      same(OperationKind::attention, "attention", "attention_backward");
      same(OperationKind::norm, "rms_norm", "rms_norm_backward");
      same(OperationKind::activation, "gated_activation", "gated_activation_backward");
      same(OperationKind::embedding, "embedding", "embedding_backward");
      EXPECT_EQ(count(OperationKind::loss, false), calls_of(seen, "cross_entropy"));
      const std::int64_t turns =
          calls_of(seen, "rope") + calls_of(seen, "normed_rope") + calls_of(seen, "normed_rope_backward");
      EXPECT_EQ(count(OperationKind::rotary, false) + count(OperationKind::rotary, true), turns);
      for (const ops::GemmKind gemm_kind :
           {ops::GemmKind::forward, ops::GemmKind::dgrad, ops::GemmKind::wgrad}) {
        std::int64_t sum = 0;
        for (const Operation& o : stated) {
          const bool counts = o.kind == OperationKind::gemm && o.gemm_kind == gemm_kind;
          sum += counts ? 1 + o.again[static_cast<std::size_t>(level)] : 0;
        }
        EXPECT_EQ(sum, machine.audit.counted(gemm_kind, DType::f32)) << name;
      }
    }
  }
}

TEST(Work, GemmsAreSixOperationsForEachParameterAndToken) {
  const Architecture a = uneven();
  double parameters = 0, flops = 0, stated = 0;
  for (const GroupSpec& group : build_layout(a).groups) {
    for (const TensorSpec& t : group.segments.front().tensors) {
      if (t.cols > 1 && t.name != "embed") parameters += static_cast<double>(t.count());
    }
  }
  for (const Operation& o : operations(a, 100, 50)) {
    if (o.kind != OperationKind::gemm) continue;
    flops += o.flops;
    stated += 2.0 * static_cast<double>(o.m * o.n * o.k);
  }
  EXPECT_EQ(flops, 6 * parameters * 100);
  EXPECT_EQ(stated, flops);
}

TEST(Work, LinearLayersOfOneShapeAreOneRow) {
  std::map<std::string, std::int64_t> widths;
  std::vector<std::string> names;
  for (const LinearLayer& l : linear_layers(uneven())) {
    names.push_back(l.name);
    if (l.name == "down") widths["down " + std::to_string(l.cols)] += l.layers;
    EXPECT_TRUE(l.name != "qkv" || l.layers == 3);
  }
  EXPECT_EQ(widths, (std::map<std::string, std::int64_t>{{"down 112", 1}, {"down 48", 1}, {"down 80", 1}}));
  EXPECT_EQ(names, (std::vector<std::string>{"qkv", "output", "gate_up", "down", "gate_up", "down", "gate_up",
                                             "down", "head"}));
}

}  // namespace
}  // namespace octet::model::testing::layers_test
