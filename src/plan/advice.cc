#include "octet/plan/advice.h"

#include <algorithm>

namespace octet::plan {

const char* name_of(model::Recompute level) {
  switch (level) {
    case model::Recompute::none:
      return "none";
    case model::Recompute::norms:
      return "norms";
    case model::Recompute::qkv:
      return "qkv";
    case model::Recompute::full:
      break;
  }
  return "full";
}

std::string keys_of(const Level& level) {
  return std::string("recompute=") + name_of(level.recompute) +
         (level.transposes_at_use ? " fp8_transposed_weights=at_use" : "");
}

std::vector<Choice> largest_that_fit(const std::vector<std::int64_t>& micros,
                                     const std::vector<Level>& levels, std::size_t limit,
                                     const BytesOf& bytes_of) {
  std::vector<Choice> all;
  for (const Level& level : levels) {
    const auto too_large = std::ranges::partition_point(micros, [&](std::int64_t micro) {
      return bytes_of({micro, level}) <= limit;
    });
    if (too_large != micros.begin()) all.push_back({*std::prev(too_large), level});
  }
  return all;
}

std::optional<Choice> fastest(const std::vector<Choice>& choices, const SecondsOf& seconds_of) {
  std::optional<Choice> best;
  double least = 0;
  for (const Choice& choice : choices) {
    const double seconds = seconds_of(choice);
    if (best && seconds >= least) continue;
    best = choice;
    least = seconds;
  }
  return best;
}

}  // namespace octet::plan
