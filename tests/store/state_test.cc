#include "store/synthetic.h"

namespace octet::store::state_test {
namespace {

using namespace synthetic;

Scenario scenario(int stage, precision::RecipeKind kind) {
  Scenario s;
  s.options.stage = stage;
  s.options.recipe.kind = kind;
  s.options.recipe.compute = DType::bf16;
  s.options.recipe.history_length = 3;
  s.options.adamw.weight_decay = 0.1;
  return s;
}

constexpr precision::RecipeKind kKinds[] = {precision::RecipeKind::none, precision::RecipeKind::delayed,
                                            precision::RecipeKind::current};

TEST(ZeroState, SavedAndLoadedElsewhereItIsTheSameState) {
  for (const precision::RecipeKind kind : kKinds) {
    const Outcome saved = run({.ranks = 3}, scenario(1, kind));
    for (const int ranks : {1, 2, 4}) {
      for (const int stage : {0, 1, 3}) {
        const Outcome loaded =
            on_threads({.ranks = ranks}, scenario(stage, kind), [&](Rank& rank) { rank.load(saved.state); });
        EXPECT_EQ(difference(saved.state, loaded.state), "") << ranks << " " << stage;
        EXPECT_EQ(loaded.optimizer_steps, 3);
        // Compute copies are made from the masters and the loaded scales, so their bytes are equal.
        for (const std::int64_t hash : loaded.copies)
          EXPECT_EQ(hash, saved.copies[0]) << ranks << " " << stage;
      }
    }
  }
}

TEST(ZeroState, ResumedAtAnotherStageItGoesOnWithTheSameBits) {
  for (const precision::RecipeKind kind : {precision::RecipeKind::none, precision::RecipeKind::current}) {
    Scenario whole = scenario(0, kind);
    whole.steps = 4;
    const Outcome uninterrupted = run({.ranks = 3}, whole);
    whole.steps = 2;
    const Outcome half = run({.ranks = 3}, whole);
    for (const int stage : {0, 1, 2, 3}) {
      const Outcome resumed = on_threads({.ranks = 3}, scenario(stage, kind), [&](Rank& rank) {
        rank.load(half.state);
        rank.steps(2, 2);
      });
      EXPECT_EQ(difference(uninterrupted.state, resumed.state), "") << stage;
      EXPECT_EQ(uninterrupted.copies, resumed.copies) << stage;
      EXPECT_EQ(resumed.optimizer_steps, 4);
    }
  }
}

TEST(ZeroState, DelayedScalesAndTheirHistoriesGoOnWhereTheyWere) {
  Scenario whole = scenario(1, precision::RecipeKind::delayed);
  whole.steps = 5;
  const Outcome uninterrupted = run({.ranks = 2}, whole);
  whole.steps = 2;
  const Outcome half = run({.ranks = 2}, whole);
  EXPECT_TRUE(half.state.contains("fp8_weights/amax_history"));
  const Outcome resumed = on_threads({.ranks = 2}, whole, [&](Rank& rank) {
    rank.load(half.state);
    rank.steps(2, 3);
  });
  EXPECT_EQ(difference(uninterrupted.state, resumed.state), "");
  EXPECT_EQ(uninterrupted.copies, resumed.copies);
}

TEST(ZeroState, SlicesCarryHuggingFaceNamesShapesAndNoPadding) {
  comm::run_ranks_as_threads({.ranks = 1}, [&](comm::Job&, comm::Collectives& collectives, Device& device) {
    Rank rank(collectives, device, scenario(0, precision::RecipeKind::none));
    std::int64_t parameters = 0;
    std::map<std::string, std::vector<std::int64_t>> shapes;
    for (const TensorSlice& s : rank.store().owned_slices()) {
      EXPECT_EQ(s.begin, 0);
      EXPECT_EQ(s.count, element_count(s.shape, s.name));
      shapes[s.name] = s.shape;
      if (!s.name.starts_with("exp_avg") && s.name != "optimizer/step") parameters += s.count;
    }
    EXPECT_FALSE(shapes.contains("frozen.weight"));
    EXPECT_EQ(parameters, layout(5).parameter_count() - 11 * 6);
    EXPECT_EQ(shapes.at("layers.0.k.weight"), (std::vector<std::int64_t>{8, 20}));
    EXPECT_EQ(shapes.at("exp_avg/layers.4.q.bias"), (std::vector<std::int64_t>{7}));
    EXPECT_EQ(shapes.at("optimizer/step"), (std::vector<std::int64_t>{1}));
  });
}

TEST(ZeroState, MeasuringGradientsWithoutAnUpdateChangesNothing) {
  comm::run_ranks_as_threads({.ranks = 2}, [&](comm::Job&, comm::Collectives& collectives, Device& device) {
    Rank rank(collectives, device, scenario(1, precision::RecipeKind::none));
    rank.initialise();
    const State before = rank.outcome().state;
    ParameterStore& store = rank.store();
    store.begin_step(1);
    store.begin_micro_batch(0, rank.compute(), nullptr);
    store.contribute_nothing(rank.compute());
    store.end_micro_batch(rank.compute());
    store.finish({.learning_rate = 1, .label_tokens = 5, .update = false}, rank.compute());
    rank.compute().synchronize();
    const StepResult result = store.collect();
    EXPECT_EQ(result.label_tokens, 10);
    EXPECT_EQ(result.grad_norm, 0.0);
    EXPECT_EQ(store.optimizer_steps(), 0);
    EXPECT_EQ(difference(before, rank.outcome().state), "");
  });
}

TEST(ZeroState, CallsOutOfOrderAreCaught) {
  comm::run_ranks_as_threads({.ranks = 1}, [&](comm::Job&, comm::Collectives& collectives, Device& device) {
    Rank rank(collectives, device, scenario(0, precision::RecipeKind::none));
    ParameterStore& store = rank.store();
    Stream& compute = rank.compute();
    EXPECT_THROW(store.begin_micro_batch(0, compute, nullptr), std::logic_error);
    EXPECT_THROW(store.collect(), std::logic_error);
    EXPECT_THROW(store.release(0, model::Pass::forward, compute), std::logic_error);
    store.begin_step(1);
    EXPECT_THROW(store.begin_step(1), std::logic_error);
    EXPECT_THROW(store.finish({}, compute), std::logic_error);
    EXPECT_THROW(store.gradients(0, compute), std::logic_error);
    store.begin_micro_batch(0, compute, nullptr);
    EXPECT_THROW(store.give_back(0, compute), std::logic_error);
    store.gradients(0, compute);
    EXPECT_THROW(store.contribute_nothing(0, compute), std::logic_error);
    store.give_back(0, compute);
    EXPECT_THROW(store.give_back(0, compute), std::logic_error);
    EXPECT_THROW(store.end_micro_batch(compute), std::logic_error);
  });
}

}  // namespace
}  // namespace octet::store::state_test
