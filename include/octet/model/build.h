#pragma once

#include <cstdint>

#include "octet/model/architecture.h"
#include "octet/model/layout.h"

namespace octet::model {

/// Returns the layout of a model's stored parameters, as its layers declared them (src/model/layers). Groups
/// and segments:
///   embedding  [matrices: embed]
///   layers.i   [FP8-eligible matrices: qkv, output, gate_up, down] [vectors: norms and biases]
///   head       [matrices: lm_head, unless tied] [vectors: norm]
/// With adapters (Architecture::tuning), these tensors are frozen, except modules in Tuning::whole. A block
/// then ends with the segment [adapters: A and B of each module]. A block with experts has no gate_up and
/// down. It has a later segment [experts: router, gate and up of all experts, down of all experts]. If a part
/// of a group is trained, tensors that differ in this from the first tensor of their kind have a later
/// segment. A tied head reads the embedding group, and both uses add to the gradient. Blocks may differ in
/// their shapes.
ParameterLayout build_layout(const Architecture& architecture);

/// Indices of the first two segments of a block.
inline constexpr std::size_t kBlockMatrices = 0;
inline constexpr std::size_t kBlockVectors = 1;

/// Enqueues the initial values of elements [begin, begin + count) of a stored tensor into device memory
/// out[0 … count), f32 or bf16. A random value depends only on the seed, the Hugging Face name and the
/// element's index in that tensor (ops::random_normal). World size and fusing do not change it.
struct Initialisation {
  std::uint64_t seed = 0;
  std::int64_t begin = 0;
  std::int64_t count = 0;
  void* out = nullptr;
  DType dtype = DType::f32;
};
void initialise(Stream& stream, const TensorSpec& tensor, const Initialisation& what);

/// Returns the InitRule::uniform values of elements [begin, begin + count) of a part, [rows, cols].
std::vector<float> uniform_values(const NamedPart& part, std::uint64_t seed, std::int64_t begin,
                                  std::int64_t count);

/// Returns the floating-point operations of training one token in a sequence of `length` tokens: forward and
/// backward without recomputation. The sum is 6 x (trained parameters without the input embedding) + 4 x
/// (frozen parameters) + 6 x layers x length x heads x head_dim (causal attention). A tied table counts as
/// the head. Backward does not reach groups below the lowest trained group: they count 2 x in both terms.
double flops_per_token(const Architecture& architecture, double length);

}  // namespace octet::model
