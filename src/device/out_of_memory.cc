#include "octet/device/out_of_memory.h"

namespace octet {

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

}  // namespace octet
