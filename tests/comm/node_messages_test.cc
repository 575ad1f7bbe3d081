// Reduce-scatters and gathers of many nodes: results, with so little staging memory that a sum takes many
// steps.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "comm/counted_ranks.h"
#include "comm/ranks.h"
#include "messages/hierarchy.h"
#include "messages/rounds.h"
#include "messages/transport_collectives.h"
#include "octet/base/index.h"

namespace octet::comm::node_messages_test {
namespace {

/// How a reduce-scatter is sent.
enum class Way { chosen, directly, hierarchical };

/// Reduces the values of all ranks. Every rank has its own memory.
class Reduction {
 public:
  Reduction(int size, int per_node, std::int64_t count, Wire wire, bool hierarchical)
      : ranks_(size, per_node), hierarchy_(ranks_.transport(0).place()), count_(count) {
    args_ = {.count = count, .wire = wire, .hierarchical = hierarchical};
    for (int rank = 0; rank < size; ++rank) {
      inputs_.push_back(input_of(rank, size * count, 3));
      residuals_.emplace_back(index(size * count), static_cast<std::uint16_t>(0x3f00 + rank));
    }
  }
  void keep_residuals() { keeps_residuals_ = true; }
  void shuffle() { ranks_.shuffle(7); }

  /// Returns the slices of all ranks, one after the other.
  Values<float> result(Way way) {
    const auto size = index(ranks_.size());
    std::vector<Values<float>> sums(size, Values<float>(index(count_)));
    std::vector<std::vector<std::byte>> memory(size);
    Staging staging{.chunk = 256, .arrive_bytes = 1024, .leave_bytes = 512, .size = ranks_.size()};
    ranks_.run([&](int rank, Call& call) {
      memory[index(rank)].resize(staging.bytes());
      staging.take(memory[index(rank)].data());
      ReduceScatterArgs args = args_;
      args.from = inputs_[index(rank)].data();
      args.to = sums[index(rank)].data();
      if (keeps_residuals_) args.residual = residuals_[index(rank)].data();
      if (way == Way::hierarchical) return hierarchical_reduce_scatter_steps(call, staging, hierarchy_, args);
      if (way == Way::directly) return reduce_scatter_steps(call, staging, args);
      return chosen_reduce_scatter_steps(call, staging, hierarchy_, args);
    });
    Values<float> all;
    for (const auto& sum : sums) all.insert(all.end(), sum.begin(), sum.end());
    return all;
  }
  const std::vector<std::vector<std::uint16_t>>& residuals() const { return residuals_; }
  MessageCounts most() const { return ranks_.most(); }

 private:
  CountedRanks ranks_;
  Hierarchy hierarchy_;
  std::int64_t count_;
  ReduceScatterArgs args_;
  std::vector<Values<float>> inputs_;
  std::vector<std::vector<std::uint16_t>> residuals_;
  bool keeps_residuals_ = false;
};

/// Returns the sums of all slices: in rank order inside a node, rounded to the wire format, then in node
/// order.
Values<float> expected_sums(int size, int per_node, std::int64_t count, Wire wire) {
  Values<float> all;
  for (int owner = 0; owner < size; ++owner) {
    std::vector<std::vector<std::byte>> encoded;
    std::vector<const void*> parts;
    for (int first = 0; first < size; first += per_node) {
      Values<float> sum(index(count));
      for (std::int64_t i = 0; i < count; ++i) {
        float& one = sum[index(i)];
        one = element_of(first, owner * count + i, 3);
        for (int rank = first + 1; rank < std::min(size, first + per_node); ++rank)
          one += element_of(rank, owner * count + i, 3);
      }
      encoded.emplace_back(ops::wire_bytes(wire, count));
      if (wire == Wire::f32) {
        std::memcpy(encoded.back().data(), sum.data(), encoded.back().size());
      } else {
        ops::encode_values({.wire = wire, .from = sum.data(), .count = count, .to = encoded.back().data()});
      }
    }
    for (const auto& node : encoded) parts.push_back(node.data());
    Values<float> sum(index(count));
    ops::sum_parts({.wire = wire, .parts = parts, .to = sum.data(), .count = count});
    all.insert(all.end(), sum.begin(), sum.end());
  }
  return all;
}

TEST(NodeMessages, SumsByNodesAreInRankOrderThenInNodeOrder) {
  for (const auto& [size, per_node] :
       {std::pair(18, 3), std::pair(11, 4), std::pair(10, 2), std::pair(4, 2)}) {
    for (const std::int64_t count : {1, 127, 1000, 5000}) {
      for (const Wire wire : {Wire::f32, Wire::bf16, Wire::int8}) {
        Reduction reduction(size, per_node, count, wire, true);
        reduction.shuffle();
        const Values<float> expected = expected_sums(size, per_node, count, wire);
        EXPECT_TRUE(same_bits(reduction.result(Way::hierarchical), expected)) << size << " " << count;
        EXPECT_TRUE(same_bits(reduction.result(Way::chosen), expected)) << size << " " << count;
      }
    }
  }
}

TEST(NodeMessages, FewValuesAreSummedInRoundsWithTheSameBits) {
  for (const int size : {17, 22, 32}) {
    for (const std::int64_t count : {1, 130, 500}) {
      for (const Wire wire : {Wire::f32, Wire::bf16, Wire::fp8}) {
        Reduction rounds(size, 0, count, wire, false), direct(size, 0, count, wire, false);
        rounds.keep_residuals();
        direct.keep_residuals();
        EXPECT_TRUE(same_bits(rounds.result(Way::chosen), direct.result(Way::directly)))
            << size << " " << count;
        EXPECT_EQ(rounds.residuals(), direct.residuals());
        EXPECT_LE(rounds.most().messages, 5);
        EXPECT_EQ(direct.most().messages % (size - 1), 0);
      }
    }
  }
}

TEST(NodeMessages, NodeSumsKeepTheirResiduals) {
  Reduction chosen(18, 3, 40, Wire::int8, true), slow(18, 3, 40, Wire::int8, true);
  chosen.keep_residuals();
  slow.keep_residuals();
  EXPECT_TRUE(same_bits(chosen.result(Way::chosen), slow.result(Way::hierarchical)));
  EXPECT_EQ(chosen.residuals(), slow.residuals());
}

TEST(NodeMessages, SlicesOfManyNodesArriveInFewMessages) {
  struct Row {
    int size, per_node;
    std::int64_t slice;
  };
  // The last node may be smaller. Long slices of three nodes are forwarded in two messages.
  for (const auto& [size, per_node, slice] :
       {Row{16, 2, 20001}, Row{17, 2, 20001}, Row{20, 3, 20001}, Row{10, 2, std::int64_t{3} << 20}}) {
    CountedRanks ranks(size, per_node);
    ranks.shuffle(5);
    const Hierarchy hierarchy(ranks.transport(0).place());
    EXPECT_TRUE(gathers_whole_nodes(hierarchy, slice));
    std::vector<std::vector<char>> buffers(index(size));
    ranks.run([&](int rank, Call& call) {
      auto& buffer = buffers[index(rank)];
      buffer.assign(index(size * slice), '?');
      for (std::int64_t i = 0; i < slice; ++i)
        buffer[index(rank * slice + i)] = static_cast<char>(rank * 7 + i % 101);
      return all_gather_steps(call, hierarchy,
                              {.buffer = buffer.data(), .bytes = slice, .hierarchical = true});
    });
    for (const auto& buffer : buffers) {
      bool same = true;
      for (int rank = 0; rank < size; ++rank) {
        for (std::int64_t i = 0; i < slice; i += 17)
          same = same && buffer[index(rank * slice + i)] == static_cast<char>(rank * 7 + i % 101);
      }
      EXPECT_TRUE(same) << size << " ranks, " << slice;
    }
    EXPECT_LT(ranks.most().messages, size);
  }
}

TEST(NodeMessages, FewNodesAndLongSlicesUseEveryRank) {
  const Hierarchy few(place_of_rank(0, 4, 2)), many(place_of_rank(0, 16, 2));
  EXPECT_FALSE(gathers_whole_nodes(few, 1000));
  EXPECT_FALSE(gathers_whole_nodes(many, (std::int64_t{1} << 23) + 1));
  Place alternating = place_of_rank(0, 16, 2);
  std::vector<int> node_of;
  for (int rank = 0; rank < 16; ++rank) node_of.push_back(rank % 8);
  set_nodes(alternating, node_of);
  EXPECT_FALSE(gathers_whole_nodes(Hierarchy(alternating), 1000));
}

}  // namespace
}  // namespace octet::comm::node_messages_test
