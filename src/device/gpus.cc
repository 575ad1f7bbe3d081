// Functions about GPUs that need no driver: names, PCI addresses and the environment.
#include "octet/device/gpus.h"

#include <cctype>
#include <cstdlib>
#include <fstream>

namespace octet {
namespace {

constexpr const char* kConnections = "CUDA_DEVICE_MAX_CONNECTIONS";
constexpr const char* kMostConnections = "32";

}  // namespace

void prepare_gpu_environment() {
  ::setenv(kConnections, kMostConnections, 1);
}

std::string uuid_text(const unsigned char* bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits[bytes[i] >> 4];
    text += digits[bytes[i] & 15];
  }
  return text;
}

std::string kernel_bus_name(std::string_view bus) {
  // The kernel writes four digits of the domain, and more only if necessary.
  const std::size_t colon = bus.find(':');
  while (colon != std::string_view::npos && bus.find(':') > 4 && bus.front() == '0') bus.remove_prefix(1);
  std::string name(bus);
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name;
}

int numa_node_of(const std::string& bus, const std::string& devices) {
  if (bus.empty()) return -1;
  std::ifstream file(devices + "/" + bus + "/numa_node");
  int node = -1;
  return file >> node && node >= 0 ? node : -1;
}

}  // namespace octet
