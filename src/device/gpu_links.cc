#include "octet/device/gpu_links.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>

#include "octet/device/gpus.h"

namespace octet {
namespace {

// The used part of nvml.h. Its numbers and structures are stable (NVML API reference).
using NvmlDevice = void*;
constexpr int nvml_success = 0;
constexpr unsigned most_nvlinks = 18;  // NVML_NVLINK_MAX_LINKS
enum RemoteType : int { remote_gpu = 0, remote_switch = 2 };

struct NvmlPci {
  char legacy[16];
  unsigned domain, bus, device, ids, subsystem;
  char address[32];
};

/// The loaded library, or the reason why it could not be loaded.
class Nvml {
 public:
  explicit Nvml(const std::string& file) : handle_(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) {
      const char* reason = dlerror();
      why_not_ = "NVML cannot be loaded (" + std::string(reason != nullptr ? reason : file) + ")";
      return;
    }
    if (!find(init_, "nvmlInit_v2") || !find(by_uuid, "nvmlDeviceGetHandleByUUID")) {
      why_not_ = file + " is no NVML";
      return;
    }
    find(shutdown_, "nvmlShutdown");
    find(state, "nvmlDeviceGetNvLinkState");
    find(version, "nvmlDeviceGetNvLinkVersion");
    find(remote_type, "nvmlDeviceGetNvLinkRemoteDeviceType");
    find(remote_pci, "nvmlDeviceGetNvLinkRemotePciInfo_v2");
    find(pci, "nvmlDeviceGetPciInfo_v3");
    find(generation, "nvmlDeviceGetMaxPcieLinkGeneration");
    find(width, "nvmlDeviceGetMaxPcieLinkWidth");
    find(ancestor, "nvmlDeviceGetTopologyCommonAncestor");
    const int code = init_();
    if (code != nvml_success) {
      why_not_ = "NVML does not start (error " + std::to_string(code) + ")";
    } else {
      started_ = true;
    }
  }
  ~Nvml() {
    if (started_ && shutdown_ != nullptr) shutdown_();
    if (handle_ != nullptr) dlclose(handle_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  const std::string& why_not() const { return why_not_; }

  int (*by_uuid)(const char*, NvmlDevice*) = nullptr;
  int (*state)(NvmlDevice, unsigned link, int* active) = nullptr;
  int (*version)(NvmlDevice, unsigned link, unsigned*) = nullptr;
  int (*remote_type)(NvmlDevice, unsigned link, int*) = nullptr;
  int (*remote_pci)(NvmlDevice, unsigned link, NvmlPci*) = nullptr;
  int (*pci)(NvmlDevice, NvmlPci*) = nullptr;
  int (*generation)(NvmlDevice, unsigned*) = nullptr;
  int (*width)(NvmlDevice, unsigned*) = nullptr;
  int (*ancestor)(NvmlDevice, NvmlDevice, int*) = nullptr;

 private:
  template <typename Function>
  bool find(Function& function, const char* name) {
    void* found = dlsym(handle_, name);
    std::memcpy(&function, &found, sizeof found);
    return found != nullptr;
  }
  void* handle_;
  std::string why_not_;
  bool started_ = false;
  int (*init_)() = nullptr;
  int (*shutdown_)() = nullptr;
};

/// Calls a library function. Returns false if the function is missing or fails.
template <typename Function, typename Answer, typename... Arguments>
bool answered(Function function, Answer& answer, Arguments... arguments) {
  return function != nullptr && function(arguments..., &answer) == nvml_success;
}

/// NVML's answers about one GPU.
struct Card {
  NvmlDevice device = nullptr;
  std::string bus;
  std::map<std::string, int> to_gpus;  ///< links by the other GPU's PCI address
  int to_switches = 0;
};

GpuPort ask(const Nvml& nvml, Card& card) {
  GpuPort port;
  NvmlPci pci{};
  if (answered(nvml.pci, pci, card.device)) card.bus = kernel_bus_name(pci.address);
  for (unsigned link = 0; link < most_nvlinks; ++link) {
    int active = 0;
    if (!answered(nvml.state, active, card.device, link) || active == 0) continue;
    ++port.nvlinks;
    unsigned version = 0;
    if (answered(nvml.version, version, card.device, link)) port.nvlink_version = static_cast<int>(version);
    int type = remote_gpu;
    answered(nvml.remote_type, type, card.device, link);
    NvmlPci remote{};
    if (type == remote_switch) {
      ++card.to_switches;
    } else if (type == remote_gpu && answered(nvml.remote_pci, remote, card.device, link)) {
      ++card.to_gpus[kernel_bus_name(remote.address)];
    }
  }
  port.to_switch = card.to_switches > 0;
  unsigned value = 0;
  if (answered(nvml.generation, value, card.device)) port.pcie_generation = static_cast<int>(value);
  if (answered(nvml.width, value, card.device)) port.pcie_lanes = static_cast<int>(value);
  return port;
}

/// nvmlGpuTopologyLevel_t in words.
std::string meeting_place(int level) {
  switch (level) {
    case 0:
      return "one board";
    case 10:
      return "a PCIe switch";
    case 20:
      return "several PCIe switches";
    case 30:
      return "a host bridge";
    case 40:
      return "host bridges of one NUMA node";
    case 50:
      return "the link between NUMA nodes";
    default:
      return {};
  }
}

}  // namespace

GpuLinks gpu_links(const std::vector<std::string>& uuids, const std::string& library) {
  GpuLinks all;
  const Nvml nvml(library);
  all.why_not = nvml.why_not();
  if (!all.why_not.empty()) return all;
  std::vector<Card> cards;
  for (const std::string& uuid : uuids) {
    Card card;
    if (nvml.by_uuid(uuid.c_str(), &card.device) != nvml_success) {
      return {.why_not = "NVML does not know " + uuid, .ports = {}, .links = {}};
    }
    all.ports.push_back(ask(nvml, card));
    cards.push_back(std::move(card));
  }
  for (std::size_t a = 0; a < cards.size(); ++a) {
    for (std::size_t b = a + 1; b < cards.size(); ++b) {
      GpuLink link{.first = static_cast<int>(a), .second = static_cast<int>(b)};
      const auto direct = cards[a].to_gpus.find(cards[b].bus);
      // A switch connects each pair of its GPUs at the rate of all links of a GPU.
      link.nvlinks = (direct == cards[a].to_gpus.end() ? 0 : direct->second) +
                     std::min(cards[a].to_switches, cards[b].to_switches);
      int level = -1;
      if (answered(nvml.ancestor, level, cards[a].device, cards[b].device)) link.pcie = meeting_place(level);
      all.links.push_back(std::move(link));
    }
  }
  return all;
}

}  // namespace octet
