// Meshes and their groups, and the claims of collectives on groups smaller than the job.
#include "octet/comm/mesh.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "comm/claims.h"
#include "octet/base/error.h"
#include "octet/comm/thread_ranks.h"

namespace octet::comm::mesh_test {
namespace {

std::string message_of(int ranks, const std::vector<Axis>& axes) {
  try {
    const Mesh mesh(ranks, axes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  return "";
}

TEST(Mesh, TheLastAxisVariesFastest) {
  const Mesh mesh(12, {{"data", 2}, {"pipeline", 3}, {"tensor", 2}});
  EXPECT_EQ(mesh.group("tensor", 7), (Group{.name = "tensor", .ranks = {6, 7}}));
  EXPECT_EQ(mesh.group("pipeline", 7), (Group{.name = "pipeline", .ranks = {7, 9, 11}}));
  EXPECT_EQ(mesh.group("data", 7), (Group{.name = "data", .ranks = {1, 7}}));
  EXPECT_EQ(mesh.coordinate("data", 7), 1);
  EXPECT_EQ(mesh.coordinate("pipeline", 7), 0);
  EXPECT_EQ(mesh.coordinate("tensor", 7), 1);
  EXPECT_EQ(mesh.size("pipeline"), 3);
  EXPECT_EQ(mesh.words(), "data 2 x pipeline 3 x tensor 2");
}

TEST(Mesh, EveryRankIsInOneGroupAlongAnAxis) {
  const Mesh mesh(12, {{"data", 3}, {"tensor", 4}});
  for (const std::string axis : {"data", "tensor"}) {
    std::vector<int> seen(12);
    for (int rank = 0; rank < 12; ++rank) {
      const Group group = mesh.group(axis, rank);
      EXPECT_EQ(group.ranks.at(static_cast<std::size_t>(mesh.coordinate(axis, rank))), rank);
      for (const int mate : group.ranks) {
        EXPECT_EQ(mesh.group(axis, mate), group);
        ++seen.at(static_cast<std::size_t>(mate));
      }
    }
    EXPECT_EQ(seen, std::vector<int>(12, mesh.size(axis)));
  }
}

TEST(Mesh, OfOneAxisIsTheWholeJob) {
  EXPECT_EQ(Mesh(3).group("data", 1), (Group{.name = "data", .ranks = {0, 1, 2}}));
  EXPECT_EQ(Mesh(1).group("data", 0).size(), 1);
}

TEST(Mesh, SizesThatDoNotFitAreTold) {
  const std::string message = message_of(8, {{"data", 2}, {"tensor", 3}});
  for (const char* part : {"multiply to 8", "data 2 x tensor 3", "mpirun -np"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in\n" << message;
  }
  EXPECT_NE(message_of(4, {}).find("no axis"), std::string::npos);
  EXPECT_NE(message_of(4, {{"data", 0}}).find("sizes of 1 and more"), std::string::npos);
  EXPECT_NE(message_of(4, {{"data", -2}, {"tensor", -2}}).find("sizes of 1 and more"), std::string::npos);
  EXPECT_NE(message_of(4, {{"", 4}}).find("no name"), std::string::npos);
  EXPECT_NE(message_of(4, {{"data", 2}, {"data", 2}}).find("one name"), std::string::npos);
  // The product exceeds 32 bits; truncated to them it is 4.
  EXPECT_NE(message_of(4, {{"data", 1 << 30}, {"tensor", 4}, {"pipeline", 1}}).find("multiply to 4"),
            std::string::npos);
  try {
    (void)Mesh(4).group("tensor", 0);
    ADD_FAILURE() << "there is no such axis";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("data 4"), std::string::npos) << error.what();
  }
}

std::string name_of(Carrier carrier) {
  return carrier == Carrier::peer ? "peer" : carrier == Carrier::host ? "host" : "messages";
}

using Way = std::tuple<Carrier, std::vector<int>>;  // carrier, and sizes of the axes data and tensor
class GroupsOfAMesh : public testing::TestWithParam<Way> {
 protected:
  Carrier carrier() const { return std::get<0>(GetParam()); }
  std::vector<Axis> axes() const {
    const auto& sizes = std::get<1>(GetParam());
    return {{"data", sizes[0]}, {"tensor", sizes[1]}};
  }
  void on_all(const std::vector<int>& node_of, const std::function<void(Job&, Device&)>& body) {
    const auto& sizes = std::get<1>(GetParam());
    run_ranks_as_threads({.ranks = sizes[0] * sizes[1], .node_of = node_of}, body);
  }
};

TEST_P(GroupsOfAMesh, ReduceAndGatherAtTheSameTime) {
  on_all({},
         [&](Job& job, Device& device) { expect_axes_to_be_independent(job, device, carrier(), axes()); });
}

TEST_P(GroupsOfAMesh, WorkByNodesInside) {
  const auto& sizes = std::get<1>(GetParam());
  std::vector<int> node_of;
  for (int rank = 0; rank < sizes[0] * sizes[1]; ++rank) node_of.push_back(rank / 2);
  on_all(node_of,
         [&](Job& job, Device& device) { expect_axes_to_be_independent(job, device, carrier(), axes()); });
}

TEST_P(GroupsOfAMesh, KeepTheClaimsOfAllRanks) {
  on_all({}, [&](Job& job, Device& device) {
    const Mesh mesh(job.size(), axes());
    for (const char* axis : {"data", "tensor"}) {
      const auto group = job.collectives(mesh.group(axis, job.rank()), device, carrier());
      expect_all_reduce(*group);
      expect_all_gather(*group);
      expect_traffic_to_be_counted(*group);
      expect_control_plane(group->channel());
      expect_errors_to_be_agreed_upon(group->channel());
    }
  });
}

TEST_P(GroupsOfAMesh, ThatDoNotMatchAreErrors) {
  on_all({}, [&](Job& job, Device& device) { expect_mismatching_groups_to_be_told(job, device, carrier()); });
}

INSTANTIATE_TEST_SUITE_P(Carriers, GroupsOfAMesh,
                         testing::Combine(testing::Values(Carrier::messages, Carrier::peer, Carrier::host),
                                          testing::Values(std::vector<int>{2, 2}, std::vector<int>{2, 3})),
                         [](const auto& test) {
                           const auto& sizes = std::get<1>(test.param);
                           return name_of(std::get<0>(test.param)) + "_" + std::to_string(sizes[0]) + "x" +
                                  std::to_string(sizes[1]);
                         });

class MessagesOfRanks : public testing::TestWithParam<std::tuple<Carrier, int>> {};
TEST_P(MessagesOfRanks, ArriveAsTheyWereSent) {
  const auto [carrier, ranks] = GetParam();
  run_ranks_as_threads({.ranks = ranks, .carrier = carrier}, [](Job&, Collectives& c, Device&) {
    expect_messages(c);
    expect_all_to_all(c);
  });
}
TEST_P(MessagesOfRanks, ChannelsOfSeveralThreadsAreApart) {
  const auto [carrier, ranks] = GetParam();
  if (ranks > 3) return;  // the threads need cores to make progress
  run_ranks_as_threads({.ranks = ranks, .carrier = carrier}, [](Job& job, Collectives& c, Device&) {
    job.watch({.timeout_seconds = 60});  // channels that waited for each other would deadlock
    expect_channels_to_be_apart(job, c);
  });
}
std::string ranks_name(const testing::TestParamInfo<std::tuple<Carrier, int>>& test) {
  return name_of(std::get<0>(test.param)) + "_np" + std::to_string(std::get<1>(test.param));
}
INSTANTIATE_TEST_SUITE_P(Carriers, MessagesOfRanks,
                         testing::Combine(testing::Values(Carrier::messages, Carrier::peer, Carrier::host),
                                          testing::Values(1, 2, 3)),
                         ranks_name);
INSTANTIATE_TEST_SUITE_P(Whole, MessagesOfRanks,
                         testing::Combine(testing::Values(Carrier::messages, Carrier::peer, Carrier::host),
                                          testing::Values(5, 8)),
                         ranks_name);

TEST(GroupsOfOneRank, NeedNoMessages) {
  run_ranks_as_threads({.ranks = 3}, [](Job& job, Device& device) {
    expect_axes_to_be_independent(job, device, Carrier::peer, {{"data", 3}, {"tensor", 1}});
  });
}

TEST(AllToAll, GoesToSharedMemoryWithoutStaging) {
  run_ranks_as_threads({.ranks = 3, .carrier = Carrier::peer}, [](Job&, Collectives& c, Device& device) {
    constexpr std::int64_t bytes = 100003;
    Arena arena(device);
    auto* to = arena.reserve_as<unsigned char>("arriving", 3 * bytes);
    c.share({{.address = to, .bytes = 3 * bytes}});
    Values<unsigned char> from;
    for (int peer = 0; peer < 3; ++peer) {
      const auto slice = bytes_between(c.rank(), peer, bytes, 5);
      from.insert(from.end(), slice.begin(), slice.end());
    }
    c.all_to_all(c.gather_stream(), {.from = from.data(), .to = to, .bytes = bytes});
    c.gather_stream().synchronize();
    for (int peer = 0; peer < 3; ++peer) {
      const Values<unsigned char> came(to + peer * bytes, to + (peer + 1) * bytes);
      EXPECT_TRUE(same_bits(came, bytes_between(peer, c.rank(), bytes, 5))) << peer;
    }
    c.channel().barrier();
    c.unshare({{.address = to, .bytes = 3 * bytes}});
  });
}

TEST(MessageThatDoesNotCome, IsNamedWithTheRankThatHasNotSentIt) {
  std::vector<Values<float>> buffers(3, Values<float>(256));
  try {
    run_ranks_as_threads({.ranks = 3}, [&](Job& job, Collectives& c, Device&) {
      job.watch({.timeout_seconds = 0.5});
      if (c.rank() != 2) return;
      c.receive(c.gather_stream(), {.name = "block 7", .from = 1, .to = buffers[2].data(), .bytes = 1024});
      c.gather_stream().synchronize();
    });
    ADD_FAILURE() << "nobody noticed";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(error.code(), ExitCode::hang);
    for (const char* part :
         {"receive 'block 7'", "nothing from rank 1 (rank 1 does not answer)", "queue gather"}) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " in\n" << message;
    }
  }
}

TEST(ACollectiveOfAGroup, ThatIsLostIsNamedWithTheRanksOfTheJob) {
  std::vector<Values<float>> buffers(4, Values<float>(512));
  try {
    run_ranks_as_threads({.ranks = 4}, [&](Job& job, Device& device) {
      const auto tensor = job.collectives(Mesh(4, {{"data", 2}, {"tensor", 2}}).group("tensor", job.rank()),
                                          device, Carrier::messages);
      job.watch({.timeout_seconds = 0.5});
      if (job.rank() != 2) return;
      tensor->all_gather(tensor->gather_stream(), {.name = "Y", .buffer = buffers[2].data(), .bytes = 1024});
      tensor->gather_stream().synchronize();
    });
    ADD_FAILURE() << "nobody noticed";
  } catch (const Error& error) {
    const std::string message = error.what();
    for (const char* part : {"nothing from rank 3", "queue gather of tensor, number 0"}) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " in\n" << message;
    }
  }
}

}  // namespace
}  // namespace octet::comm::mesh_test
