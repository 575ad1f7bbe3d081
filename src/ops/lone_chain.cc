#include "octet/ops/lone_chain.h"

#include <algorithm>
#include <cstring>

#include "checks.h"
#include "lone_gemm_checks.h"
#include "octet/base/environment.h"

namespace octet::ops {

namespace cuda {
bool has_lone_chain(const Device& device, std::span<const LoneGemmArgs> gemms);
void lone_chain(Stream& stream, std::span<const LoneGemmArgs> gemms);
}  // namespace cuda

namespace {

bool refuses_chains() {
  const char* wish = environment_variable("OCTETRUN_LONE_CHAIN");
  return wish != nullptr && std::strcmp(wish, "never") == 0;
}

bool follow_each_other(std::span<const LoneGemmArgs> gemms) {
  for (std::size_t g = 1; g < gemms.size(); ++g) {
    const Matrix& made = gemms[g - 1].y;
    const ConstMatrix& x = gemms[g].x;
    if (x.data != made.data || x.rows != made.rows || x.cols != made.cols || x.ld != made.ld) return false;
  }
  return true;
}

}  // namespace

bool has_lone_chain(const Device& device, std::span<const LoneGemmArgs> gemms) {
  if (gemms.size() < 2 || gemms.size() > kLoneChain || refuses_chains()) return false;
  const auto taken = [&](const LoneGemmArgs& a) { return has_lone_gemm(device, a); };
  if (!std::ranges::all_of(gemms, taken) || !follow_each_other(gemms)) return false;
  return device.kind() != DeviceKind::cuda || cuda::has_lone_chain(device, gemms);
}

void lone_chain(Stream& stream, std::span<const LoneGemmArgs> gemms) {
  check(gemms.size() <= kLoneChain && follow_each_other(gemms),
        "lone_chain: up to four GEMMs, each with the output of the previous GEMM as its input");
  if (stream.device().kind() == DeviceKind::cuda) {
    for (const LoneGemmArgs& a : gemms) check_lone_gemm(a);
    return cuda::lone_chain(stream, gemms);
  }
  for (const LoneGemmArgs& a : gemms) lone_gemm(stream, a);
}

}  // namespace octet::ops
