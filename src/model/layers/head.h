// The last norm, the head and the loss: logits exist for one chunk of label rows at a time, and their
// gradient takes their place.
#pragma once

#include <optional>
#include <vector>

#include "layers/embedding.h"
#include "layers/norm.h"

namespace octet::model {

/// The head's weight in a pass: its own, or the embedding table.
struct HeadWeight {
  const ops::Operand& values;
  const ops::Matrix* gradient = nullptr;  ///< null outside of training; no data: not wanted
  bool overwrite = false;                 ///< the first product into the gradient overwrites it
};

/// Returns the standard deviation of a fresh head, or of the table that it is tied to: the range of
/// config.json, or less if the logits were large. The first loss is then near the logarithm of the
/// vocabulary.
double head_deviation(const Architecture& architecture);

class Head {
 public:
  Head(GroupBuilder& group, const Architecture& architecture);

  bool tied() const { return !weight_.has_value(); }
  /// What is below it: whether a table that it is tied to is trained, and whether anything is, so that the
  /// gradient of the stream is wanted.
  void set_below(bool table_trained, bool passes_on);
  LinearLayer facts() const;
  /// Where its products count.
  void set_place(const precision::AuditPlace& place) { place_ = place; }
  void reserve(Arena& arena, const Common& common);
  std::size_t workspace(const Device& device, const Common& common) const;
  std::vector<Operation> operations(std::int64_t tokens) const;

  /// Where the stream in front of the last norm lies, [tokens, hidden].
  const ops::Matrix& input() const { return input_; }
  /// The most label rows of a micro-batch.
  std::int64_t most_labels() const { return hidden_.rows; }
  /// Its own weight; not when tied.
  const MatrixHandle& own_weight() const { return *weight_; }
  /// The weight of a pass, in whose group it lies.
  static HeadWeight weight(const MatrixHandle& matrix, const Call& call);

  /// Adds the losses of a micro-batch to *loss_sum (device). With gradients in `call` also makes those of
  /// norm and weight, and, where it is wanted, that of the stream in the scratch; `into`: what its reader
  /// wants.
  void loss(const Call& call, const NormInput& stream, const HeadWeight& weight, const MicroBatch& batch,
            double* loss_sum, const LogitsHook& hook, const ops::QuantizeInto& into) const;
  /// logits [count, vocabulary of the share] of `rows` (device), capped where the architecture caps them.
  void logits(const Call& call, const NormInput& stream, const HeadWeight& weight, const std::int32_t* rows,
              const ops::Matrix& logits) const;

 private:
  /// Norms the stream and picks rows of it.
  ops::Matrix pick(const Call& call, const NormInput& stream, const std::int32_t* rows,
                   std::int64_t count) const;
  /// Losses of some label rows, whose hidden states then become their gradient.
  struct Chunk {
    ops::Matrix hidden;
    std::int64_t first = 0;                 ///< label row
    const std::int32_t* targets = nullptr;  ///< [rows]
  };
  void chunk_loss(const Call& call, const HeadWeight& weight, const Chunk& chunk, double* loss_sum,
                  const LogitsHook& hook) const;
  void chunk_gradient(const Call& call, const HeadWeight& weight, const Chunk& chunk,
                      const ops::Matrix& d_logits) const;

  std::int64_t vocabulary_, width_;  ///< of the rank's share; of the stream
  float soft_cap_;
  std::optional<MatrixHandle> weight_;
  bool weight_trained_ = true;
  precision::AuditPlace place_;
  Norm norm_;
  std::int64_t chunk_ = 0;     ///< label rows of a chunk of logits
  ops::Matrix input_;          ///< [tokens, hidden]: input of the last norm
  ops::Matrix normed_;         ///< [tokens, hidden]: its output, then its output's gradient
  ops::Matrix hidden_;         ///< [labels, hidden], then its gradient
  ops::Matrix logits_;         ///< [chunk, vocabulary]
  float* row_loss_ = nullptr;  ///< [chunk]
};

}  // namespace octet::model
