#include "octet/base/json.h"
#include "octet/model/architecture.h"

namespace octet::model {
namespace {

Json facts_of(const Rope& rope) {
  static constexpr const char* kKinds[] = {"standard", "linear",  "llama3",   "yarn",
                                           "none",     "dynamic", "longrope", "proportional"};
  Json facts{{"kind", kKinds[static_cast<int>(rope.kind)]},
             {"theta", rope.theta},
             {"factor", rope.factor},
             {"low_freq_factor", rope.low_freq_factor},
             {"high_freq_factor", rope.high_freq_factor},
             {"original_max_positions", rope.original_max_positions},
             {"beta_fast", rope.beta_fast},
             {"beta_slow", rope.beta_slow},
             {"truncate", rope.truncate},
             {"attention_factor", rope.attention_factor}};
  if (rope.kind == RopeKind::longrope) {
    facts["short_factors"] = rope.short_factors;
    facts["long_factors"] = rope.long_factors;
  }
  if (rope.kept_part != 1) facts["kept_part"] = rope.kept_part;
  if (rope.query_beta != 0) facts["query_beta"] = rope.query_beta;
  return facts;
}

}  // namespace

Json facts_of(const Architecture& a) {
  static constexpr const char* kActivations[] = {"silu", "gelu_tanh", "clamped", "xielu"};
  Json facts{{"vocab_size", a.vocabulary},
             {"hidden_size", a.hidden},
             {"intermediate_size", a.intermediate},
             {"num_hidden_layers", a.layers},
             {"num_attention_heads", a.heads.q_heads},
             {"num_key_value_heads", a.heads.kv_heads},
             {"head_dim", a.heads.head_dim},
             {"norm_eps", a.norm_eps},
             {"activation", kActivations[static_cast<int>(a.activation)]},
             {"tie_word_embeddings", a.tied},
             {"qkv_bias", a.qkv_bias},
             {"output_bias", a.output_bias},
             {"mlp_bias", a.mlp_bias},
             {"norm_one_plus_weight", a.one_plus_weight},
             {"qk_norm", a.qk_norm},
             {"sublayer_norms", a.sublayer_norms},
             {"embedding_scale", a.embedding_scale},
             {"padding_id", a.padding_id},
             {"attention_scale", a.attention_scale},
             {"attention_soft_cap", a.attention_soft_cap},
             {"logit_soft_cap", a.logit_soft_cap},
             {"ropes", Json::array()},
             {"blocks", Json::array()}};
  if (a.activation == ops::Activation::clamped) facts["activation_limit"] = a.activation_limit;
  if (a.attention_sinks) facts["attention_sinks"] = true;
  if (a.scores) facts["scores"] = true;
  if (a.rotary_dim != 0) facts["rotary_dim"] = a.rotary_dim;
  if (a.layer_norm) facts["layer_norm"] = true;
  if (a.norm_bias) facts["norm_bias"] = true;
  if (a.parallel) facts["parallel"] = true;
  if (!a.gated) facts["gated"] = false;
  if (a.interleaved_rotary) facts["interleaved_rotary"] = true;
  if (a.qk_norm_of_all_heads) facts["qk_norm_of_all_heads"] = true;
  if (a.qk_norm_last) facts["qk_norm_last"] = true;
  if (!a.input_norms) facts["input_norms"] = false;
  if (!a.rounds_embedding_scale) facts["rounds_embedding_scale"] = false;
  if (a.residual_multiplier != 1) facts["residual_multiplier"] = a.residual_multiplier;
  if (a.logits_divisor != 1) facts["logits_divisor"] = a.logits_divisor;
  for (const Rope& rope : a.ropes) facts["ropes"].push_back(facts_of(rope));
  for (std::int64_t layer = 0; layer < a.layers; ++layer) {
    const BlockShape block = a.block(layer);
    facts["blocks"].push_back(Json::array({block.window, block.rope, block.intermediate}));
    if (block.mixes_experts) facts["blocks"].back().push_back("experts");
    if (block.delta_rule) facts["blocks"].back().push_back("delta_rule");
    if (block.head_dim == 0) continue;
    const ops::Heads heads = a.heads_of(layer);
    facts["blocks"].back().push_back(Json{{"head_dim", heads.head_dim}, {"kv_heads", heads.kv_heads}});
    if (block.keys_as_values) facts["blocks"].back().push_back("keys_as_values");
  }
  if (a.value_norm) facts["value_norm"] = true;
  if (a.output_scales) facts["output_scales"] = true;
  if (a.output_gate) facts["output_gate"] = true;
  if (a.has_delta_rule()) {
    const ops::DeltaHeads& heads = a.delta.heads;
    facts["delta_rule"] = Json{{"key_heads", heads.key_heads},
                               {"value_heads", heads.value_heads},
                               {"key_dim", heads.key_dim},
                               {"value_dim", heads.value_dim}};
    if (a.delta.grouped) facts["delta_rule"]["grouped"] = true;
  }
  if (a.has_latents()) {
    facts["latents"] = Json{{"kv_rank", a.latent.kv_rank},           {"q_rank", a.latent.q_rank},
                            {"nope_dim", a.latent.heads.nope_dim},   {"rope_dim", a.latent.heads.rope_dim},
                            {"value_dim", a.latent.heads.value_dim}, {"norm_eps", a.latent.norm_eps}};
  }
  if (a.experts.count > 0) {
    facts["experts"] = Json{{"count", a.experts.count},
                            {"taken", a.experts.taken},
                            {"width", a.experts.width},
                            {"normalised", a.experts.normalised}};
    if (a.experts.shared != 0) facts["experts"]["shared"] = a.experts.shared;
    if (a.experts.balance != 0) facts["experts"]["balance"] = a.experts.balance;
    if (!a.experts.shared_gate) facts["experts"]["shared_gate"] = false;
    if (a.experts.scores == ops::RouterScores::sigmoid) facts["experts"]["scores"] = "sigmoid";
    if (a.experts.scale != 1) facts["experts"]["scale"] = a.experts.scale;
    if (a.experts.groups != 1)
      facts["experts"]["groups"] = Json::array({a.experts.groups, a.experts.taken_groups});
    if (a.experts.group_best != 2) facts["experts"]["group_best"] = a.experts.group_best;
    if (a.experts.choice_bias) facts["experts"]["choice_bias"] = true;
    if (a.experts.biases) facts["experts"]["biases"] = true;
  }
  return facts;
}

}  // namespace octet::model
