// The log: the largest memory, the loss of each rank, and means over answers.
#include "../src/train/logs/step_report.h"

#include <gtest/gtest.h>

#include <sys/resource.h>

#include <map>
#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/comm/thread_ranks.h"
#include "octet/feed/loader.h"
#include "octet/model/shapes.h"

namespace octet::train::rank_log_test {
namespace {

/// Device memory that the host cannot access, without other functions.
class GpuLike final : public Device {
 public:
  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string description() const override { return "a GPU's memory"; }
  MemoryInfo memory() const override { return {.total = 1000, .free = 300}; }
  bool host_reaches_memory() const override { return false; }
  std::unique_ptr<Stream> make_stream(const StreamOptions&) override { return nullptr; }
  std::unique_ptr<Event> make_event() override { return nullptr; }
  std::unique_ptr<Event> make_timed_event() override { return nullptr; }
  double seconds_between(const Event&, const Event&) override { return 0; }
  bool complete(const Event&) override { return true; }
  void* allocate(std::size_t) override { return nullptr; }
  void release(void*, std::size_t) noexcept override {}
  void* allocate_host(std::size_t) override { return nullptr; }
  void release_host(void*, std::size_t) noexcept override {}
  void copy_to_device(Stream&, void*, const void*, std::size_t) override {}
  void copy_to_host(Stream&, void*, const void*, std::size_t) override {}
  void copy(Stream&, void*, const void*, std::size_t) override {}
  void zero(Stream&, void*, std::size_t) override {}
};

TEST(MemoryInUse, IsTheDevicesOwnOnAGpu) {
  EXPECT_EQ(memory_in_use(GpuLike()), 700);
}

TEST(MemoryInUse, IsTheProcessAtItsHighestOnACpu) {
  const auto highest = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
  };
  const auto device = make_cpu_device({.threads = 1});
  const std::int64_t before = highest(), found = memory_in_use(*device);
  EXPECT_GE(found, before);
  EXPECT_LE(found, highest());
  constexpr std::size_t more = 64 << 20;
  const std::vector<char> touched(more, 1);
  EXPECT_GE(memory_in_use(*device), static_cast<std::int64_t>(more));
  // A volatile read, so that the compiler does not remove the memory.
  EXPECT_EQ(static_cast<const volatile char*>(touched.data())[static_cast<std::size_t>(before) % more], 1);
}

TEST(OwnLoss, IsTheMeanOfStepsByTheirOwnTokens) {
  OwnLoss own;
  EXPECT_FALSE(own.mean().has_value());
  own.add({.sum = 0, .label_tokens = 0});
  EXPECT_FALSE(own.mean().has_value()) << "a step without labels says nothing";
  own.add({.sum = 12, .label_tokens = 4});
  own.add({.sum = 0, .label_tokens = 0});
  own.add({.sum = 50, .label_tokens = 10});
  EXPECT_DOUBLE_EQ(own.mean().value(), 4);
}

TEST(ExchangeFacts, GivesEveryRankTheMostAndTheLossesInOrder) {
  comm::run_ranks_as_threads({.ranks = 3}, [](comm::Job& c, Device&) {
    const int r = c.rank();
    // Rank 1 has the largest value of one field, rank 2 of the other.
    const AllFacts all = exchange_facts(c, {.loss = r == 1 ? std::nullopt : std::optional(r + 0.5),
                                            .reserved_bytes = std::int64_t{r == 1 ? 90 : 10 + r} << 32,
                                            .used_bytes = std::int64_t{100 + r} << 32});
    EXPECT_EQ(all.reserved_bytes, std::int64_t{90} << 32);
    EXPECT_EQ(all.used_bytes, std::int64_t{102} << 32);
    ASSERT_EQ(all.losses.size(), 3u);
    EXPECT_EQ(all.losses[0], 0.5);
    EXPECT_FALSE(all.losses[1].has_value());
    EXPECT_EQ(all.losses[2], 2.5);
  });
}

runtime::HostBatch documents_of(const std::vector<int>& lengths) {
  runtime::HostBatch batch;
  batch.cu_seqlens.push_back(0);
  for (const int length : lengths) {
    std::vector<std::int32_t> ids;
    for (int i = 0; i < length; ++i) ids.push_back((i * 37 + length) % 1000);
    runtime::add_document(batch, ids, ids);
  }
  return batch;
}

class RankLosses : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Sums, RankLosses, testing::Bool(),
                         [](const auto& p) { return p.param ? "strict" : "plain"; });

// Rank 0 has two micro-batches, rank 1 one, rank 2 none. Their expected losses come from earlier evaluations.
TEST_P(RankLosses, AreOfTheRanksOwnMicroBatches) {
  runtime::InstanceOptions o;
  o.architecture = model::find_shape("tiny");
  o.architecture.layers = 1;
  o.architecture.blocks.resize(1);
  o.store.recipe.compute = DType::f32;
  o.store.strict = GetParam();
  o.transformer.max_tokens = 30;
  o.transformer.max_length = 12;
  o.max_documents = 3;
  o.max_micro_batches = 2;
  comm::run_ranks_as_threads({.ranks = 3}, [&](comm::Job& c, comm::Collectives& data, Device& device) {
    Engine engine(device, c, data, o);
    engine.initialise(7);
    const std::vector<runtime::HostBatch> batches{
        documents_of(c.rank() < 2 ? std::vector<int>{5, 9} : std::vector<int>{}),
        documents_of(c.rank() < 1 ? std::vector<int>{12, 3, 4} : std::vector<int>{})};
    const std::int64_t labels = c.rank() == 0 ? 12 + 16 : c.rank() == 1 ? 12 : 0;
    double expected = 0;
    std::int64_t counted = 0;
    for (const auto& batch : batches) engine.evaluate(batch, &expected, &counted);
    EXPECT_EQ(counted, labels);
    engine.begin(2);
    for (const auto& batch : batches) engine.micro_batch(batch);
    const store::StepResult step = engine.finish(1e-3);
    const RankLoss own = engine.own_loss();
    EXPECT_EQ(own.label_tokens, labels);
    EXPECT_NEAR(own.sum, expected, 1e-6 * expected);
    EXPECT_EQ(step.label_tokens, 12 + 16 + 12);
    double sum = 0;
    for (const std::string& text : c.all_gather_bytes(std::to_string(own.sum))) sum += std::stod(text);
    EXPECT_NEAR(step.loss_sum, sum, 1e-4) << "the step's loss is that of all ranks";
  });
}

using Fields = std::map<std::string, double>;

Fields of_judged(const std::vector<double>& sums, double point) {
  const auto fields = judgement_fields(sums, point);
  return {fields.begin(), fields.end()};
}

Fields of_pairs(const std::vector<double>& sums, ops::PreferenceKind kind) {
  const auto fields = preference_fields(sums, {.kind = kind});
  return {fields.begin(), fields.end()};
}

TEST(AnswerFields, OfJudgedAnswersAreMeansOverEachKind) {
  // Rewards, log-probabilities, three desirable and two undesirable answers, tokens.
  EXPECT_EQ(of_judged({6, 3, -12, -30, 3, 2, 70}, 0.25), (Fields{{"rewards/chosen", 2},
                                                                 {"rewards/rejected", 1.5},
                                                                 {"rewards/margins", 0.5},
                                                                 {"logps/chosen", -4},
                                                                 {"logps/rejected", -15},
                                                                 {"kl", 0.25}}));
  EXPECT_EQ(of_judged({6, 0, -12, 0, 3, 0, 70}, 0.25),
            (Fields{{"rewards/chosen", 2}, {"logps/chosen", -4}, {"kl", 0.25}}));
  EXPECT_EQ(of_judged({0, 0, 0, 0, 0, 0, 0}, 0), Fields{});
}

TEST(AnswerFields, OfRewardModelsHaveNoLogProbabilities) {
  using enum ops::PreferenceFigure;
  std::vector<double> sums(ops::kPreferenceFigures);
  const auto set = [&](ops::PreferenceFigure figure, double sum) {
    sums[static_cast<std::size_t>(figure)] = sum;
  };
  set(pairs, 4), set(reward_chosen, 8), set(reward_rejected, 2), set(accurate, 3);
  set(chosen, -20), set(rejected, -40);
  Fields fields{{"rewards/chosen", 2},
                {"rewards/rejected", 0.5},
                {"rewards/margins", 1.5},
                {"rewards/accuracies", 0.75}};
  EXPECT_EQ(of_pairs(sums, ops::PreferenceKind::bradley_terry), fields);
  fields["logps/chosen"] = -5, fields["logps/rejected"] = -10;
  EXPECT_EQ(of_pairs(sums, ops::PreferenceKind::sigmoid), fields);
}

}  // namespace
}  // namespace octet::train::rank_log_test
