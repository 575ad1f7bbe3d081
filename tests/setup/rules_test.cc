// src/config/rules.cc decides which settings of the store may be combined. Combinations that pass keep the
// conditions that the code of the store relies on, and combinations that break one do not pass.
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "octet/base/error.h"
#include "octet/config/config.h"
#include "octet/model/shapes.h"
#include "octet/setup/model_options.h"

namespace octet::setup::rules_test {
namespace {

bool store_takes(const config::Config& config) {
  try {
    store::policy_of(instance_options(config, model::find_shape("tiny"), 16, 16, 1).store, 2);
    return true;
  } catch (const std::logic_error&) {
    return false;
  }
}

TEST(Rules, WhatAConfigurationMayAskForIsWhatTheStoreIsBuiltFor) {
  int accepted = 0, refused = 0;
  for (const char* param : {"fp32", "bf16"})
    for (const char* grad : {"fp32", "bf16"})
      for (const char* bf16 : {"true", "false"})
        for (const char* deterministic : {"true", "strict"})
          for (const char* reduce : {"fp32", "int8"})
            for (const char* gather : {"compute", "bf16"})
              for (const char* recipe : {"", "delayed", "current"}) {
                std::string text = "zero_stage: 1\n";
                const auto add = [&](const std::string& key, const std::string& value) {
                  text += key + ": " + value + "\n";
                };
                add("param_dtype", param), add("grad_dtype", grad), add("bf16", bf16);
                add("deterministic", deterministic), add("reduce_dtype", reduce), add("gather_dtype", gather);
                if (*recipe != '\0') add("fp8", "true"), add("fp8_recipe", recipe);
                const config::LoadOptions options{.for_training = false, .environment = {}};
                try {
                  const config::Config config = config::load_text(text, "test.yaml", {}, options).config;
                  EXPECT_TRUE(store_takes(config)) << text;
                  ++accepted;
                } catch (const Error& e) {
                  EXPECT_EQ(e.code(), ExitCode::usage);
                  ++refused;
                }
              }
  EXPECT_GT(accepted, 50);
  EXPECT_GT(refused, 50);
}

// The other direction: each promise of the store has its rule.
TEST(Rules, WhatTheStoreIsNotBuiltForIsRefusedWithItsKey) {
  for (const auto& [text, key] :
       {std::pair{"param_dtype: bf16\n", "param_dtype"},
        {"bf16: true\ngrad_dtype: bf16\n", "grad_dtype"},
        {"deterministic: strict\nbf16: true\npure_bf16: true\n", "grad_dtype"},
        {"deterministic: strict\nreduce_dtype: bf16\n", "reduce_dtype"},
        {"deterministic: strict\nfp8: true\n", "fp8_recipe"},
        {"deterministic: strict\nzero_stage: 1\ngather_dtype: bf16\n", "gather_dtype"},
        {"zero_stage: 4\n", "zero_stage"},
        {"max_grad_norm: -1\n", "max_grad_norm"}}) {
    try {
      config::load_text(text, "test.yaml", {}, {.for_training = false, .environment = {}});
      ADD_FAILURE() << "accepted: " << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::usage);
      EXPECT_NE(std::string(e.what()).find(key), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace octet::setup::rules_test
