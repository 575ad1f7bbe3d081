// Keys of the loss: of trained tokens, and of pairs of answers.
#include "table.h"

namespace octet::config {
namespace {

void add_token_losses(Table& t) {
  t.group("Loss of tokens");
  t.used("label_smoothing_factor", &Config::label_smoothing_factor,
         "Share of the loss of a token that all tokens of the vocabulary get in equal parts, in training and "
         "in evaluations.")
      .at_least(0)
      .below(1)
      .decides_numbers();
  t.used("use_dft_loss", &Config::use_dft_loss,
         "Multiply the loss of each token by its probability, which is constant for the gradient (DFT).")
      .decides_numbers();
  t.used("use_eaft_loss", &Config::use_eaft_loss,
         "Multiply the loss of each token by (H / 3)^eaft_alpha, which is constant for the gradient (EAFT).")
      .details("H is the entropy of the 20 most probable tokens at its place.")
      .decides_numbers();
  t.used("eaft_alpha", &Config::eaft_alpha, "Exponent of use_eaft_loss.").range(0, 100).decides_numbers();
  t.used(
       "neftune_noise_alpha", &Config::neftune_noise_alpha,
       "Add uniform noise to the embeddings in training, of at most this number / sqrt(length of the sample "
       "* hidden size). null and 0: none.")
      .alias("noisy_embedding_alpha")
      .range(0, 1e6)
      .decides_numbers();
  t.used("compute_accuracy", &Config::compute_accuracy,
         "Evaluations report the share of trained tokens that are the most probable token.");
}

void add_preferences(Table& t) {
  t.group("Preferences");
  t.used("pref_loss", &Config::pref_loss, "With stage: dpo, the loss of a chosen and a rejected answer.")
      .details("orpo and simpo have no reference. [Preferences](preferences.md) lists the formulas.")
      .one_of({"sigmoid", "hinge", "ipo", "kto_pair", "orpo", "simpo"})
      .decides_numbers();
  t.used("pref_beta", &Config::pref_beta,
         "Factor of log-probabilities in pref_loss and with stage: kto, beta of the papers.")
      .alias("dpo_beta")
      .above(0)
      .decides_numbers();
  t.used(
       "pref_ftx", &Config::pref_ftx,
       "Factor of the mean loss of the tokens of the chosen answer, which is added to the loss of a pair, or "
       "with stage: kto of a desirable answer.")
      .at_least(0)
      .decides_numbers();
  t.used("dpo_label_smoothing", &Config::dpo_label_smoothing,
         "With pref_loss: sigmoid, the share of pairs that may have their answers exchanged.")
      .range(0, 0.5)
      .decides_numbers();
  t.used("simpo_gamma", &Config::simpo_gamma, "With pref_loss: simpo, the margin between the two answers.")
      .at_least(0)
      .decides_numbers();
  t.used("ld_alpha", &Config::ld_alpha,
         "Factor of log-probabilities of tokens beyond the length of the shorter answer (LD-DPO). null: 1.")
      .details("Log-probabilities of the reference do not have this factor.")
      .range(0, 1)
      .decides_numbers();
  t.used("kto_chosen_weight", &Config::kto_chosen_weight,
         "With stage: kto, the factor of the losses of desirable answers.")
      .alias("desirable_weight")
      .at_least(0)
      .decides_numbers();
  t.used("kto_rejected_weight", &Config::kto_rejected_weight,
         "With stage: kto, the factor of the losses of undesirable answers.")
      .alias("undesirable_weight")
      .at_least(0)
      .decides_numbers();
  t.used("ref_model", &Config::ref_model,
         "Folder of the reference model. null: the model before training, or with adapters the model without "
         "them.")
      .decides_numbers();
  t.used("precompute_ref_log_probs", &Config::precompute_ref_log_probs,
         "Compute log-probabilities of the reference once, before the first step. null: true, except for "
         "adapters. false: switch the adapters off in a pass before each micro-batch.")
      .details("output_dir/reference.h5 has the log-probabilities.")
      .decides_numbers();
}

void add_teacher(Table& t) {
  t.group("Teacher");
  t.used(
       "teacher_logprobs", &Config::teacher_logprobs,
       "With stage: kd, the HDF5 file of `trainer generate TEACHER --score --logprobs K` for the same data.")
      .details("Each row of the training and evaluation data has a row of the file with the same tokens.")
      .decides_numbers();
  t.used("kd_ratio", &Config::kd_ratio,
         "With stage: kd, the weight of the divergence from the teacher. Cross-entropy has the weight 1 - "
         "kd_ratio.")
      .range(0, 1)
      .decides_numbers();
  t.used("kd_temperature", &Config::kd_temperature,
         "With stage: kd, divides the logits of both models in the divergence. The divergence has no factor "
         "kd_temperature².")
      .above(0)
      .decides_numbers();
  t.used("kd_beta", &Config::kd_beta,
         "With stage: kd, 0 is KL(teacher || model), 1 is KL(model || teacher), and numbers between them are "
         "the generalised Jensen-Shannon divergence.")
      .range(0, 1)
      .decides_numbers();
  t.used("kd_topk", &Config::kd_topk,
         "With stage: kd, the number of most probable tokens of the teacher that are read at each place.")
      .at_least(1)
      .decides_numbers();
  t.used("kd_rest", &Config::kd_rest,
         "With stage: kd, the use of the probability of all other tokens. bucket: one more outcome.")
      .details(
          "renormalise: both models are renormalised over the listed tokens. zero: bucket without the term "
          "of the other tokens.")
      .one_of({"bucket", "renormalise", "zero"})
      .decides_numbers();
  t.refused(
      "teacher_model_name_or_path", Kind::text, {},
      "a teacher in the same process is not built; score the data with trainer generate TEACHER --score "
      "--logprobs 64 --out FILE.h5, and set teacher_logprobs");
}

}  // namespace

void add_loss_fields(Table& table) {
  add_token_losses(table);
  add_preferences(table);
  add_teacher(table);
}

}  // namespace octet::config
