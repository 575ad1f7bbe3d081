// Logits of which each rank of a tensor group has those of a part of the vocabulary.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "octet/comm/collectives.h"
#include "octet/device/device.h"
#include "octet/model/architecture.h"
#include "octet/ops/best_tokens.h"

namespace octet::generate {

/// The most probable token of a row from those of its pieces, in the order of the vocabulary: the largest
/// logit, the lowest id of several, a NaN counts as the largest. `begins`: the first id of each piece. Its
/// normalizer is the logarithm of the sum of all pieces' exponentials, where theirs were wanted.
ops::BestToken best_of_pieces(std::span<const ops::BestToken> pieces, std::span<const std::int64_t> begins,
                              bool normalizers);

/// Brings what the pieces of a row of logits have to the first rank of the tensor group.
class VocabularyPieces {
 public:
  /// `architecture`: with this rank's share. `tensor` and `device` outlive this.
  VocabularyPieces(comm::Collectives& tensor, const model::Architecture& architecture, Device& device);
  /// For up to `rows` rows.
  void reserve(Arena& arena, std::int64_t rows);
  /// Before work enqueued on `compute` writes logits or best tokens anew.
  void writable(Stream& compute) { compute.wait(*sent_); }

  const std::vector<model::Piece>& pieces() const { return pieces_; }
  /// The first ids of the pieces.
  const std::vector<std::int64_t>& begins() const { return begins_; }

  /// Of `rows` rows: `own` [rows] goes to the first rank, whose `host` [ranks, rows] (pinned) gets all ranks'
  /// for who waits for `compute`.
  void gather_best(Stream& compute, const ops::BestToken* own, ops::BestToken* host, std::int64_t rows);
  /// Of `rows` rows: `own` [rows, own piece] goes to the first rank, whose `host` [rows, vocabulary] (pinned)
  /// gets the rows that are `wanted`.
  void gather_logits(Stream& compute, const float* own, float* host, const std::vector<bool>& wanted);

 private:
  /// Bytes of a rank's piece, to where the first rank has them.
  void bring(Stream& compute, const char* name, const void* own, std::span<void* const> to,
             std::span<const std::int64_t> bytes);

  comm::Collectives& tensor_;
  Device& device_;
  std::vector<model::Piece> pieces_;
  std::vector<std::int64_t> begins_;
  std::unique_ptr<Event> ready_, came_, sent_;
  std::vector<float*> logits_;         ///< of each other rank, [rows, its piece], on the first rank
  std::vector<ops::BestToken*> best_;  ///< of each other rank, [rows]
};

}  // namespace octet::generate
