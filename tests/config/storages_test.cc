// Storage of states if the keys are auto.
#include <gtest/gtest.h>

#include "config/support.h"
#include "octet/config/derive.h"

namespace octet::config::storages_test {
namespace {

std::string texts(const Config& config) {
  std::string all;
  for (const Config& c : storages(config))
    all += c.param_dtype + "/" + c.grad_dtype + "/" + c.optim_dtype + " ";
  return all;
}

Config with(const std::string& yaml) {
  return test::read(yaml).config;
}

TEST(Storages, GoFromWideToNarrowAndKeepWhatIsSet) {
  EXPECT_EQ(texts(with("bf16: true")), "fp32/fp32/fp32 bf16/bf16/bf16 bf16/bf16/int8 ");
  EXPECT_EQ(texts(with("")), "fp32/fp32/fp32 fp32/fp32/int8 ");
  EXPECT_EQ(texts(with("bf16: true\noptim_dtype: int8")), "fp32/fp32/int8 bf16/bf16/int8 ");
  EXPECT_EQ(texts(with("bf16: true\nparam_dtype: fp32")), "fp32/fp32/fp32 fp32/fp32/bf16 fp32/fp32/int8 ");
  EXPECT_EQ(texts(with("bf16: true\ndeterministic: strict")),
            "fp32/fp32/fp32 bf16/fp32/bf16 bf16/fp32/int8 ");
  EXPECT_EQ(texts(with("bf16: true\nfinetuning_type: lora")), "fp32/fp32/fp32 ");
  EXPECT_EQ(texts(with("pure_bf16: true")), "bf16/bf16/bf16 ");
  EXPECT_EQ(texts(with("pure_bf16: true\noptim_dtype: auto")), "bf16/bf16/bf16 ")
      << "which is the meaning of pure_bf16";
  EXPECT_FALSE(leaves_storage_open(with("pure_bf16: true")));
  EXPECT_TRUE(leaves_storage_open(with("bf16: true\ngrad_dtype: fp32")));
}

// Recomputation changes no numbers, so it comes before a lower precision if no key sets it.
TEST(Storages, ComeWithRecomputationBeforeALowerPrecision) {
  const auto choices = [](const std::string& yaml) {
    std::string all;
    for (const Config& c : memory_choices(with(yaml))) all += c.param_dtype + "/" + c.recompute() + " ";
    return all;
  };
  EXPECT_EQ(choices("bf16: true"), "fp32/none fp32/auto bf16/none bf16/auto bf16/none bf16/auto ");
  EXPECT_EQ(choices("bf16: true\nparam_dtype: fp32\noptim_dtype: fp32"), "fp32/none fp32/auto ");
  EXPECT_EQ(choices("pure_bf16: true"), "bf16/none bf16/auto ");
  for (const auto& [said, level] : std::initializer_list<std::pair<std::string, std::string>>{
           {"recompute: none", "none"},
           {"recompute: norms", "norms"},
           {"recompute: auto", "auto"},
           {"gradient_checkpointing: true", "full"},
           {"gradient_checkpointing: false", "none"},
           {"disable_gradient_checkpointing: true", "none"}}) {
    EXPECT_EQ(choices("bf16: true\n" + said), "fp32/" + level + " bf16/" + level + " bf16/" + level + " ")
        << said;
  }
}

TEST(Storages, OfAResumedRunAreThoseThatItHad) {
  const Config saved = with("pure_bf16: true\noptim_dtype: int8"), open = with("bf16: true");
  const Config now = with_storage_of(saved, open);
  EXPECT_EQ(now.param_dtype + now.grad_dtype + now.optim_dtype, "bf16bf16int8");
  const Config set = with_storage_of(saved, with("bf16: true\noptim_dtype: fp32"));
  EXPECT_EQ(set.optim_dtype, "fp32");
  const Config wide = with_storage_of(saved, with("bf16: true\nparam_dtype: fp32"));
  EXPECT_EQ(wide.param_dtype + wide.grad_dtype + wide.optim_dtype, "fp32fp32int8");
  for (const std::string& difference : resume_differences(saved, open))
    EXPECT_EQ(difference.find("_dtype"), std::string::npos) << difference;
  EXPECT_FALSE(
      resume_differences(with("bf16: true\noptim_dtype: int8"), with("bf16: true\noptim_dtype: fp32"))
          .empty());
}

}  // namespace
}  // namespace octet::config::storages_test
