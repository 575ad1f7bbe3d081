#include "octet/report/number.h"

namespace octet::report {

double flop_utilisation(double flops, double tokens_per_second, std::int64_t devices, double peak) {
  if (!(flops > 0) || !(tokens_per_second > 0) || devices < 1 || !(peak > 0)) return 0;
  return flops * tokens_per_second / (static_cast<double>(devices) * peak);
}

}  // namespace octet::report
