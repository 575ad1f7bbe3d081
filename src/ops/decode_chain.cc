#include "octet/ops/decode_chain.h"

#include <algorithm>
#include <cstring>

#include "checks.h"
#include "decode_gemm_checks.h"
#include "octet/base/environment.h"

namespace octet::ops {

namespace cuda {
bool has_decode_chain(const Device& device, std::span<const DecodeGemmArgs> gemms);
void decode_chain(Stream& stream, std::span<const DecodeGemmArgs> gemms);
}  // namespace cuda

namespace {

bool refuses_chains() {
  const char* wish = environment_variable("OCTETRUN_LONE_CHAIN");
  return wish != nullptr && std::strcmp(wish, "never") == 0;
}

bool follow_each_other(std::span<const DecodeGemmArgs> gemms) {
  for (std::size_t g = 1; g < gemms.size(); ++g) {
    const Matrix& made = gemms[g - 1].y;
    const ConstMatrix& x = gemms[g].x;
    if (x.data != made.data || x.rows != made.rows || x.cols != made.cols || x.ld != made.ld) return false;
  }
  return true;
}

}  // namespace

bool has_decode_chain(const Device& device, std::span<const DecodeGemmArgs> gemms) {
  if (gemms.size() < 2 || gemms.size() > kDecodeChain || refuses_chains()) return false;
  const auto taken = [&](const DecodeGemmArgs& a) { return has_decode_gemm(device, a); };
  if (!std::ranges::all_of(gemms, taken) || !follow_each_other(gemms)) return false;
  return device.kind() != DeviceKind::cuda || cuda::has_decode_chain(device, gemms);
}

void decode_chain(Stream& stream, std::span<const DecodeGemmArgs> gemms) {
  check(gemms.size() <= kDecodeChain && follow_each_other(gemms),
        "decode_chain: up to four GEMMs, each with the output of the previous GEMM as its input");
  if (stream.device().kind() == DeviceKind::cuda) {
    for (const DecodeGemmArgs& a : gemms) check_decode_gemm(a);
    return cuda::decode_chain(stream, gemms);
  }
  for (const DecodeGemmArgs& a : gemms) decode_gemm(stream, a);
}

}  // namespace octet::ops
