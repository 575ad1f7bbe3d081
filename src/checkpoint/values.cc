#include "values.h"

#include <algorithm>
#include <cstring>

#include "octet/weights/convert.h"

namespace octet::checkpoint {

ElementRange range_of(const CheckpointTensor& tensor, std::int64_t chunk) {
  const auto width = static_cast<std::int64_t>(size_of(tensor.dtype));
  const std::int64_t begin = chunk * kChunkBytes;
  return {begin / width, std::min(kChunkBytes, tensor.bytes - begin) / width};
}

std::vector<std::byte> read_range(const Checkpoint& checkpoint, const CheckpointTensor& tensor,
                                  const ElementRange& range, bool verify) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(range.count) * size_of(tensor.dtype));
  TensorSlice slice{tensor.name, tensor.dtype, tensor.shape, range.begin, range.count, bytes.data()};
  checkpoint.read({slice}, verify);
  return bytes;
}

std::vector<double> to_doubles(DType dtype, const std::vector<std::byte>& bytes, std::int64_t count) {
  const auto n = static_cast<std::size_t>(count);
  std::vector<double> values(n);
  if (dtype == DType::f64) {
    if (n > 0) std::memcpy(values.data(), bytes.data(), n * sizeof(double));
  } else if (weights::is_float(dtype)) {
    std::vector<float> floats(n);
    weights::to_float(dtype, bytes.data(), count, floats.data());
    std::copy(floats.begin(), floats.end(), values.begin());
  } else {
    std::vector<std::int64_t> integers(n);
    weights::to_int64(dtype, bytes.data(), count, integers.data());
    std::transform(integers.begin(), integers.end(), values.begin(),
                   [](std::int64_t x) { return double(x); });
  }
  return values;
}

void each_range(const Checkpoint& checkpoint, const CheckpointTensor& tensor, bool verify,
                const std::function<void(std::int64_t, const std::vector<double>&)>& take) {
  for (std::size_t chunk = 0; chunk < tensor.chunks.size(); ++chunk) {
    const ElementRange range = range_of(tensor, static_cast<std::int64_t>(chunk));
    take(range.begin, to_doubles(tensor.dtype, read_range(checkpoint, tensor, range, verify), range.count));
  }
}

}  // namespace octet::checkpoint
