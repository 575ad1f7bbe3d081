// A small model without GEMMs: odd shapes, several blocks, a tied embedding, FP8 and other segments, a frozen
// tensor.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "octet/base/random.h"
#include "octet/model/layout.h"

namespace octet::store::synthetic {

struct Part {
  std::string name;
  std::int64_t rows;
};

inline model::TensorSpec tensor(const std::string& name, std::int64_t cols, const std::vector<Part>& parts) {
  model::TensorSpec t{.name = name, .cols = cols};
  for (const Part& part : parts) {
    t.parts.push_back({.name = part.name,
                       .shape = cols == 1 ? std::vector{part.rows} : std::vector{part.rows, cols},
                       .begin = t.rows * cols,
                       .count = part.rows * cols});
    t.rows += part.rows;
  }
  t.decay = cols > 1;
  return t;
}

inline model::SegmentSpec segment(const std::string& name, model::ParameterKind kind,
                                  std::vector<model::TensorSpec> tensors) {
  model::SegmentSpec s{.name = name, .kind = kind, .tensors = std::move(tensors)};
  for (model::TensorSpec& t : s.tensors) {
    t.offset = (s.used + model::kTensorAlignment - 1) / model::kTensorAlignment * model::kTensorAlignment;
    s.used = t.offset + t.count();
  }
  return s;
}

inline model::ParameterLayout layout(int blocks) {
  using model::ParameterKind;
  model::ParameterLayout all;
  all.groups.push_back({"embedding",
                        {segment("embedding matrices", ParameterKind::matrix,
                                 {tensor("embedding", 20, {{"embed.weight", 37}})})}});
  for (int b = 0; b < blocks; ++b) {
    const std::string n = "layers." + std::to_string(b);
    model::SegmentSpec matrices =
        segment(n + " matrices", ParameterKind::matrix,
                {tensor(n + ".qkv", 20, {{n + ".q.weight", 24}, {n + ".k.weight", 8}, {n + ".v.weight", 8}}),
                 tensor(n + ".down", 33, {{n + ".down.weight", 20 + b % 2}})});
    matrices.fp8 = true;
    for (model::TensorSpec& t : matrices.tensors) t.fp8 = t.gradient_by_gemm = true;
    model::SegmentSpec router = segment(n + " router", ParameterKind::matrix,
                                        {tensor(n + ".router", 5, {{n + ".router.weight", 3}})});
    model::SegmentSpec vectors = segment(
        n + " vectors", ParameterKind::vector,
        {tensor(n + ".norm", 1, {{n + ".norm.weight", 20}}), tensor(n + ".bias", 1, {{n + ".q.bias", 7}})});
    all.groups.push_back({n, {matrices, router, vectors}});
  }
  model::SegmentSpec frozen =
      segment("head frozen", ParameterKind::matrix, {tensor("frozen", 6, {{"frozen.weight", 11}})});
  frozen.trainable = false;
  all.groups.push_back(
      {"head",
       {segment("head vectors", ParameterKind::vector, {tensor("norm", 1, {{"norm.weight", 20}})}), frozen}});
  return all;
}

inline std::uint64_t hash_bytes(const void* data, std::size_t bytes,
                                std::uint64_t seed = 1469598103934665603ull) {
  const auto* at = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < bytes; ++i) seed = (seed ^ at[i]) * 1099511628211ull;
  return seed;
}

/// Returns a pseudo-random number in [-1, 1) from a counter-based generator.
inline float noise(std::uint64_t seed, std::int64_t element) {
  return 2.0f * uniform(philox(seed, RandomUse::data, static_cast<std::uint64_t>(element))[0]) - 1.0f;
}
inline std::uint64_t seed_of(const std::string& tensor, int step, int micro_batch) {
  const std::uint64_t where[2] = {static_cast<std::uint64_t>(step), static_cast<std::uint64_t>(micro_batch)};
  return hash_bytes(where, sizeof where, hash_bytes(tensor.data(), tensor.size()));
}
/// Returns the initial value of an element of a Hugging Face tensor.
inline float first_value(const std::string& name, std::int64_t element) {
  return 0.5f * noise(seed_of(name, -1, -1), element);
}
/// Returns the noise that a micro-batch of the step adds to an element's gradient, without the share of the
/// weight.
inline float gradient_noise(const std::string& stored, std::int64_t element, int step, int micro_batch) {
  return noise(seed_of(stored, step, micro_batch), element);
}
inline constexpr float kWeightShare = 0.05f;
inline constexpr float kTiedShare = 0.5f;
inline std::int64_t label_tokens(int micro_batch) {
  return 2 + micro_batch % 3;
}
inline double loss(int step, int micro_batch) {
  return static_cast<double>(noise(seed_of("loss", step, micro_batch), 0)) + 3.0;
}

}  // namespace octet::store::synthetic
