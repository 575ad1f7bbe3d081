#include "octet/weights/convert.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "octet/base/error.h"
#include "octet/device/cpu.h"
#include "octet/weights/safetensors.h"

namespace octet::weights {
namespace {

// Calls `act` for runs [begin, end) of elements, with one run per thread if there are many elements. The
// source may be a mapped file, and several threads load its pages faster.
template <class Act>
void in_runs(std::int64_t count, const Act& act) {
  constexpr std::int64_t worth_a_thread = std::int64_t{1} << 18;
  const std::int64_t threads = std::min<std::int64_t>(cpu::op_threads(), 1 + count / worth_a_thread);
  if (threads <= 1) return act(std::int64_t{0}, count);
#pragma omp parallel for num_threads(static_cast <int>(threads)) schedule(static, 1)
  for (std::int64_t i = 0; i < threads; ++i) act(count * i / threads, count * (i + 1) / threads);
}

// Applies `convert` to each element of type From.
template <class From, class To, class Convert>
void each(const std::byte* from, std::int64_t count, To* out, Convert convert) {
  in_runs(count, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      From x;
      std::memcpy(&x, from + static_cast<std::size_t>(i) * sizeof(From), sizeof(From));
      out[i] = convert(x);
    }
  });
}

template <class To, class Convert>
void store_each(const float* from, std::int64_t count, std::byte* out, Convert convert) {
  for (std::int64_t i = 0; i < count; ++i) {
    const To x = convert(from[i]);
    std::memcpy(out + static_cast<std::size_t>(i) * sizeof(To), &x, sizeof(To));
  }
}

}  // namespace

void to_float(DType dtype, const std::byte* from, std::int64_t count, float* out) {
  switch (dtype) {
    case DType::f32:
      return in_runs(count, [&](std::int64_t begin, std::int64_t end) {
        if (begin == end) return;
        const std::size_t at = static_cast<std::size_t>(begin) * sizeof(float);
        std::memcpy(out + begin, from + at, static_cast<std::size_t>(end - begin) * sizeof(float));
      });
    case DType::bf16:
      return each<std::uint16_t>(from, count, out, from_bf16);
    case DType::f16:
      return each<std::uint16_t>(from, count, out, from_f16);
    case DType::f64:
      return each<double>(from, count, out, [](double x) { return static_cast<float>(x); });
    case DType::e4m3:
    case DType::e5m2:
      return each<std::uint8_t>(from, count, out, [dtype](std::uint8_t x) { return from_fp8(x, dtype); });
    default:
      check(false, "to_float of a dtype that is no float");
  }
}

void to_bf16(DType dtype, const std::byte* from, std::int64_t count, Bf16* out) {
  if (dtype == DType::bf16) {
    if (count > 0) std::memcpy(out, from, static_cast<std::size_t>(count) * sizeof(Bf16));
    return;
  }
  constexpr std::int64_t kRun = 4096;
  float run[kRun];
  for (std::int64_t i = 0; i < count; i += kRun) {
    const std::int64_t n = std::min(kRun, count - i);
    to_float(dtype, from + static_cast<std::size_t>(i) * size_of(dtype), n, run);
    for (std::int64_t k = 0; k < n; ++k) out[i + k] = Bf16(run[k]);
  }
}

void to_int64(DType dtype, const std::byte* from, std::int64_t count, std::int64_t* out) {
  const auto widen = [](auto x) { return static_cast<std::int64_t>(x); };
  switch (dtype) {
    case DType::i64:
      return each<std::int64_t>(from, count, out, widen);
    case DType::i32:
      return each<std::int32_t>(from, count, out, widen);
    case DType::i16:
      return each<std::int16_t>(from, count, out, widen);
    case DType::i8:
      return each<std::int8_t>(from, count, out, widen);
    case DType::u8:
      return each<std::uint8_t>(from, count, out, widen);
    case DType::boolean:
      return each<std::uint8_t>(from, count, out, [](std::uint8_t x) { return std::int64_t{x != 0}; });
    default:
      check(false, "to_int64 of a dtype that is no integer");
  }
}

void from_float(DType dtype, const float* from, std::int64_t count, std::byte* out) {
  switch (dtype) {
    case DType::f32:
      if (count > 0) std::memcpy(out, from, static_cast<std::size_t>(count) * sizeof(float));
      return;
    case DType::bf16:
      return store_each<std::uint16_t>(from, count, out, [](float x) { return octet::to_bf16(x); });
    case DType::f16:
      return store_each<std::uint16_t>(from, count, out, to_f16);
    case DType::f64:
      return store_each<double>(from, count, out, [](float x) { return static_cast<double>(x); });
    case DType::e4m3:
    case DType::e5m2:
      return store_each<std::uint8_t>(from, count, out, [dtype](float x) { return to_fp8(x, dtype); });
    default:
      check(false, "from_float to a dtype that is no float");
  }
}

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
