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

Json json_of(const GpuLinks& links, std::size_t gpu) {
  const GpuPort& port = links.ports[gpu];
  return {{"gpu", gpu},
          {"nvlinks", port.nvlinks},
          {"nvlink_version", port.nvlink_version},
          {"to_switch", port.to_switch},
          {"pcie_generation", port.pcie_generation},
          {"pcie_lanes", port.pcie_lanes}};
}

Json json_of(const GpuLink& link) {
  return {{"first", link.first}, {"second", link.second}, {"nvlinks", link.nvlinks}, {"pcie", link.pcie}};
}

void print_port(const GpuPort& port) {
  std::printf("  %d NVLinks%s%s, PCIe %s\n", port.nvlinks,
              port.nvlink_version > 0 ? (" of version " + std::to_string(port.nvlink_version)).c_str() : "",
              port.to_switch ? " to a switch" : "",
              port.pcie_generation > 0 ? ("of generation " + std::to_string(port.pcie_generation) + ", " +
                                          std::to_string(port.pcie_lanes) + " lanes")
                                             .c_str()
                                       : "unknown");
}

void print_link(const GpuLink& link) {
  std::printf("GPU %d and GPU %d: ", link.first, link.second);
  if (link.nvlinks > 0) std::printf("%d NVLinks; ", link.nvlinks);
  std::printf("PCIe path %s\n", link.pcie.empty() ? "unknown" : ("through " + link.pcie).c_str());
}

void print_place(const GpuInfo& gpu) {
  std::printf("  %s, bus %s, NUMA node %s\n", gpu.uuid.empty() ? "without UUID" : gpu.uuid.c_str(),
              gpu.bus.empty() ? "unknown" : gpu.bus.c_str(),
              gpu.numa_node < 0 ? "unknown" : std::to_string(gpu.numa_node).c_str());
}

void print_pair(const GpuPair& pair) {
  std::printf("GPU %d and GPU %d: %s", pair.first, pair.second,
              pair.peer_access ? "can access each other's memory" : "cannot access each other's memory");
  if (pair.native_atomics) std::printf(", with native atomics (NVLink)");
  if (pair.performance_rank >= 0)
    std::printf(", performance rank %d (0 is the fastest link)", pair.performance_rank);
  std::printf("\n");
}

}  // namespace

int gpu_info_command(const Arguments& arguments) {
  Options options(
      "gpu-info",
      "Shows the GPUs that the driver offers, whether this program can train on them, where they are and "
      "which can access each other's memory. Exits with 1 when it can train on none");
  options.example("trainer gpu-info");
  bool json = false;
  options.add_flag("--json", json, "print one line of JSON");
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
  std::vector<std::string> uuids;
  for (const GpuInfo& gpu : found) uuids.push_back(gpu.uuid);
  const GpuLinks joined = gpu_links(uuids);
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
    const auto place = static_cast<std::size_t>(&gpu - found.data());
    if (!json && place < joined.ports.size()) print_port(joined.ports[place]);
  }
  for (const GpuPair& pair : pairs) {
    links.push_back(json_of(pair));
    if (!json) print_pair(pair);
  }
  Json ports = Json::array(), between = Json::array();
  for (std::size_t i = 0; i < joined.ports.size(); ++i) ports.push_back(json_of(joined, i));
  for (const GpuLink& link : joined.links) {
    between.push_back(json_of(link));
    if (!json) print_link(link);
  }
  if (!json && !found.empty() && !joined.why_not.empty()) {
    std::printf("links between GPUs are not known: %s\n", joined.why_not.c_str());
  }
  if (json) {
    const Json told{{"gpus", all},
                    {"pairs", links},
                    {"ports", ports},
                    {"links", between},
                    {"links_why_not", joined.why_not},
                    {"why_not", any ? "" : why}};
    std::printf("%s\n", told.dump().c_str());
  }
  return any ? 0 : 1;
}

}  // namespace octet::cli
