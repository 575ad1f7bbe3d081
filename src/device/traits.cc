#include "octet/device/traits.h"

#include <array>

namespace octet {
namespace {

// In the order of DeviceKind.
constexpr std::array<DeviceTraits, 3> kTraits{{
    {.word = "cpu",
     .computes = true,
     .counts_as_gpu = false,
     .has_host_link = false,
     .uses_host_cores = true,
     .runs_ahead = false,
     .has_known_rates = false,
     .has_transports = false,
     .emulates_fp8 = true,
     .needs_transposed_fp8 = false,
     .autotunes_gemms = false,
     .reproducible = true,
     .library_bytes = 0,
     .busy_tokens = 512},
    {.word = "cuda",
     .computes = true,
     .counts_as_gpu = true,
     .has_host_link = true,
     .uses_host_cores = false,
     .runs_ahead = true,
     .has_known_rates = true,
     .has_transports = true,
     .emulates_fp8 = false,
     .needs_transposed_fp8 = true,
     .autotunes_gemms = true,
     .reproducible = false,
     .library_bytes = std::size_t{768} << 20,
     .busy_tokens = 4096},
    {.word = "dry",
     .computes = false,
     .counts_as_gpu = false,
     .has_host_link = false,
     .uses_host_cores = false,
     .runs_ahead = false,
     .has_known_rates = false,
     .has_transports = false,
     .emulates_fp8 = false,
     .needs_transposed_fp8 = false,
     .autotunes_gemms = false,
     .reproducible = true,
     .library_bytes = 0,
     .busy_tokens = 512},
}};
static_assert(kTraits.size() == static_cast<std::size_t>(DeviceKind::dry) + 1,
              "each kind has a row, dry last");

}  // namespace

const DeviceTraits& traits_of(DeviceKind kind) {
  return kTraits[static_cast<std::size_t>(kind)];
}

}  // namespace octet
