// Experts that are split among ranks: gradients, steps and checkpoints are as with all experts on every rank.
#include "train/expert_parallel.h"

namespace octet::train::expert_parallel_test {
namespace {

TEST(ExpertParallel, HasTheGradientsOfRanksWithAllExperts) {
  const Result whole = train({});
  EXPECT_EQ(whole.exchanged, 0);
  for (const int split : {2, 4}) {
    SCOPED_TRACE("split " + std::to_string(split));
    const Result found = train({.split = split});
    expect_near(found, whole);
    EXPECT_GT(found.exchanged, 0);
  }
}

TEST(ExpertParallel, TrainsWithRanksWithoutTokensAndOtherLayers) {
  const std::vector<std::pair<const char*, How>> cases = {
      {"a rank without tokens", {.ranks = 2, .stage = 1, .empty = 1}},
      {"one expert per token, and fewer than ranks use", {.ranks = 2, .stage = 3, .taken = 1}},
      {"more experts per token than a rank has", {.ranks = 4, .experts = 4, .taken = 3}},
      {"inputs made again", {.ranks = 2, .stage = 2, .recompute = "norms"}},
      {"blocks made again", {.ranks = 2, .worker = true, .recompute = "full"}},
      {"a shared expert", {.ranks = 2, .shared = 32}},
      {"biases", {.ranks = 2, .biases = true}},
      {"a capacity", {.ranks = 2, .stage = 1, .capacity = 0.75}},
      {"a capacity, and a rank without tokens",
       {.ranks = 4, .stage = 3, .recompute = "full", .empty = 2, .capacity = 0.5}},
      {"sums once per step", {.ranks = 2, .stage = 1, .deterministic = false}},
      {"frozen experts", {.ranks = 4, .stage = 3, .frozen = true}},
      {"frozen experts in NF4", {.ranks = 4, .stage = 3, .frozen = true, .nf4 = true}},
      {"frozen experts in NF4, half of them",
       {.ranks = 4, .split = 2, .stage = 3, .frozen = true, .nf4 = true}},
  };
  for (const auto& [name, how] : cases) {
    SCOPED_TRACE(name);
    How without = how, with = how;
    without.split = 1;
    if (how.split == 1) with.split = how.ranks;
    expect_near(train(with, 0, 2), train(without, 0, 2));
  }
}

TEST(ExpertParallel, TrainsInFp8) {
  for (const char* recipe : {"delayed", "block"}) {
    for (const int stage : {0, 3}) {
      SCOPED_TRACE(std::string(recipe) + ", stage " + std::to_string(stage));
      const int empty = stage == 3 ? 1 : -1;
      const Result whole = train({.ranks = 2, .stage = stage, .fp8 = recipe, .empty = empty}, 0, 2);
      const How split{.ranks = 2, .split = 2, .stage = stage, .fp8 = recipe, .empty = empty};
      expect_near(train(split, 0, 2), whole, 5e-3);
    }
  }
  // The rows of an expert have one scale, so rows of more ranks are cast otherwise.
  const Result exact = train({.ranks = 2}, 0, 1);
  const Result whole = train({.ranks = 2, .stage = 1, .fp8 = "current"}, 0, 1);
  const Result found = train({.ranks = 2, .split = 2, .stage = 1, .fp8 = "current"}, 0, 1);
  EXPECT_LE(mean_distance(found.gradients, exact.gradients),
            1.3 * mean_distance(whole.gradients, exact.gradients));
}

// The number of received rows is often no multiple of 16, as the kernel of all experts needs it on Hopper.
TEST(ExpertParallel, PadsRowsForTheKernelOfAllExpertsInFp8) {
  for (const char* recipe : {"delayed", "current"}) {
    const How how{.ranks = 2, .split = 2, .stage = 1, .fp8 = recipe};
    const Result whole = train(how, 0, 2);
    ::setenv("OCTETRUN_GROUPED_GEMM", "hopper", 1);
    const Result padded = train(how, 0, 2);
    ::unsetenv("OCTETRUN_GROUPED_GEMM");
    EXPECT_EQ(padded.losses, whole.losses);
    EXPECT_EQ(padded.norms, whole.norms);
    EXPECT_EQ(padded.gradients, whole.gradients);
    EXPECT_EQ(padded.state, whole.state);
    EXPECT_EQ(padded.gradient_gemms, 2 * 2 * 2 * 2 * 2)
        << "two matrices, two blocks, two micro-batches, two steps, rows of two ranks";
    EXPECT_EQ(whole.gradient_gemms, padded.gradient_gemms);
  }
}

TEST(ExpertParallel, ContinuesFromACheckpointOfAnotherSplit) {
  for (const char* fp8 : {static_cast<const char*>(nullptr), "delayed"}) {
    const How how{.ranks = 4, .moments = "int8", .fp8 = fp8};
    const Result whole = train(how, 0, 3);
    How before = how, after = how;
    before.split = 2, before.stage = 1;
    after.split = 4, after.stage = 3;
    const Tensors state = train(before, 0, 2).state;
    for (const How& next : {after, How{.ranks = 2, .split = 1, .stage = 2, .moments = "int8", .fp8 = fp8}}) {
      SCOPED_TRACE("split " + std::to_string(next.split) + (fp8 == nullptr ? "" : ", FP8"));
      const Result found = train(next, 2, 3, &state);
      EXPECT_EQ(found.state.size(), whole.state.size());
      if (next.ranks != 4) continue;
      EXPECT_NEAR(found.losses.front(), whole.losses.back(), 0.01);
    }
    // Loading and saving changes no bit.
    EXPECT_EQ(train(after, 2, 2, &state).state, state);
  }
}

TEST(ExpertParallel, ContinuesAdaptersFromACheckpointOfAnotherSplit) {
  const How how{.ranks = 4, .moments = "int8", .adapters = "dora"};
  const Result whole = train(how, 0, 3);
  How before = how, after = how;
  before.split = 2, before.stage = 1;
  after.split = 4, after.stage = 3;
  const Tensors state = train(before, 0, 2).state;
  EXPECT_EQ(train(after, 2, 3, &state).state, whole.state);
  EXPECT_EQ(train(after, 2, 2, &state).state, state);
}

// Without fixed sums, the rows of each source are still computed separately, into the same gradients.
TEST(ExpertParallel, TrainsAdaptersWithSumsInAnyOrder) {
  for (const char* adapters : {"dora", "dropout"}) {
    SCOPED_TRACE(adapters);
    const How how{.ranks = 2, .stage = 2, .deterministic = false, .adapters = adapters};
    How split = how;
    split.split = 2;
    expect_near(train(split, 0, 2), train(how, 0, 2));
  }
}

// With sums in rank order, the gradients for each rank of an expert group are sent.
TEST(ExpertParallel, ReducesTheBytesOfThePlan) {
  const auto planned = [](const How& how) {
    const comm::Place place{.size = 4, .local_size = 4, .node_of = {0, 0, 0, 0}};
    return plan_messages(options_of(how), place, DeviceKind::cpu, how.micro)
        .at(static_cast<std::size_t>(how.stage))
        .reduced.bytes;
  };
  const How any{.ranks = 4, .split = 2, .stage = 2, .deterministic = false};
  const std::int64_t reduced = train(any, 0, 1).reduced;
  EXPECT_GT(reduced, 0);
  How ordered = any;
  ordered.deterministic = true;
  EXPECT_EQ(train(ordered, 0, 1).reduced, 2 * reduced);
  EXPECT_EQ(4 * (planned(ordered) - planned(any)), reduced);
  How strict = ordered;
  strict.strict = true;
  EXPECT_EQ(train(strict, 0, 1).reduced, reduced) << "one sum of two micro-batches for each source";
  EXPECT_EQ(planned(ordered) / 2, planned(strict));
}

// If every token takes every expert, every rank gets the same number of rows.
TEST(ExpertParallel, SendsTheBytesOfThePlan) {
  for (const char* recompute : {"none", "full"}) {
    for (const bool frozen : {false, true}) {
      How how{.ranks = 4, .split = 2, .experts = 4, .taken = 4, .recompute = recompute, .frozen = frozen};
      how.equal = true;
      const Result found = train(how, 0, 1);
      const comm::Place place{.size = 4, .local_size = 4, .node_of = {0, 0, 0, 0}};
      runtime::InstanceOptions options = options_of(how);
      options.transformer.max_tokens = options.transformer.max_length = 40;
      const auto planned = plan_messages(options, place, DeviceKind::cpu, 2);
      EXPECT_EQ(found.exchanged, 4 * planned[0].exchanged.bytes) << recompute << ", frozen " << frozen;
      EXPECT_EQ(planned[0].bytes(),
                planned[0].reduced.bytes + planned[0].gathered.bytes + planned[0].exchanged.bytes);
    }
  }
}

TEST(ExpertParallel, HoldsFewerExpertsAndMoreRows) {
  const auto bytes = [](int split, const char* part) {
    const comm::Place place{.size = 4, .local_size = 4, .node_of = {0, 0, 0, 0}};
    std::size_t sum = 0;
    const plan::Memory memory = plan_memory(options_of({.split = split}), place, DeviceKind::cpu);
    for (const auto& row : memory.by_part()) sum += row.name == part ? row.bytes : 0;
    return sum;
  };
  EXPECT_LT(bytes(4, "optimizer"), bytes(2, "optimizer"));
  EXPECT_LT(bytes(2, "optimizer"), bytes(1, "optimizer"));
  EXPECT_GT(bytes(2, "activations"), bytes(1, "activations"));
}

TEST(ExpertParallel, RefusesSplitsThatDoNotFit) {
  const auto refusal = [](const How& how, const std::function<void(model::Architecture&)>& change = {}) {
    std::mutex mutex;
    std::vector<std::string> said;
    comm::run_ranks_as_threads({.ranks = how.ranks},
                               [&](comm::Job& job, comm::Collectives& data, Device& device) {
                                 runtime::InstanceOptions options = options_of(how);
                                 if (change) change(options.architecture);
                                 try {
                                   Engine engine(device, job, data, options);
                                 } catch (const Error& error) {
                                   EXPECT_EQ(error.code(), ExitCode::usage);
                                   if (error.problem().what.empty()) return;
                                   const std::scoped_lock lock(mutex);
                                   said.push_back(error.problem().expected);
                                 }
                               });
    EXPECT_EQ(said.size(), 1U) << "one message";
    return said.empty() ? "" : said.front();
  };
  EXPECT_EQ(refusal({.ranks = 2, .split = 2}, [](model::Architecture& a) { a = model::find_shape("tiny"); }),
            "1 for a model without experts");
  EXPECT_EQ(refusal({.ranks = 3, .split = 3}), "a divisor of the 4 experts of a block");
  EXPECT_EQ(refusal({.ranks = 3, .split = 2}), "a divisor of the number of ranks, 3");
  const auto adapt = [](model::Architecture& a) {
    a.tuning = {.adapters = true, .modules = {{"model.layers.0.mlp.experts.1.up_proj", {.rank = 2}}}};
  };
  EXPECT_EQ(refusal({.ranks = 2, .split = 2}, adapt), "equal adapters on all 4 experts of a block");
  const auto adapt_unequally = [](model::Architecture& a) {
    a.tuning = adapters_of({});
    a.tuning.modules["model.layers.1.mlp.experts.3.up_proj"].rank = 3;
  };
  EXPECT_EQ(refusal({.ranks = 2, .split = 2}, adapt_unequally), "equal adapters on all 4 experts of a block");
}

}  // namespace
}  // namespace octet::train::expert_parallel_test
