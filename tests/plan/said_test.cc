// The figures of plans: every row of a step's floor, and what FP8 gains and costs in each layer.
#include <gtest/gtest.h>

#include <cstdio>

#include "octet/base/json.h"
#include "octet/model/shapes.h"
#include "octet/plan/memory.h"
#include "octet/plan/time.h"
#include "support/page.h"

namespace octet::plan::said_test {
namespace {

model::Recompute level_of(const std::string& name) {
  for (const model::Recompute level : kRecompute) {
    if (name == name_of(level)) return level;
  }
  return model::Recompute::none;
}

precision::RecipeKind kind_of(const std::string& name) {
  if (name == "current") return precision::RecipeKind::current;
  if (name == "block") return precision::RecipeKind::block;
  return name == "delayed" ? precision::RecipeKind::delayed : precision::RecipeKind::none;
}

std::string figures(const char* format, double a, double b = 0) {
  char text[96];
  std::snprintf(text, sizeof text, format, a, b);
  return text;
}

/// A question is a shape and how it is trained.
TEST(Said, OfFloors) {
  test::expect_page("plan/said/time.txt", [](const std::string& question) {
    const Json asked = parse_json(question, "question");
    Work work{.architecture = model::find_shape(asked.at("shape").get<std::string>()),
              .recipe = {.kind = kind_of(asked.value("fp8", "")),
                         .compute = asked.value("fp32", false) ? DType::f32 : DType::bf16},
              .recompute = level_of(asked.value("recompute", "none")),
              .transposes_at_use = asked.value("transposes", false),
              .tokens = asked.at("tokens").get<std::int64_t>(),
              .length = asked.at("length").get<std::int64_t>(),
              .micro_batches = asked.value("micro_batches", std::int64_t{1}),
              .optimizer_bytes = asked.value("optimizer_bytes", 0.0)};
    const Time time = time_of(work);
    std::string text;
    for (const TimeRow& row : time.rows) text += row.name + figures(": %.5g s\n", row.seconds);
    text += figures("all: %.5g s, %.5g of them made again\n", time.seconds, time.recompute_seconds);
    for (const Fp8Balance& b : fp8_balance(work)) {
      text += "FP8 in " + b.name + " [" + std::to_string(b.rows) + ", " + std::to_string(b.cols) + "]" +
              figures(" gains %.5g s and costs %.5g s\n", b.gain, b.cost);
    }
    const std::string warning = fp8_warning(work);
    return text + (warning.empty() ? "" : warning + "\n");
  });
}

}  // namespace
}  // namespace octet::plan::said_test
