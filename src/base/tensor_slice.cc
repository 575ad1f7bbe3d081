#include "octet/base/tensor_slice.h"

#include "octet/base/error.h"

namespace octet {

std::int64_t element_count(const std::vector<std::int64_t>& shape, const std::string& name) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(count, extent, &count)) {
      throw Error({.what = "the shape of a tensor is impossible",
                   .expected = "extents of at least 0 whose product fits 63 bits",
                   .found = std::to_string(extent) + " among its extents",
                   .where = name});
    }
  }
  return count;
}

}  // namespace octet
