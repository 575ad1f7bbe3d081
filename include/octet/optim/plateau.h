// A learning rate that falls when evaluations stop improving. It is the only schedule that is not a function
// of the step, because it depends on evaluations. Its state is part of a checkpoint.
#pragma once

#include <cstdint>
#include <string>

namespace octet::optim {

/// In the words and with the defaults of torch.optim.lr_scheduler.ReduceLROnPlateau.
struct PlateauOptions {
  std::string mode = "min";            ///< max: larger values are better
  double factor = 0.1;                 ///< of the rate at each fall; below 1
  std::int64_t patience = 10;          ///< values in a row that are no better and are put up with
  double threshold = 1e-4;             ///< by how much a value must be better
  std::string threshold_mode = "rel";  ///< of the best one; abs: as a difference
  std::int64_t cooldown = 0;           ///< values after a fall that do not count towards the patience
  double min_lr = 0;
  double eps = 1e-8;  ///< a fall by no more than this is left out
};

/// Takes values one by one, on all ranks the same, in the arithmetic of torch.
class Plateau {
 public:
  struct State {
    std::string mode;  ///< by which `best` is the best
    double peak = 0;   ///< the rate at first
    double learning_rate = 0;
    double best = 0;  ///< infinite before the first value
    std::int64_t bad = 0, cooldown = 0;
  };

  Plateau(double learning_rate, const PlateauOptions& options);
  double learning_rate() const { return state_.learning_rate; }
  /// True where the rate falls by it. A value that is not a number is no better than any other.
  bool take(double value);
  const State& state() const { return state_; }
  /// Continues from the state of another plateau. If that had another peak, the rate is scaled by the ratio
  /// of the peaks. If it had another mode, the best value is reset.
  void restore(const State& state);

 private:
  bool is_better(double value) const;

  PlateauOptions options_;
  State state_;
};

}  // namespace octet::optim
