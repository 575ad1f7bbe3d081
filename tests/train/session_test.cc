#include "octet/train/session.h"

#include <gtest/gtest.h>

#include <set>

#include "octet/config/schema.h"

namespace octet::train {
namespace {

TEST(Session, EveryValueOfGpuTransportAsksForACarrierOfItsOwn) {
  const config::Field* field = config::find_field("gpu_transport");
  ASSERT_NE(field, nullptr);
  std::set<comm::Carrier> carriers;
  for (const std::string& value : field->choices) {
    EXPECT_TRUE(carriers.insert(carrier_of(value)).second) << value;
  }
  EXPECT_EQ(carriers, (std::set{comm::Carrier::automatic, comm::Carrier::peer, comm::Carrier::nccl,
                                comm::Carrier::host}));
  EXPECT_EQ(carrier_of(config::Config{}.gpu_transport), comm::Carrier::automatic);
}

TEST(Session, OfALoneRankNeedsNoCarrierWhateverIsAskedFor) {
  Session session("cpu", nullptr, "nccl");
  EXPECT_EQ(session.data().carrier(), "");
  EXPECT_EQ(session.place().size, 1);
}

}  // namespace
}  // namespace octet::train
