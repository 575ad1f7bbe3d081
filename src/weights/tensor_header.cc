#include "octet/weights/tensor_header.h"

#include "octet/base/error.h"
#include "octet/base/tensor_slice.h"

namespace octet::weights {

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(extent);
  }
  return text + "]";
}

std::int64_t byte_count(const TensorHeader& tensor) {
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(element_count(tensor.shape, tensor.name),
                             static_cast<std::int64_t>(size_of(tensor.dtype)), &bytes)) {
    throw Error({.what = "a tensor is too large",
                 .found = shape_text(tensor.shape),
                 .where = tensor.name,
                 .fix = "fetch or write the file again: its header is damaged",
                 .code = ExitCode::usage});
  }
  return bytes;
}

}  // namespace octet::weights
