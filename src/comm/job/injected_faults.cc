#include "job/injected_faults.h"

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/random.h"

namespace octet::comm {
namespace {

std::atomic<bool> nccl_is_to_fail{false};

}  // namespace

BrokenStep::BrokenStep(const Place& place) {
  const char* told = environment_variable("OCTETRUN_BREAK_STEP");
  if (told == nullptr || *told == '\0') return;
  const std::string_view text = told;
  const std::string_view kind = text.substr(0, text.find(':'));
  const std::string_view number = kind.size() < text.size() ? text.substr(kind.size() + 1) : "";
  kind_ = kind == "gpu"      ? Kind::gpu
          : kind == "memory" ? Kind::memory
          : kind == "nccl"   ? Kind::nccl
                             : Kind::none;
  const char* end = number.data() + number.size();
  const auto [stopped, trouble] = std::from_chars(number.data(), end, left_);
  if (kind_ == Kind::none || trouble != std::errc{} || stopped != end || left_ < 1) {
    throw Error(Problem{.what = "OCTETRUN_BREAK_STEP is not a valid failure",
                        .expected = "gpu, memory or nccl, a colon, and the number of a collective from 1",
                        .found = "'" + std::string(text) + "'",
                        .fix = "unset it: it is for tests",
                        .code = ExitCode::usage});
  }
  if (place.rank + 1 < place.size) kind_ = Kind::none;
}

void BrokenStep::before(Device& device, Stream& stream, PeerAccess& access) {
  if (kind_ == Kind::none || --left_ != 0) return;
  switch (kind_) {
    case Kind::gpu:
      return access.fault(stream);
    case Kind::memory:
      device.release(device.allocate(std::size_t{1} << 60), std::size_t{1} << 60);
      return;
    default:
      nccl_is_to_fail = true;
  }
}

bool BrokenStep::nccl_fails() {
  return nccl_is_to_fail.exchange(false);
}

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
