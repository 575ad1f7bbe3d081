// Logits that are split by vocabulary among the ranks of a tensor group.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "octet/comm/collectives.h"
#include "octet/device/device.h"
#include "octet/model/architecture.h"
#include "octet/ops/logits.h"

namespace octet::generate {

/// Returns the most probable token of a row from the best tokens of its pieces, in vocabulary order. It has
/// the largest logit; of equals, the lowest id. A NaN counts as the largest. `begins`: the first id of each
/// piece. If `normalizers`, its normalizer is the logarithm of the summed exponentials of all pieces.
ops::BestToken best_of_pieces(std::span<const ops::BestToken> pieces, std::span<const std::int64_t> begins,
                              bool normalizers);

/// Gathers the pieces of logit rows on the first rank of the tensor group.
class VocabularyPieces {
 public:
  /// `architecture` has this rank's share. `tensor` and `device` outlive this object.
  VocabularyPieces(comm::Collectives& tensor, const model::Architecture& architecture, Device& device);
  /// Reserves buffers for up to `rows` rows.
  void reserve(Arena& arena, std::int64_t rows);
  /// Makes `compute` wait until logits and best tokens were sent and may be overwritten.
  void writable(Stream& compute) { compute.wait(*sent_); }

  const std::vector<model::Piece>& pieces() const { return pieces_; }
  /// The first id of each piece.
  const std::vector<std::int64_t>& begins() const { return begins_; }

  /// Sends `own` [rows] to the first rank. There, `host` [ranks, rows] (pinned) gets the values of all ranks;
  /// they are valid after waiting for `compute`.
  void gather_best(Stream& compute, const ops::BestToken* own, ops::BestToken* host, std::int64_t rows);
  /// Sends `own` [rows, own piece] to the first rank. There, `host` [rows, vocabulary] (pinned) gets the
  /// `wanted` rows.
  void gather_logits(Stream& compute, const float* own, float* host, const std::vector<bool>& wanted);

 private:
  /// Copies the bytes of each rank's piece to its buffer on the first rank.
  void bring(Stream& compute, const char* name, const void* own, std::span<void* const> to,
             std::span<const std::int64_t> bytes);

  comm::Collectives& tensor_;
  Device& device_;
  std::vector<model::Piece> pieces_;
  std::vector<std::int64_t> begins_;
  std::unique_ptr<Event> ready_, came_, sent_;
  std::vector<float*> logits_;         ///< per other rank, [rows, its piece]; on the first rank
  std::vector<ops::BestToken*> best_;  ///< per other rank, [rows]
};

}  // namespace octet::generate
