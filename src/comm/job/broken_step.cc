#include "job/broken_step.h"

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <string>

#include "octet/base/environment.h"
#include "octet/base/error.h"

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

}  // namespace octet::comm
