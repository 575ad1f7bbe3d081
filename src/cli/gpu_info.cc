#include <cstdio>

#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/device/device.h"
#include "options.h"

namespace octet::cli {

int gpu_info_command(const Arguments& arguments) {
  Options options(
      "gpu-info",
      "Shows the GPUs that the driver offers and whether this program can train on them. Exits with "
      "1 when there is none");
  bool json = false;
  options.app().add_flag("--json", json, "print one line of JSON");
  if (!options.parse(arguments)) return 0;
  Json all = Json::array();
  bool any = false;
  std::string why;
  // At least one look, for the sentence that says why there is none.
  for (int i = 0; i == 0 || i < cuda_device_count(); ++i) {
    if (!cuda_available(i, &why)) {
      if (cuda_device_count() > 0) all.push_back({{"gpu", i}, {"usable", false}, {"why_not", why}});
      if (!json) std::printf("%s\n", why.c_str());
      continue;
    }
    any = true;
    const std::unique_ptr<Device> device = make_cuda_device(i);
    const MemoryInfo memory = device->memory();
    all.push_back({{"gpu", i},
                   {"usable", true},
                   {"description", device->description()},
                   {"total_bytes", memory.total},
                   {"free_bytes", memory.free}});
    if (json) continue;
    std::printf("%s, %s of %s free\n", device->description().c_str(),
                human_bytes(static_cast<double>(memory.free)).c_str(),
                human_bytes(static_cast<double>(memory.total)).c_str());
  }
  if (json) std::printf("%s\n", Json{{"gpus", all}, {"why_not", any ? "" : why}}.dump().c_str());
  return any ? 0 : 1;
}

}  // namespace octet::cli
