#include "octet/weights/safetensors.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "fuzz.h"
#include "octet/base/error.h"
#include "scratch.h"

namespace octet::fuzz {

// Opens a file, reads the first elements of every tensor, and one element past its end.
void safetensors(std::string_view bytes) {
  const std::string path = scratch_file("model.safetensors", bytes);
  try {
    const weights::SafetensorsFile file(path);
    for (const auto& tensor : file.tensors()) {
      unsigned sum = 0;
      for (const std::byte b : file.bytes(tensor)) sum += static_cast<unsigned>(b);
      const bool empty = std::ranges::find(tensor.shape, 0) != tensor.shape.end();
      std::int64_t count = empty ? 0 : 1;
      for (const std::int64_t extent : tensor.shape) count *= empty ? 1 : extent;
      std::vector<float> values(static_cast<std::size_t>(std::clamp<std::int64_t>(count, 1, 64)) + sum % 2);
      try {
        file.read(tensor.name, 0, std::min<std::int64_t>(count, 64), values.data());
      } catch (const Error&) {
        continue;
      }
      try {
        file.read(tensor.name, count, 1, values.data());
      } catch (const Error&) {
        continue;
      }
      std::abort();
    }
  } catch (const Error&) {
  }
}

}  // namespace octet::fuzz
