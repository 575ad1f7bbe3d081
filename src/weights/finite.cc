#include "octet/weights/finite.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "octet/base/error.h"
#include "octet/weights/safetensors.h"

namespace octet::weights {
namespace {

/// Returns the largest float that does not round to infinity in `dtype`.
float largest(DType dtype) {
  if (dtype == DType::f16) return std::nextafter(65520.0f, 0.0f);
  if (dtype == DType::bf16) return std::nextafter(0x1.ffp127f, 0.0f);
  return std::numeric_limits<float>::max();
}

}  // namespace

std::optional<std::int64_t> first_not_finite(const float* values, std::int64_t count, DType dtype) {
  constexpr std::int64_t kBlock = 4096;
  const float most = largest(dtype);
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t end = std::min(count, begin + kBlock);
    int wrong = 0;  // no branch, so that the loop is vectorised
    for (std::int64_t i = begin; i < end; ++i) wrong += std::abs(values[i]) <= most ? 0 : 1;
    if (wrong == 0) continue;
    for (std::int64_t i = begin; i < end; ++i) {
      if (!(std::abs(values[i]) <= most)) return i;
    }
  }
  return std::nullopt;
}

bool is_finite(const WeightFolder& weights, const StoredTensor& tensor) {
  constexpr std::int64_t kRun = 4 << 20;  // elements read at a time
  if (tensor.dtype != DType::f32 && tensor.dtype != DType::bf16 && tensor.dtype != DType::f16) return true;
  std::vector<float> values;
  for (std::int64_t at = 0; at < tensor.count; at += kRun) {
    const std::int64_t count = std::min(kRun, tensor.count - at);
    values.resize(static_cast<std::size_t>(count));
    weights.read(tensor.name, at, count, values.data());
    if (first_not_finite(values.data(), count)) return false;
  }
  return true;
}

std::string name_in_file(const StoredTensor& tensor) {
  return "tensor '" + tensor.name + "' of " + tensor.file;
}

std::string first_not_finite_tensor(const std::string& folder, const std::string& stem) {
  const WeightFolder weights(folder, stem);
  for (const StoredTensor& tensor : weights.tensors()) {
    if (!is_finite(weights, tensor)) return name_in_file(tensor);
  }
  return "";
}

void require_finite(const std::string& tensor, const float* values, std::int64_t count, DType dtype,
                    const std::string& where, const std::string& fix) {
  const auto wrong = first_not_finite(values, count, dtype);
  if (!wrong) return;
  const float value = values[*wrong];
  const bool finite = std::isfinite(value);
  throw Error({.what = "a weight is not finite" + std::string(finite ? " in the dtype of the export" : ""),
               .expected = "finite values that " + std::string(name_of(dtype)) + " holds",
               .found = std::to_string(value),
               .where = where + ", tensor '" + tensor + "'",
               .fix = finite ? "export in a wider dtype: --export_dtype bf16 or fp32" : fix,
               .code = ExitCode::usage});
}

}  // namespace octet::weights
