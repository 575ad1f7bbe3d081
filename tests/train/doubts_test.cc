// Warnings before a run about GEMMs that cannot use FP8 because of the model's sizes.
#include "octet/config/config.h"
#include "octet/train/start_checks.h"

#include <gtest/gtest.h>

#include "octet/model/shapes.h"

namespace octet::train::doubts_test {
namespace {

config::Config config_of(const std::string& keys) {
  return config::load_text(
             "model_name_or_path: m\ndataset: d\noutput_dir: o\nbf16: true\ncutoff_len: 64\n" + keys,
             "test.yaml", {}, {.for_training = true, .environment = {}})
      .config;
}

struct Sizes {
  const char* name;
  const char* keys;
  std::int64_t intermediate;
  bool falls_back, ends;
};

TEST(Fp8Fallbacks, AreToldByTheSizesOfTheModel) {
  const std::vector<Sizes> all{
      {"sizes that FP8 has", "fp8: true", 384, false, false},
      {"an odd width", "fp8: true", 200, true, false},
      {"an odd width that ends the run", "fp8: true\nfp8_fallback: error", 200, true, true},
      {"an odd width with scales of blocks", "fp8: true\nfp8_recipe: block\nfp8_fallback: error", 200, true,
       true},
      {"an odd width and a micro-batch that is found",
       "fp8: true\nauto_find_batch_size: true\nglobal_batch_size: 8", 200, true, false},
      {"an odd width in bf16", "fp8_fallback: error", 200, false, false},
      {"good sizes that must stay in FP8", "fp8: true\nfp8_fallback: error", 384, false, false},
  };
  for (const Sizes& sizes : all) {
    SCOPED_TRACE(sizes.name);
    model::Architecture architecture = model::find_shape("tiny");
    architecture.intermediate = sizes.intermediate;
    const config::Strings told = fp8_fallbacks(config_of(sizes.keys), architecture);
    EXPECT_EQ(!told.empty(), sizes.falls_back);
    for (const std::string& line : told) {
      EXPECT_NE(line.find("MLP"), std::string::npos) << line;
      EXPECT_NE(line.find("multiples of 16"), std::string::npos) << line;
      EXPECT_EQ(line.find("ends the run before its first step") != std::string::npos, sizes.ends) << line;
    }
  }
}

}  // namespace
}  // namespace octet::train::doubts_test
