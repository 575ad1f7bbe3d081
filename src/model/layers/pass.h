// What a pass of a micro-batch through the layers is, and what they all have in common.
#pragma once

#include <vector>

#include "layers/lone_queue.h"
#include "octet/model/kv_cache.h"
#include "octet/model/transformer.h"
#include "octet/ops/gemm.h"
#include "octet/precision/quantizer.h"

namespace octet::model {

/// The load of the experts of all layers, of one micro-batch (ops/routing.h); null without a loss that reads
/// it.
struct ExpertLoad {
  double *counts = nullptr, *probabilities = nullptr;
  float* d_probabilities = nullptr;
};

/// Buffers that one layer after the other uses.
struct Scratch {
  /// [tokens, hidden]: what a sublayer adds to the stream, if its product does not; gradient of a norm's
  /// output
  ops::Matrix delta;
  ops::Matrix gradient;       ///< [tokens, hidden]: gradient of the residual stream
  ops::Matrix wide;           ///< [tokens, the most inputs of a linear layer]
  ops::Matrix d_added;        ///< [tokens, hidden]: gradient of a sublayer's output before its norm
  precision::Fp8Copy x_copy;  ///< FP8 copies of the linear input at hand, where they are not kept
  precision::Fp8Copy d_copy;  ///< FP8 copy of one output gradient
  precision::Fp8Copy weight;  ///< FP8 copies of one weight, where they are made for each product
  ops::Matrix low_rank;       ///< [tokens, columns]: gradients inside the adapters of one linear layer
  ops::Matrix dropped;        ///< [tokens, the most inputs]: what an adapter reads after dropout
  ops::Matrix
      scaled;  ///< [tokens, the most outputs]: with DoRA, the gradient in front of the columns' scales
  ExpertLoad load;
  ops::Workspace workspace;
};

/// The first `rows` rows of a buffer.
inline ops::Matrix top(ops::Matrix m, std::int64_t rows) {
  m.rows = rows;
  return m;
}

/// A buffer used for fewer columns than it has room for, dense.
inline ops::Matrix narrowed(ops::Matrix m, std::int64_t rows, std::int64_t cols) {
  m.rows = rows;
  m.cols = m.ld = cols;
  return m;
}

/// Cosines and sines of the angles of a rotary embedding, f32 [positions, head_dim / 2].
struct RotaryTable {
  const float* cosine = nullptr;
  const float* sine = nullptr;
};

/// What the layers of a core have in common.
struct Common {
  const TransformerOptions options;
  const DType dtype;  ///< of activations
  precision::Quantizer quantizer;
  precision::Audit* audit = nullptr;  ///< or null
  Scratch scratch;
  std::vector<RotaryTable> ropes;  ///< as Architecture::ropes
  LoneQueue lone;                  ///< of the pass at hand

  const precision::Recipe& recipe() const { return quantizer.recipe(); }
  /// Of FP8 activations and gradients.
  ops::Scaling scaling() const { return recipe().scaling(); }
  /// True when linear inputs are made again in backward, where they are read, in buffers that all share.
  bool remakes_inputs() const {
    return options.training && (options.recompute == Recompute::norms || options.recompute == Recompute::qkv);
  }
  bool remakes_qkv() const { return options.training && options.recompute == Recompute::qkv; }
};

/// How attention of a pass sees the past: within documents, or through a cache.
struct AttentionInput {
  const std::int32_t* positions = nullptr;
  ops::Documents documents;
  const std::int32_t* slots = nullptr;
  KvCache* cache = nullptr;
  std::int64_t alone = 0;  ///< DecodeBatch::alone
};

/// Which products read the operands that a pass makes of linear inputs.
enum class Readers { all, forward, backward };

/// What a pass through the blocks does.
struct PassOptions {
  bool record = false;     ///< amaxes enter the histories
  bool keep = false;       ///< for a backward pass
  bool recompute = false;  ///< a forward pass inside backward: the input of the block is there already
  Readers readers = Readers::all;
};

/// A pass through the layers of one group of parameters.
struct Call {
  Common& common;
  Stream& stream;
  const GroupParameters& parameters;
  const GroupGradients* gradients = nullptr;  ///< of this micro-batch; null outside of backward
  const AttentionInput& attention;
  std::int64_t tokens = 0;
  PassOptions pass;
  const std::uint64_t* names = nullptr;  ///< MicroBatch::names; null where nothing is dropped

  /// Before anything is enqueued that reads or writes what lone GEMMs do.
  void settle() const { common.lone.settle(stream); }

  /// The same for what is made again, and who reads it.
  Call again(Readers readers) const {
    Call call = *this;
    call.pass = {.keep = true, .recompute = true, .readers = readers};
    return call;
  }
};

/// What a producer writes for who reads its matrix: values (no data: none are wanted), FP8 copies, an amax.
struct Wanted {
  ops::Matrix values;
  ops::QuantizeInto quantize;
};

/// Enqueues that `values` become their sum over the ranks of the tensor group (PartialSums).
void reduce_partial(const Call& call, const char* name, const ops::Matrix& values);
/// The same where PartialSums::adds() says so: `to` becomes that sum and `addend`.
void reduce_and_add(const Call& call, const char* name, const ops::Matrix& values,
                    const ops::ConstMatrix& addend, const ops::Matrix& to);

/// Enqueues a product as the core's options and recipe want it, and counts what became of it at its place.
void multiply(const Call& call, const precision::AuditPlace& place, const ops::GemmArgs& args);

/// Of the products of a weight [out, in], or of a run of its rows, with `rows` tokens.
struct ProductShape {
  std::int64_t rows = 0, out = 0, in = 0;
  std::int64_t pitch = 0;  ///< from one row of the output to the next: at least out
  bool fp8 = false;
};
/// Its products by their shapes alone: forward and, when training, dgrad and wgrad.
std::vector<ops::GemmArgs> shapes_of_products(const Common& common, const ProductShape& shape);
/// Bytes of workspace that they need.
std::size_t product_workspace(const Device& device, const Common& common, const ProductShape& shape);

}  // namespace octet::model
