#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "octet/model/transformer.h"

namespace octet::plan {

/// The activations that the backward pass recomputes instead of keeping.
struct Level {
  model::Recompute recompute = model::Recompute::none;
  bool transposes_at_use = false;  ///< FP8 weights, on GPUs
  bool operator==(const Level&) const = default;
};

/// What memory can be traded for.
struct Choice {
  std::int64_t micro = 1;  ///< samples of a micro-batch on a rank
  Level level;
  bool operator==(const Choice&) const = default;
};

/// From the cheapest to the least memory.
inline constexpr model::Recompute kRecompute[] = {model::Recompute::none, model::Recompute::norms,
                                                  model::Recompute::qkv, model::Recompute::full};
/// "none", "norms", "qkv", "full".
const char* name_of(model::Recompute level);
/// As keys of a configuration: "recompute=norms fp8_transposed_weights=at_use".
std::string keys_of(const Level& level);

/// Bytes that a rank holds with a choice; does not fall when the micro-batch grows.
using BytesOf = std::function<std::size_t(const Choice&)>;
/// Seconds a sample, at best.
using SecondsOf = std::function<double(const Choice&)>;

/// For each level the largest of `micros` (ascending) that fits `limit` bytes; levels at which none fits are
/// left out.
std::vector<Choice> largest_that_fit(const std::vector<std::int64_t>& micros,
                                     const std::vector<Level>& levels, std::size_t limit,
                                     const BytesOf& bytes_of);

/// The one with the least seconds a sample; of equals the first. Nothing when there is none to choose from.
std::optional<Choice> fastest(const std::vector<Choice>& choices, const SecondsOf& seconds_of);

}  // namespace octet::plan
