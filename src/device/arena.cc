#include <limits>
#include <string>

#include "octet/base/error.h"
#include "octet/device/device.h"

namespace octet {

namespace {
constexpr std::size_t arena_alignment = 256;
}

Arena::~Arena() {
  for (std::size_t i = reservations_.size(); i-- > 0;) {
    if (addresses_[i] != nullptr) device_.release(addresses_[i], reservations_[i].bytes);
  }
}

void* Arena::reserve(const std::string& name, std::size_t bytes) {
  if (sealed_) {
    throw Error(Problem{.what = "memory for '" + name + "' is asked for after the plan was closed",
                        .expected = "all reservations before the first step",
                        .found = std::to_string(bytes) + " bytes inside one",
                        .where = device_.description(),
                        .fix = "report this as a bug of the program, with the configuration"});
  }
  if (bytes > std::numeric_limits<std::size_t>::max() - bytes_ - arena_alignment) {
    throw Error(Problem{.what = "the reservation '" + name + "' is larger than any memory",
                        .expected = "a number of bytes that can be addressed",
                        .found = std::to_string(bytes) + " bytes",
                        .where = device_.description()});
  }
  if (bytes == 0) return nullptr;
  const std::size_t rounded = (bytes + arena_alignment - 1) / arena_alignment * arena_alignment;
  // Room in the lists first, so that nothing can fail once the memory is there.
  reservations_.push_back({name, rounded});
  addresses_.push_back(nullptr);
  try {
    addresses_.back() = device_.allocate(rounded);
  } catch (const Error& error) {
    reservations_.pop_back();
    addresses_.pop_back();
    Problem problem = error.problem();
    problem.what += " for '" + name + "'";
    problem.found += (problem.found.empty() ? "" : "; ") + std::to_string(rounded) +
                     " bytes are asked for, " + std::to_string(bytes_) + " bytes are held in " +
                     std::to_string(reservations_.size()) + " reservations";
    throw Error(problem);
  } catch (...) {
    reservations_.pop_back();
    addresses_.pop_back();
    throw;
  }
  bytes_ += rounded;
  return addresses_.back();
}

}  // namespace octet
