#include "faults/flips.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>

#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/random.h"
#include "octet/base/strings.h"

namespace octet::train {
namespace {

constexpr std::array<std::string_view, 6> kKinds = {"parameters", "masters",   "moments",
                                                    "frozen",     "gradients", "messages"};

[[noreturn]] void refuse(const std::string& found) {
  throw Error({.what = "OCTETRUN_FLIPS has an invalid value",
               .expected = "RANK:STEP:KIND:DRAW, several with commas between them; KIND is parameters, "
                           "masters, moments, frozen, gradients or messages",
               .found = "'" + found + "'",
               .fix = "unset it: it is for tests",
               .code = ExitCode::usage});
}

std::uint64_t number(std::string_view text, const std::string& found) {
  std::uint64_t value = 0;
  const auto [end, trouble] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (trouble != std::errc{} || end != text.data() + text.size()) refuse(found);
  return value;
}

}  // namespace

Flips::Flips(int rank) {
  const char* told = environment_variable("OCTETRUN_FLIPS");
  if (told == nullptr) return;
  for (const auto& one : split(told, ',')) {
    const auto parts = split(one, ':');
    if (parts.size() != 4) refuse(std::string(one));
    const auto kind = std::ranges::find(kKinds, parts[2]);
    if (kind == kKinds.end()) refuse(std::string(one));
    const Flip flip{.step = static_cast<std::int64_t>(number(parts[1], std::string(one))),
                    .kind = static_cast<Kind>(kind - kKinds.begin()),
                    .draw = number(parts[3], std::string(one))};
    if (number(parts[0], std::string(one)) == static_cast<std::uint64_t>(rank)) flips_.push_back(flip);
  }
}

void Flips::strike(std::int64_t step, bool late, store::Hashes& hashes, comm::Seals* seals, Stream& compute) {
  std::erase_if(flips_, [&](const Flip& flip) {
    const bool held = flip.kind <= Kind::frozen;
    if (flip.step != step || late != (!held || flip.draw % 2 != 0)) return false;
    const auto words = philox(flip.draw, RandomUse::data, static_cast<std::uint64_t>(step));
    const std::uint64_t draw = static_cast<std::uint64_t>(words[1]) << 32 | words[0];
    if (held) {
      hashes.flip(static_cast<store::Held>(flip.kind), draw, compute);
    } else if (flip.kind == Kind::gradients) {
      hashes.flip_gradient(draw);
    } else if (seals != nullptr) {
      seals->spoil(draw);
    }
    return true;
  });
}

}  // namespace octet::train
