// Attention by its definition in float64, and shared code of CPU attention tests: problems of several
// documents, and the op run on them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/device/cpu.h"
#include "octet/ops/attention.h"
#include "support/float64.h"

namespace octet::ops {

struct Shape {
  std::vector<std::int32_t> lengths = {1};
  Heads heads = {1, 1, 64};
  DType dtype = DType::f32;
  float soft_cap = 0.0f;
  std::int64_t window = 0;
  int threads = 2;
  std::int64_t after = 0;  ///< tokens at the end that belong to no document
};

/// An array of T and its stored values.
struct Array {
  Array(std::int64_t rows, std::int64_t cols, DType d)
      : dtype(d), bytes(static_cast<std::size_t>(rows * cols) * size_of(d), 0xFF) {}
  double operator[](std::int64_t at) const {
    const auto i = static_cast<std::size_t>(at);
    if (dtype == DType::bf16) return from_bf16(reinterpret_cast<const std::uint16_t*>(bytes.data())[i]);
    return reinterpret_cast<const float*>(bytes.data())[i];
  }
  void set(std::int64_t at, float value) {
    const auto i = static_cast<std::size_t>(at);
    if (dtype == DType::bf16) {
      reinterpret_cast<std::uint16_t*>(bytes.data())[i] = to_bf16(value);
    } else {
      reinterpret_cast<float*>(bytes.data())[i] = value;
    }
  }
  void fill(std::mt19937& random, float scale) {
    std::normal_distribution<float> normal;
    for (std::size_t i = 0; i < bytes.size() / size_of(dtype); ++i) {
      set(static_cast<std::int64_t>(i), scale * normal(random));
    }
  }
  DType dtype;
  std::vector<std::uint8_t> bytes;
};

struct Result {
  Array out, d_qkv;
  std::vector<float> lse;
};

struct Problem64 {
  explicit Problem64(const Shape& s)
      : shape(s),
        starts(1, 0),
        qkv(count(s), s.heads.qkv_width(), s.dtype),
        d_out(count(s), s.heads.q_heads * s.heads.head_dim, s.dtype) {
    for (const auto length : s.lengths) starts.push_back(starts.back() + length);
    std::mt19937 random(static_cast<unsigned>(tokens() * 131 + s.heads.head_dim));
    qkv.fill(random, 1.5f);
    d_out.fill(random, 1.0f);
  }
  static std::int64_t count(const Shape& s) {
    std::int64_t sum = s.after;
    for (const auto length : s.lengths) sum += length;
    return sum;
  }
  std::int64_t tokens() const { return count(shape); }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(shape.heads.head_dim)); }
  Documents documents() const {
    return {.cu_seqlens = starts.data(),
            .host_cu_seqlens = nullptr,
            .count = static_cast<std::int64_t>(shape.lengths.size()),
            .max_length = *std::max_element(shape.lengths.begin(), shape.lengths.end()),
            .tokens = tokens()};
  }
  Shape shape;
  std::vector<std::int32_t> starts;
  Array qkv, d_out;
};

inline Result run(const Problem64& p) {
  const Heads& heads = p.shape.heads;
  const std::int64_t tokens = p.tokens(), width = heads.q_heads * heads.head_dim;
  const auto device = make_cpu_device({.threads = p.shape.threads});
  const auto stream = device->make_stream({.name = "compute"});
  Arena arena(*device);
  Workspace workspace;
  workspace.bytes = attention_workspace(*device, heads, p.shape.dtype, tokens, p.documents().max_length);
  workspace.data = arena.reserve("workspace", workspace.bytes);
  std::memset(workspace.data, 0xFF, workspace.bytes);  // NaN: no code may rely on zeros
  Result r{.out = Array(tokens, width, p.shape.dtype),
           .d_qkv = Array(tokens, heads.qkv_width(), p.shape.dtype),
           .lse = std::vector<float>(static_cast<std::size_t>(heads.q_heads * tokens),
                                     std::numeric_limits<float>::quiet_NaN())};
  const ConstMatrix qkv(p.qkv.bytes.data(), p.shape.dtype, tokens, heads.qkv_width(), heads.qkv_width());
  const Matrix out{r.out.bytes.data(), p.shape.dtype, tokens, width, width};
  attention(*stream, {.qkv = qkv,
                      .heads = heads,
                      .documents = p.documents(),
                      .scale = p.scale(),
                      .soft_cap = p.shape.soft_cap,
                      .window = p.shape.window,
                      .out = out,
                      .lse = r.lse.data(),
                      .workspace = workspace});
  attention_backward(
      *stream,
      {.qkv = qkv,
       .out = out,
       .d_out = ConstMatrix(p.d_out.bytes.data(), p.shape.dtype, tokens, width, width),
       .lse = r.lse.data(),
       .heads = heads,
       .documents = p.documents(),
       .scale = p.scale(),
       .soft_cap = p.shape.soft_cap,
       .window = p.shape.window,
       .d_qkv = Matrix{r.d_qkv.bytes.data(), p.shape.dtype, tokens, heads.qkv_width(), heads.qkv_width()},
       .workspace = workspace});
  stream->synchronize();
  return r;
}

using Reference = test::AttentionReference;

inline Reference reference(const Problem64& p) {
  return test::attention_reference(
      {.heads = p.shape.heads,
       .starts = p.starts,
       .tokens = p.tokens(),
       .scale = p.scale(),
       .soft_cap = p.shape.soft_cap,
       .window = p.shape.window},
      [&](std::int64_t at) { return p.qkv[at]; }, [&](std::int64_t at) { return p.d_out[at]; });
}

/// Largest |got - want| relative to the largest |want|.
template <typename Got>
double distance(const Got& got, const std::vector<double>& want) {
  double worst = 0, size = 1e-30;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double difference = std::abs(static_cast<double>(got[static_cast<std::int64_t>(i)]) - want[i]);
    worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
    size = std::max(size, std::abs(want[i]));
  }
  return worst / size;
}

/// Returns one line for messages.
inline std::string words_of(const Shape& shape) {
  return "heads " + std::to_string(shape.heads.q_heads) + "/" + std::to_string(shape.heads.kv_heads) +
         " of " + std::to_string(shape.heads.head_dim) + ", first length " +
         std::to_string(shape.lengths[0]) + ", window " + std::to_string(shape.window) + ", cap " +
         std::to_string(shape.soft_cap) + ", " + std::string(name_of(shape.dtype));
}

}  // namespace octet::ops
