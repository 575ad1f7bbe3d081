// Exposed communication time of a step, with overlap and without, over a link of known speed.
#include <chrono>
#include <string>
#include <thread>

#include "octet/device/device.h"
#include "store/synthetic.h"

namespace octet::store::exposed_test {
namespace {

using namespace synthetic;

struct Seconds {
  double busy = 0, exposed = 0;
};

/// Returns the times of a step on rank 0. Messages take about 0.5 s, backward about 1.2 s.
Seconds step_over_a_slow_link(int stage, bool overlap) {
  Scenario s;
  s.micro_batches = 1;
  s.options.stage = stage;
  s.options.overlap = overlap;
  // Called once for every group that computes gradients.
  s.gradient_scale = [](int) {
    std::this_thread::sleep_for(std::chrono::milliseconds(150));
    return 1.0f;
  };
  std::int64_t bytes = 0;
  Seconds seconds;
  for (const double rate : {0.0, 1.0}) {
    comm::run_ranks_as_threads(
        {.ranks = 2, .bytes_per_second = rate * static_cast<double>(bytes) / 0.5},
        [&](comm::Job&, comm::Collectives& collectives, Device& device) {
          Rank rank(collectives, device, s);
          rank.initialise();
          rank.store().synchronize(rank.compute());
          collectives.channel().barrier();
          collectives.take_traffic();
          const double busy = collectives.seconds_busy(), waited = seconds_waited(rank.compute());
          rank.step(0);
          if (collectives.rank() != 0) return;
          seconds = {collectives.seconds_busy() - busy, seconds_waited(rank.compute()) - waited};
          for (const comm::Traffic& t : collectives.take_traffic()) bytes += t.bytes_sent;
        });
  }
  return seconds;
}

/// Other load on the machine can delay a rank and distort the times. One success in five attempts is enough,
/// since it would not occur by chance.
template <typename Expected>
void expect_once(int stage, bool overlap, Expected&& expected) {
  std::string seen;
  for (int attempt = 0; attempt < 5; ++attempt) {
    const Seconds s = step_over_a_slow_link(stage, overlap);
    if (s.busy > 0.2 && expected(s)) return;
    seen += " " + std::to_string(s.busy) + "/" + std::to_string(s.exposed);
  }
  ADD_FAILURE() << "stage " << stage << ", seconds under way and waited for:" << seen;
}

TEST(Exposed, WithoutOverlapComputingWaitsForAllOfIt) {
  expect_once(2, false,
              [](const Seconds& s) { return s.exposed > 0.8 * s.busy && s.exposed < s.busy + 0.2; });
}

TEST(Exposed, WithOverlapComputingHidesMostOfIt) {
  for (const int stage : {2, 3}) {
    expect_once(stage, true, [](const Seconds& s) { return s.exposed < 0.6 * s.busy; });
  }
}

}  // namespace
}  // namespace octet::store::exposed_test
