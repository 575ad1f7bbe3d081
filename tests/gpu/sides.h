// Runs one test body on the CPU and on the GPU. `both` passes it a Side, on which it puts inputs, runs an op
// and returns outputs. The outputs are compared.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "octet/device/device.h"
#include "ops/tensor.h"

namespace octet::ops {

/// A device with a stream and memory for one test body.
class Side {
 public:
  explicit Side(Device& device)
      : device_(device), stream_(device.make_stream({.name = "test"})), arena_(device) {}
  operator Stream&() { return *stream_; }
  Device& device() { return device_; }
  bool gpu() const { return device_.kind() == DeviceKind::cuda; }

  template <typename T>
  T* put(const std::vector<T>& values) {
    return static_cast<T*>(put_bytes(values.data(), values.size() * sizeof(T)));
  }
  /// Puts the tensor with its margin.
  Matrix put(const Tensor& t) {
    Matrix m = const_cast<Tensor&>(t).matrix();
    m.data = put_bytes(m.data, static_cast<std::size_t>(m.rows * m.ld) * size_of(m.dtype));
    return m;
  }
  Workspace workspace(std::size_t bytes) { return {arena_.reserve("workspace", bytes), bytes}; }

  /// Adds an output. Outputs are compared in this order.
  void out(const std::string& name, const Matrix& m) {
    Output o{.name = name, .dtype = m.dtype, .rows = m.rows, .cols = m.cols, .ld = m.ld, .bytes = {}};
    o.bytes.resize(static_cast<std::size_t>(m.rows * m.ld) * size_of(m.dtype));
    fetch(m.data, o.bytes);
    outputs_.push_back(std::move(o));
  }
  template <typename T>
  void out(const std::string& name, const T* data, std::int64_t count, DType dtype) {
    out(name, Matrix{const_cast<std::remove_const_t<T>*>(data), dtype, 1, count, count});
  }

  struct Output {
    std::string name;
    DType dtype;
    std::int64_t rows, cols, ld;
    std::vector<std::byte> bytes;
    double at(std::int64_t r, std::int64_t c) const;
  };
  const std::vector<Output>& outputs() const { return outputs_; }
  /// Removes and returns the last output, which is then not compared.
  Output take() {
    Output last = std::move(outputs_.back());
    outputs_.pop_back();
    return last;
  }

 private:
  void* put_bytes(const void* data, std::size_t bytes) {
    void* to = arena_.reserve("input", bytes);
    device_.copy_to_device(*stream_, to, data, bytes);
    stream_->synchronize();
    return to;
  }
  void fetch(const void* from, std::vector<std::byte>& to) {
    device_.copy_to_host(*stream_, to.data(), from, to.size());
    stream_->synchronize();
  }

  Device& device_;
  std::unique_ptr<Stream> stream_;
  Arena arena_;
  std::vector<Output> outputs_;
};

/// Maximum difference per element: |gpu - cpu| <= relative * |cpu| + absolute. NaN only equals NaN. If both
/// are zero, the bits must be equal. `bf16_steps` adds this many units in the last place of a bf16 output.
struct Within {
  double relative = 0;
  double absolute = 0;
  double bf16_steps = 0;
};

/// Runs the body on both devices and compares its outputs. Margins of matrices must be unchanged on both.
/// Runs the GPU twice, which must give the same bits.
void both(const std::function<void(Side&)>& body, const Within& within);

}  // namespace octet::ops
