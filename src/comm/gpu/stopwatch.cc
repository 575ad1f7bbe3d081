#include "gpu/stopwatch.h"

#include <algorithm>
#include <array>
#include <utility>

#include "octet/base/error.h"

namespace octet::comm {

std::unique_ptr<Event> Stopwatch::event() {
  if (spare_.empty()) return device_.make_timed_event();
  auto last = std::move(spare_.back());
  spare_.pop_back();
  return last;
}

void Stopwatch::begin(Stream& stream, Queue queue, Kind kind) {
  Lap& lap = laps_.emplace_back(Lap{.kind = kind, .queue = queue, .begin = event(), .end = nullptr});
  stream.record(*lap.begin);
}

void Stopwatch::end(Stream& stream, Queue queue) {
  const auto lap = std::ranges::find_if(laps_.rbegin(), laps_.rend(),
                                        [&](const Lap& l) { return l.queue == queue && l.end == nullptr; });
  check(lap != laps_.rend(), "a collective ends after it began");
  lap->end = event();
  stream.record(*lap->end);
}

double Stopwatch::collect(Meter& meter) {
  // Collectives of a queue end in order: if one has not ended, no later one of its queue has.
  std::array<bool, queue_count> open{};
  std::deque<Lap> later;
  std::vector<Lap> done;
  for (Lap& lap : laps_) {
    bool& waits = open[static_cast<std::size_t>(lap.queue)];
    waits = waits || lap.end == nullptr || !device_.complete(*lap.end);
    if (waits) {
      later.push_back(std::move(lap));
    } else {
      done.push_back(std::move(lap));
    }
  }
  laps_ = std::move(later);
  if (done.empty()) return 0;
  // Relative to the first event, because long intervals are measured less exactly than short ones.
  std::vector<std::pair<double, double>> spans;
  for (Lap& lap : done) {
    const double seconds = device_.seconds_between(*lap.begin, *lap.end);
    meter.count(lap.kind, {.seconds = seconds});
    const double begin = device_.seconds_between(*done.front().begin, *lap.begin);
    spans.emplace_back(begin, begin + seconds);
  }
  for (Lap& lap : done) {
    spare_.push_back(std::move(lap.begin));
    spare_.push_back(std::move(lap.end));
  }
  std::ranges::sort(spans);
  double busy = 0, until = spans.front().first;
  for (const auto& [begin, end] : spans) {
    busy += std::max(0.0, end - std::max(begin, until));
    until = std::max(until, end);
  }
  return busy;
}

}  // namespace octet::comm
