// Collectives made of exchanges and kernels, as on GPUs, between ranks that are threads. Every carrier that
// needs no GPU must satisfy the claims of messages and give equal bits.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "comm/claims.h"
#include "octet/comm/thread_ranks.h"
#include "octet/device/cpu.h"
#include "octet/device/device.h"

namespace octet::comm::composed_test {
namespace {

std::string name_of(Carrier carrier) {
  return carrier == Carrier::peer ? "peer" : carrier == Carrier::host ? "host" : "messages";
}

class ComposedRanks : public testing::TestWithParam<std::tuple<Carrier, int>> {
 protected:
  void on_all(const std::function<void(Collectives&)>& claim) {
    const auto [carrier, ranks] = GetParam();
    run_ranks_as_threads({.ranks = ranks, .carrier = carrier}, [&](Job&, Collectives& c, Device&) {
      EXPECT_EQ(c.carrier().substr(0, 4), name_of(carrier)) << c.carrier();
      claim(c);
    });
  }
};

TEST_P(ComposedRanks, ReduceScatterSumsInRankOrder) {
  on_all(expect_sums_in_rank_order);
  on_all(expect_sums_in_a_given_order);
  on_all(expect_sums_of_several_addends);
}
TEST_P(ComposedRanks, AllGatherBringsEverySlice) {
  on_all(expect_all_gather);
}
TEST_P(ComposedRanks, LongMessagesTravelInPieces) {
  on_all(expect_long_messages_to_arrive);
}
TEST_P(ComposedRanks, AllReduceGivesMaximaAndSums) {
  on_all(expect_all_reduce);
}
TEST_P(ComposedRanks, QueuesDoNotBlockEachOther) {
  on_all(expect_queues_to_be_independent);
}
TEST_P(ComposedRanks, EventsOrderCollectivesAndCompute) {
  const auto [carrier, ranks] = GetParam();
  for (const bool worker : {false, true}) {
    run_ranks_as_threads({.ranks = ranks, .compute_worker = worker, .carrier = carrier},
                         [](Job&, Collectives& c, Device& d) { expect_events_to_order_collectives(c, d); });
  }
}
TEST_P(ComposedRanks, ControlPlaneCarriesBytes) {
  on_all([](Collectives& c) { expect_control_plane(c.channel()); });
}
TEST_P(ComposedRanks, WiresAreThoseOfMessages) {
  on_all(expect_wires_to_be_close);
  on_all(expect_block_wires_to_be_exact);
  on_all(expect_narrow_sums_not_to_depend_on_the_owner);
  on_all(expect_narrow_wires_to_show_what_is_not_finite);
  on_all(expect_narrow_gathers_to_agree);
  on_all(expect_gathers_of_bf16_to_agree);
  on_all(expect_gathers_to_keep_what_they_lose);
  on_all(expect_reductions_of_bf16_to_agree);
}
TEST_P(ComposedRanks, ErrorsAreAgreedUpon) {
  on_all([](Collectives& c) { expect_errors_to_be_agreed_upon(c.channel()); });
}
TEST_P(ComposedRanks, TrafficIsCounted) {
  on_all(expect_traffic_to_be_counted);
}

std::string ranks_name(const testing::TestParamInfo<std::tuple<Carrier, int>>& test) {
  return name_of(std::get<0>(test.param)) + "_np" + std::to_string(std::get<1>(test.param));
}
INSTANTIATE_TEST_SUITE_P(Sizes, ComposedRanks,
                         testing::Combine(testing::Values(Carrier::peer, Carrier::host),
                                          testing::Values(2, 3)),
                         ranks_name);
INSTANTIATE_TEST_SUITE_P(Whole, ComposedRanks,
                         testing::Combine(testing::Values(Carrier::peer, Carrier::host),
                                          testing::Values(4, 8)),
                         ranks_name);

/// Returns the final values of all ranks after reductions and gathers with every wire format and with
/// residuals. Covers in-place, hierarchical, rank-order and tree variants.
std::vector<Values<float>> results(Carrier carrier, const std::vector<int>& node_of) {
  const int ranks = static_cast<int>(node_of.size());
  constexpr std::int64_t count = 70001;
  std::vector<Values<float>> all(static_cast<std::size_t>(ranks));
  run_ranks_as_threads({.ranks = ranks, .node_of = node_of, .carrier = carrier}, [&](Job&, Collectives& c,
                                                                                     Device&) {
    Stream& stream = c.reduce_stream();
    Values<float>& mine = all[static_cast<std::size_t>(c.rank())];
    const auto keep = [&](const Values<float>& values) {
      mine.insert(mine.end(), values.begin(), values.end());
    };
    Values<std::uint16_t> residual(static_cast<std::size_t>(ranks * count));
    for (const Wire wire : {Wire::f32, Wire::bf16, Wire::fp8, Wire::int8}) {
      for (const bool hierarchical : {false, true}) {
        auto values = input_of(c.rank(), ranks * count, 11);
        Values<float> apart(static_cast<std::size_t>(count), 0.25f);
        c.reduce_scatter(stream, {.name = "apart",
                                  .from = values.data(),
                                  .to = apart.data(),
                                  .count = count,
                                  .accumulate = true,
                                  .wire = wire,
                                  .hierarchical = hierarchical,
                                  .residual = residual.data()});
        c.reduce_scatter(stream, {.name = "in place",
                                  .from = values.data(),
                                  .to = values.data() + c.rank() * count,
                                  .count = count,
                                  .wire = wire,
                                  .hierarchical = hierarchical});
        c.all_gather_values(stream, {.name = "sums",
                                     .buffer = values.data(),
                                     .count = count,
                                     .wire = wire,
                                     .hierarchical = hierarchical,
                                     .residual = residual.data() + c.rank() * count});
        c.all_gather(stream, {.name = "bytes",
                              .buffer = values.data(),
                              .bytes = count * 4 - 3,  // slices that are not whole elements
                              .hierarchical = hierarchical});
        stream.synchronize();
        keep(apart);
        keep(values);
      }
    }
    for (const std::uint16_t lost : residual) mine.push_back(from_bf16(lost));
    SumOrder order{.parts = std::vector<int>(static_cast<std::size_t>(ranks), 2),
                   .merges = std::vector<int>(static_cast<std::size_t>(2 * ranks), 0)};
    order.merges[2] = 1;
    order.merges.back() = 2 * ranks - 2;
    const auto first = input_of(c.rank(), ranks * count, 12), second = input_of(c.rank(), ranks * count, 13);
    Values<float> sum(static_cast<std::size_t>(count));
    c.reduce_scatter(stream, {.name = "tree",
                              .from = second.data(),
                              .to = sum.data(),
                              .count = count,
                              .order = &order,
                              .earlier = {first.data()}});
    stream.synchronize();
    keep(sum);
  });
  return all;
}

TEST(ComposedNodes, GiveTheBitsOfMessages) {
  for (const auto& nodes :
       std::vector<std::vector<int>>{{0, 0}, {0, 1}, {0, 0, 1, 1}, {0, 1, 0}, {0, 0, 0, 1, 1}}) {
    const auto expected = results(Carrier::messages, nodes);
    for (const Carrier carrier : {Carrier::peer, Carrier::host}) {
      const auto found = results(carrier, nodes);
      for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
        EXPECT_TRUE(same_bits(found[rank], expected[rank]))
            << name_of(carrier) << ", rank " << rank << " of " << nodes.size();
      }
    }
  }
}

/// Returns the results and residuals of two hierarchical int8 sums of slices with several chunks.
std::vector<Values<float>> hierarchical_losses(Carrier carrier) {
  constexpr std::int64_t count = 600001;
  const std::vector<int> node_of = {0, 0, 1, 1};
  std::vector<Values<float>> all(node_of.size());
  run_ranks_as_threads({.ranks = 4, .node_of = node_of, .carrier = carrier},
                       [&](Job&, Collectives& c, Device&) {
                         const auto values = input_of(c.rank(), 4 * count, 21);
                         Values<float> sum(count);
                         Values<std::uint16_t> residual(4 * count);
                         for (int round = 0; round < 2; ++round) {
                           c.reduce_scatter(c.reduce_stream(), {.name = "losses",
                                                                .from = values.data(),
                                                                .to = sum.data(),
                                                                .count = count,
                                                                .accumulate = round > 0,
                                                                .wire = Wire::int8,
                                                                .hierarchical = true,
                                                                .residual = residual.data()});
                         }
                         c.reduce_stream().synchronize();
                         Values<float>& mine = all[static_cast<std::size_t>(c.rank())];
                         mine = sum;
                         for (const std::uint16_t lost : residual) mine.push_back(from_bf16(lost));
                       });
  return all;
}

TEST(ComposedNodes, LossesOfEveryChunkAreItsOwn) {
  const auto expected = hierarchical_losses(Carrier::host), found = hierarchical_losses(Carrier::messages);
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    EXPECT_TRUE(same_bits(found[rank], expected[rank])) << rank;
  }
}

TEST(ComposedNodes, BytesBetweenNodesAreCounted) {
  run_ranks_as_threads({.ranks = 3, .node_of = {0, 0, 1}, .carrier = Carrier::host},
                       [](Job&, Collectives& c, Device&) {
                         Values<float> values(3 * 256, 1.0f);
                         c.all_gather(c.gather_stream(), {.buffer = values.data(), .bytes = 1024});
                         c.gather_stream().synchronize();
                         for (const Traffic& one : c.take_traffic()) {
                           if (one.kind != "all_gather") continue;
                           EXPECT_EQ(one.bytes_sent, 2048);
                           EXPECT_EQ(one.bytes_between_nodes, c.rank() == 2 ? 2048 : 1024);
                         }
                       });
}

/// Sets an environment variable for the life of this object.
class Setting {
 public:
  Setting(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  ~Setting() { ::unsetenv(name_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
};

TEST(CarrierChoice, TakesTheNextOneWhereALinkOrAHandleFails) {
  for (const char* what : {"peer-open", "peer-pattern"}) {
    const Setting broken("OCTETRUN_BREAK_CARRIER", what);
    run_ranks_as_threads({.ranks = 3, .carrier = Carrier::automatic}, [](Job&, Collectives& c, Device&) {
      EXPECT_EQ(c.carrier(), "host");
      expect_all_gather(c);
    });
  }
}

TEST(CarrierChoice, ACarrierThatIsForcedAndDoesNotWorkIsAnError) {
  const Setting broken("OCTETRUN_BREAK_CARRIER", "peer-pattern");
  try {
    run_ranks_as_threads({.ranks = 2, .carrier = Carrier::peer}, [](Job&, Collectives&, Device&) {});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("arrived corrupted"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("gpu_transport"), std::string::npos) << error.what();
  }
}

TEST(SharedMemoryOfRanks, GathersGoThereWithoutStaging) {
  run_ranks_as_threads({.ranks = 4, .carrier = Carrier::peer}, [](Job&, Collectives& c, Device& device) {
    constexpr std::int64_t bytes = 300000;
    Arena arena(device);
    auto* buffer = arena.reserve_as<unsigned char>("gathered", 4 * bytes);
    c.share({{.address = buffer, .bytes = 4 * bytes}});
    for (int round = 0; round < 3; ++round) {
      std::fill_n(buffer + c.rank() * bytes, bytes, static_cast<unsigned char>(10 * round + c.rank()));
      c.channel().barrier();  // no rank may still read the result of the previous gather
      c.all_gather(c.gather_stream(), {.buffer = buffer, .bytes = bytes});
      c.gather_stream().synchronize();
      for (int rank = 0; rank < 4; ++rank) {
        EXPECT_EQ(buffer[rank * bytes], 10 * round + rank);
        EXPECT_EQ(buffer[(rank + 1) * bytes - 1], 10 * round + rank);
      }
      c.channel().barrier();
    }
    c.unshare({{.address = buffer, .bytes = 4 * bytes}});
    // No longer shared: goes through staging memory.
    std::fill_n(buffer + c.rank() * bytes, bytes, static_cast<unsigned char>(100 + c.rank()));
    c.all_gather(c.gather_stream(), {.buffer = buffer, .bytes = bytes});
    c.gather_stream().synchronize();
    for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(buffer[rank * bytes], 100 + rank);
  });
}

// Small messages are sent without a handshake. Each must be read before the next but one reuses its buffer,
// no matter which rank is late.
TEST(SmallMessages, AreReadBeforeOthersTakeTheirPlace) {
  constexpr int rounds = 300, ranks = 3;
  constexpr std::int64_t count = 7;
  run_ranks_as_threads({.ranks = ranks, .carrier = Carrier::peer}, [](Job&, Collectives& c, Device&) {
    Stream& stream = c.reduce_stream();
    std::vector<std::int64_t> sums(rounds * count);
    std::vector<float> gathered(rounds * ranks * count);
    for (int round = 0; round < rounds; ++round) {
      if ((round * 7 + c.rank() * 3) % 5 == 0) {
        cpu::enqueue(stream, [] { std::this_thread::sleep_for(std::chrono::microseconds(300)); });
      }
      std::int64_t* sum = sums.data() + round * count;
      float* all = gathered.data() + round * ranks * count;
      for (int i = 0; i < count; ++i) {
        sum[i] = 1000 * round + 10 * i + c.rank();
        all[c.rank() * count + i] = static_cast<float>(100 * round + 10 * c.rank() + i);
      }
      c.all_reduce_sum(stream, "small", sum, count);
      c.all_gather(stream, {.name = "small", .buffer = all, .bytes = count * 4});
    }
    stream.synchronize();
    for (int round = 0; round < rounds; ++round) {
      for (int i = 0; i < count; ++i) {
        ASSERT_EQ(sums[static_cast<std::size_t>(round * count + i)], ranks * (1000 * round + 10 * i) + 3)
            << round;
        for (int r = 0; r < ranks; ++r) {
          ASSERT_EQ(gathered[static_cast<std::size_t>((round * ranks + r) * count + i)],
                    static_cast<float>(100 * round + 10 * r + i))
              << round << ", of rank " << r;
        }
      }
    }
  });
}

TEST(ComposedFailure, ARankThatThrowsEndsTheOthers) {
  std::vector<Values<float>> buffers(3, Values<float>(3000, 1.0f));
  for (const Carrier carrier : {Carrier::peer, Carrier::host}) {
    const auto run = [&] {
      run_ranks_as_threads({.ranks = 3, .carrier = carrier}, [&](Job&, Collectives& c, Device&) {
        if (c.rank() == 1) throw std::out_of_range("rank 1 cannot go on");
        c.all_gather(c.gather_stream(), {.name = "never whole",
                                         .buffer = buffers[static_cast<std::size_t>(c.rank())].data(),
                                         .bytes = 4000});
        c.gather_stream().synchronize();
      });
    };
    EXPECT_THROW(run(), std::out_of_range);
  }
}

}  // namespace
}  // namespace octet::comm::composed_test
