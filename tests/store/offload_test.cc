// Offloaded optimizer state: the exact bytes that move to host memory, and equal bits.
#include <algorithm>
#include <map>

#include "device/far_device.h"
#include "store/synthetic.h"

namespace octet::store::offload_test {
namespace {

using namespace synthetic;

using Rows = std::map<std::string, std::size_t>;

/// Reservations by name, per kind of memory.
struct Held {
  Rows device, pinned;
};

Held reserve(DeviceKind kind, int world, const Options& options) {
  Held held;
  comm::run_ranks_as_threads(
      {.ranks = world, .stands_for = kind}, [&](comm::Job&, comm::Collectives& collectives, Device& device) {
        Arena arena(device);
        const ParameterStore store(layout(4), arena, collectives, options);
        if (collectives.rank() == 0) {
          for (const Reservation& r : arena.reservations()) {
            if (!r.passing) (r.kind == MemoryKind::device ? held.device : held.pinned)[r.name] += r.bytes;
          }
        }
        collectives.channel().barrier();
      });
  return held;
}

struct Case {
  const char* name;
  precision::Recipe recipe;
  Storage storage;
  comm::Wire gather = comm::Wire::f32;
};
std::vector<Case> cases() {
  using precision::RecipeKind;
  return {{"fp32", recipe(RecipeKind::none, DType::f32), {}},
          {"bf16", recipe(RecipeKind::none, DType::bf16), {}},
          {"delayed", recipe(RecipeKind::delayed, DType::bf16), {}},
          {"current, of parts", recipe(RecipeKind::current, DType::bf16, true), {}},
          {"bf16 masters", recipe(RecipeKind::none, DType::bf16), {DType::bf16, DType::bf16, DType::bf16}},
          {"8-bit moments", recipe(RecipeKind::current, DType::bf16), {DType::bf16, DType::f32, DType::u8}},
          {"fp32, gathered in bf16", recipe(RecipeKind::none, DType::f32), {}, comm::Wire::bf16},
          {"bf16, gathered in FP8", recipe(RecipeKind::none, DType::bf16), {}, comm::Wire::fp8}};
}

Options options_of(const Case& c, int stage, Home home) {
  Options o;
  o.stage = stage;
  o.recipe = c.recipe;
  o.storage = c.storage;
  o.gather_wire = c.gather;
  o.state_home = home;
  return o;
}

std::size_t of(const Rows& rows, const std::string& name) {
  const auto found = rows.find(name);
  return found == rows.end() ? 0 : found->second;
}

// Memory that leaves the device is in host memory; all other memory is unchanged.
TEST(StateInHostMemory, MovesToTheByteOnAGpuAndNotOnACpu) {
  for (const Case& c : cases()) {
    for (const int world : {1, 2, 3}) {
      for (const int stage : {0, 1, 2, 3}) {
        SCOPED_TRACE(std::string(c.name) + ", " + std::to_string(world) + " ranks, stage " +
                     std::to_string(stage));
        const Held off = reserve(DeviceKind::cuda, world, options_of(c, stage, Home::device));
        const Held on = reserve(DeviceKind::cuda, world, options_of(c, stage, Home::pinned));
        for (const auto& [name, bytes] : off.device) {
          EXPECT_EQ(of(on.device, name) + of(on.pinned, name) - of(off.pinned, name), bytes) << name;
          const bool state = name.starts_with("optimizer/");
          if (name == "parameters/master") continue;
          EXPECT_EQ(of(on.device, name), state ? 0 : bytes) << name;
        }
        EXPECT_GT(of(on.pinned, "optimizer/exp_avg"), 0u);
        EXPECT_GT(of(on.pinned, "optimizer/exp_avg_sq"), 0u);
        const Held cpu = reserve(DeviceKind::cpu, world, options_of(c, stage, Home::pinned));
        EXPECT_EQ(cpu.device, reserve(DeviceKind::cpu, world, options_of(c, stage, Home::device)).device);
        EXPECT_EQ(of(cpu.pinned, "optimizer/exp_avg"), 0u);
      }
    }
  }
}

/// Returns the padded elements of a kind, for two ranks.
std::size_t trained(model::ParameterKind kind) {
  std::int64_t count = 0;
  for (const model::GroupSpec& group : layout(4).groups) {
    for (const model::SegmentSpec& s : group.segments) {
      if (s.trainable && s.kind == kind) count += model::padded_count(s, 2);
    }
  }
  return static_cast<std::size_t>(count);
}

// Masters move if passes read only their copies.
TEST(StateInHostMemory, AMasterMovesUnlessAPassReadsIt) {
  const auto masters = [](const Case& c, int stage) {
    const Held held = reserve(DeviceKind::cuda, 2, options_of(c, stage, Home::pinned));
    return std::pair(of(held.device, "parameters/master"), of(held.pinned, "parameters/master"));
  };
  const std::vector<Case> all = cases();
  const auto named = [&](const std::string& name) -> const Case& {
    for (const Case& c : all) {
      if (c.name == name) return c;
    }
    return all.front();
  };
  for (const int stage : {0, 1, 2, 3}) {
    EXPECT_EQ(masters(named("fp32"), stage).second, 0u) << stage;
    EXPECT_EQ(masters(named("bf16 masters"), stage).second, 0u) << stage;
    // Masters of vectors are read directly. At stages 1 and 2 they are slices of the gathered copies.
    const std::size_t world = stage == 0 ? 1 : 2;
    for (const char* name : {"bf16", "delayed", "current, of parts"}) {
      const auto [device, host] = masters(named(name), stage);
      EXPECT_EQ(host, 4 * trained(model::ParameterKind::matrix) / world) << name << " at stage " << stage;
      EXPECT_EQ(device, stage % 3 == 0 ? 4 * trained(model::ParameterKind::vector) / world : 0)
          << name << " at stage " << stage;
    }
  }
  // Copies with a narrow gather are made after each update, at stage 3 before each use.
  EXPECT_GT(masters(named("fp32, gathered in bf16"), 1).second, 0u);
  EXPECT_EQ(masters(named("fp32, gathered in bf16"), 3).second, 0u);
}

TEST(StateInHostMemory, ChangesNoBit) {
  for (const Case& c : cases()) {
    for (const auto& [ranks, stage] : {std::pair{1, 0}, {2, 0}, {2, 1}, {3, 2}, {2, 3}}) {
      Scenario s;
      const auto outcome = [&, ranks = ranks, stage = stage](Home home) {
        s.options = options_of(c, stage, home);
        s.options.state_piece = 256;  // many pieces, which rotate through three buffers
        return run({.ranks = ranks, .stands_for = DeviceKind::cuda}, s);
      };
      const Outcome off = outcome(Home::device), on = outcome(Home::pinned);
      EXPECT_EQ(difference(off.state, on.state), "") << c.name << ", stage " << stage;
      EXPECT_EQ(off.copies, on.copies) << c.name << ", stage " << stage;
      EXPECT_EQ(off.scales, on.scales) << c.name << ", stage " << stage;
    }
  }
}

// A save reads offloaded state in place, without a second copy.
TEST(StateInHostMemory, IsSavedAndLoadedWhereItLies) {
  std::vector<std::size_t> saved_bytes;
  for (const Home home : {Home::device, Home::pinned}) {
    FarDevice device({.threads = 1, .stands_for = DeviceKind::cuda});
    const auto job = comm::make_self_job();
    const auto alone = job->collectives(comm::Mesh(1).group("data", 0), device, comm::Carrier::automatic);
    Scenario s;
    s.options = options_of(cases()[1], 0, home);
    Rank rank(*alone, device, s);
    rank.initialise();
    rank.steps(0, 2);
    rank.store().synchronize(rank.compute());
    const std::vector<TensorSlice> places = rank.store().owned_places().still;
    for (const TensorSlice& slice : places) {
      if (!slice.name.starts_with("exp_avg")) continue;
      EXPECT_EQ(device.host_reaches(slice.data), home == Home::pinned) << slice.name;
    }
    for (const TensorSlice& slice : rank.store().owned_slices()) {
      if (!slice.name.starts_with("exp_avg")) continue;
      const auto place = std::ranges::find(places, slice.name, &TensorSlice::name);
      EXPECT_EQ(slice.data == place->data, home == Home::pinned) << slice.name;
    }
    std::size_t saved = 0;
    for (const Reservation& r : rank.arena().reservations()) {
      if (r.passing && r.name == "state/saved") saved = r.bytes;
    }
    saved_bytes.push_back(saved);
    // After a load in place, training continues with the same bits.
    const Outcome before = rank.outcome();
    Rank other(*alone, device, s);
    other.load(before.state);
    EXPECT_EQ(difference(before.state, other.outcome().state), "");
    rank.steps(2, 1), other.steps(2, 1);
    EXPECT_EQ(difference(rank.outcome().state, other.outcome().state), "");
  }
  EXPECT_LT(20 * saved_bytes[1], saved_bytes[0]) << "masters of vectors alone pass through other memory";
}

}  // namespace
}  // namespace octet::store::offload_test
