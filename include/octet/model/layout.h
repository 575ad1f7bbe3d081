#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "octet/base/dtype.h"
#include "octet/model/share.h"

namespace octet::model {

/// Matrices are operands of products (or the embedding table); vectors are norm weights and biases.
enum class ParameterKind { matrix, vector };

/// uniform: in ± 1 / sqrt(columns). row_norms: those of the rows of a weight that begins normal with
/// init_std, on average; where the weight is loaded, its own.
enum class InitRule { normal, zeros, ones, uniform, row_norms };

/// Rows and columns of a Hugging Face tensor; a vector has one column.
struct PartCut {
  Piece rows, cols;
  bool operator==(const PartCut&) const = default;
};

/// A Hugging Face tensor as a run of rows of a stored tensor: q, k and v lie one behind the other in "qkv".
struct NamedPart {
  std::string name;                 ///< "model.layers.0.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;  ///< as Hugging Face has it
  std::int64_t begin = 0;           ///< first element inside the stored tensor
  std::int64_t count = 0;
  std::optional<PartCut> cut = {};  ///< what of the tensor is stored, row by row; nothing: all of it
};

/// A stored tensor: [rows, cols] row-major; vectors have cols == 1.
struct TensorSpec {
  std::string name;  ///< "layers.0.qkv"
  std::int64_t rows = 0;
  std::int64_t cols = 1;
  std::vector<NamedPart> parts;  ///< cover it without gaps, in order
  InitRule init = InitRule::normal;
  float init_std = 0.02f;            ///< of row_norms: the norm
  bool decay = true;                 ///< weight decay applies: not on norms and biases
  float rate = 1.0f;                 ///< its learning rate is so many times that of a step
  bool fp8 = false;                  ///< the weight of a block's linear layer: an FP8 recipe quantises it
  bool gradient_by_product = false;  ///< a weight-gradient product writes the whole gradient, so that it need
                                     ///< not be zeroed before the first micro-batch
  std::int64_t scaled_rows = 0;      ///< each run of so many rows has an FP8 scale (of an expert); 0: see
                                     ///< scaled_parts()
  std::int64_t offset = 0;           ///< first element inside its segment, a multiple of kTensorAlignment
  std::int64_t count() const { return rows * cols; }
};

/// A run of rows of a stored tensor that has an FP8 scale of its own.
struct ScaledPart {
  std::string name;        ///< the tensor's, or the Hugging Face name of the part
  std::int64_t begin = 0;  ///< first element inside the stored tensor
  std::int64_t count = 0;
};

/// The runs of rows that have a scale each: those of TensorSpec::scaled_rows, or every named part with
/// `each_part`, or the whole tensor.
std::vector<ScaledPart> scaled_parts(const TensorSpec& tensor, bool each_part);

/// Tensors of one kind, storage dtype and trainability, one behind the other in one flat buffer. A shard is a
/// slice of a segment; a collective moves one slice.
struct SegmentSpec {
  std::string name;  ///< "layers.0 matrices"
  ParameterKind kind = ParameterKind::matrix;
  bool fp8 = false;  ///< all its tensors are FP8-eligible
  bool trainable = true;
  bool expert = false;  ///< of a mixture: its weights are not stored in NF4
  std::vector<TensorSpec> tensors;
  std::int64_t used = 0;  ///< elements up to the end of the last tensor
};

/// What is gathered, used and released together: the embedding, one block, or the head.
struct GroupSpec {
  std::string name;  ///< "embedding", "layers.0", "head"
  std::vector<SegmentSpec> segments;
};

/// Every tensor of a segment starts at a multiple of this many elements, and so does every shard: an FP8
/// scale block or a block of the norm never straddles two tensors or two ranks.
inline constexpr std::int64_t kTensorAlignment = 128;

/// Elements of a segment's buffer for `world` ranks: `used` rounded up so that every rank's slice is a whole
/// number of kTensorAlignment elements.
std::int64_t padded_count(const SegmentSpec& segment, int world);

/// All parameters of a model. Group 0 is the embedding, 1 … blocks are the blocks, the last one is the head.
/// Of a share of a model, groups that other ranks hold are empty.
struct ParameterLayout {
  std::vector<GroupSpec> groups;
  int embedding_group() const { return 0; }
  int block_group(int block) const { return 1 + block; }
  int head_group() const { return static_cast<int>(groups.size()) - 1; }
  /// Elements of all tensors that are stored, without padding.
  std::int64_t parameter_count() const;
};

/// Elements of the tensors that are trained.
std::int64_t trained_parameters(const ParameterLayout& layout);

/// Whether any tensor of the group is trained.
bool is_trained(const GroupSpec& group);
/// The first group of which something is trained: backward ends there. The number of groups: nothing is.
int lowest_trained_group(const ParameterLayout& layout);

/// The Hugging Face names of all parts.
std::set<std::string> tensor_names(const ParameterLayout& layout);

}  // namespace octet::model
