#include "octet/device/device.h"

#include <sched.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <limits>
#include <string>

#include "cpu/cpu_stream.h"
#include "octet/base/environment.h"
#include "octet/base/error.h"

namespace octet {
namespace {
constexpr std::size_t arena_alignment = 256;
}

Arena::~Arena() {
  for (std::size_t i = reservations_.size(); i-- > 0;) {
    if (addresses_[i] != nullptr) give_back(addresses_[i], reservations_[i]);
  }
}

void* Arena::take(std::size_t bytes, MemoryKind kind) {
  if (kind == MemoryKind::device) return device_.allocate(bytes);
  // A dry device returns host addresses of both kinds, without memory.
  if (kind == MemoryKind::pinned || device_.kind() == DeviceKind::dry) return device_.allocate_host(bytes);
  void* address = std::aligned_alloc(arena_alignment, bytes);
  if (address == nullptr) {
    throw Error({.what = "not enough host memory",
                 .expected = std::to_string(bytes) + " free bytes",
                 .where = device_.description(),
                 .fix = "lower per_device_train_batch_size or cutoff_len, or use fewer ranks on this node"});
  }
  return std::memset(address, 0, bytes);
}

void Arena::give_back(void* address, const Reservation& r) noexcept {
  if (r.kind == MemoryKind::device) return device_.release(address, r.bytes);
  if (r.kind == MemoryKind::pinned || device_.kind() == DeviceKind::dry) {
    return device_.release_host(address, r.bytes);
  }
  std::free(address);
}

void Arena::expect_passing(const std::string& name, std::size_t bytes, MemoryKind kind) {
  if (bytes == 0) return;
  reservations_.push_back({name, bytes, kind, true});
  addresses_.push_back(nullptr);
}

void* Arena::reserve(const std::string& name, std::size_t bytes, MemoryKind kind) {
  if (sealed_) {
    throw Error(Problem{.what = "memory for '" + name + "' is asked for after the plan was closed",
                        .expected = "all reservations before the first step",
                        .found = std::to_string(bytes) + " bytes inside one",
                        .where = device_.description(),
                        .fix = "report this as a bug of the program, with the configuration"});
  }
  std::size_t& held = bytes_[static_cast<std::size_t>(kind)];
  if (bytes > std::numeric_limits<std::size_t>::max() - held - arena_alignment) {
    throw Error(Problem{.what = "the reservation '" + name + "' is larger than any memory",
                        .expected = "a number of bytes that can be addressed",
                        .found = std::to_string(bytes) + " bytes",
                        .where = device_.description(),
                        .fix = "lower per_device_train_batch_size, cutoff_len or the size of the model"});
  }
  if (bytes == 0) return nullptr;
  const std::size_t rounded = (bytes + arena_alignment - 1) / arena_alignment * arena_alignment;
  // Extends the lists first, so that no step can fail after the allocation.
  reservations_.push_back({name, rounded, kind});
  addresses_.push_back(nullptr);
  try {
    addresses_.back() = take(rounded, kind);
  } catch (const Error& error) {
    reservations_.pop_back();
    addresses_.pop_back();
    Problem problem = error.problem();
    problem.what += " for '" + name + "'";
    problem.found += (problem.found.empty() ? "" : "; ") + std::to_string(rounded) +
                     " bytes are asked for, " + std::to_string(held) + " bytes are held in " +
                     std::to_string(reservations_.size()) + " reservations";
    throw Error(problem);
  } catch (...) {
    reservations_.pop_back();
    addresses_.pop_back();
    throw;
  }
  held += rounded;
  return addresses_.back();
}

void wait_for(Device& device, const Event& event) {
  const auto* of_cpu = dynamic_cast<const cpu::CpuEvent*>(&event);
  if (of_cpu == nullptr) {
    while (!device.complete(event)) sched_yield();
    return;
  }
  const auto latest = of_cpu->latest();
  if (latest == nullptr) return;
  latest->wait();
  if (latest->error() != nullptr) std::rethrow_exception(latest->error());
}

void measure_waits(Stream& stream) {
  stream.measure_waits();
}

double seconds_waited(Stream& stream) {
  return stream.seconds_waited();
}

namespace {
constexpr const char* kWhat = "not enough memory";
}

Error out_of_memory(std::size_t bytes, std::size_t free, const std::string& device, const std::string& fix) {
  return out_of_memory(bytes, std::to_string(free) + " free bytes", device, fix, ExitCode::failure);
}

Error out_of_memory(std::size_t bytes, const std::string& found, const std::string& device,
                    const std::string& fix, ExitCode code) {
  return Error({.what = kWhat,
                .expected = std::to_string(bytes) + " free bytes",
                .found = found,
                .where = device,
                .fix = fix,
                .code = code});
}

bool is_out_of_memory(const Error& error) {
  // Callers may append the purpose of the memory to the message.
  return error.problem().what.starts_with(kWhat);
}

namespace cuda {
std::unique_ptr<Recording> record(Stream& stream, const std::function<void()>& enqueue);
}  // namespace cuda

bool can_record(const Stream& stream) {
  if (stream.device().kind() != DeviceKind::cuda || stream.profile() != nullptr) return false;
  const char* wish = environment_variable("OCTETRUN_RECORDING");
  return wish == nullptr || std::strcmp(wish, "off") != 0;
}

std::unique_ptr<Recording> record(Stream& stream, const std::function<void()>& enqueue) {
  return can_record(stream) ? cuda::record(stream, enqueue) : nullptr;
}

}  // namespace octet
