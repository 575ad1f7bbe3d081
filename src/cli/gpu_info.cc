#include <cstdio>

#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/device/device.h"
#include "octet/device/gpus.h"
#include "options.h"

namespace octet::cli {
namespace {

Json json_of(const GpuInfo& gpu) {
  return {{"gpu", gpu.ordinal}, {"usable", gpu.why_not.empty()}, {"name", gpu.name}, {"uuid", gpu.uuid},
          {"bus", gpu.bus},     {"numa_node", gpu.numa_node}};
}

Json json_of(const GpuPair& pair) {
  return {{"first", pair.first},
          {"second", pair.second},
          {"peer_access", pair.peer_access},
          {"performance_rank", pair.performance_rank},
          {"native_atomics", pair.native_atomics}};
}

void print_place(const GpuInfo& gpu) {
  std::printf("  %s, bus %s, NUMA node %s\n", gpu.uuid.empty() ? "without UUID" : gpu.uuid.c_str(),
              gpu.bus.empty() ? "unknown" : gpu.bus.c_str(),
              gpu.numa_node < 0 ? "unknown" : std::to_string(gpu.numa_node).c_str());
}

void print_pair(const GpuPair& pair) {
  std::printf("GPU %d and GPU %d: %s", pair.first, pair.second,
              pair.peer_access ? "reach each other's memory" : "do not reach each other's memory");
  if (pair.native_atomics) std::printf(", with atomics as over NVLink");
  if (pair.performance_rank >= 0) std::printf(", link of rank %d (0 is the best)", pair.performance_rank);
  std::printf("\n");
}

}  // namespace

int gpu_info_command(const Arguments& arguments) {
  Options options(
      "gpu-info",
      "Shows the GPUs that the driver offers, whether this program can train on them, where they are and "
      "which reach each other's memory. Exits with 1 when it can train on none");
  bool json = false;
  options.app().add_flag("--json", json, "print one line of JSON");
  if (!options.parse(arguments)) return 0;
  const std::vector<GpuInfo> found = gpus();
  const std::vector<GpuPair> pairs = gpu_pairs();
  Json all = Json::array(), links = Json::array();
  bool any = false;
  std::string why;
  if (found.empty()) {
    cuda_available(0, &why);
    if (!json) std::printf("%s\n", why.c_str());
  }
  for (const GpuInfo& gpu : found) {
    Json& one = all.emplace_back(json_of(gpu));
    if (!gpu.why_not.empty()) {
      why = gpu.why_not;
      one["why_not"] = why;
      if (!json) std::printf("%s\n", why.c_str());
    } else {
      any = true;
      const std::unique_ptr<Device> device = make_cuda_device(gpu.ordinal);
      const MemoryInfo memory = device->memory();
      one["description"] = device->description();
      one["total_bytes"] = memory.total;
      one["free_bytes"] = memory.free;
      if (!json) {
        std::printf("%s, %s of %s free\n", device->description().c_str(),
                    human_bytes(static_cast<double>(memory.free)).c_str(),
                    human_bytes(static_cast<double>(memory.total)).c_str());
      }
    }
    if (!json) print_place(gpu);
  }
  for (const GpuPair& pair : pairs) {
    links.push_back(json_of(pair));
    if (!json) print_pair(pair);
  }
  if (json) {
    std::printf("%s\n", Json{{"gpus", all}, {"pairs", links}, {"why_not", any ? "" : why}}.dump().c_str());
  }
  return any ? 0 : 1;
}

}  // namespace octet::cli
