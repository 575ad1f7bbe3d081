// The work of a model, as its layers state it: their products, and what they enqueue for a micro-batch. Plans
// and tables add it up; nobody else writes down the shapes of a block.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "octet/model/architecture.h"
#include "octet/ops/gemm.h"

namespace octet::model {

/// A product of the model with a weight: a linear layer of a block, or the head.
struct LinearLayer {
  std::string name;          ///< "qkv"
  std::string title;         ///< "attention q, k, v"
  std::int64_t rows = 0;     ///< of the weight [rows, cols]: outputs
  std::int64_t cols = 0;     ///< inputs
  bool fp8 = false;          ///< an FP8 recipe quantises its operands
  bool cast_alone = false;   ///< no producer writes the FP8 copy of its input: a kernel makes it
  std::int64_t experts = 1;  ///< of so many, each with a weight of this shape, a token takes some
  std::int64_t taken = 1;    ///< of the experts, by each token: rows of the GEMMs per token
  std::int64_t layers = 1;   ///< blocks that have such a layer
  /// Whether `other` is of the same name and shape.
  bool counts(const LinearLayer& other) const {
    return name == other.name && rows == other.rows && cols == other.cols;
  }
};

/// Those of all blocks and the head, layers of equal name and shape as one, in the order of a pass.
std::vector<LinearLayer> linear_layers(const Architecture& architecture);

enum class OperationKind { product, attention, norm, rotary, activation, adapters, embedding, loss };

/// How often backward makes a forward operation again, by Recompute: none, norms, qkv, full.
using Repeats = std::array<int, 4>;

/// A kernel, or several that count as one.
struct Operation {
  OperationKind kind = OperationKind::product;
  LinearLayer layer;                             ///< of a product
  ops::Product product = ops::Product::forward;  ///< of a product: which one
  std::int64_t m = 0, n = 0, k = 0;              ///< of a product: result [m, n], inner dimension k
  bool backward = false;
  double flops = 0;
  double values =
      0;  ///< values of the compute dtype read and written; of a product: 0, they follow from m, n, k
  Repeats again{};
};

/// The three products of a linear layer with `tokens` tokens.
std::vector<Operation> products_of(const LinearLayer& layer, std::int64_t tokens,
                                   const Repeats& forward_again = {});

/// What a micro-batch of `tokens` tokens in documents of `length` tokens makes the layers do, forward and
/// backward.
std::vector<Operation> operations(const Architecture& architecture, std::int64_t tokens, std::int64_t length);

}  // namespace octet::model
