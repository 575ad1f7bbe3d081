// Reductions that the carrier sums itself: which ones, and where the sums are written.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "gpu/composed.h"
#include "messages/transport.h"
#include "octet/base/dtype.h"

namespace octet::comm::carrier_sums_test {
namespace {

/// A stand-in for a carrier that sums: it triples the own slice, and counts its calls.
class TriplingExchange final : public Exchange {
 public:
  explicit TriplingExchange(int member) : member_(member) {}
  void exchange(Stream&, std::span<const Outgoing>, std::span<const Incoming>) override { ++exchanges; }
  bool reaches(const void*, std::size_t) const override { return true; }
  bool sums() const override { return true; }
  void sum(Stream&, void* values, std::int64_t count, DType dtype) override {
    ++sums_made;
    for (std::int64_t i = member_ * count; i < (member_ + 1) * count; ++i) {
      if (dtype == DType::f32) {
        static_cast<float*>(values)[i] *= 3;
      } else {
        auto& value = static_cast<std::uint16_t*>(values)[i];
        value = to_bf16(3 * from_bf16(value));
      }
    }
  }
  int exchanges = 0, sums_made = 0;

 private:
  int member_;
};

constexpr std::int64_t kCount = 300;

/// The second of two ranks, without the first. Messages of the first never arrive, so only sums of the
/// carrier are complete.
class CarrierSums : public testing::Test {
 protected:
  CarrierSums() {
    staging_.part = DeviceStaging::part_of(2, 1 << 20);
    staging_.size = 2;
    memory_.resize(DeviceStaging::bytes(2, staging_.part));
    staging_.memory = memory_.data();
  }
  static Place place(const std::vector<int>& node_of) {
    Place place{.rank = 1, .size = static_cast<int>(node_of.size())};
    set_nodes(place, node_of);
    return place;
  }
  void let_sum(bool bf16, const std::vector<int>& node_of = {0, 0}) {
    place_ = place(node_of);
    flat_ = std::make_unique<Hierarchy>(one_node(place_));
    hierarchy_ = std::make_unique<Hierarchy>(place_);
    composed_ = std::make_unique<Composed>(*device_, *stream_, exchange_, *access_, place_, *flat_,
                                           *hierarchy_, staging_);
    composed_->let_sum(exchange_, bf16);
  }

  std::unique_ptr<Device> device_ = make_cpu_device({.threads = 1});
  std::unique_ptr<Stream> stream_ = device_->make_stream({.name = "reduce"});
  std::unique_ptr<PeerAccess> access_ = make_memory_peer_access({});
  TriplingExchange exchange_{1};
  std::vector<std::byte> memory_;
  DeviceStaging staging_;
  Place place_;
  std::unique_ptr<Hierarchy> flat_, hierarchy_;
  std::unique_ptr<Composed> composed_;
  std::vector<float> values_ = std::vector<float>(4 * kCount, 2.0f);
  std::vector<float> apart_ = std::vector<float>(kCount, 0.5f);
};

TEST_F(CarrierSums, StayInTheOwnSliceWhereTheyAreAskedFor) {
  let_sum(false);
  composed_->reduce_scatter({.from = values_.data(), .to = values_.data() + kCount, .count = kCount});
  EXPECT_EQ(values_[kCount - 1], 2.0f);
  EXPECT_EQ(values_[kCount], 6.0f);
  EXPECT_EQ(values_[2 * kCount - 1], 6.0f);
  EXPECT_EQ(exchange_.sums_made, 1);
  EXPECT_EQ(exchange_.exchanges, 0);
  const auto sent = composed_->take_sent();
  EXPECT_EQ(sent.bytes, 4 * kCount);
  EXPECT_EQ(sent.between_nodes, 0);
}

TEST_F(CarrierSums, AreAddedToWhatLiesElsewhere) {
  let_sum(false);
  composed_->reduce_scatter(
      {.from = values_.data(), .to = apart_.data(), .count = kCount, .accumulate = true});
  for (const float sum : apart_) EXPECT_EQ(sum, 6.5f);
  composed_->reduce_scatter({.from = values_.data(), .to = apart_.data(), .count = kCount});
  for (const float sum : apart_) EXPECT_EQ(sum, 18.0f);
}

TEST_F(CarrierSums, OfBf16AreMadeOnlyWhereTheyMay) {
  std::vector<std::uint16_t> narrow(2 * kCount, to_bf16(2.0f));
  const ReduceScatterArgs args{
      .from = narrow.data(), .from_dtype = DType::bf16, .to = apart_.data(), .count = kCount};
  let_sum(false);
  composed_->reduce_scatter(args);
  EXPECT_EQ(exchange_.sums_made, 0);
  EXPECT_EQ(exchange_.exchanges, 1);
  let_sum(true);
  composed_->reduce_scatter(args);
  EXPECT_EQ(exchange_.sums_made, 1);
  for (const float sum : apart_) EXPECT_EQ(sum, 6.0f);
}

TEST_F(CarrierSums, LeaveOutWhatIsEncodedOrdered) {
  let_sum(true);
  for (const Wire wire : {Wire::bf16, Wire::fp8, Wire::int8}) {
    composed_->reduce_scatter({.from = values_.data(), .to = apart_.data(), .count = kCount, .wire = wire});
  }
  const SumOrder order{.parts = {1, 1}, .merges = {0, 1}};
  composed_->reduce_scatter({.from = values_.data(), .to = apart_.data(), .count = kCount, .order = &order});
  EXPECT_EQ(exchange_.sums_made, 0);
  EXPECT_GE(exchange_.exchanges, 4);
}

TEST_F(CarrierSums, ByNodesAreOursAndOthersCountWhatCrosses) {
  let_sum(true, {0, 0, 1, 1});
  composed_->reduce_scatter(
      {.from = values_.data(), .to = apart_.data(), .count = kCount, .hierarchical = true});
  EXPECT_EQ(exchange_.sums_made, 0);
  composed_->take_sent();
  composed_->reduce_scatter({.from = values_.data(), .to = apart_.data(), .count = kCount});
  EXPECT_EQ(exchange_.sums_made, 1);
  const auto sent = composed_->take_sent();
  EXPECT_EQ(sent.bytes, 3 * 4 * kCount);
  EXPECT_EQ(sent.between_nodes, 2 * 4 * kCount);
}

}  // namespace
}  // namespace octet::comm::carrier_sums_test
