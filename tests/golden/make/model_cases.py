"""The small models: their shapes as arguments of transformers' configuration classes, and what is special about each.

`legacy` is what the older spelling of config.json has besides; `kept` is the format that weights are kept in (as they are: what
is computed from them is in fp32); `length` the positions of a row."""

LLAMA = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 192, "max_position_embeddings": 256, "hidden_act": "silu",
         "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False, "use_cache": False}


def rope(theta, **scaling):
    return {"rope_parameters": {"rope_theta": theta, "rope_type": "default", **scaling}}


def case(kind, kept="bfloat16", length=48, **values):
    return {"kind": kind, "kept": kept, "length": length, "config": values}


def without(key, values):
    return {k: v for k, v in values.items() if k != key}


def llama(**values):
    return {**LLAMA, "rms_norm_eps": 1e-5, **rope(10000.0), **values}


def qwen(**values):
    return {**LLAMA, "rms_norm_eps": 1e-6, **rope(1000000.0), "use_sliding_window": False, **values}


def gemma(**values):
    base = {k: v for k, v in LLAMA.items() if k not in ("hidden_act", "mlp_bias")}
    return {**base, "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh", "head_dim": 32,
            "sliding_window": 16, **values}


def moe(**values):
    """Small, since each expert is stored with its gradients."""
    small = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "vocab_size": 128}
    return {**qwen(**small), "output_router_logits": False, **values}


def glm4_moe(**values):
    """The first block is dense."""
    base = {k: v for k, v in moe().items() if k not in ("use_sliding_window", "output_router_logits")}
    return {**base, **rope(10000.0, partial_rotary_factor=0.5), "head_dim": 16, "moe_intermediate_size": 16,
            "norm_topk_prob": True, "use_qk_norm": False, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, **values}


def gpt_oss(**values):
    """The first block has a window. A limit of 1 bounds many values. Sizes are multiples of 32, the group of MXFP4."""
    base = {k: v for k, v in moe().items() if k not in ("use_sliding_window", "mlp_bias")}
    return {**base, "rms_norm_eps": 1e-5, "num_attention_heads": 4, "head_dim": 16, "intermediate_size": 32, "attention_bias": True,
            "sliding_window": 16, "swiglu_limit": 1.0,
            **rope(150000.0, rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                   original_max_position_embeddings=32), **values}


def wrapper(kind, names, vision, text, flat=False, **outer):
    """A vision-language model. `config` is that of its text model, `names` the beginnings of names of modules in transformers,
    and in files. `flat`: older files have the keys of the text model in the whole config."""
    return {**case(kind, **text), "vision": vision, "names": names, "flat": flat, "outer": outer}


# As the published files of each name their tensors.
OLD_QWEN = [("model.visual.", "visual."), ("model.language_model.", "model.")]
OLD_LLAVA = [("model.vision_tower.", "vision_tower."), ("model.multi_modal_projector.", "multi_modal_projector."),
             ("model.language_model.", "language_model.model."), ("lm_head.", "language_model.lm_head.")]


def sections(theta, *three, **more):
    return rope(theta, mrope_section=list(three), **more)


def small(**values):
    """The size of the families of one idea each."""
    return {**LLAMA, "intermediate_size": 96, "vocab_size": 128, "rms_norm_eps": 1e-5, **rope(10000.0), **values}


def bare(*keys, **values):
    """small() without keys that a class does not have."""
    return {k: v for k, v in small(**values).items() if k not in keys}


def yarn(theta, **more):
    return {"rope_theta": theta, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, **more}


def plain(without, **values):
    """Without keys that a class does not have."""
    return {k: v for k, v in {**LLAMA, "hidden_size": 48, "intermediate_size": 80, "vocab_size": 128, **values}.items() if k not in without}


def ernie(**values):
    return plain(("attention_bias", "mlp_bias"), **{"rms_norm_eps": 1e-5, "head_dim": 16, **rope(500000.0), **values})


def glm4(**values):
    return plain(("mlp_bias",), **{"rms_norm_eps": 1e-5, "head_dim": 16, "pad_token_id": None,
                                   **rope(10000.0, partial_rotary_factor=0.5), **values})


def starcoder2(**values):
    return plain(("attention_bias", "mlp_bias"), **{"hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-5, **rope(10000.0), **values})


def cohere2(**values):
    return plain(("mlp_bias",), **{"num_hidden_layers": 4, "layer_norm_eps": 1e-5, "sliding_window": 16, **rope(50000.0), **values})


def apertus(**values):
    return plain(("mlp_bias",), **{"hidden_act": "xielu", "rms_norm_eps": 1e-5, **rope(12000000.0, factor=8.0, **LLAMA3), **values})


def delta(**values):
    """Small, with documents of several chunks of 64 tokens."""
    base = {k: v for k, v in moe().items() if k not in ("use_sliding_window", "mlp_bias", "intermediate_size", "output_router_logits")}
    return {**base, "head_dim": 16, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 1,
            "linear_num_value_heads": 2, **values}


def delta_moe(**values):
    return delta(**{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24,
                    "output_router_logits": False, **values})


def latent(**values):
    """Multi-head latent attention. The first block is dense, and values are narrower than keys."""
    base = {k: v for k, v in moe().items() if k not in ("use_sliding_window", "mlp_bias", "num_key_value_heads", "output_router_logits")}
    return {**base, **rope(10000.0), "num_key_value_heads": 2, "q_lora_rank": None, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 12, "v_head_dim": 10, "n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
            "n_shared_experts": 2, "first_k_dense_replace": 1, **values}


LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}

IMAGE_IDS = {"image_token_id": 186, "video_token_id": 187, "vision_start_token_id": 188, "vision_end_token_id": 189}

CASES = {
    "llama": case("Llama", **llama()),
    "llama3": case("Llama", "float32", 96, **llama(**rope(500000.0, factor=8.0, **LLAMA3))),
    "llama3-tied": case("Llama", **llama(**rope(500000.0, factor=32.0, **LLAMA3), head_dim=32, tie_word_embeddings=True)),
    "llama-mha-bias": case("Llama", **llama(num_key_value_heads=4, attention_bias=True, mlp_bias=True)),
    "llama-linear-rope": case("Llama", "float16", **llama(num_key_value_heads=1, **rope(10000.0, rope_type="linear", factor=4.0))),
    "mistral": case("Mistral", **llama(sliding_window=16, **rope(1000000.0))),
    "qwen2": case("Qwen2", **qwen(max_window_layers=1, sliding_window=16)),
    "qwen2-tied": case("Qwen2", **qwen(tie_word_embeddings=True)),
    "qwen3": case("Qwen3", "float32", **qwen(head_dim=32)),
    "qwen3-yarn": case("Qwen3", **without("use_sliding_window", qwen(
        head_dim=32, tie_word_embeddings=True,
        **rope(1000000.0, rope_type="yarn", factor=4.0, original_max_position_embeddings=32)))),
    "gemma2": case("Gemma2", **gemma(query_pre_attn_scalar=24, attn_logit_softcapping=5.0, final_logit_softcapping=3.0,
                                     **rope(10000.0))),
    "gemma3": case("Gemma3Text", **gemma(hidden_size=48, intermediate_size=96, num_hidden_layers=7, query_pre_attn_scalar=32,
                                         rope_parameters={"full_attention": {"rope_theta": 1000000.0, "rope_type": "default"},
                                                          "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}})),
    "qwen3-moe-trained": case("Qwen3Moe", **moe(
        num_hidden_layers=3, head_dim=16, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True,
        decoder_sparse_step=1, mlp_only_layers=[1])),
    "mixtral": case("Mixtral", **without("use_sliding_window", moe(num_local_experts=4, num_experts_per_tok=2))),
    "qwen2-moe": case("Qwen2Moe", **moe(
        num_hidden_layers=2, num_experts=5, num_experts_per_tok=3, moe_intermediate_size=16, shared_expert_intermediate_size=24,
        norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[])),
    "olmoe": case("Olmoe", **without("use_sliding_window", moe(
        intermediate_size=16, num_key_value_heads=1, num_experts=6, num_experts_per_tok=2, norm_topk_prob=False,
        **rope(10000.0)))),
    "glm4-moe": case("Glm4Moe", **glm4_moe(
        attention_bias=True, n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=1, routed_scaling_factor=1.0)),
    "glm4-moe-groups": case("Glm4Moe", **glm4_moe(
        use_qk_norm=True, n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2, n_shared_experts=2,
        routed_scaling_factor=2.5, moe_intermediate_size=12)),
    "seed-oss": case("SeedOss", **small(head_dim=24, attention_bias=True)),
    "seed-oss-bias": case("SeedOss", **small(head_dim=16, attention_bias=True, attention_out_bias=True, mlp_bias=True,
                                             tie_word_embeddings=True)),
    "gemma1": case("Gemma", **bare("mlp_bias", head_dim=32, hidden_act="gelu_pytorch_tanh", tie_word_embeddings=True)),
    "gemma1-bias": case("Gemma", **bare("mlp_bias", head_dim=16, hidden_act="gelu", attention_bias=True)),
    "granite": case("Granite", **small(embedding_multiplier=12.0, attention_multiplier=0.0625, residual_multiplier=0.22,
                                       logits_scaling=8.0, tie_word_embeddings=True)),
    "granite-bias": case("Granite", **small(embedding_multiplier=3.3, attention_multiplier=0.4, residual_multiplier=1.7,
                                            logits_scaling=0.7, attention_bias=True, mlp_bias=True)),
    "smollm3": case("SmolLM3", **small(num_hidden_layers=3, pad_token_id=5, no_rope_layer_interval=2, tie_word_embeddings=True,
                                       **rope(2000000.0))),
    "smollm3-windows": case("SmolLM3", **small(num_hidden_layers=3, pad_token_id=5, no_rope_layers=[0, 1, 0], use_sliding_window=True,
                                               sliding_window=16, mlp_bias=True)),
    "olmo2": case("Olmo2", **bare("mlp_bias")),
    "olmo2-bias": case("Olmo2", **bare("mlp_bias", num_key_value_heads=4, attention_bias=True, tie_word_embeddings=True,
                                       rms_norm_eps=1e-6)),
    "olmo3": case("Olmo3", **bare("mlp_bias", num_hidden_layers=4, sliding_window=16,
                                  rope_parameters={"full_attention": yarn(500000.0, attention_factor=1.2),
                                                   "sliding_attention": {"rope_theta": 500000.0, "rope_type": "default"}})),
    "olmo3-types": case("Olmo3", **bare("mlp_bias", sliding_window=12, attention_bias=True,
                                        layer_types=["full_attention", "sliding_attention"],
                                        rope_parameters={"full_attention": {"rope_theta": 100000.0, "rope_type": "default"},
                                                         "sliding_attention": {"rope_theta": 5000.0, "rope_type": "default"}})),
    "exaone4": case("Exaone4", **bare("mlp_bias", "attention_bias", num_hidden_layers=3, sliding_window=16,
                                      sliding_window_pattern=2)),
    "exaone4-full": case("Exaone4", **bare("mlp_bias", "attention_bias", sliding_window=None, tie_word_embeddings=True,
                                           layer_types=["full_attention"] * 2,
                                           **rope(1000000.0, rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                                                  high_freq_factor=4.0, original_max_position_embeddings=32))),
    "hunyuan": case("HunYuanDenseV1", **bare("mlp_bias", head_dim=16, tie_word_embeddings=True,
                                             **rope(10000.0, rope_type="dynamic", factor=1.0, alpha=1000.0))),
    "hunyuan-bias": case("HunYuanDenseV1", **bare("mlp_bias", head_dim=32, attention_bias=True)),
    "phi3": case("Phi3", **bare("mlp_bias", "attention_bias", pad_token_id=5, num_key_value_heads=4, sliding_window=16)),
    "phi3-longrope": case("Phi3", **bare(
        "mlp_bias", "attention_bias", pad_token_id=5, original_max_position_embeddings=24, tie_word_embeddings=True,
        **rope(10000.0, rope_type="longrope", partial_rotary_factor=0.75, short_factor=[1.0, 1.1, 1.3, 1.6, 2.0, 2.5],
               long_factor=[1.5, 2.0, 3.0, 5.0, 9.0, 17.0]))),
    "ministral3": case("Ministral3", **bare(
        "mlp_bias", "attention_bias", head_dim=16,
        rope_parameters=yarn(1000000.0, beta_fast=32.0, beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0,
                             llama_4_scaling_beta=0.5))),
    "ministral3-window": case("Ministral3", **bare(
        "mlp_bias", "attention_bias", head_dim=32, sliding_window=16, tie_word_embeddings=True,
        rope_parameters=yarn(10000.0, original_max_position_embeddings=10, llama_4_scaling_beta=0.2))),
    "gpt-oss": case("GptOss", **gpt_oss(num_local_experts=4, num_experts_per_tok=2)),
    "qwen3-vl": wrapper(
        "Qwen3VL", [], {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "patch_size": 4,
                        "out_hidden_size": 64, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
        without("mlp_bias", without("use_sliding_window", qwen(
            head_dim=32, tie_word_embeddings=False, **sections(5000000.0, 6, 5, 5, mrope_interleaved=True)))),
        tie_word_embeddings=True, **IMAGE_IDS),
    "qwen3-vl-moe": wrapper(
        "Qwen3VLMoe", [], {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "patch_size": 4,
                           "out_hidden_size": 64, "num_position_embeddings": 16, "deepstack_visual_indexes": [0]},
        without("mlp_bias", without("use_sliding_window", qwen(
            head_dim=32, tie_word_embeddings=False, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
            decoder_sparse_step=1, mlp_only_layers=[0], norm_topk_prob=True,
            **sections(5000000.0, 6, 5, 5, mrope_interleaved=True)))),
        tie_word_embeddings=False, **IMAGE_IDS),
    "qwen2-vl": wrapper(
        "Qwen2VL", OLD_QWEN, {"depth": 1, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 1, "num_heads": 2, "patch_size": 4},
        without("mlp_bias", without("attention_bias", qwen(
            hidden_size=64, use_sliding_window=True, max_window_layers=1, sliding_window=16, tie_word_embeddings=True,
            **sections(1000000.0, 4, 2, 2, rope_type="yarn", factor=4.0, original_max_position_embeddings=32)))),
        flat=True, tie_word_embeddings=True, **IMAGE_IDS),
    "qwen2-5-vl": wrapper(
        "Qwen2_5_VL", OLD_QWEN, {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "patch_size": 4,
                                 "out_hidden_size": 64, "window_size": 16, "fullatt_block_indexes": [0]},
        without("mlp_bias", without("attention_bias", qwen(max_window_layers=1, sliding_window=16, **sections(1000000.0, 2, 3, 3)))),
        flat=True, **IMAGE_IDS),
    "mistral3": wrapper(
        "Mistral3", OLD_LLAVA, {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                                "head_dim": 16, "image_size": 32, "patch_size": 8, "model_type": "pixtral"},
        {"model_type": "mistral", **without("mlp_bias", without("attention_bias", llama(
            head_dim=32, sliding_window=None, **rope(1000000000.0))))},
        tie_word_embeddings=False, image_token_index=189),
    "glm4": case("Glm4", **glm4(attention_bias=True)),
    "glm4-tied": case("Glm4", **glm4(
        tie_word_embeddings=True, pad_token_id=3, head_dim=24, num_key_value_heads=1, hidden_act="gelu_pytorch_tanh",
        **rope(10000.0, partial_rotary_factor=0.25))),
    "ernie4-5": case("Ernie4_5", **ernie(tie_word_embeddings=True)),
    "ernie4-5-bias": case("Ernie4_5", **ernie(
        use_bias=True, pad_token_id=None, head_dim=10, num_key_value_heads=4,
        **rope(500000.0, rope_type="yarn", factor=4.0, original_max_position_embeddings=32))),
    "starcoder2": case("Starcoder2", **starcoder2(tie_word_embeddings=True, sliding_window=16)),
    "starcoder2-untied": case("Starcoder2", **starcoder2(use_bias=False, hidden_act="silu", num_key_value_heads=1)),
    "cohere2": case("Cohere2", **cohere2(tie_word_embeddings=True, logit_scale=0.25)),
    # Without rotation, a bias of keys has no gradient.
    "cohere2-untied": case("Cohere2", **cohere2(
        num_hidden_layers=2, logit_scale=0.3, attention_bias=True, pad_token_id=None, num_key_value_heads=4,
        layer_types=["sliding_attention"] * 2)),
    "apertus": case("Apertus", **apertus()),
    "apertus-tied": case("Apertus", **apertus(
        tie_word_embeddings=True, attention_bias=True, num_key_value_heads=4, pad_token_id=None, head_dim=16)),
}
DELTA = ["linear_attention", "full_attention"]
CASES |= {
    # The first block is dense.
    "qwen3-next": case("Qwen3Next", length=160, **delta_moe(
        intermediate_size=48, num_hidden_layers=4, linear_num_key_heads=2, linear_num_value_heads=4, linear_value_head_dim=8,
        norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[0], **rope(10000.0, partial_rotary_factor=0.25))),
    "qwen3-next-tied": case("Qwen3Next", **delta_moe(
        intermediate_size=48, num_hidden_layers=3, layer_types=["full_attention", *DELTA], linear_num_value_heads=1, norm_topk_prob=False,
        decoder_sparse_step=2, mlp_only_layers=[], attention_bias=True, tie_word_embeddings=True,
        **rope(1000000.0, partial_rotary_factor=0.5))),
    "qwen3-5-text": case("Qwen3_5Text", length=160, **delta(
        intermediate_size=48, num_hidden_layers=4, linear_num_key_heads=2, linear_num_value_heads=4, linear_value_head_dim=8,
        **sections(10000000.0, 1, 1, 0, mrope_interleaved=True, partial_rotary_factor=0.25))),
    "qwen3-5-text-tied": case("Qwen3_5Text", **delta(
        intermediate_size=40, num_hidden_layers=3, layer_types=["linear_attention", *DELTA], tie_word_embeddings=True, head_dim=32,
        **sections(1000000.0, 2, 1, 1, mrope_interleaved=True, partial_rotary_factor=0.25))),
    "qwen3-5-moe": case("Qwen3_5MoeText", length=160, **delta_moe(
        num_hidden_layers=3, layer_types=["linear_attention", *DELTA], linear_num_key_heads=2, linear_value_head_dim=24,
        **sections(10000000.0, 1, 1, 0, mrope_interleaved=True, partial_rotary_factor=0.25))),
    "qwen3-5-moe-tied": case("Qwen3_5MoeText", **delta_moe(
        num_hidden_layers=2, layer_types=DELTA, tie_word_embeddings=True, num_experts=6, num_experts_per_tok=3,
        **sections(1000000.0, 2, 1, 1, mrope_interleaved=True, partial_rotary_factor=0.5))),
    "qwen3-5": wrapper(
        "Qwen3_5", [], {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "patch_size": 4,
                        "out_hidden_size": 32, "num_position_embeddings": 16},
        delta(intermediate_size=48, num_hidden_layers=2, layer_types=DELTA, vocab_size=192, linear_num_key_heads=2, attention_bias=True,
              **sections(10000000.0, 2, 1, 1, mrope_interleaved=True, partial_rotary_factor=0.5)),
        tie_word_embeddings=True, **IMAGE_IDS),
}
DEEP_YARN = {"rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 16}
CASES |= {
    "deepseek-v3": case("DeepseekV3", **latent(
        n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.446, rms_norm_eps=1e-3)),
    "deepseek-v3-groups": case("DeepseekV3", **latent(
        q_lora_rank=24, attention_bias=True, rope_interleave=False, n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2,
        norm_topk_prob=True, routed_scaling_factor=2.5, moe_intermediate_size=12, n_shared_experts=1,
        **rope(10000.0, mscale=0.8, mscale_all_dim=1.2, **DEEP_YARN))),
    "deepseek-v2": case("DeepseekV2", **latent(
        q_lora_rank=20, n_routed_experts=8, num_experts_per_tok=3, n_group=4, topk_group=2, topk_method="group_limited_greedy",
        routed_scaling_factor=4.0, moe_intermediate_size=12, **rope(10000.0, mscale=0.707, mscale_all_dim=0.707, **DEEP_YARN))),
    # Values are as wide as keys.
    "glm4-moe-lite": case("Glm4MoeLite", **without("first_k_dense_replace", latent(
        num_attention_heads=3, num_key_value_heads=3, q_lora_rank=16, qk_nope_head_dim=8, v_head_dim=16, n_shared_experts=1,
        n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.8, mlp_layer_types=["dense", "sparse"]))),
}


def gemma4(**values):
    """Layers with full attention have wider heads, and fewer of them for keys and values. A layer's output has a factor."""
    base = {k: v for k, v in gemma().items() if k not in ("rope_parameters",)}
    full = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0}
    return {**base, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 4, "vocab_size": 128, "head_dim": 16,
            "global_head_dim": 32, "layer_types": ["sliding_attention", "full_attention"] * 2, "hidden_size_per_layer_input": 0,
            "rope_parameters": {"full_attention": full, "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}}, **values}


CASES |= {
    "gemma4": case("Gemma4Text", **gemma4(num_global_key_value_heads=1, attention_k_eq_v=True, final_logit_softcapping=3.0)),
    # The number of global heads has no effect without attention_k_eq_v.
    "gemma4-values": case("Gemma4Text", **gemma4(
        num_hidden_layers=3, layer_types=["full_attention", "sliding_attention", "full_attention"], num_global_key_value_heads=1,
        attention_k_eq_v=False, tie_word_embeddings=False, attention_bias=True, pad_token_id=None, global_head_dim=24,
        rope_parameters={"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "factor": 2.0, "rope_theta": 5000.0},
                         "sliding_attention": {"rope_theta": 100.0, "rope_type": "default"}})),
    "gemma4-vl": wrapper(
        "Gemma4", [], {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                       "num_key_value_heads": 2, "head_dim": 16, "position_embedding_size": 16, "patch_size": 4},
        gemma4(num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"], vocab_size=192, num_global_key_value_heads=1,
               attention_k_eq_v=True, use_bidirectional_attention="vision"),
        # Ids outside of the vocabulary: transformers replaces tokens with these ids.
        tie_word_embeddings=True, audio_config=None, image_token_id=250, video_token_id=251, audio_token_id=252, boi_token_id=253,
        eoi_token_id=254),
}
AUX = 0.05                      # router_aux_loss_coef of the references with the auxiliary loss
FP8 = ("llama3", "qwen3")       # with references of FP8 products
BLOCK = ("llama3",)             # and of scales of blocks
FINAL = ("llama",)              # with parameters after ten steps
PACKED_GRADIENTS = ("llama3", "gemma3")
SHARDS = {"qwen2": "60KB"}


def legacy_config(name):
    """The same model as transformers 4 would have written it."""
    found = CASES[name]
    if "vision" in found:
        return legacy_wrapper(name)
    config = {k: v for k, v in found["config"].items() if k not in ("rope_parameters", "use_cache")}
    ropes = found["config"]["rope_parameters"]
    if found["kind"] == "Gemma4Text":
        config["rope_parameters"] = ropes  # the published spelling: there is no older one
    elif found["kind"] == "Olmo3":
        full, sliding = ropes["full_attention"], ropes["sliding_attention"]
        if sliding["rope_theta"] != 500000.0:
            config["rope_parameters"] = ropes  # transformers 4 had one base
        else:
            config |= {"rope_theta": full["rope_theta"], "rope_scaling": without("rope_theta", full)}
    elif "full_attention" in ropes:
        config |= {"rope_theta": ropes["full_attention"]["rope_theta"],
                   "rope_local_base_freq": ropes["sliding_attention"]["rope_theta"]}
    else:
        config["rope_theta"] = ropes["rope_theta"]
        if "partial_rotary_factor" in ropes:
            config["partial_rotary_factor"] = ropes["partial_rotary_factor"]
        if ropes["rope_type"] != "default":
            config["rope_scaling"] = ropes
    if found["kind"] == "Glm4MoeLite":
        config["first_k_dense_replace"] = config.pop("mlp_layer_types").count("dense")
    model_type = {"Gemma3Text": "gemma3_text", "Qwen3Moe": "qwen3_moe", "Qwen2Moe": "qwen2_moe", "Glm4Moe": "glm4_moe", "GptOss": "gpt_oss",
                  "SeedOss": "seed_oss", "HunYuanDenseV1": "hunyuan_v1_dense", "Qwen3Next": "qwen3_next", "Qwen3_5Text": "qwen3_5_text",
                  "Qwen3_5MoeText": "qwen3_5_moe_text", "DeepseekV3": "deepseek_v3", "DeepseekV2": "deepseek_v2",
                  "Glm4MoeLite": "glm4_moe_lite", "Gemma4Text": "gemma4_text"}.get(found["kind"], found["kind"].lower())
    architecture = {"Gemma3Text": "Gemma3ForCausalLM", "Gemma4Text": "Gemma4ForCausalLM", "Qwen3_5Text": "Qwen3_5ForCausalLM",
                    "Qwen3_5MoeText": "Qwen3_5MoeForCausalLM"}.get(found["kind"], found["kind"] + "ForCausalLM")
    return {"model_type": model_type, **config, "architectures": [architecture], "torch_dtype": found["kept"]}


def legacy_wrapper(name):
    found = CASES[name]
    if found["kind"] == "Gemma4":
        text = {"model_type": "gemma4_text", **without("use_cache", found["config"])}
        return {"model_type": "gemma4", "architectures": ["Gemma4ForConditionalGeneration"], **found["outer"],
                "torch_dtype": found["kept"], "vision_config": {**found["vision"]}, "text_config": text}
    text = {k: v for k, v in found["config"].items() if k not in ("rope_parameters", "use_cache")}
    ropes = dict(found["config"]["rope_parameters"])
    text["rope_theta"] = ropes.pop("rope_theta")
    if "partial_rotary_factor" in ropes:
        text["partial_rotary_factor"] = ropes.pop("partial_rotary_factor")
    if len(ropes) > 1:
        old = found["flat"] and ropes["rope_type"] == "default"
        text["rope_scaling"] = {**ropes, "type": "mrope", "rope_type": "mrope"} if old else ropes
    model_type = {"Qwen3VL": "qwen3_vl", "Qwen3VLMoe": "qwen3_vl_moe", "Qwen2VL": "qwen2_vl", "Qwen2_5_VL": "qwen2_5_vl", "Qwen3_5": "qwen3_5", "Mistral3": "mistral3"}[found["kind"]]
    config = {"model_type": model_type, "architectures": [found["kind"] + "ForConditionalGeneration"], **found["outer"],
              "torch_dtype": found["kept"], "vision_config": {**found["vision"]}}
    if found["flat"]:
        return {**text, **config}
    return {**config, "text_config": {"model_type": model_type + "_text", **text}}
