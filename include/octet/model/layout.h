#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "octet/base/dtype.h"
#include "octet/model/architecture.h"
#include "octet/model/share.h"

namespace octet::model {

/// Matrices are operands of GEMMs, or the embedding table. Vectors are norm weights and biases.
enum class ParameterKind { matrix, vector };

/// Initial values of a tensor. uniform: in ± 1 / sqrt(columns). row_norms: the row norms of the module's
/// weight. If the weight is loaded, these are its norms. If it is random, this is the expected norm
/// (init_std). value: init_std. log_uniform: logarithms of numbers that are uniform between init_std and 16.
enum class InitRule { normal, zeros, ones, uniform, row_norms, value, log_uniform };

/// Rows and columns of a Hugging Face tensor; a vector has one column.
struct PartCut {
  Piece rows, cols;
  bool operator==(const PartCut&) const = default;
};

/// A Hugging Face tensor that is a run of rows of a stored tensor: "qkv" is q, k and v concatenated.
struct NamedPart {
  std::string name;                 ///< "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;  ///< of the Hugging Face tensor
  std::int64_t begin = 0;           ///< first element inside the stored tensor
  std::int64_t count = 0;
  std::optional<PartCut> cut = {};  ///< the stored part of the tensor, row-major; nullopt: all of it
};

/// A stored tensor: [rows, cols] row-major; vectors have cols == 1.
struct TensorSpec {
  std::string name;  ///< "layers.0.qkv"
  std::int64_t rows = 0;
  std::int64_t cols = 1;
  std::vector<NamedPart> parts;  ///< in order; they cover the tensor without gaps
  InitRule init = InitRule::normal;
  float init_std = 0.02f;         ///< with row_norms: the expected norm; with value: the value
  bool decay = true;              ///< weight decay applies; false for norms, biases and most other vectors
  float rate = 1.0f;              ///< multiplies the learning rate of a step; 0: never trained
  bool fp8 = false;               ///< the weight of a block's linear layer: an FP8 recipe quantises it
  bool gradient_by_gemm = false;  ///< a wgrad GEMM writes the whole gradient, so it need not be zeroed
                                  ///< before the first micro-batch
  std::int64_t scaled_rows = 0;   ///< rows per FP8 scale: the rows of an expert; 0: see scaled_parts()
  std::int64_t before = 0;  ///< elements of earlier experts, which other ranks have (Share::expert_size)
  std::int64_t in_all = 0;  ///< elements of all experts, with those of other ranks; 0: count()
  std::int64_t offset = 0;  ///< first element inside its segment, a multiple of kTensorAlignment
  std::int64_t count() const { return rows * cols; }
};

/// A run of rows of a stored tensor with one FP8 scale.
struct ScaledPart {
  std::string name;  ///< name of the stored tensor (with the run's number), or the part's Hugging Face name
  std::int64_t begin = 0;  ///< first element inside the stored tensor
  std::int64_t count = 0;
};

/// Returns the runs of rows that have one scale each. With TensorSpec::scaled_rows, a run has that many rows.
/// Otherwise, with `each_part`, every named part is a run. Otherwise the whole tensor is one run.
std::vector<ScaledPart> scaled_parts(const TensorSpec& tensor, bool each_part);

/// Tensors of one kind, storage dtype and trainability, concatenated in one flat buffer. A shard is a slice
/// of a segment. A collective moves one slice.
struct SegmentSpec {
  std::string name;  ///< "layers.0 matrices"
  ParameterKind kind = ParameterKind::matrix;
  bool fp8 = false;  ///< all its tensors are FP8-eligible
  bool trainable = true;
  bool expert = false;         ///< weights of a mixture of experts: experts or routers
  bool split_experts = false;  ///< has only this rank's experts; only ranks with the same experts share it
  std::vector<TensorSpec> tensors;
  std::int64_t used = 0;  ///< elements up to the end of the last tensor
};

/// Parameters that are gathered, used and released together: the embedding, one block, or the head.
struct GroupSpec {
  std::string name;  ///< "embedding", "layers.0", "head"
  std::vector<SegmentSpec> segments;
};

/// Every tensor of a segment and every shard start at a multiple of this number of elements. An FP8 scale
/// block or a block of the gradient norm thus never crosses the border of a tensor or a rank.
inline constexpr std::int64_t kTensorAlignment = 128;

/// Returns the elements of a segment's buffer for `world` ranks: `used`, rounded up so that the slice of
/// every rank is a multiple of kTensorAlignment elements.
std::int64_t padded_count(const SegmentSpec& segment, int world);

/// All parameters of a model. Group 0 is the embedding, groups 1 … blocks are the blocks, and the last group
/// is the head. In a share of a model, the groups of other ranks are empty.
struct ParameterLayout {
  std::vector<GroupSpec> groups;
  int embedding_group() const { return 0; }
  int block_group(int block) const { return 1 + block; }
  int head_group() const { return static_cast<int>(groups.size()) - 1; }
  /// Elements of all tensors that are stored, without padding.
  std::int64_t parameter_count() const;
};

/// Returns the number of elements of all trained tensors.
std::int64_t trained_parameters(const ParameterLayout& layout);

/// Whether any tensor of the group is trained.
bool is_trained(const GroupSpec& group);
/// Returns the first group with a trained tensor, where backward ends. Returns the number of groups if
/// nothing is trained.
int lowest_trained_group(const ParameterLayout& layout);

/// The Hugging Face names of all parts.
std::set<std::string> tensor_names(const ParameterLayout& layout);

/// Returns the layout of a model's stored parameters, as its layers declared them (src/model/layers). Groups
/// and segments:
///   embedding  [matrices: embed]
///   layers.i   [FP8-eligible matrices: qkv, output, gate_up, down] [vectors: norms and biases]
///   head       [matrices: lm_head, unless tied] [vectors: norm]
/// With adapters (Architecture::tuning), these tensors are frozen, except modules in Tuning::whole. A block
/// then ends with the segment [adapters: A and B of each module]. A block with experts has no gate_up and
/// down. It has later segments [router], [experts: gate and up of all experts, down of all experts], and
/// [expert biases] if experts have biases. If a part of a group is trained, tensors that differ in this from
/// the first tensor of their kind have a later segment. A tied head reads the embedding group, and both uses
/// add to the gradient. Blocks may differ in their shapes.
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
/// (frozen parameters) + 6 x layers x length x heads x head_dim (causal attention) + 18 x layers x value
/// heads x key_dim x value_dim (delta rules). A tied table counts as the head. Backward does not reach groups
/// below the lowest trained group: they count 2 x in the first terms, and a third in the last two.
double flops_per_token(const Architecture& architecture, double length);

}  // namespace octet::model
