#include "octet/plan/exposed.h"

#include <algorithm>

namespace octet::plan {

double exposed_seconds(const Sending& sending, const Time& time, std::int64_t micro_batches, const Link& link,
                       int ranks) {
  const auto under_way = [&](double bytes) { return message_seconds(bytes, link, ranks); };
  const auto left = [](double messages, double pass) { return std::max(0.0, messages - pass); };
  const auto passes = static_cast<double>(micro_batches);
  const double parameters = under_way(sending.backward) / passes;
  const double sums = under_way(sending.sums) / sending.sum_passes;
  const double forward = under_way(sending.forward) / sending.forward_passes;
  // Parameters and sums share the link in backward passes that also send sums.
  return sending.sum_passes * left(parameters + sums, time.backward_seconds) +
         (passes - sending.sum_passes) * left(parameters, time.backward_seconds) +
         sending.forward_passes * left(forward, time.forward_seconds) + under_way(sending.alone);
}

}  // namespace octet::plan
