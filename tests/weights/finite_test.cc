// Values that are not finite in the dtype of the file.
#include "octet/weights/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "octet/base/error.h"

namespace octet::weights::finite_test {
namespace {

TEST(Finite, AValueThatADtypeRoundsToInfinityIsFound) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  struct Row {
    float value;
    bool f32, bf16, f16;  ///< whether it is finite in that dtype
  };
  for (const Row& row : {Row{0, true, true, true},
                         {-65504, true, true, true},
                         {65519.9f, true, true, true},
                         {65520, true, true, false},
                         {-1e30f, true, true, false},
                         {std::numeric_limits<float>::max(), true, false, false},
                         {kInfinity, false, false, false},
                         {-kInfinity, false, false, false},
                         {std::nanf(""), false, false, false}}) {
    for (const auto& [dtype, finite] :
         {std::pair{DType::f32, row.f32}, {DType::bf16, row.bf16}, {DType::f16, row.f16}}) {
      std::vector<float> values(10'000, 1.0f);
      values[9'001] = row.value;
      const auto found = first_not_finite(values.data(), std::ssize(values), dtype);
      EXPECT_EQ(found.has_value(), !finite) << row.value << " " << name_of(dtype);
      if (found) {
        EXPECT_EQ(*found, 9'001);
      }
      // The reference is the rounding of the writer.
      const float rounded = dtype == DType::f16    ? from_f16(to_f16(row.value))
                            : dtype == DType::bf16 ? from_bf16(octet::to_bf16(row.value))
                                                   : row.value;
      EXPECT_EQ(std::isfinite(rounded), finite) << row.value << " " << name_of(dtype);
    }
  }
}

TEST(Finite, TheTensorAndTheFixAreNamed) {
  const float large = 70000;
  try {
    require_finite("model.norm.weight", &large, 1, DType::f16, "run/checkpoint-5");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    EXPECT_NE(std::string(e.what()).find("run/checkpoint-5, tensor 'model.norm.weight'"), std::string::npos);
    EXPECT_NE(e.problem().fix.find("--export_dtype bf16"), std::string::npos);
  }
}

}  // namespace
}  // namespace octet::weights::finite_test
