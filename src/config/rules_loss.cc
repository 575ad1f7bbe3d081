// Rules for the loss of tokens, and for preferences.
#include <algorithm>
#include <initializer_list>
#include <string>

#include "rules.h"

namespace octet::config {
namespace {

class LossRules : RulesOf {
 public:
  using RulesOf::RulesOf;

  void apply() {
    tokens();
    const bool dpo = c_.stage == "dpo", kto = c_.stage == "kto", rm = c_.stage == "rm";
    if (dpo) losses_of_pairs();
    if (dpo || kto || rm) preferences();
    if (dpo || kto) references();
    if (rm) rewards();
    teacher();
    tell_unread({"pref_loss", "dpo_label_smoothing", "simpo_gamma", "ld_alpha"}, dpo, "dpo");
    tell_unread({"kto_chosen_weight", "kto_rejected_weight"}, kto, "kto");
    tell_unread({"pref_beta", "pref_ftx", "ref_model", "precompute_ref_log_probs"}, dpo || kto, "dpo or kto");
  }

 private:
  void tell_unread(std::initializer_list<const char*> keys, bool read, const std::string& stages) {
    for (const char* key : keys) {
      if (!read && changed(key))
        note("'" + said(key) + "' (" + at(key) + ") is read only with stage: " + stages);
    }
  }

  void exclude(const char* one, const char* other, const std::string& expected) {
    complain({.what = said(one) + " and " + said(other) + " exclude each other",
              .expected = expected,
              .where = both(one, other),
              .fix = kOneOfTwo});
  }

  void tokens() {
    const bool smooths = c_.label_smoothing_factor > 0;
    if (c_.use_dft_loss && c_.use_eaft_loss)
      exclude("use_dft_loss", "use_eaft_loss", "one factor of the loss");
    for (const auto& [key, on] :
         {std::pair{"use_dft_loss", c_.use_dft_loss}, {"use_eaft_loss", c_.use_eaft_loss}}) {
      if (on && smooths) exclude("label_smoothing_factor", key, "one change to the loss of a token");
    }
    for (const auto& [key, on] : {std::pair{"label_smoothing_factor", smooths},
                                  {"use_dft_loss", c_.use_dft_loss},
                                  {"use_eaft_loss", c_.use_eaft_loss},
                                  {"compute_accuracy", c_.compute_accuracy}}) {
      if (!on || c_.stage == "sft" || c_.stage == "pt") continue;
      complain({.what = "'" + said(key) + "' is for the loss of tokens, but stage: " + c_.stage +
                        " has the loss of " +
                        (c_.stage == "kto"  ? "judged answers"
                         : c_.stage == "kd" ? "a teacher"
                                            : "pairs"),
                .expected = "stage: sft with " + said(key),
                .where = both(key, "stage"),
                .fix = "remove " + said(key) + ", or " + set_to("stage", "sft")});
    }
    if (!c_.use_eaft_loss && changed("eaft_alpha"))
      note("'" + said("eaft_alpha") + "' (" + at("eaft_alpha") + ") is read only with use_eaft_loss: true");
    if (c_.compute_accuracy && c_.eval_strategy == "no")
      note("'" + said("compute_accuracy") + "' (" + at("compute_accuracy") +
           ") has no effect without evaluations (eval_strategy: no)");
  }

  void teacher() {
    if (c_.stage != "kd") {
      tell_unread({"kd_ratio", "kd_temperature", "kd_beta", "kd_topk", "kd_rest"}, false, "kd");
      if (c_.teacher_logprobs) {
        complain({.what = "'" + said("teacher_logprobs") + "' is read only with stage: kd",
                  .found = said("stage") + ": " + c_.stage,
                  .where = both("teacher_logprobs", "stage"),
                  .fix = set_to("stage", "kd") + ", or remove " + said("teacher_logprobs")});
      }
      return;
    }
    if (!c_.teacher_logprobs) {
      complain(
          {.what = "stage: kd has no teacher",
           .expected = "teacher_logprobs: FILE",
           .where = at("stage"),
           .fix = "score the data with trainer generate TEACHER --score --logprobs 64 --out FILE.h5, and set "
                  "teacher_logprobs: FILE.h5"});
    }
    if (c_.streaming) {
      complain({.what = "stage: kd compares all rows with the file of the teacher before the first step, but "
                        "streaming reads them later",
                .expected = "streaming: false with stage: kd",
                .where = both("streaming", "stage"),
                .fix = set_to("streaming", "false")});
    }
    if (c_.packing && c_.packing_strategy == "llamafactory") {
      complain({.what = "the teacher scores each row alone, but LLaMA-Factory's packing joins rows",
                .expected = "packing_strategy: best_fit with stage: kd",
                .where = both("packing_strategy", "stage"),
                .fix = set_to("packing_strategy", "best_fit") + ", or packing: false"});
    }
    if (c_.sdc_replay_steps > 0) {
      complain({.what = "'sdc_replay_steps' cannot replay stage: kd",
                .expected = "stage: kd without sdc_replay_steps",
                .where = both("sdc_replay_steps", "stage"),
                .fix = "remove sdc_replay_steps"});
    }
  }

  bool reads_reference() const {
    return c_.stage == "kto" || (c_.pref_loss != "orpo" && c_.pref_loss != "simpo");
  }

  void losses_of_pairs() {
    if (c_.dpo_label_smoothing > 0 && c_.pref_loss != "sigmoid") {
      complain({.what = "'" + said("dpo_label_smoothing") + "' needs 'pref_loss: sigmoid'",
                .found = said("pref_loss") + ": " + c_.pref_loss,
                .where = both("dpo_label_smoothing", "pref_loss"),
                .fix = set_to("pref_loss", "sigmoid") + ", or remove " + said("dpo_label_smoothing")});
    }
    if (c_.pref_loss != "simpo" && changed("simpo_gamma"))
      note("'" + said("simpo_gamma") + "' (" + at("simpo_gamma") + ") is read only with pref_loss: simpo");
  }

  void preferences() {
    const std::string stage = "stage: " + c_.stage;
    if (c_.streaming) {
      complain({.what = stage + " needs all answers before the first step, but streaming reads them later",
                .expected = "streaming: false with " + stage,
                .where = both("streaming", "stage"),
                .fix = set_to("streaming", "false")});
    }
    if (c_.packing && c_.packing_strategy == "llamafactory") {
      complain({.what = "LLaMA-Factory does not pack answers with preferences",
                .expected = "packing_strategy: best_fit, which keeps the answers of a pair together",
                .where = both("packing_strategy", "stage"),
                .fix = set_to("packing_strategy", "best_fit") + ", or packing: false"});
    }
    if (c_.stage == "kto" && c_.sdc_replay_steps > 0) {
      complain({.what = "'sdc_replay_steps' cannot replay stage: kto, which reads all answers of a step",
                .expected = "stage: kto without sdc_replay_steps",
                .where = both("sdc_replay_steps", "stage"),
                .fix = "remove sdc_replay_steps"});
    }
    if (c_.moe_routing_file) {
      complain({.what = "'moe_routing_file' has no experts for answers with preferences",
                .expected = "stage: sft with moe_routing_file",
                .where = both("moe_routing_file", "stage"),
                .fix = "remove moe_routing_file"});
    }
    // LLaMA-Factory switches all dropout off, except for reward models.
    if (c_.stage != "rm" && c_.finetuning_type == "lora" && c_.lora_dropout > 0) {
      note("'" + said("lora_dropout") + "' (" + at("lora_dropout") + ") is not applied with " + stage +
           ", like in LLaMA-Factory");
      c_.lora_dropout = 0;
    }
  }

  // The head is new, so adapters alone cannot train a reward model.
  void rewards() {
    Strings& whole = c_.additional_target;
    if (c_.finetuning_type == "lora" && std::ranges::find(whole, "score") == whole.end())
      whole.push_back("score");
  }

  void references() {
    if (!reads_reference()) {
      for (const char* key : {"ref_model", "precompute_ref_log_probs"}) {
        if (changed(key))
          note("'" + said(key) + "' (" + at(key) + ") is not read: pref_loss: " + c_.pref_loss +
               " has no reference");
      }
      return;
    }
    if (c_.precompute_ref_log_probs.value_or(true)) return;
    if (c_.ref_model) {
      complain({.what = "the model of " + said("ref_model") + " is read only before the first step",
                .expected = "precompute_ref_log_probs: true with ref_model",
                .where = both("ref_model", "precompute_ref_log_probs"),
                .fix = "remove " + said("precompute_ref_log_probs")});
    }
    const bool lora = c_.finetuning_type == "lora";
    if (lora && c_.additional_target.empty()) return;
    const char* const key = lora ? "additional_target" : "finetuning_type";
    complain(
        {.what = "only adapters can be switched off to get the reference",
         .expected = "finetuning_type: lora without additional_target, or precompute_ref_log_probs: true",
         .where = both("precompute_ref_log_probs", key),
         .fix = "remove " + said("precompute_ref_log_probs")});
  }
};

}  // namespace

void apply_loss_rules(Resolved& resolved, const LoadOptions& options) {
  LossRules(resolved, options).apply();
}

}  // namespace octet::config
