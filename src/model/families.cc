#include "families.h"

#include <algorithm>
#include <array>

namespace octet::model {

const std::vector<Family>& families() {
  static const std::vector<Family> table = {
      {.model_type = "llama",
       .class_name = "LlamaForCausalLM",
       .qkv_bias = BiasRule::by_key,
       .output_bias = BiasRule::by_key,
       .mlp_bias = BiasRule::by_key},
      {.model_type = "mistral",
       .class_name = "MistralForCausalLM",
       .window = WindowRule::all,
       .default_window = 4096},
      {.model_type = "qwen2",
       .class_name = "Qwen2ForCausalLM",
       .qkv_bias = BiasRule::always,
       .window = WindowRule::from_layer,
       .default_window = 4096},
      {.model_type = "qwen3", .class_name = "Qwen3ForCausalLM", .unsupported = "norms of queries and keys"},
      {.model_type = "gemma2", .class_name = "Gemma2ForCausalLM", .unsupported = "four norms a block"},
      {.model_type = "gemma3_text",
       .class_name = "Gemma3ForCausalLM",
       .unsupported = "four norms a block and norms of queries and keys"},
  };
  return table;
}

bool is_harmless_key(std::string_view key) {
  // What PretrainedConfig and tools write beside the architecture, and old generation defaults.
  static constexpr auto keys = std::to_array<std::string_view>({
      "_attn_implementation_autoset",
      "_name_or_path",
      "add_cross_attention",
      "architectures",
      "attn_implementation",
      "auto_map",
      "bad_words_ids",
      "begin_suppress_tokens",
      "bos_token_id",
      "chunk_size_feed_forward",
      "cross_attention_hidden_size",
      "decoder_start_token_id",
      "diversity_penalty",
      "do_sample",
      "dtype",
      "early_stopping",
      "encoder_no_repeat_ngram_size",
      "eos_token_id",
      "exponential_decay_length_penalty",
      "finetuning_task",
      "forced_bos_token_id",
      "forced_eos_token_id",
      "id2label",
      "is_decoder",
      "is_encoder_decoder",
      "keys_to_ignore_at_inference",
      "label2id",
      "length_penalty",
      "max_length",
      "max_position_embeddings",
      "max_window_layers",
      "min_length",
      "model_type",
      "name_or_path",
      "no_repeat_ngram_size",
      "num_beam_groups",
      "num_beams",
      "num_return_sequences",
      "output_attentions",
      "output_hidden_states",
      "output_scores",
      "pad_token_id",
      "prefix",
      "pretraining_tp",
      "problem_type",
      "remove_invalid_values",
      "repetition_penalty",
      "return_dict",
      "return_dict_in_generate",
      "sep_token_id",
      "suppress_tokens",
      "task_specific_params",
      "temperature",
      "tf_legacy_loss",
      "tie_encoder_decoder",
      "tokenizer_class",
      "top_k",
      "top_p",
      "torch_dtype",
      "torchscript",
      "transformers_version",
      "typical_p",
      "unsloth_fixed",
      "unsloth_version",
      "use_bfloat16",
      "use_cache",
  });
  return std::ranges::binary_search(keys, key);
}

const std::vector<NeutralKey>& neutral_keys() {
  static const std::vector<NeutralKey> table = {
      {"attention_dropout", 0.0, "dropout on attention weights"},
      {"hidden_dropout", 0.0, "dropout on the residual stream"},
      {"resid_pdrop", 0.0, "dropout on the residual stream"},
      {"embd_pdrop", 0.0, "dropout on embeddings"},
      {"partial_rotary_factor", 1.0, "rotary embedding of a part of each head"},
      {"attention_multiplier", 1.0, "scaled attention"},
      {"embedding_multiplier", 1.0, "scaled embeddings"},
      {"residual_multiplier", 1.0, "scaled residuals"},
      {"logits_scaling", 1.0, "scaled logits"},
      {"logit_scale", 1.0, "scaled logits"},
      {"attn_logit_softcapping", 0.0, "soft-capped attention scores"},
      {"final_logit_softcapping", 0.0, "soft-capped logits"},
      {"num_local_experts", 0.0, "experts"},
      {"num_experts", 0.0, "experts"},
  };
  return table;
}

}  // namespace octet::model
