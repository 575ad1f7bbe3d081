// What of a model one rank computes when its layers are split among ranks: a piece of every layer (tensor
// parallelism; Shoeybi et al. 2019, arXiv:1909.08053) of some of the blocks (pipeline parallelism).
#pragma once

#include <cstdint>

namespace octet::model {

/// A rank's share of a model. Ranks of one tensor group hold pieces of the same layers, those of one pipeline
/// the stages of the model, a run of blocks each: stage 0 has the embedding, the last one the head. A tied
/// table is held by both.
struct Share {
  int tensor_rank = 0;
  int tensor_size = 1;
  int stage = 0;
  int stages = 1;

  bool operator==(const Share&) const = default;
  bool whole() const { return tensor_size == 1 && stages == 1; }
  /// Whether what layers make is a part of a sum over the tensor group.
  bool sums() const { return tensor_size > 1; }
  /// Whether this rank adds what is added to such a sum once: the bias of a layer whose inputs are cut.
  bool adds_once() const { return tensor_rank == 0; }
  bool first() const { return stage == 0; }
  bool last() const { return stage + 1 == stages; }
  /// The blocks [first_block, last_block) of `layers`: as many on each stage, or one more on later ones.
  std::int64_t first_block(std::int64_t layers) const { return layers * stage / stages; }
  std::int64_t last_block(std::int64_t layers) const { return layers * (stage + 1) / stages; }
};

/// A run of one dimension of a tensor that has `of` indices.
struct Piece {
  std::int64_t begin = 0, count = 0, of = 0;
  bool operator==(const Piece&) const = default;
  bool whole() const { return count == of; }
};

/// How one dimension of a tensor is cut among the ranks of a tensor group.
struct SplitRule {
  enum class Kind {
    whole,      ///< every rank has all of it
    even,       ///< a run of as many units each, in the order of the ranks
    repeated,   ///< the same; where there are fewer units than ranks, each is on several that follow each
                ///< other
    vocabulary  ///< runs of a multiple of 16, where there are enough; the last one may be shorter
  };
  Kind kind = Kind::whole;
  std::int64_t unit = 1;  ///< indices that stay together: those of a head

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

/// What a rank has of `size` indices. Throws std::logic_error where the rule does not cut them for so many
/// ranks (require_splits tells users).
Piece piece_of(const SplitRule& rule, std::int64_t size, const Share& share);

}  // namespace octet::model
