// The load of experts in the log, and experts without tokens.
#include "../src/train/logs/step_report.h"

#include <gtest/gtest.h>

#include "octet/comm/job.h"

namespace octet::train::expert_log_test {
namespace {

using model::ExpertLoads;

TEST(ExpertFields, AreSharesByBlock) {
  const Json fields =
      expert_fields({{1, {{6, 6, 6, 6}, 8}}, {4, {{24, 0, 0, 0}}}, {5, {{3, 1, 0, 0}}}, {6, {{0, 0}}}});
  EXPECT_EQ(fields["blocks"], Json::array({1, 4, 5})) << "a block without rows has no shares";
  EXPECT_EQ(fields["largest"], Json::array({1.0, 4.0, 3.0}));
  EXPECT_EQ(fields["dropped"], Json::array({0.25, 0.0, 0.0}));
  EXPECT_EQ(fields["smallest"], Json::array({1.0, 0.0, 0.0}));
  EXPECT_NEAR(fields["entropy"][0].get<double>(), 1.0, 1e-12);
  EXPECT_EQ(fields["entropy"][1].get<double>(), 0.0);
  // -(3/4 ln 3/4 + 1/4 ln 1/4) / ln 4
  EXPECT_NEAR(fields["entropy"][2].get<double>(), 0.4056390622, 1e-9);
}

TEST(ExpertLoads, OfOneRankAreItsOwn) {
  const auto job = comm::make_self_job();
  const ExpertLoads loads{{0, {{1, 2}, 5}}, {3, {{4, 0}}}};
  EXPECT_EQ(loads_of_all(*job, loads), loads);
}

TEST(IdleExperts, AreNamedOnceAfterAHundredSteps) {
  IdleExperts idle;
  EXPECT_EQ(idle.look(10, {{2, {{5, 0, 1}}}}), "");
  EXPECT_EQ(idle.look(100, {{2, {{5, 0, 0}}}}), "") << "counted from the first look on";
  const std::string said = idle.look(109, {{2, {{5, 0, 0}}}});
  EXPECT_NE(said.find("experts got no token for 100 steps: 1 of block 2."), std::string::npos) << said;
  EXPECT_NE(said.find("router_aux_loss_coef"), std::string::npos) << "it says what to do";
  const std::string more = idle.look(110, {{2, {{5, 0, 0}}}});
  EXPECT_NE(more.find("2 of block 2."), std::string::npos) << more;
  EXPECT_EQ(more.find("1 of block 2"), std::string::npos) << more;
  EXPECT_EQ(idle.look(150, {{2, {{5, 0, 0}}}}), "");
  // An expert that got a token can be reported again.
  EXPECT_EQ(idle.look(160, {{2, {{5, 1, 0}}}}), "");
  EXPECT_NE(idle.look(260, {{2, {{5, 0, 0}}}}).find("1 of block 2"), std::string::npos);
}

}  // namespace
}  // namespace octet::train::expert_log_test
