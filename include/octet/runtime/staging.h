// Micro-batches in host memory, and their transfer to the device.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "octet/device/device.h"
#include "octet/model/transformer.h"

namespace octet::runtime {

/// A micro-batch in host memory: concatenated documents without padding.
struct HostBatch {
  std::vector<std::int32_t> ids;         ///< [tokens]
  std::vector<std::int32_t> positions;   ///< [tokens], from 0 in every document
  std::vector<std::int32_t> cu_seqlens;  ///< [documents + 1]
  std::vector<std::int32_t> label_rows;  ///< rows with a trained next token, ascending
  std::vector<std::int32_t> targets;     ///< [label_rows]: that next token
  /// [tokens]: a number of the sample and of the position in it, by which noise knows a token.
  std::vector<std::uint64_t> names;
  /// [blocks with experts, tokens, experts per token]: MicroBatch::experts; empty: routers choose.
  std::vector<std::int32_t> experts;
  std::vector<std::int64_t> rows;  ///< of the data set: of each document that a loader added
  std::int64_t items = 0;          ///< samples
  /// The first 2 * pairs documents are chosen, rejected, chosen, …; see MicroBatch::pairs.
  std::int64_t pairs = 0;
  /// The first `judged` documents are judged answers; see MicroBatch::judged. Excludes pairs.
  std::int64_t judged = 0;
  std::vector<std::int32_t> desirable;  ///< [judged]: 1, or 0 for undesirable answers
  /// With judged answers: as many answers to other questions, for the reference point.
  std::shared_ptr<const HostBatch> mismatched;
  /// Log-probabilities of the answers of pairs, or of judged answers, for the reference; empty: not known.
  std::vector<double> references;
  /// With a teacher, for each label row: its listed tokens, their log-probabilities, and the probability of
  /// all other tokens (ops::DistillationArgs).
  std::vector<std::int32_t> teacher_ids;
  std::vector<float> teacher_logprobs, teacher_rest;
  std::int64_t max_length = 0;  ///< of a document
  std::int64_t tokens() const { return static_cast<std::int64_t>(ids.size()); }
  std::int64_t documents() const { return static_cast<std::int64_t>(cu_seqlens.size()) - 1; }
  /// Targets that count.
  std::int64_t labels() const;
  /// Answers of pairs, or judged answers.
  std::int64_t answers() const { return pairs > 0 ? 2 * pairs : judged; }
  /// The terms of the loss: pairs, or judged answers, or else targets that count.
  std::int64_t terms() const { return pairs > 0 ? pairs : judged > 0 ? judged : labels(); }
};

/// Adds a document to a batch. The last token of a document predicts nothing, and a token is a target only
/// where its own label says so: labels are shifted inside the document. `sample`: a number that the document
/// has in whatever batch it comes; without one it has its place in this batch.
void add_document(HostBatch& batch, std::span<const std::int32_t> ids, std::span<const std::int32_t> labels,
                  std::optional<std::uint64_t> sample = {});

/// Adds a document with a score: its only label row is its last token.
void add_scored_document(HostBatch& batch, std::span<const std::int32_t> ids,
                         std::optional<std::uint64_t> sample = {});

/// One number of two, every bit of it from all of theirs.
std::uint64_t mixed(std::uint64_t a, std::uint64_t b);

/// Capacity of the buffers.
struct StagingOptions {
  std::int64_t tokens = 0;
  std::int64_t labels = 0;     ///< 0: as many as tokens
  std::int64_t documents = 1;  ///< of an incoming batch; padding adds one
  std::int64_t length = 0;     ///< of a document
  std::int64_t vocabulary = 0;
  /// Batches are padded to a multiple of this many tokens with a document without labels.
  std::int64_t token_unit = 1;
  int host_sets = 1;    ///< batches in flight at once
  bool losses = false;  ///< one sum of losses per batch in flight, else one sum
  bool names = false;   ///< tokens have names on the device, too
  bool hits = false;    ///< evaluations count hits
  bool pairs = false;   ///< batches have pairs of answers, and figures of them
  bool judged = false;  ///< batches have judged answers, and figures of them
  /// Experts that batches give for their tokens (HostBatch::experts).
  struct Routed {
    std::int64_t blocks = 0, taken = 0;  ///< blocks with experts, experts per token; 0: none are given
    std::size_t each_token() const { return static_cast<std::size_t>(blocks * taken); }
  };
  Routed routed = {};
  std::int64_t teacher_ranks = 0;  ///< tokens that a teacher lists for each label row; 0: no teacher
};

/// Buffers between host and device. One set on the device suffices, because copies and kernels share a
/// stream. On the host, every batch in flight has a separate set, because the device may read it until the
/// stream is synchronised.
class Staging {
 public:
  /// Reserves both sides in `arena` by name ("batch/ids", …). The host side is pinned.
  Staging(Arena& arena, const StagingOptions& options);
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  /// Enqueues the copy of a batch through a host set that the device no longer reads. The result is valid
  /// until the next call. Throws Error for ids outside the vocabulary (usage) and for batches larger than
  /// planned.
  model::MicroBatch upload(Stream& stream, const HostBatch& batch, std::size_t host_set = 0);
  /// Sets the number of seed and step that is mixed into the names of later tokens.
  void set_noise(std::uint64_t noise) { noise_ = noise; }

  /// Device memory with one number, to which evaluations add hits (Transformer::evaluate).
  double* hits() const { return hits_; }
  /// Enqueue the zeroing of hits and figures of pairs, and their copy to the host.
  void clear_figures(Stream& stream);
  void fetch_figures(Stream& stream);
  /// Valid after the stream is synchronised: hits, and figures in the order of ops::PreferenceFigure,
  /// ops::JudgementFigure or ops::DistillationFigure.
  double host_hits() const { return host_figures_ == nullptr ? 0.0 : host_figures_[ops::kPreferenceFigures]; }
  std::span<const double> host_figures() const {
    return {host_figures_, host_figures_ == nullptr ? 0u : ops::kPreferenceFigures};
  }

  /// Enqueues the copy of the log-probabilities of `answers` answers for the reference to the host.
  void fetch_references(Stream& stream, std::int64_t answers);
  /// [answers], valid after the stream is synchronised.
  const double* host_references() const { return host_references_; }

  /// Device memory for the log-probabilities of judged answers (Transformer::score_answers).
  double* scores() const { return scores_; }
  /// Enqueues their copy to the host.
  void fetch_scores(Stream& stream, std::int64_t answers);
  /// [answers], valid after the stream is synchronised.
  const double* host_scores() const { return host_scores_; }
  /// Sets the reference point of judged answers for later batches. The stream must not read an earlier value.
  void set_point(Stream& stream, double point);

  /// Device memory [losses()], to which the module adds the losses of batches.
  double* loss_sum() const { return loss_sum_; }
  std::size_t losses() const { return losses_; }
  /// Enqueue the zeroing of the first `count` losses, and their copy to the host.
  void clear_losses(Stream& stream, std::size_t count);
  void fetch_losses(Stream& stream, std::size_t count);
  /// [losses()], valid after the stream is synchronised.
  const double* host_losses() const { return host_losses_; }

 private:
  void check_batch(const HostBatch& batch) const;
  model::MicroBatch send(Stream& stream, const HostBatch& batch, std::size_t host_set);
  const std::int32_t* send_experts(Stream& stream, const HostBatch& batch, std::size_t host_set);
  void send_names(Stream& stream, const HostBatch& batch, std::uint64_t* host);
  /// Copies the first label rows of answers, and their references.
  void send_answers(Stream& stream, const HostBatch& batch, std::size_t host_set);
  model::Judged send_judged(Stream& stream, const HostBatch& batch, std::size_t host_set);
  model::Taught send_taught(Stream& stream, const HostBatch& batch, std::size_t host_set);

  Device& device_;
  StagingOptions options_;
  std::size_t sets_;
  // Pinned if needed: a block for each set. There may be a million sets, of which few are used.
  std::int32_t* host_words_ = nullptr;
  std::uint64_t* host_names_ = nullptr;
  std::int32_t* host_experts_ = nullptr;
  std::int32_t* host_answers_ = nullptr;
  double* host_references_ = nullptr;
  std::size_t words_of_set_ = 0, names_of_set_ = 0, experts_of_set_ = 0;
  std::size_t answers_of_set_ = 0, references_of_set_ = 0;
  std::vector<std::vector<std::int32_t>> cu_seqlens_of_;  ///< of the sets that were used
  std::int32_t *ids_ = nullptr, *positions_ = nullptr, *label_rows_ = nullptr, *targets_ = nullptr,
               *cu_seqlens_ = nullptr;
  std::uint64_t* names_ = nullptr;   ///< null: not requested
  std::int32_t* experts_ = nullptr;  ///< null: none are given
  // Null without answers. Figures also exist if hits are counted.
  std::int32_t* answers_ = nullptr;
  double* references_ = nullptr;
  double* figures_ = nullptr;  ///< [ops::kPreferenceFigures + 1]
  double* hits_ = nullptr;     ///< the last of figures_
  double* host_figures_ = nullptr;
  // Null without judged answers.
  std::int32_t *desirable_ = nullptr, *host_desirable_ = nullptr;
  double *scores_ = nullptr, *host_scores_ = nullptr;
  double *point_ = nullptr, *host_point_ = nullptr;
  // Null without a teacher. On the host, one block has ids, log-probabilities and rests.
  std::int32_t *teacher_ids_ = nullptr, *host_taught_ = nullptr;
  float *teacher_logprobs_ = nullptr, *teacher_rest_ = nullptr;
  std::size_t taught_of_set_ = 0;
  std::uint64_t noise_ = 0;
  std::size_t losses_ = 1;
  double* loss_sum_ = nullptr;
  double* host_losses_ = nullptr;
};

}  // namespace octet::runtime
