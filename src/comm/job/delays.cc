#include "job/delays.h"

#include <charconv>
#include <cstring>
#include <string>
#include <thread>

#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/random.h"

namespace octet::comm {
namespace {

constexpr std::uint32_t one_of = 32;
constexpr int longest_milliseconds = 1000;

}  // namespace

Delays::Delays(int rank) : rank_(static_cast<std::uint64_t>(rank)) {
  const char* told = environment_variable("OCTETRUN_DELAYS");
  if (told == nullptr) return;
  int milliseconds = 0;
  const char* end = told + std::strlen(told);
  const auto [stopped, trouble] = std::from_chars(told, end, milliseconds);
  if (trouble != std::errc{} || stopped != end || milliseconds < 0 || milliseconds > longest_milliseconds) {
    throw Error(Problem{.what = "OCTETRUN_DELAYS is not a time",
                        .expected = "milliseconds, 0 to " + std::to_string(longest_milliseconds),
                        .found = "'" + std::string(told) + "'",
                        .fix = "unset it: it is for tests",
                        .code = ExitCode::usage});
  }
  most_ = std::chrono::milliseconds(milliseconds);
}

std::chrono::microseconds Delays::draw() {
  const auto drawn = philox(rank_, RandomUse::data, drawn_++);
  if (drawn[0] % one_of != 0) return {};
  return std::chrono::microseconds(drawn[1] % static_cast<std::uint32_t>(most_.count() + 1));
}

void Delays::before(Stream& stream, PeerAccess& access) {
  if (most_.count() == 0) return;
  std::this_thread::sleep_for(draw());
  if (const auto late = draw(); late.count() > 0) access.delay(stream, late);
}

}  // namespace octet::comm
