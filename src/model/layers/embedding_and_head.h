#pragma once

#include <optional>
#include <vector>

#include "layers/group_builder.h"
#include "layers/norm.h"
#include "layers/pass.h"
#include "layers/work_list.h"

namespace octet::model {

/// The table of token embeddings.
class Embedding {
 public:
  Embedding(GroupBuilder& group, const Architecture& architecture);

  bool trained() const { return table_.trained(); }
  /// The table, for a tied head.
  const MatrixHandle& table() const { return table_; }
  std::size_t workspace(const Device& device, const Common& common) const;
  std::vector<Operation> operations(std::int64_t tokens) const;

  /// Writes the scaled rows of `ids` to out [tokens, hidden]. `ids` [tokens] are in device memory, relative
  /// to the first row of this rank. If the table is split, sums the rows over the ranks.
  void forward(const Call& call, const std::int32_t* ids, const ops::Matrix& out) const;
  void backward(const Call& call, const std::int32_t* ids, const ops::ConstMatrix& d_out) const;

 private:
  /// Rounded to the dtype of the table if transformers rounds it (Architecture::rounds_embedding_scale).
  float scale(const Common& common) const;

  MatrixHandle table_;
  double scale_;
  bool rounds_;
  std::int32_t padding_id_;
  bool sums_;  ///< sums over ranks: one rank has a token's row, the others add zeros
};

// The last norm, the head and the loss. Logits exist only for one chunk of label rows at a time. Their
// gradient overwrites them.

/// Results of a pass through the head, in device memory.
struct LossOutputs {
  double* loss_sum = nullptr;  ///< losses are added
  double* hits = nullptr;      ///< or null: see Transformer::evaluate()
  const LogitsHook& logits;    ///< or empty
};

/// The weight of the head in a pass: its matrix, or the embedding table of a tied head.
struct HeadWeight {
  const ops::Operand& values;
  const ops::Matrix* gradient = nullptr;  ///< null outside of training; without data: frozen
  bool overwrite = false;                 ///< the first GEMM into the gradient overwrites it
};

/// Returns the standard deviation of a random head, or of a random table that is tied to it. This is the
/// range of config.json, or less if the logits would be large. The first loss is then near the logarithm of
/// the vocabulary size.
double head_deviation(const Architecture& architecture);

class Head {
 public:
  Head(GroupBuilder& group, const Architecture& architecture);

  bool tied() const { return !weight_.has_value(); }
  /// Sets whether the tied table is trained, and whether the gradient of the stream is needed because an
  /// earlier tensor is trained.
  void set_below(bool table_trained, bool passes_on);
  LinearLayer facts() const;
  /// Sets the place of its GEMMs in the audit.
  void set_place(const precision::AuditPlace& place) { place_ = place; }
  void reserve(Arena& arena, const Common& common);
  std::size_t workspace(const Device& device, const Common& common) const;
  std::vector<Operation> operations(std::int64_t tokens) const;

  /// The buffer of the last norm's input, [tokens, hidden].
  const ops::Matrix& input() const { return input_; }
  /// The largest number of label rows of a micro-batch.
  std::int64_t most_labels() const { return hidden_.rows; }
  /// The weight of a head that is not tied.
  const MatrixHandle& own_weight() const { return *weight_; }
  /// Returns the weight for a pass. `call` has the parameters of the group of `matrix`.
  static HeadWeight weight(const MatrixHandle& matrix, const Call& call);

  /// Adds the losses of a micro-batch to `losses`. If `call` has gradients, also computes the gradients of
  /// norm and weight, and writes the gradient of the stream to the scratch if it is needed. `into`: formats
  /// that the reader of that gradient needs. With TransformerOptions::preference, the losses are of pairs,
  /// and with `judgement` of judged answers. The slope of an answer is known only after its log-probability,
  /// so logits of several chunks are computed twice.
  void loss(const Call& call, const NormInput& stream, const HeadWeight& weight, const MicroBatch& batch,
            const LossOutputs& losses, const ops::QuantizeInto& into) const;
  /// Writes the log-probabilities of answers to `out`.
  void score(const Call& call, const NormInput& stream, const HeadWeight& weight, const MicroBatch& batch,
             double* out) const;
  /// Computes logits [count, vocabulary of the share] of `rows` (device). Caps them if the architecture does.
  void logits(const Call& call, const NormInput& stream, const HeadWeight& weight, const std::int32_t* rows,
              const ops::Matrix& logits) const;

 private:
  /// Applies the norm to the stream and gathers `rows` of the result.
  ops::Matrix pick(const Call& call, const NormInput& stream, const std::int32_t* rows,
                   std::int64_t count) const;
  /// Some label rows. Their gradient overwrites their hidden states.
  struct Chunk {
    ops::Matrix hidden;
    std::int64_t first = 0;                 ///< label row
    const std::int32_t* targets = nullptr;  ///< [rows]
  };
  /// Calls use(chunk) for all label rows, at least once.
  template <class Use>
  void each_chunk(const ops::Matrix& hidden, const MicroBatch& batch, Use&& use) const;
  void make_logits(const Call& call, const HeadWeight& weight, const Chunk& chunk) const;
  /// Computes the logits of a chunk, and shows them to `hook`.
  void show_logits(const Call& call, const HeadWeight& weight, const Chunk& chunk,
                   const LogitsHook& hook) const;
  void chunk_loss(const Call& call, const HeadWeight& weight, const Chunk& chunk,
                  const LossOutputs& losses) const;
  /// Adds the losses of a chunk with a teacher, and its figures to `taught`.
  void teach_chunk(const Call& call, const HeadWeight& weight, const Chunk& chunk, const Taught& taught,
                   const LossOutputs& losses) const;
  /// Computes the losses of all label rows, and writes the sums of answers. `beyond`: see AnswerSumsArgs.
  void sum_answers(const Call& call, const HeadWeight& weight, const ops::Matrix& hidden,
                   const MicroBatch& batch, const LogitsHook& hook, double beyond, double* sums) const;
  void loss_of_answers(const Call& call, const HeadWeight& weight, const ops::Matrix& hidden,
                       const MicroBatch& batch, const LossOutputs& losses) const;
  /// Adds the losses of pairs or of judged answers, and writes the factors of rows if `training`.
  void add_losses(const Call& call, const MicroBatch& batch, const LossOutputs& losses, bool training) const;
  void chunk_gradient(const Call& call, const HeadWeight& weight, const Chunk& chunk,
                      const ops::Matrix& d_logits) const;

  std::int64_t vocabulary_, width_;  ///< vocabulary of the rank's share, or one score; width of the stream
  bool scores_;                      ///< Architecture::scores: the only logit is a score
  float soft_cap_;
  float factor_;  ///< of the GEMMs: 1 / Architecture::logits_divisor
  std::optional<MatrixHandle> weight_;
  bool weight_trained_ = true;
  precision::AuditPlace place_;
  Norm norm_;
  std::int64_t chunk_ = 0;         ///< label rows of a chunk of logits
  ops::Matrix input_;              ///< [tokens, hidden]: input of the last norm
  ops::Matrix normed_;             ///< [tokens, hidden]: its output, then its output's gradient
  ops::Matrix hidden_;             ///< [labels, hidden], then its gradient
  ops::Matrix logits_;             ///< [chunk, vocabulary]
  float* row_loss_ = nullptr;      ///< [chunk]; with losses of answers [labels]
  float* row_factors_ = nullptr;   ///< likewise; null: rows have no factors
  float* row_hits_ = nullptr;      ///< [chunk]; null: hits are not counted
  double* answer_sums_ = nullptr;  ///< [labels] with losses of answers
  double* slopes_ = nullptr;       ///< likewise
  float* kept_logits_ = nullptr;   ///< [chunk, TeacherLoss::ranks] with a teacher: scratch
  float* row_figures_ = nullptr;   ///< [ops::kDistillationFigures, chunk] with a teacher
};

}  // namespace octet::model
