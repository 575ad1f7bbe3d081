// load_best_model_at_end: tracks the checkpoint with the lowest evaluation loss.
#pragma once

#include <cstdint>
#include <string>

#include "evaluations.h"
#include "octet/base/json_fwd.h"

namespace octet::train {

/// A checkpoint and the evaluation of its weights.
struct EvaluatedCheckpoint {
  std::int64_t step = -1;  ///< -1: no checkpoint
  double loss = 0;
  std::string path;
};

class BestCheckpoint {
 public:
  /// `wanted`: load_best_model_at_end. Without it, no checkpoint is the best.
  explicit BestCheckpoint(bool wanted) : wanted_(wanted) {}

  /// Whether a checkpoint of `step` would be the best. `latest` is the latest evaluation.
  bool is_beaten_by(const Evaluated& latest, std::int64_t step) const;
  /// Replaces the best checkpoint, which becomes the second best.
  void replace(const EvaluatedCheckpoint& best);
  /// Returns to the second best if the checkpoint of `step`, which is damaged, is the best. Returns whether
  /// it was the best.
  bool drop(std::int64_t step);
  /// Step of the best checkpoint; -1: none.
  std::int64_t step() const { return best_.step; }
  const EvaluatedCheckpoint& best() const { return best_; }

  /// Adds the best checkpoint to the state of a checkpoint.
  void add_to(Json& state) const;

 private:
  bool wanted_;
  EvaluatedCheckpoint best_, second_best_;
};

/// Returns the entry of an evaluation in the state of a checkpoint.
Json best_entry(std::int64_t step, double loss);

}  // namespace octet::train
