// A pass of a micro-batch through the layers, and the state that all layers share.
#pragma once

#include <type_traits>
#include <vector>

#include "layers/rotary_tables.h"
#include "octet/model/kv_cache.h"
#include "octet/model/transformer.h"
#include "octet/ops/decode_gemm.h"
#include "octet/ops/gemm.h"
#include "octet/precision/quantizer.h"

namespace octet::model {

// A queue of GEMMs of very few tokens. It lets one kernel run several GEMMs.

/// The waiting GEMMs of a pass. Call settle() before other work on the stream that uses their operands or
/// results, and before parameters are released.
class DecodeQueue {
 public:
  /// `args`: see ops::decode_gemm(). If the stream is profiled, each GEMM is enqueued at once.
  void add(Stream& stream, const ops::DecodeGemmArgs& args);
  /// Enqueues the waiting GEMMs.
  void settle(Stream& stream);
  /// Drops the GEMMs of a failed pass.
  void clear() { gemms_.clear(); }

 private:
  std::vector<ops::DecodeGemmArgs> gemms_;
};

/// Sums of the routers of all layers in one micro-batch (ops/routing.h), for losses of training.
struct RouterSums {
  // Null without a load-balancing loss.
  double *counts = nullptr, *probabilities = nullptr;
  float* d_probabilities = nullptr;
  // Null without a z-loss.
  double* log_sums = nullptr;
  float* z_slope = nullptr;
};

/// Buffers that the layers share, one layer at a time.
struct Scratch {
  /// [tokens, hidden]: output of a sublayer, if its GEMM does not add to the stream; gradient of a norm's
  /// output
  ops::Matrix delta;
  ops::Matrix gradient;  ///< [tokens, hidden]: gradient of the residual stream
  ops::Matrix wide;      ///< [tokens, the most inputs of a linear layer]
  /// [tokens, hidden]: gradient of a sublayer's output before its norm; in a parallel block, gradient of the
  /// norm's output from the MLP
  ops::Matrix d_added;
  precision::Fp8Copy x_copy;  ///< FP8 copies of one linear input, if they are not kept
  precision::Fp8Copy d_copy;  ///< FP8 copy of one output gradient
  precision::Fp8Copy weight;  ///< FP8 copies of one weight, if they are made for each GEMM
  ops::Matrix low_rank;       ///< [tokens, columns]: gradients inside the adapters of one linear layer
  ops::Matrix dropped;        ///< [tokens, the most inputs]: input of an adapter after dropout
  ops::Matrix scaled;  ///< [tokens, the most outputs]: with DoRA, the gradient before the columns' scales
  RouterSums routers;
  ops::Workspace workspace;
};

/// The first `rows` rows of a buffer.
inline ops::Matrix top(ops::Matrix m, std::int64_t rows) {
  m.rows = rows;
  return m;
}

/// The rows [begin, begin + count) of a matrix.
inline ops::Matrix rows_from(ops::Matrix m, std::int64_t begin, std::int64_t count) {
  m.data = static_cast<std::byte*>(m.data) + static_cast<std::size_t>(begin * m.ld) * size_of(m.dtype);
  m.rows = count;
  return m;
}
/// Likewise, with the scales of these rows if each row has one.
inline ops::Operand rows_from(ops::Operand x, std::int64_t begin, std::int64_t count) {
  x.data =
      static_cast<const std::byte*>(x.data) + static_cast<std::size_t>(begin * x.cols) * size_of(x.dtype);
  if (x.scaling == ops::Scaling::whole_rows) x.scale_inv += begin;
  x.rows = count;
  return x;
}

/// Columns [first, first + count) of a matrix.
template <class Any>
Any columns_of(Any m, std::int64_t first, std::int64_t count) {
  using Byte = std::conditional_t<std::is_same_v<Any, ops::ConstMatrix>, const std::byte, std::byte>;
  m.data = static_cast<Byte*>(m.data) + static_cast<std::size_t>(first) * size_of(m.dtype);
  m.cols = count;
  return m;
}

/// The matrix of a bundle of adapters in a buffer [rows, columns of all bundles], which begins at `column`.
/// Null data stays null.
inline ops::Matrix bundle_in(ops::Matrix buffer, std::int64_t column) {
  if (buffer.data == nullptr) return buffer;
  buffer.data = static_cast<std::byte*>(buffer.data) +
                static_cast<std::size_t>(buffer.rows * column) * size_of(buffer.dtype);
  return buffer;
}

/// A dense matrix in a buffer with room for more rows and columns.
inline ops::Matrix narrowed(ops::Matrix m, std::int64_t rows, std::int64_t cols) {
  m.rows = rows;
  m.cols = m.ld = cols;
  return m;
}

/// State that all layers of a core share.
struct Common {
  const TransformerOptions options;
  const DType dtype;  ///< of activations
  precision::Quantizer quantizer;
  precision::Audit* audit = nullptr;  ///< or null
  Scratch scratch;
  std::vector<RotaryTable> ropes;  ///< see make_rotary_tables()
  DecodeQueue decode_queue;        ///< of the current pass
  float* ones = nullptr;           ///< weights of norms that have none: ones, for all heads of a token

  const precision::Recipe& recipe() const { return quantizer.recipe(); }
  /// The scaling of FP8 activations and gradients.
  ops::Scaling scaling() const { return recipe().scaling(); }
  /// Whether backward recomputes linear inputs before it reads them, in shared buffers.
  bool remakes_inputs() const {
    return options.training && (options.recompute == Recompute::norms || options.recompute == Recompute::qkv);
  }
  bool remakes_qkv() const { return options.training && options.recompute == Recompute::qkv; }
};

/// The context of attention in a pass: documents, or a KV cache.
struct AttentionInput {
  const std::int32_t* positions = nullptr;
  ops::Documents documents;
  const std::int32_t* slots = nullptr;
  KvCache* cache = nullptr;
  std::int64_t alone = 0;  ///< DecodeBatch::alone
};

/// Which GEMMs read the operands that a pass makes from linear inputs.
enum class Readers { all, forward, backward };

/// Properties of a pass through the blocks.
struct PassOptions {
  bool record = false;     ///< records amaxes into the histories
  bool keep = false;       ///< keeps activations for a backward pass
  bool recompute = false;  ///< a forward pass inside backward: the input of the block exists already
  Readers readers = Readers::all;
  bool adapters = true;  ///< false: linear layers leave their adapters out
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
  const std::uint64_t* names = nullptr;  ///< MicroBatch::names; null without dropout
  std::int64_t first_row = 0;            ///< for some rows of experts: the first of them among all rows
  /// Of this block, [tokens, experts per token]: MicroBatch::experts and DecodeBatch::experts, or null.
  const std::int32_t* given_experts = nullptr;
  std::int32_t* chosen_experts = nullptr;

  /// Enqueues the waiting GEMMs. Call it before other work that uses their operands or results.
  void settle() const { common.decode_queue.settle(stream); }

  /// Returns a copy of this call for recomputation. `readers`: the GEMMs that read the recomputed operands.
  Call again(Readers readers) const {
    Call call = *this;
    call.pass = {.keep = true, .recompute = true, .readers = readers};
    return call;
  }
};

/// Formats that the readers of a matrix need from its producer: values (without data: none), FP8 copies, an
/// amax.
struct Wanted {
  ops::Matrix values;
  ops::QuantizeInto quantize;
};

/// Enqueues the sum of `values` over the ranks of the tensor group, in place (PartialSums::reduce_partial).
void reduce_partial(const Call& call, const char* name, const ops::Matrix& values);
/// Like reduce_partial(), but writes the sum plus `addend` to `to`. Requires PartialSums::adds().
void reduce_and_add(const Call& call, const char* name, const ops::Matrix& values,
                    const ops::ConstMatrix& addend, const ops::Matrix& to);

/// Enqueues a GEMM with the core's options and recipe, and counts its outcome in the audit at `place`.
void multiply(const Call& call, const precision::AuditPlace& place, const ops::GemmArgs& args);

/// The shape of the GEMMs of a weight [out, in], or of a run of its rows, with `rows` tokens.
struct GemmShape {
  std::int64_t rows = 0, out = 0, in = 0;
  std::int64_t pitch = 0;  ///< leading dimension of the output; at least out
  bool fp8 = false;
};
/// Returns the GEMMs of a shape without data: forward and, in training, dgrad and wgrad.
std::vector<ops::GemmArgs> shapes_of_gemms(const Common& common, const GemmShape& shape);
/// Returns the bytes of workspace for the GEMMs of a shape.
std::size_t workspace_of_gemm(const Device& device, const Common& common, const GemmShape& shape);

}  // namespace octet::model
