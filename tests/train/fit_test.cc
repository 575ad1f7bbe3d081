// A plan equals the reservations of a run, by name and to the byte, at every stage and world size.
#include "octet/train/fit.h"
#include "octet/config/config.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "octet/base/error.h"
#include "octet/comm/thread_ranks.h"
#include "octet/feed/loader.h"
#include "octet/model/shapes.h"
#include "octet/runtime/group_size.h"
#include "octet/setup/adapters.h"
#include "octet/setup/model_options.h"

namespace octet::train::fit_test {
namespace {

runtime::InstanceOptions options_of(int stage, precision::RecipeKind kind, model::Recompute level) {
  runtime::InstanceOptions o;
  o.architecture = model::find_shape("tiny");
  o.architecture.layers = 3;
  o.architecture.blocks.resize(3);
  o.architecture.vocabulary = 256;
  o.reproducible = true;
  o.store.stage = stage;
  o.store.recipe.kind = kind;
  o.store.recipe.compute = DType::bf16;
  o.transformer.max_tokens = 96;
  o.transformer.max_length = 48;
  o.transformer.recompute = level;
  o.max_documents = 2;
  o.max_micro_batches = 3;
  return o;
}

using Rows = std::map<std::string, std::size_t>;

Rows rows_of(const plan::Memory& memory) {
  Rows rows;
  for (const plan::MemoryRow& row : memory.rows) rows[row.name] = row.bytes;
  for (const plan::MemoryRow& row : memory.pinned) rows["pinned " + row.name] = row.bytes;
  return rows;
}

struct Case {
  int world = 1;
  runtime::InstanceOptions options;
  DeviceKind kind = DeviceKind::cpu;
};

/// Compares every rank of a real job with its plan, row by row. Also runs a step, in which nothing is
/// reserved.
void expect_planned(const Case& c) {
  std::mutex mutex;
  std::map<int, Rows> real;
  const auto run = [&](comm::Job& job, comm::Collectives& data, Device& device) {
    Engine engine(device, job, data, c.options);
    // Scratch of ops depends on the threads of a rank, so the plan uses the same number.
    Rows planned = rows_of(plan_memory(c.options, job.place(), c.kind));
    // The collectives of a run reserve their staging themselves.
    EXPECT_EQ(planned.erase("communication/groups"), c.options.group_size == 2 ? 1u : 0u);
    engine.initialise(1);
    runtime::HostBatch batch;
    batch.cu_seqlens.push_back(0);
    const std::vector<std::int32_t> ids{1, 2, 3, 4, 5};
    runtime::add_document(batch, ids, ids);
    engine.begin(1);
    engine.micro_batch(batch);
    engine.finish(1e-3);
    const std::lock_guard lock(mutex);
    Rows& rows = real[job.rank()] = rows_of(plan::memory_of(engine.arena()));
    if (c.kind == DeviceKind::cuda) {
      // A CPU that simulates a GPU may need more scratch than either.
      EXPECT_GE(rows["workspace"], planned.at("workspace"));
      rows["workspace"] = planned.at("workspace");
    }
    for (const auto& [name, bytes] : rows) {
      EXPECT_TRUE(planned.contains(name) && planned.at(name) == bytes) << name << ", " << bytes << " bytes";
    }
    EXPECT_EQ(planned.size(), rows.size());
  };
  comm::run_ranks_as_threads({.ranks = c.world, .stands_for = c.kind}, run);
  EXPECT_EQ(static_cast<int>(real.size()), c.world);
  EXPECT_GT(real[0].at("gradients"), 0u);
}

TEST(Plan, IsWhatEveryRankReserves) {
  for (const int world : {1, 2, 3}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const auto kind : {precision::RecipeKind::none, precision::RecipeKind::delayed}) {
        for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::cuda}) {
          SCOPED_TRACE(std::to_string(world) + " ranks, stage " + std::to_string(stage));
          Case c{world, options_of(stage, kind, model::Recompute::norms), device};
          c.options.store.transposed =
              world == 2 ? store::TransposedWeights::at_use : store::TransposedWeights::kept;
          expect_planned(c);
        }
      }
    }
  }
}

TEST(Plan, IsWhatARankOfAShardingGroupReserves) {
  for (const int stage : {1, 2, 3}) {
    std::map<std::int64_t, std::size_t> moments;
    for (const std::int64_t group : {0, 1, 2, 4}) {
      SCOPED_TRACE("stage " + std::to_string(stage) + ", groups of " + std::to_string(group));
      Case c{4, options_of(stage, precision::RecipeKind::delayed, model::Recompute::norms), DeviceKind::cpu};
      c.options.group_size = group;
      expect_planned(c);
      const comm::Place place{.size = 4, .local_size = 4, .node_of = {0, 0, 0, 0}};
      moments[group] = rows_of(plan_memory(c.options, place, c.kind)).at("optimizer/exp_avg");
    }
    EXPECT_EQ(moments[4], moments[0]);
    EXPECT_NEAR(static_cast<double>(moments[2]), 2.0 * static_cast<double>(moments[4]), 4096);
    EXPECT_NEAR(static_cast<double>(moments[1]), 4.0 * static_cast<double>(moments[4]), 4096);
  }
}

/// A place on `hosts` hosts with `each` ranks.
comm::Place hosts_of(int hosts, int each) {
  comm::Place place{.size = hosts * each, .local_size = each, .nodes = hosts, .node_of = {}};
  for (int rank = 0; rank < place.size; ++rank) place.node_of.push_back(rank / each);
  return place;
}

TEST(Plan, AnAutomaticGroupIsAHostIfTheStatesFit) {
  const comm::Place place = hosts_of(4, 2);
  runtime::InstanceOptions o = options_of(3, precision::RecipeKind::none, model::Recompute::full);
  const auto need = [&](std::int64_t group) {
    o.group_size = group;
    return plan_memory(o, place, DeviceKind::cpu).bytes;
  };
  const std::size_t host = need(2), hosts = need(4), all = need(0);
  EXPECT_GT(host, hosts);
  EXPECT_GT(hosts, all);
  const auto chosen = [&](std::size_t limit) {
    o.group_size = runtime::kAutomaticGroup;
    return fitting_group(o, place, DeviceKind::cpu, limit);
  };
  EXPECT_EQ(chosen(host), 2);
  EXPECT_EQ(chosen(host - 1), 4);
  EXPECT_EQ(chosen(hosts - 1), 8);
  EXPECT_EQ(chosen(1), 8) << "no group fits";
  o.group_size = 4;
  EXPECT_EQ(fitting_group(o, place, DeviceKind::cpu, 1), 4) << "a number is kept";
}

TEST(Plan, IsWhatIsReservedAtEachLevelAndForEachStorage) {
  for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::cuda}) {
    for (const model::Recompute level : plan::kRecompute) {
      for (const auto kind :
           {precision::RecipeKind::none, precision::RecipeKind::current, precision::RecipeKind::delayed}) {
        SCOPED_TRACE(plan::name_of(level));
        expect_planned({1, options_of(0, kind, level), device});
      }
    }
    for (const DType moments : {DType::f32, DType::bf16, DType::u8}) {
      for (const bool deterministic : {true, false}) {
        SCOPED_TRACE("moments of " + std::to_string(size_of(moments)) + " bytes");
        Case c{2, options_of(1, precision::RecipeKind::delayed, model::Recompute::none), device};
        c.options.store.storage = {DType::bf16, DType::bf16, moments};
        c.options.transformer.gradient_dtype = DType::bf16;
        c.options.store.deterministic = c.options.reproducible.emplace(deterministic);
        expect_planned(c);
      }
    }
  }
}

TEST(Plan, IsWhatIsReservedBesideABaseIn4Bits) {
  for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::cuda}) {
    for (const auto kind : {precision::RecipeKind::none, precision::RecipeKind::delayed}) {
      for (const auto& [world, stage] : {std::pair{1, 0}, {2, 1}, {3, 3}}) {
        SCOPED_TRACE(std::to_string(world) + " ranks, stage " + std::to_string(stage));
        Case c{world, options_of(stage, kind, model::Recompute::norms), device};
        model::Architecture& a = c.options.architecture;
        a.tuning = setup::tuning_of({.rank = 4, .all = true, .where = "test"}, a);
        c.options.store.fixed.format = store::Format::nf4;
        expect_planned(c);
      }
    }
  }
}

TEST(Plan, IsWhatIsReservedForOtherModels) {
  for (const char* shape : {"qwen2.5-0.5b", "llama-3.2-1b"}) {
    SCOPED_TRACE(shape);
    Case c{2, options_of(2, precision::RecipeKind::delayed, model::Recompute::qkv), DeviceKind::cuda};
    model::Architecture& a = c.options.architecture;
    a = model::find_shape(shape);
    a.layers = 2, a.blocks.resize(2), a.vocabulary = 256, a.hidden = 128, a.intermediate = 192;
    a.heads = {.q_heads = 4, .kv_heads = 2, .head_dim = 32};
    expect_planned(c);
  }
}

TEST(Plan, OfAGpuHasTransposedWeightsAndNeedsNoGpu) {
  runtime::InstanceOptions options = options_of(0, precision::RecipeKind::delayed, model::Recompute::none);
  const Rows cpu = rows_of(plan_memory(options, {}, DeviceKind::cpu));
  const Rows gpu = rows_of(plan_memory(options, {}, DeviceKind::cuda));
  EXPECT_FALSE(cpu.contains("parameters/transposed"));
  EXPECT_EQ(gpu.at("parameters/master"), cpu.at("parameters/master"));
  EXPECT_GT(gpu.at("workspace"), cpu.at("workspace"));
  // Three equal blocks: with transposes at use, there is one buffer.
  const std::size_t kept = gpu.at("parameters/transposed");
  options.store.transposed = store::TransposedWeights::at_use;
  EXPECT_EQ(3 * rows_of(plan_memory(options, {}, DeviceKind::cuda)).at("parameters/transposed"), kept);
}

// If the optimizer's state is in host memory, job and plan both count it there to the byte, and not on the
// device.
TEST(Plan, CountsStateInHostMemoryThere) {
  for (const auto kind : {precision::RecipeKind::none, precision::RecipeKind::delayed}) {
    for (const auto& [world, stage] : {std::pair{1, 0}, {2, 0}, {2, 1}, {3, 3}}) {
      SCOPED_TRACE(std::to_string(world) + " ranks, stage " + std::to_string(stage));
      Case c{world, options_of(stage, kind, model::Recompute::none), DeviceKind::cuda};
      c.options.store.state_home = store::Home::pinned;
      expect_planned(c);
    }
  }
  runtime::InstanceOptions options = options_of(1, precision::RecipeKind::delayed, model::Recompute::none);
  const comm::Place place{.rank = 0, .size = 2, .local_size = 2, .node_of = {0, 0}};
  const auto passing = [](const plan::Memory& memory) {
    std::size_t bytes = 0;
    for (const plan::MemoryRow& row : memory.host) bytes = std::max(bytes, row.bytes);
    return bytes;
  };
  const plan::Memory off = plan_memory(options, place, DeviceKind::cuda);
  const plan::Memory cpu = plan_memory(options, place, DeviceKind::cpu);
  options.store.state_home = store::Home::pinned;
  const plan::Memory on = plan_memory(options, place, DeviceKind::cuda);
  const std::size_t state = on.state_of_host();
  EXPECT_EQ(off.state_of_host(), 0u);
  EXPECT_EQ(off.bytes - on.bytes + rows_of(on).at("state under way"), state);
  EXPECT_EQ(on.pinned_bytes() - off.pinned_bytes(), state);
  // Rows are padded to 256 bytes.
  EXPECT_LE(off.update - on.update, 2 * state) << "an update reads and writes it elsewhere";
  EXPECT_GT(off.update - on.update, 2 * state / 100 * 98);
  // Two moments and nearly all master weights, in fp32.
  EXPECT_GT(on.masters_of_host(), state * 32 / 100);
  EXPECT_LT(on.masters_of_host(), state / 3);
  EXPECT_LT(passing(on), passing(off) / 2) << "it passes to checkpoints from where it lies";
  EXPECT_EQ(rows_of(plan_memory(options, place, DeviceKind::cpu)), rows_of(cpu)) << "nothing moves on a CPU";
  const plan::Work work = work_of(options, on, 48, 1);
  EXPECT_EQ(work.host_state_bytes, static_cast<double>(state));
  EXPECT_EQ(work.host_master_bytes, static_cast<double>(on.masters_of_host()));
}

TEST(HostRoom, IsForAllRanksOfAHost) {
  runtime::InstanceOptions options = options_of(0, precision::RecipeKind::none, model::Recompute::none);
  const comm::Place place{.rank = 0, .size = 4, .local_size = 4, .node_of = {0, 0, 0, 0}};
  const plan::Memory off = plan_memory(options, place, DeviceKind::cuda);
  EXPECT_NO_THROW(require_host_room(off, place, 0)) << "what was always pinned is little";
  options.store.state_home = store::Home::pinned;
  const plan::Memory on = plan_memory(options, place, DeviceKind::cuda);
  EXPECT_NO_THROW(require_host_room(on, place, 4 * on.pinned_bytes()));
  EXPECT_THROW(require_host_room(on, place, 4 * on.pinned_bytes() - 4), Error);
}

// The copy and a quarter of the memory must fit. On a CPU, the rank's memory counts. On a GPU, host memory
// counts: the ranks of the host share it, and checkpoints are staged in it.
TEST(RoomForCopy, LeavesAQuarterOfTheMemory) {
  runtime::InstanceOptions options = options_of(1, precision::RecipeKind::none, model::Recompute::none);
  const comm::Place place{.rank = 0, .size = 2, .local_size = 2, .node_of = {0, 0}};
  runtime::InstanceOptions with = options;
  with.snapshot = true;
  constexpr std::size_t kMuch = SIZE_MAX;
  const auto room = [&](DeviceKind kind, std::size_t limit, std::size_t host) {
    return has_room_for_copy(options, place, kind, limit, host);
  };
  const std::size_t cpu = plan_memory(with, place, DeviceKind::cpu).bytes;
  EXPECT_GT(cpu, plan_memory(options, place, DeviceKind::cpu).bytes);
  EXPECT_TRUE(room(DeviceKind::cpu, cpu / 3 * 4 + 8, 0));
  EXPECT_FALSE(room(DeviceKind::cpu, cpu / 3 * 4 - 8, kMuch));
  const plan::Memory gpu = plan_memory(with, place, DeviceKind::cuda);
  std::size_t host = 0, loaded = 0;
  for (const plan::MemoryRow& row : gpu.pinned) host += row.bytes;
  for (const plan::MemoryRow& row : gpu.host) {
    if (row.name == "state/loaded") loaded = row.bytes;
  }
  EXPECT_GT(loaded, std::size_t{1} << 16);
  const std::size_t both = 2 * (host + loaded);  // two ranks
  EXPECT_TRUE(room(DeviceKind::cuda, 0, both / 3 * 4 + 16));
  EXPECT_FALSE(room(DeviceKind::cuda, kMuch, both / 3 * 4 - 16));
}

Candidates candidates(std::vector<std::int64_t> micros) {
  return {.build =
              [](const plan::Choice& choice) {
                runtime::InstanceOptions o =
                    options_of(0, precision::RecipeKind::none, choice.level.recompute);
                o.transformer.max_tokens = choice.micro * 48;
                o.max_documents = choice.micro;
                return o;
              },
          .micros = std::move(micros),
          .levels = {{model::Recompute::none},
                     {model::Recompute::norms},
                     {model::Recompute::qkv},
                     {model::Recompute::full}},
          .length = 48};
}

std::size_t bytes_of(const Candidates& c, const plan::Choice& choice) {
  return plan_memory(c.build(choice), {}, DeviceKind::cpu).bytes;
}

TEST(Choose, TakesTheCheapestLevelThatFits) {
  const Candidates c = candidates({64});
  using model::Recompute;
  std::size_t before = SIZE_MAX;
  for (const Recompute level : plan::kRecompute) {
    const std::size_t bytes = bytes_of(c, {64, {level}});
    EXPECT_LT(bytes, before);
    before = bytes;
    EXPECT_EQ(choose(c, {}, DeviceKind::cpu, bytes), (plan::Choice{64, {level}}));
  }
  EXPECT_THROW(choose(c, {}, DeviceKind::cpu, before - 1), Error);
  Candidates lenient = c;
  lenient.must_fit = false;
  EXPECT_EQ(choose(lenient, {}, DeviceKind::cpu, before - 1), (plan::Choice{64, {Recompute::full}}));
}

TEST(Choose, TakesNoMicroBatchThatDoesNotFit) {
  const Candidates c = candidates({1, 2, 4, 8, 16});
  const std::size_t limit = bytes_of(c, {4, {model::Recompute::none}});
  const plan::Choice choice = choose(c, {}, DeviceKind::cpu, limit);
  EXPECT_LE(bytes_of(c, choice), limit);
  EXPECT_GE(choice.micro, 4);
  EXPECT_EQ(choose(c, {}, DeviceKind::cpu, SIZE_MAX), (plan::Choice{16, {model::Recompute::none}}));
}

TEST(Recipe, SumsGradientsFastWhereItIsAskedForAndScalesAreOfWholeTensors) {
  config::Config config;
  config.bf16 = config.fp8 = true;
  EXPECT_FALSE(setup::recipe_of(config).fast_gradients);
  config.fp8_fast_accumulation = "all";
  EXPECT_TRUE(setup::recipe_of(config).fast_gradients);
  config.fp8_recipe = "current";
  EXPECT_TRUE(setup::recipe_of(config).fast_gradients);
  config.fp8_recipe = "block";
  EXPECT_FALSE(setup::recipe_of(config).fast_gradients);
  config.fp8 = false;
  EXPECT_FALSE(setup::recipe_of(config).fast_gradients);
}

TEST(Levels, TransposedWeightsAreAChoiceOnlyWhereThereAreSome) {
  config::Config config;
  config.bf16 = config.fp8 = true;
  config.recompute_requested = "none";
  const auto count = [&](const char* recipe, DeviceKind kind) {
    config.fp8_recipe = recipe;
    return setup::levels_of(config, kind).size();
  };
  EXPECT_EQ(count("delayed", DeviceKind::cuda), 2u);
  EXPECT_EQ(count("delayed", DeviceKind::cpu), 1u);
  EXPECT_EQ(count("block", DeviceKind::cuda), 1u);
}

}  // namespace
}  // namespace octet::train::fit_test
