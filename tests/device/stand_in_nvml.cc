// A fake libnvidia-ml.so.1 with four GPUs of one machine. A switch joins GPUs 0 and 1 (16 links each), and
// two direct links join GPUs 0 and 2. GPU 3 has only PCIe. GPU n is on bus n + 1.
#include <cstdio>
#include <cstring>

namespace {

struct Pci {
  char legacy[16];
  unsigned domain, bus, device, ids, subsystem;
  char address[32];
};

constexpr int success = 0, not_found = 6;
int places[4] = {0, 1, 2, 3};

int number_of(void* device) {
  return *static_cast<int*>(device);
}
int put(Pci* pci, int gpu) {
  std::snprintf(pci->address, sizeof pci->address, "%08X:%02X:00.0", 0, gpu + 1);
  return success;
}
/// Returns the other end of a link: -1 down, 4 a switch, else a GPU.
int end_of(int gpu, unsigned link) {
  if (gpu < 2 && link < 16) return 4;
  if (gpu == 0 && link < 18) return 2;
  if (gpu == 2 && link < 2) return 0;
  return -1;
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
#ifdef STAND_IN_FAILS
  return 9;
#else
  return success;
#endif
}
int nvmlShutdown() {
  return success;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  if (std::strlen(uuid) != 5 || std::strncmp(uuid, "GPU-", 4) != 0 || uuid[4] < '0' || uuid[4] > '3') {
    return not_found;
  }
  *device = &places[uuid[4] - '0'];
  return success;
}
int nvmlDeviceGetNvLinkState(void* device, unsigned link, int* active) {
  *active = end_of(number_of(device), link) >= 0 ? 1 : 0;
  return success;
}
int nvmlDeviceGetNvLinkVersion(void*, unsigned, unsigned* version) {
  *version = 4;
  return success;
}
int nvmlDeviceGetNvLinkRemoteDeviceType(void* device, unsigned link, int* type) {
  *type = end_of(number_of(device), link) == 4 ? 2 : 0;
  return success;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* device, unsigned link, Pci* pci) {
  return put(pci, end_of(number_of(device), link));
}
int nvmlDeviceGetPciInfo_v3(void* device, Pci* pci) {
  return put(pci, number_of(device));
}
int nvmlDeviceGetMaxPcieLinkGeneration(void*, unsigned* generation) {
  *generation = 5;
  return success;
}
int nvmlDeviceGetMaxPcieLinkWidth(void*, unsigned* width) {
  *width = 16;
  return success;
}
int nvmlDeviceGetTopologyCommonAncestor(void* first, void* second, int* level) {
  *level = number_of(first) / 2 == number_of(second) / 2 ? 10 : 50;
  return success;
}
}
