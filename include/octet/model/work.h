// The work of a model: the GEMMs and other kernels that its layers enqueue for a micro-batch. Plans and
// tables add it up. Only the layers define the shapes of a block.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "octet/model/architecture.h"
#include "octet/ops/gemm.h"
#include "octet/ops/wire.h"

namespace octet::model {

/// A GEMM with a weight: a linear layer of a block, or the head.
struct LinearLayer {
  std::string name;          ///< "qkv"
  std::string title;         ///< "attention q, k, v"
  std::int64_t rows = 0;     ///< outputs: the weight is [rows, cols]
  std::int64_t cols = 0;     ///< inputs
  bool fp8 = false;          ///< an FP8 recipe quantises its operands
  bool cast_alone = false;   ///< a separate kernel makes the FP8 copy of its input
  std::int64_t experts = 1;  ///< experts, each with a weight of this shape
  std::int64_t taken = 1;    ///< experts per token: rows of the GEMMs per token
  std::int64_t layers = 1;   ///< blocks with this layer
  /// Whether `other` has the same name and shape.
  bool counts(const LinearLayer& other) const {
    return name == other.name && rows == other.rows && cols == other.cols;
  }
};

/// Returns the linear layers of all blocks and the head in the order of a pass. Layers of equal name and
/// shape are one entry.
std::vector<LinearLayer> linear_layers(const Architecture& architecture);

/// What the ranks of an expert group exchange in a micro-batch, in multiples of the rows of this rank's
/// tokens.
struct Exchanges {
  int rows = 0;     ///< exchanges of rows of hidden values
  int again = 0;    ///< more of them if blocks are recomputed in full
  int weights = 0;  ///< exchanges of one fp32 value per row
};

/// Returns the bytes that a rank sends to one other rank of its expert group in a micro-batch of `tokens`
/// tokens, if each rank gets the same number of its rows. `blocks_again`: Recompute::full. Hidden values of
/// `dtype` are sent in the format `wire`.
std::int64_t exchanged_bytes(const Architecture& architecture, std::int64_t tokens, DType dtype,
                             ops::Wire wire, bool blocks_again);
/// Returns the bytes of `count` hidden values in a message.
std::int64_t exchanged_bytes(std::int64_t count, DType dtype, ops::Wire wire);

enum class OperationKind { gemm, attention, norm, rotary, activation, adapters, embedding, loss };

/// How often backward recomputes a forward operation, by Recompute: none, norms, qkv, full.
using Repeats = std::array<int, 4>;

/// One kernel, or several kernels that count as one.
struct Operation {
  OperationKind kind = OperationKind::gemm;
  LinearLayer layer;                                 ///< with OperationKind::gemm: the layer
  ops::GemmKind gemm_kind = ops::GemmKind::forward;  ///< with OperationKind::gemm: forward, dgrad or wgrad
  std::int64_t m = 0, n = 0, k = 0;                  ///< of a GEMM: result [m, n], inner dimension k
  bool backward = false;
  double flops = 0;
  double values =
      0;  ///< values of the compute dtype read and written; 0 for a GEMM, where m, n and k give them
  Repeats again{};
};

/// Returns the three GEMMs of a linear layer with `tokens` tokens: forward, dgrad and wgrad.
std::vector<Operation> gemms_of(const LinearLayer& layer, std::int64_t tokens,
                                const Repeats& forward_again = {});

/// Returns the forward and backward operations of a micro-batch of `tokens` tokens in documents of `length`
/// tokens.
std::vector<Operation> operations(const Architecture& architecture, std::int64_t tokens, std::int64_t length);

}  // namespace octet::model
