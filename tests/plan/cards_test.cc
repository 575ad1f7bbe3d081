// Plans know GPUs that this machine does not have.
#include "octet/plan/cards.h"

#include <gtest/gtest.h>

#include <map>

#include "octet/base/error.h"
#include "octet/model/shapes.h"

namespace octet::plan::cards_test {
namespace {

TEST(Cards, HaveTheFiguresOfDriversAndDataSheets) {
  struct Known {
    double memory, bandwidth, host;
  };
  const std::map<std::string, Known> known{{"h100", {85017493504, 3.35e12, 55e9}},
                                           {"h200", {139.8 * 0x1p30, 4.8e12, 55e9}},
                                           {"gh200", {94.5 * 0x1p30, 4.0e12, 450e9}},
                                           {"gh200-144gb", {153008209920, 4.9e12, 450e9}}};
  ASSERT_EQ(cards().size(), known.size());
  for (const Card& card : cards()) {
    ASSERT_TRUE(known.contains(card.key)) << card.key;
    const Known& figures = known.at(card.key);
    EXPECT_NEAR(static_cast<double>(card.memory), figures.memory, 1) << card.key;
    EXPECT_EQ(card.bandwidth, figures.bandwidth) << card.key;
    EXPECT_EQ(card.host, figures.host) << card.key;
    EXPECT_EQ(card.bf16, 989.4e12) << card.key;
    EXPECT_EQ(card.fp8, 1978.9e12) << card.key;
    EXPECT_EQ(&find_card(card.key), &card);
  }
}

TEST(Cards, ReachTheShareOfTheirPeaksThatAnH200Reaches) {
  const Rates measured, h200 = rates_of(find_card("h200")), h100 = rates_of(find_card("h100")),
                        gh200 = rates_of(find_card("gh200"));
  EXPECT_EQ(h200.bytes, measured.bytes);
  EXPECT_EQ(h200.bf16, measured.bf16);
  EXPECT_EQ(h200.host, measured.host);
  EXPECT_STREQ(h200.card, measured.card);
  EXPECT_STREQ(h200.host_link, measured.host_link);
  EXPECT_STREQ(h200.host_source, measured.host_source);
  // 4.2 of 4.8 TB/s are seven eighths.
  EXPECT_NEAR(h100.bytes, 3.35e12 * 7 / 8, 1);
  EXPECT_NEAR(gh200.bytes, 3.5e12, 1);
  EXPECT_NEAR(rates_of(find_card("gh200-144gb")).bytes, 4.9e12 * 7 / 8, 1);
  for (const Rates& rates : {h100, gh200}) {
    EXPECT_EQ(rates.bf16, 750e12);
    EXPECT_EQ(rates.fp8, 1350e12);
    EXPECT_EQ(rates.attention_forward, 613e12);
    EXPECT_EQ(rates.multiprocessors, 132);
  }
  EXPECT_STREQ(h100.card, "an H100");
  EXPECT_STREQ(gh200.host_link, "NVLink-C2C");
}

// The update waits for memory alone: its time follows the card's bandwidth, and that of state in the host's
// memory the link.
TEST(Cards, ScaleTheFloorOfAStep) {
  Work work{.architecture = model::find_shape("llama-3.2-1b"),
            .recipe = {.compute = DType::bf16},
            .tokens = 4096,
            .length = 4096,
            .optimizer_bytes = 10e9,
            .host_state_bytes = 9e9};
  const auto row = [&](const char* card, const std::string& name) {
    const Time time = time_of(work, rates_of(find_card(card)));
    for (const TimeRow& r : time.rows) {
      if (r.name == name) return r.seconds;
    }
    return 0.0;
  };
  EXPECT_NEAR(row("h100", "optimizer"), 10e9 / (3.35e12 * 7 / 8), 1e-9);
  EXPECT_NEAR(row("h200", "optimizer"), 10e9 / 4.2e12, 1e-9);
  EXPECT_NEAR(row("h100", "optimizer's state, over PCIe"), 9e9 / 55e9, 1e-9);
  EXPECT_NEAR(row("gh200", "optimizer's state, over NVLink-C2C"), 9e9 / 450e9, 1e-9);
  EXPECT_EQ(row("h100", "forward GEMMs"), row("h200", "forward GEMMs")) << "the same chip";
  EXPECT_GT(row("h100", "activation"), row("gh200", "activation"));
}

TEST(Cards, AreFoundByWhatTheDriverCallsThem) {
  const auto key = [](const std::string& description) -> std::string {
    const Card* card = described_card(description);
    return card == nullptr ? "" : card->key;
  };
  EXPECT_EQ(key("GPU 0: NVIDIA H100 80GB HBM3 (79.2 GiB)"), "h100");
  EXPECT_EQ(key("GPU 0: NVIDIA H200 (139.8 GiB)"), "h200");
  EXPECT_EQ(key("GPU 0: NVIDIA GH200 480GB (94.5 GiB)"), "gh200");
  EXPECT_EQ(key("GPU 0: NVIDIA GH200 120GB (94.5 GiB)"), "gh200");
  EXPECT_EQ(key("GPU 0: NVIDIA GH200 144G HBM3e (142.5 GiB)"), "gh200-144gb");
  for (const char* other : {"GPU 0: NVIDIA A100-SXM4-80GB (79.2 GiB)", "GPU 0: NVIDIA H200 NVL (139.8 GiB)",
                            "GPU 0: NVIDIA H100 PCIe (79.2 GiB)", "GPU 0: NVIDIA H100 NVL (93.1 GiB)", ""}) {
    EXPECT_EQ(key(other), "") << other;
  }
}

TEST(Cards, AreFoundInAnyCaseAndByTheNameOfTheDriver) {
  for (const auto& [word, key] : std::map<std::string, std::string>{{"H100", "h100"},
                                                                    {"GH200-144GB", "gh200-144gb"},
                                                                    {"gh200_144GB", "gh200-144gb"},
                                                                    {"NVIDIA H200", "h200"},
                                                                    {"NVIDIA H100 80GB HBM3", "h100"}}) {
    EXPECT_EQ(find_card(word).key, key) << word;
  }
}

TEST(Cards, ThatAreNotKnownAreRefusedWithTheNamesOfThoseThatAre) {
  for (const auto& [wrong, advice] : std::map<std::string, std::string>{
           {"h10", "did you mean 'h100'?"}, {"b200", "memory=80GB"}, {"mi300x", "memory=80GB"}}) {
    try {
      find_card(wrong);
      ADD_FAILURE() << wrong;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::usage);
      EXPECT_EQ(e.problem().expected, "h100, h200, gh200, gh200-144gb");
      EXPECT_EQ(e.problem().found, wrong);
      EXPECT_NE(e.problem().fix.find(advice), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace octet::plan::cards_test
