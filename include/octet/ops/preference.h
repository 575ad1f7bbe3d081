// Losses of pairs of answers: a chosen and a rejected answer to one question.
#pragma once

#include <cstdint>

#include "octet/ops/types.h"

namespace octet::ops {

/// The loss of a pair. c and r are the log-probabilities of the chosen and the rejected answer. C and R are
/// the same for the reference. s(x) = 1 / (1 + exp(-x)).
/// sigmoid: -ln s(beta ((c - C) - (r - R))) (DPO: Rafailov et al. 2023, arXiv:2305.18290).
/// hinge: max(0, 1 - beta ((c - C) - (r - R))) (SLiC: Zhao et al. 2023, arXiv:2305.10425).
/// ipo: ((c - C) - (r - R) - 1 / (2 beta))^2, with means over tokens (Azar et al. 2023, arXiv:2310.12036).
/// kto_pair: half of (1 - s(beta (c - C - z_r))) + (1 - s(beta (z_c - (r - R)))). z_c and z_r are the means
/// of c - C and r - R over the micro-batch, at least 0, and constant (Ethayarajh et al. 2024,
/// arXiv:2402.01306). orpo: -c - beta ln s(ln(odds of c / odds of r)), with means over tokens (Hong et al.
/// 2024, arXiv:2403.07691). simpo: -ln s(beta (c - r) - margin), with means over tokens (Meng et al. 2024,
/// arXiv:2405.14734).
/// bradley_terry: -ln s(c - r), where c and r are scores of a reward model (Bradley and Terry 1952; Ouyang et
/// al. 2022, arXiv:2203.02155).
enum class PreferenceKind { sigmoid, hinge, ipo, kto_pair, orpo, simpo, bradley_terry };

struct PreferenceRule {
  PreferenceKind kind = PreferenceKind::sigmoid;
  double beta = 0.1;
  double smoothing = 0;   ///< of sigmoid: the share of pairs with exchanged answers (Mitchell 2023)
  double margin = 0;      ///< of simpo
  double supervised = 0;  ///< factor of the mean token loss of the chosen answer, which is added
  /// Factor of log-probabilities of tokens beyond the length of the shorter answer. Not for references
  /// (LD-DPO: Liu et al. 2024, arXiv:2409.06411).
  double beyond = 1;

  /// Whether log-probabilities of answers are means over tokens, instead of sums.
  constexpr bool averages() const {
    return kind == PreferenceKind::ipo || kind == PreferenceKind::orpo || kind == PreferenceKind::simpo;
  }
  constexpr bool reads_references() const {
    return kind != PreferenceKind::orpo && kind != PreferenceKind::simpo &&
           kind != PreferenceKind::bradley_terry;
  }
};

/// out[a] = -Σ row_loss over the rows of answer a, in double. Rows beyond the length of the shorter answer of
/// a pair have the factor `beyond`. The order of the sum depends only on the lengths of the pair, or of the
/// answer.
struct AnswerSumsArgs {
  const float* row_loss = nullptr;        ///< [rows], device
  const std::int32_t* answers = nullptr;  ///< [count + 1], device: first rows of answers, ascending
  std::int64_t count = 0;
  bool pairs = true;  ///< answers are chosen, rejected, chosen, …; count is even
  double beyond = 1;
  double* out = nullptr;  ///< [count]
};
void answer_sums(Stream& stream, const AnswerSumsArgs& args);

/// Sums over pairs that preference_loss() adds.
enum class PreferenceFigure {
  reward_chosen,    ///< beta (c - C), or beta c without references
  reward_rejected,  ///< likewise for r
  accurate,         ///< pairs with the larger reward for the chosen answer
  chosen,           ///< c
  rejected,         ///< r
  chosen_loss,      ///< mean loss of the tokens of the chosen answer
  odds_loss,        ///< with orpo: -ln s(ln(odds of c / odds of r))
  labels,           ///< tokens of both answers
  pairs
};
inline constexpr int kPreferenceFigures = 9;

/// Adds the losses of pairs to *loss_sum. Writes row_factors: the gradient of this sum for row_loss.
struct PreferenceLossArgs {
  PreferenceRule rule;
  std::int64_t pairs = 0;
  const std::int32_t* answers = nullptr;  ///< see AnswerSumsArgs; every answer has a row
  const double* sums = nullptr;           ///< [2 * pairs] of answer_sums() with rule.beyond
  const double* references = nullptr;     ///< [2 * pairs] of answer_sums(); read by rules with references
  double* slopes = nullptr;               ///< [2 * pairs], overwritten
  float* row_factors = nullptr;           ///< [rows] or null
  double* loss_sum = nullptr;
  double* figures = nullptr;  ///< [kPreferenceFigures] or null
};
void preference_loss(Stream& stream, const PreferenceLossArgs& args);

}  // namespace octet::ops
