// Functions about GPUs that need no driver: names, PCI addresses and the environment.
#include "octet/device/gpus.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>

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

namespace {

namespace fs = std::filesystem;

std::string first_word(const fs::path& file) {
  std::ifstream in(file);
  std::string word;
  in >> word;
  return word;
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::vector<fs::path> all;
  std::error_code none;  // a missing folder counts as empty
  for (const auto& entry : fs::directory_iterator(folder, none)) all.push_back(entry.path());
  std::ranges::sort(all);
  return all;
}

// PCI classes: 03 are displays and 3D controllers, 1200 are processing accelerators.
bool is_gpu_of_amd(const fs::path& device) {
  if (first_word(device / "vendor") != "0x1002") return false;
  const std::string kind = first_word(device / "class");
  return kind.starts_with("0x03") || kind.starts_with("0x1200");
}

// A topology node of the driver with SIMD units is a GPU; other nodes are CPUs.
bool has_simd(const fs::path& node) {
  std::ifstream in(node / "properties");
  std::string key;
  for (long long value = 0; in >> key >> value;) {
    if (key == "simd_count") return value > 0;
  }
  return false;
}

}  // namespace

std::vector<std::string> amd_gpus(const std::string& root) {
  std::vector<std::string> found;
  for (const fs::path& device : entries(fs::path(root) / "sys/bus/pci/devices")) {
    if (is_gpu_of_amd(device)) found.push_back(device.filename());
  }
  if (!found.empty()) return found;
  for (const fs::path& node : entries(fs::path(root) / "sys/class/kfd/kfd/topology/nodes")) {
    if (has_simd(node)) found.push_back("kfd node " + node.filename().string());
  }
  return found;
}

std::string amd_gpus_text(const std::string& root) {
  const std::vector<std::string> found = amd_gpus(root);
  if (found.empty()) return "";
  std::string names;
  for (const std::string& name : found) names += (names.empty() ? "" : ", ") + name;
  return (found.size() == 1 ? "an AMD GPU is present ("
                            : std::to_string(found.size()) + " AMD GPUs are present (") +
         names + "), which this program does not use: it computes on NVIDIA's GPUs, and here on the CPU";
}

namespace fs = std::filesystem;

std::vector<std::string> nvidia_files(const std::string& root) {
  constexpr std::string_view kPrefix = "nvidia";
  std::vector<int> numbers;
  std::error_code none;  // a missing folder counts as empty
  for (const auto& entry : fs::directory_iterator(fs::path(root) / "dev", none)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(kPrefix)) continue;
    int number = 0;
    const char* end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, number);
    if (error == std::errc() && stop == end && number >= 0) numbers.push_back(number);  // ignores nvidiactl
  }
  std::ranges::sort(numbers);
  std::vector<std::string> files;
  for (const int number : numbers) files.push_back("/dev/nvidia" + std::to_string(number));
  if (files.empty() && fs::is_directory(fs::path(root) / "proc/driver/nvidia", none))
    files.emplace_back("/proc/driver/nvidia");
  return files;
}

std::string nvidia_files_text(const std::string& root) {
  const std::vector<std::string> files = nvidia_files(root);
  if (files.empty()) return "";
  std::string names;
  for (const std::string& file : files) names += (names.empty() ? "" : ", ") + file;
  if (files.front().starts_with("/proc")) return "this machine shows NVIDIA's driver (" + names + ")";
  return "this machine shows " +
         (files.size() == 1 ? std::string("an NVIDIA GPU") : std::to_string(files.size()) + " NVIDIA GPUs") +
         " (" + names + ")";
}

std::string built_without_cuda_text(const std::string& root) {
  const std::string text = "this program was built without CUDA";
  const std::string unused = nvidia_files_text(root);
  if (unused.empty()) return text;
  return text + ", and " + unused + ": build it with -DOCTET_CUDA=ON to compute on GPUs, or set device: cpu";
}

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
