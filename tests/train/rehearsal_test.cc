// Every rank rehearses a step alone. One rank of each kind of card chooses algorithms. Training results do
// not change.
#include "octet/train/rehearsal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "octet/base/error.h"
#include "octet/comm/thread_ranks.h"
#include "octet/device/cpu.h"
#include "octet/feed/loader.h"
#include "octet/model/shapes.h"

namespace octet::train::rehearsal_test {
namespace {

/// The actions of ranks, in order.
class Diary {
 public:
  void add(int rank, const std::string& what) {
    const std::lock_guard lock(mutex_);
    lines_.push_back(std::to_string(rank) + " " + what);
  }
  std::ptrdiff_t at(const std::string& line) const {
    return std::find(lines_.begin(), lines_.end(), line) - lines_.begin();
  }
  std::size_t size() const { return lines_.size(); }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

TEST(Rehearsal, OneRankOfEachKindChoosesForTheOthers) {
  const std::vector<std::string> kinds = {"", "H200", "H100", "H200", "H200", "H100", ""};
  Diary diary;
  comm::run_ranks_as_threads(
      comm::ThreadRanksOptions{.ranks = static_cast<int>(kinds.size())}, [&](comm::Job& job, Device&) {
        const int rank = job.rank();
        rehearse(job, {.kind = kinds[static_cast<std::size_t>(rank)],
                       .run = [&] { diary.add(rank, "runs"); },
                       .choices = [&] { return "chosen by " + std::to_string(rank); },
                       .learn = [&](const std::string& text) { diary.add(rank, "learns what was " + text); },
                       .close = [&] { diary.add(rank, "closes"); }});
      });
  const auto lines = static_cast<std::ptrdiff_t>(diary.size());
  EXPECT_EQ(lines, 7 + 3 + 7) << "every rank runs once, three learn, all choose nothing more";
  for (std::size_t rank = 0; rank < kinds.size(); ++rank) {
    const std::string r = std::to_string(rank);
    EXPECT_LT(diary.at(r + " runs"), diary.at(r + " closes"));
    EXPECT_LT(diary.at(r + " closes"), lines) << rank;
  }
  for (const auto& [rank, leader] : std::vector<std::pair<int, int>>{{3, 1}, {4, 1}, {5, 2}}) {
    const std::string r = std::to_string(rank), l = std::to_string(leader);
    const std::ptrdiff_t learned = diary.at(r + " learns what was chosen by " + l);
    EXPECT_LT(diary.at(l + " runs"), learned) << rank;
    EXPECT_LT(learned, diary.at(r + " runs")) << rank;
    EXPECT_LT(diary.at(r + " runs"), lines) << rank;
  }
  for (const char* runs : {"0 runs", "1 runs", "2 runs", "6 runs"}) EXPECT_LT(diary.at(runs), lines) << runs;
}

TEST(Rehearsal, AnErrorOfOneRankEndsItOnAll) {
  for (const int failing : {0, 1}) {
    std::atomic<int> ended = 0;
    comm::run_ranks_as_threads(comm::ThreadRanksOptions{.ranks = 3}, [&](comm::Job& job, Device&) {
      const auto run = [&] {
        if (job.rank() == failing) throw Error("no memory is left");
      };
      EXPECT_THROW(rehearse(job, {.kind = "H200",
                                  .run = run,
                                  .choices = [] { return ""; },
                                  .learn = [](const auto&) {},
                                  .close = [] { FAIL() << "nothing ended well"; }}),
                   Error);
      ++ended;
    });
    EXPECT_EQ(ended, 3);
  }
}

struct Steps {
  std::vector<double> seen;
  std::string audit;
  bool operator==(const Steps&) const = default;
};

/// Losses, norms and GEMM formats of two steps, on rank 0 of two.
Steps steps_of(int stage, precision::RecipeKind kind, bool rehearsed) {
  runtime::InstanceOptions o;
  o.architecture = model::find_shape("tiny");
  o.architecture.layers = 5;
  o.architecture.blocks.resize(5, o.architecture.blocks.front());
  o.store.stage = stage;
  o.store.recipe.kind = kind;
  o.store.recipe.compute = DType::bf16;
  o.store.transposed = stage > 1 ? store::TransposedWeights::at_use : store::TransposedWeights::kept;
  o.transformer.max_tokens = 30;
  o.transformer.max_length = 9;
  o.max_documents = 4;
  Steps steps;
  comm::run_ranks_as_threads(comm::ThreadRanksOptions{.ranks = 2, .stands_for = DeviceKind::cuda},
                             [&](comm::Job& job, comm::Collectives& data, Device& device) {
                               Engine engine(device, job, data, o);
                               engine.initialise(7);
                               std::vector<double> seen;
                               for (int step = 0; step < 2; ++step) {
                                 if (rehearsed) {
                                   engine.instance().gather_parameters();
                                   engine.rehearse();
                                 }
                                 runtime::HostBatch batch;
                                 batch.cu_seqlens.push_back(0);
                                 for (const int length : {5, 9, 3 + job.rank()}) {
                                   std::vector<std::int32_t> ids;
                                   for (int i = 0; i < length; ++i)
                                     ids.push_back((i * 37 + length + step) % 1000);
                                   runtime::add_document(batch, ids, ids);
                                 }
                                 engine.begin(1);
                                 engine.micro_batch(batch);
                                 const store::StepResult result = engine.finish(1e-3);
                                 seen.push_back(result.loss_sum);
                                 seen.push_back(result.grad_norm);
                               }
                               if (job.rank() == 0) steps = {seen, engine.audit().summary()};
                             });
  return steps;
}

TEST(Rehearsal, TrainingDoesNotNotice) {
  using precision::RecipeKind;
  for (const int stage : {0, 1, 2, 3}) {
    for (const RecipeKind kind : {RecipeKind::none, RecipeKind::delayed, RecipeKind::current}) {
      const Steps without = steps_of(stage, kind, false);
      ASSERT_EQ(without.seen.size(), 4u);
      EXPECT_TRUE(steps_of(stage, kind, true) == without) << "stage " << stage;
    }
  }
}

}  // namespace
}  // namespace octet::train::rehearsal_test
