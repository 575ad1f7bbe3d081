// Messages of one step of a model of 8 billion parameters on 1,024 ranks, with 8 ranks per node. One rank is
// counted; its messages are complete at once. Memory that nothing is written to takes no room.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdio>
#include <functional>
#include <new>
#include <optional>
#include <string>

#include "comm/counted_ranks.h"
#include "messages/hierarchy.h"
#include "messages/transport_collectives.h"

namespace octet::comm::many_nodes_test {
namespace {

constexpr int kRanks = 1024, kPerNode = 8;
// Llama 3 8B: parameters of a block, of the embedding and of the head.
constexpr std::int64_t kBlock = 218103808, kBlockVectors = 8192, kEmbedding = 525336576, kLastNorm = 4096;
constexpr int kBlocks = 32;

/// Zeros that are only read, or memory for messages.
class Zeros {
 public:
  explicit Zeros(std::size_t bytes)
      : bytes_(bytes),
        at_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                 0)) {
    if (at_ == MAP_FAILED) throw std::bad_alloc();
  }
  ~Zeros() { munmap(at_, bytes_); }
  Zeros(const Zeros&) = delete;
  Zeros& operator=(const Zeros&) = delete;
  std::byte* at() const { return static_cast<std::byte*>(at_); }

 private:
  std::size_t bytes_;
  void* at_;
};

/// The messages of one rank. The other ranks answer at once.
class CountedRank final : public Transport {
 public:
  explicit CountedRank(int rank) : place_(place_of_rank(rank, kRanks, kPerNode)) {}
  const Place& place() const override { return place_; }
  std::size_t max_message() const override { return std::size_t{1} << 24; }
  int open_lane(Queue, const std::vector<int>&) override { return 0; }
  int isend(int, int peer, int, const void*, std::size_t bytes) override {
    count_sent(counts, peer, bytes);
    return 0;
  }
  int irecv(int, int peer, int, void*, std::size_t) override {
    counts.peers.insert(peer);
    return 0;
  }
  bool test(int) override { return true; }
  std::optional<Waiting> probe(int) override { return std::nullopt; }
  void progress() override {}
  void finish() override {}
  void end_job(const std::string&, int) override {}
  bool is_process() const override { return false; }
  bool any_thread() const override { return true; }

  MessageCounts counts;

 private:
  Place place_;
};

class Step8B : public testing::Test {
 protected:
  Step8B() {
    lane_.place = transport_.place();
    lane_.ranks = all_ranks(kRanks);
    staging_.take(memory_.at());
  }
  void run(const std::function<Steps(Call&)>& start, int times) {
    const MessageCounts before = transport_.counts;
    Call call;
    call.transport = &transport_;
    call.lane = &lane_;
    Steps steps = start(call);
    while (!steps.resume()) {
    }
    const MessageCounts& after = transport_.counts;
    sent_.messages += times * (after.messages - before.messages);
    sent_.bytes += times * (after.bytes - before.bytes);
    sent_.small_bytes += times * (after.small_bytes - before.small_bytes);
    sent_.peers = after.peers;
  }
  /// Sums fp32 gradients of so many parameters, a number of times.
  void reduce(std::int64_t parameters, int times) {
    const std::int64_t count = parameters / kRanks;
    const Zeros gradients(static_cast<std::size_t>(parameters) * sizeof(float));
    const Zeros sum(static_cast<std::size_t>(count) * sizeof(float));
    run(
        [&](Call& call) {
          return chosen_reduce_scatter_steps(
              call, staging_, hierarchy_,
              {.from = gradients.at(), .to = sum.at(), .count = count, .hierarchical = true});
        },
        times);
  }
  /// Gathers bf16 parameters.
  void gather(std::int64_t parameters, int times) {
    const Zeros buffer(static_cast<std::size_t>(parameters) * 2);
    run(
        [&](Call& call) {
          return all_gather_steps(
              call, hierarchy_,
              {.buffer = buffer.at(), .bytes = parameters / kRanks * 2, .hierarchical = true});
        },
        times);
  }
  /// The norm, the losses and the numbers of label tokens.
  void sum_norm() {
    std::vector<std::int64_t> limbs(48);
    std::vector<double> losses(2);
    run(
        [&](Call& call) {
          return all_reduce_steps(
              call, staging_, hierarchy_,
              {{ops::Combine::sum_i64, limbs.data(), 48}, {ops::Combine::sum_f64, losses.data(), 2}});
        },
        1);
  }
  void reduce_all() {
    reduce(kBlock, kBlocks);
    reduce(kBlockVectors, kBlocks);
    reduce(kEmbedding, 2);
    reduce(kLastNorm, 1);
    sum_norm();
  }
  void gather_all(int blocks) {
    gather(kBlock, blocks);
    gather(kBlockVectors, blocks);
    gather(kEmbedding, 2);
    gather(kLastNorm, 1);
  }
  /// docs/communication.md has these figures. `small`: percentage of the bytes in small messages.
  void expect_large_messages(const char* what, std::int64_t messages, double small) const {
    const double small_share =
        100.0 * static_cast<double>(sent_.small_bytes) / static_cast<double>(sent_.bytes);
    EXPECT_EQ(sent_.messages, messages) << what;
    EXPECT_NEAR(small_share, small, 0.0005) << what;
    EXPECT_EQ(sent_.peers.size(), 151u) << what;
    std::printf("%s: %ld messages, %.2f GB, %.3f %% in messages below 64 KiB, %zu peers\n", what,
                static_cast<long>(sent_.messages), static_cast<double>(sent_.bytes) / 1e9, small_share,
                sent_.peers.size());
  }

  CountedRank transport_{517};
  Lane lane_;
  Hierarchy hierarchy_{transport_.place()};
  Staging staging_ = reduce_staging(kRanks);
  Zeros memory_{staging_.bytes()};
  MessageCounts sent_;
};

TEST_F(Step8B, SendsFewAndLargeMessages) {
  reduce_all();
  const MessageCounts reduced = sent_;
  gather_all(kBlocks);
  expect_large_messages("stage 1", 16845, 0.012);
  // At stage 3 the last two blocks of the forward pass are still there in the backward pass.
  sent_ = reduced;
  gather_all(2 * kBlocks - 2);
  expect_large_messages("stage 3", 18705, 0.010);
}

}  // namespace
}  // namespace octet::comm::many_nodes_test
