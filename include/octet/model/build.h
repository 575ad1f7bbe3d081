#pragma once

#include <cstdint>

#include "octet/model/architecture.h"
#include "octet/model/layout.h"

namespace octet::model {

/// The parameters of a model as they are stored: what its layers declared (src/model/layers). Groups and
/// segments:
///   embedding  [matrices: embed]
///   layers.i   [FP8-eligible matrices: qkv, output, gate_up, down] [vectors: norms and biases]
///   head       [matrices: lm_head, unless tied] [vectors: norm]
/// With adapters (Architecture::tuning) those are frozen but for what is trained whole, and behind them
/// comes, in a block, [adapters: of each module A and B]. A block that mixes experts has in place of gate_up
/// and down a segment behind the others [experts: router, gate and up of all, down of all]. Where a part of a
/// group is trained and the rest is frozen, tensors of a kind that differ in this from the first one have a
/// segment behind the others. A tied head reads the embedding group, whose gradient then comes from both
/// uses. Blocks may differ in their shapes.
ParameterLayout build_layout(const Architecture& architecture);

/// Where a block's tensors stand in its group.
inline constexpr std::size_t kBlockMatrices = 0;
inline constexpr std::size_t kBlockVectors = 1;

/// Enqueues the initial values of elements [begin, begin + count) of a stored tensor into device memory
/// out[0 … count), f32 or bf16. A value depends on the seed, the Hugging Face name and the element's index in
/// that tensor alone (ops::random_normal), so that neither world size nor fusing changes it.
struct Initialisation {
  std::uint64_t seed = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
  void* out = nullptr;
  DType dtype = DType::f32;
};
void initialise(Stream& stream, const TensorSpec& tensor, const Initialisation& what);

/// What InitRule::uniform gives to elements [begin, begin + count) of a part, [rows, cols].
std::vector<float> uniform_values(const NamedPart& part, std::uint64_t seed, std::int64_t begin,
                                  std::int64_t count);

/// Floating-point operations of training one token in a sequence of `length` tokens, forward and backward,
/// no recomputation: 6 x (parameters without the input embedding; 4 x those that are frozen) + 6 x layers x
/// length x heads x head_dim (causal attention). A tied table counts as the head. Blocks below the lowest
/// trained group, which backward does not come to, count 2 x in both terms.
double flops_per_token(const Architecture& architecture, double length);

}  // namespace octet::model
