// Waiting for messages, and the ranks named if messages do not arrive.
#include "../src/comm/messages/message_set.h"

#include <gtest/gtest.h>

#include <set>

namespace octet::comm::messages_test {
namespace {

/// A transport with messages that the test completes. Tickets count from 0.
class Held : public Transport {
 public:
  explicit Held(std::size_t most = 100) : most_(most) { place_.node_of = {0, 0, 0, 0}; }
  void let_through(std::set<int> tickets) { through_.merge(tickets); }
  int begun() const { return tickets_; }

  const Place& place() const override { return place_; }
  std::size_t max_message() const override { return most_; }
  int open_lane(Queue, const std::vector<int>&) override { return 0; }
  int isend(int, int, int, const void*, std::size_t) override { return tickets_++; }
  int irecv(int, int, int, void*, std::size_t) override { return tickets_++; }
  bool test(int ticket) override { return through_.contains(ticket); }
  std::optional<Waiting> probe(int) override { return std::nullopt; }
  void progress() override {}
  void finish() override {}
  void end_job(const std::string&, int) override {}
  bool is_process() const override { return false; }
  bool any_thread() const override { return true; }

 private:
  std::size_t most_;
  Place place_;
  int tickets_ = 0;
  std::set<int> through_;
};

/// Rank 5 of the job, number 1 of a group of four.
struct Group {
  explicit Group(std::size_t most = 100) : transport(most) {
    lane.place = transport.place();
    lane.place.rank = 1;
    lane.ranks = {3, 5, 7, 9};
    call.transport = &transport;
    call.lane = &lane;
  }
  Held transport;
  Lane lane;
  Call call;
  char data[64] = {};
};

TEST(MissingRanks, AreThoseThatHaveNotSentAndOnlyThenThoseThatHaveNotReceived) {
  Group group;
  Messages messages(group.call);
  messages.send(0, group.data, 8);     // ticket 0
  messages.send(2, group.data, 8);     // 1
  messages.receive(2, group.data, 8);  // 2
  messages.receive(3, group.data, 8);  // 3
  EXPECT_EQ(group.call.missing_ranks(), (std::vector<int>{7, 9}));
  group.transport.let_through({2});
  EXPECT_EQ(group.call.missing_ranks(), std::vector<int>{9})
      << "rank 7 has sent, and none but rank 9 is waited for";
  group.transport.let_through({3});
  EXPECT_EQ(group.call.missing_ranks(), (std::vector<int>{3, 7})) << "all have sent; these have not received";
  group.transport.let_through({0});
  EXPECT_FALSE(messages.complete());
  EXPECT_EQ(group.call.missing_ranks(), std::vector<int>{7});
  group.transport.let_through({1});
  EXPECT_TRUE(messages.complete());
  EXPECT_TRUE(group.call.missing_ranks().empty());
  EXPECT_EQ(group.call.completed, 4);
  EXPECT_EQ(group.call.bytes_sent, 16);
}

TEST(Messages, AreCutToWhatTheTransportTakesAndWaitedForWhole) {
  Group group(10);
  Messages messages(group.call);
  messages.send(0, group.data, 25);
  messages.send(0, group.data, 0);
  ASSERT_EQ(group.transport.begun(), 3);
  group.transport.let_through({0, 2});
  EXPECT_FALSE(messages.complete());
  group.transport.let_through({1});
  EXPECT_TRUE(messages.complete());
  EXPECT_EQ(group.call.bytes_sent, 25);
}

TEST(Messages, CountBytesBetweenNodesApart) {
  Group group;
  group.lane.place.node_of = {0, 0, 1, 1};
  group.lane.place.node = 0;
  Messages messages(group.call);
  messages.send(0, group.data, 8);
  messages.send(2, group.data, 16);
  messages.send(3, group.data, 32);
  EXPECT_EQ(group.call.bytes_sent, 56);
  EXPECT_EQ(group.call.bytes_between_nodes, 48);
}

}  // namespace
}  // namespace octet::comm::messages_test
