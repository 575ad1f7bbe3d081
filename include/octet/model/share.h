// The part of a model that one rank computes: a piece of every layer (tensor parallelism; Shoeybi et al.
// 2019, arXiv:1909.08053) of some of the blocks (pipeline parallelism), and some of the experts of every
// mixture (expert parallelism; Lepikhin et al. 2020, arXiv:2006.16668).
#pragma once

#include <cstdint>

namespace octet::model {

/// A rank's share of a model. The ranks of a tensor group hold pieces of the same layers. The ranks of a
/// pipeline hold the stages of the model, each a run of blocks. Stage 0 has the embedding, and the last stage
/// has the head. Both have a tied table. The ranks of an expert group hold different experts of every mixture
/// and everything else alike.
struct Share {
  int tensor_rank = 0;
  int tensor_size = 1;
  int stage = 0;
  int stages = 1;
  int expert_rank = 0;
  int expert_size = 1;

  bool operator==(const Share&) const = default;
  /// Whether this rank computes all layers of all its tokens, except experts of other ranks.
  bool whole() const { return tensor_size == 1 && stages == 1; }
  /// Whether outputs of layers are partial sums over the tensor group.
  bool sums() const { return tensor_size > 1; }
  /// Whether this rank adds the bias of a layer with cut inputs. Exactly one rank adds it to the sum.
  bool adds_once() const { return tensor_rank == 0; }
  bool first() const { return stage == 0; }
  bool last() const { return stage + 1 == stages; }
  bool splits_experts() const { return expert_size > 1; }
  /// This rank's experts of a mixture of `count`: [first_expert, first_expert + own_experts).
  std::int64_t own_experts(std::int64_t count) const { return count / expert_size; }
  std::int64_t first_expert(std::int64_t count) const { return expert_rank * own_experts(count); }
  /// The blocks [first_block, last_block) of `layers`. The numbers of blocks per stage differ by at most one.
  std::int64_t first_block(std::int64_t layers) const { return layers * stage / stages; }
  std::int64_t last_block(std::int64_t layers) const { return layers * (stage + 1) / stages; }
};

/// The indices [begin, begin + count) of a dimension with `of` indices.
struct Piece {
  std::int64_t begin = 0, count = 0, of = 0;
  bool operator==(const Piece&) const = default;
  bool whole() const { return count == of; }
};

/// How one dimension of a tensor is cut among the ranks of a tensor group.
struct SplitRule {
  enum class Kind {
    whole,      ///< every rank has all of it
    even,       ///< every rank has a run of equally many units, in rank order
    repeated,   ///< like even; with fewer units than ranks, consecutive ranks hold copies of a unit
    vocabulary  ///< runs of a multiple of 16 indices if there are enough; the last run may be shorter
  };
  Kind kind = Kind::whole;
  std::int64_t unit = 1;  ///< indices that are not separated: the dimensions of a head

  bool operator==(const SplitRule&) const = default;
};
inline constexpr SplitRule kEven{SplitRule::Kind::even};
inline constexpr SplitRule kVocabulary{SplitRule::Kind::vocabulary};
inline constexpr SplitRule each_head(std::int64_t head_dim) {
  return {SplitRule::Kind::even, head_dim};
}
inline constexpr SplitRule each_kv_head(std::int64_t head_dim) {
  return {SplitRule::Kind::repeated, head_dim};
}

/// Returns the piece of `size` indices in `share`. Throws std::logic_error if the rule cannot split them
/// among the ranks (require_splits reports this to users).
Piece piece_of(const SplitRule& rule, std::int64_t size, const Share& share);

}  // namespace octet::model
