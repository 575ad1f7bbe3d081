// Sums over steps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

#include "octet/report/reporter.h"

namespace octet::report {

/// Sums since the last log line, or since the start of this session.
struct Window {
  double loss = 0, seconds = 0, data_seconds = 0, comm_seconds = 0, exposed_seconds = 0;
  std::int64_t steps = 0, tokens = 0, label_tokens = 0, samples = 0;
  /// Steps of an earlier session among `steps`; only their losses are known.
  std::int64_t steps_before = 0;
  std::map<std::string, KindOfMessages> kinds;

  void add(const StepFacts& f) {
    loss += f.loss, seconds += f.seconds, data_seconds += f.data_seconds, comm_seconds += f.comm_seconds,
        exposed_seconds += f.comm_exposed_seconds;
    ++steps, tokens += f.tokens, label_tokens += f.label_tokens, samples += f.samples;
    for (const KindOfMessages& kind : f.comm_kinds) {
      kinds[kind.kind].seconds += kind.seconds;
      kinds[kind.kind].bytes += kind.bytes;
    }
  }
  double bytes() const {
    double sum = 0;
    for (const auto& [name, kind] : kinds) sum += static_cast<double>(kind.bytes);
    return sum;
  }
  /// Returns the share of communication that overlapped with computation.
  double hidden() const { return comm_seconds > 0 ? std::max(0.0, 1 - exposed_seconds / comm_seconds) : 1; }
  double mean_loss() const { return steps > 0 ? loss / static_cast<double>(steps) : 0; }
  /// Returns a sum divided by the steps of this session.
  double per_step(double x) const {
    const std::int64_t own = steps - steps_before;
    return own > 0 ? x / static_cast<double>(own) : 0;
  }
  double per_second(double x) const { return seconds > 0 ? x / seconds : 0; }
};

}  // namespace octet::report
