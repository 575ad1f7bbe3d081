// Keys of other trainers: accepted if they have no effect here, refused if they would have one.
#include "table.h"

namespace octet::config {
namespace {

constexpr Kind kBool = Kind::boolean;
constexpr Kind kInt = Kind::integer;
constexpr Kind kNumber = Kind::number;
constexpr Kind kText = Kind::text;
constexpr Kind kList = Kind::list;

struct NotedKey {
  const char* name;
  Kind kind;
  const char* fallback;
  const char* note;
};

constexpr const char* kExport = "belongs to trainer export";
constexpr const char* kTokensCounted = "tokens are always counted, and logged by the second";
constexpr const char* kCompiled = "nothing is compiled at run time";
constexpr const char* kUpload = "nothing is uploaded";
constexpr const char* kMedia = "only text is trained, and rows with images, audio or video are refused";

// Each reason describes the behaviour of the program that replaces the key's effect.
const NotedKey kNoted[] = {
    {"cache_dir", kText, "null", "models are read from local folders; nothing is downloaded into a cache"},
    {"model_revision", kText, "main",
     "read only if the model comes from the cache of Hugging Face; a folder has one revision"},
    {"trust_remote_code", kBool, "false", "no code of a model is ever run"},
    {"use_fast_tokenizer", kBool, "true", "tokenizer.json is read natively"},
    {"low_cpu_mem_usage", kBool, "true", "weights are always memory-mapped"},
    {"flash_attn", kText, "auto", "attention never forms the matrix of scores, whatever the value"},
    {"enable_liger_kernel", kBool, "false", "the program's own kernels are fused already"},
    {"use_unsloth", kBool, "false", "the program trains with its own kernels"},
    {"use_unsloth_gc", kBool, "false", "recompute sets the recomputed values; nothing moves to the host"},
    {"use_reentrant_gc", kBool, "true", "recompute sets the recomputed values, without PyTorch's autograd"},
    {"upcast_layernorm", kBool, "false", "norms always compute in fp32"},
    {"upcast_lmhead_output", kBool, "false", "the loss always computes in fp32"},
    {"infer_dtype", kText, "auto", "read by LLaMA-Factory's inference, not by its training"},
    {"print_param_status", kBool, "false", "trainer inspect shows the parameters"},
    {"tf32", kBool, "null", "fp32 GEMMs always compute in fp32, and bf16: true makes them bf16"},
    {"half_precision_backend", kText, "auto", "bf16 is computed by the program's own GEMMs"},
    {"bf16_full_eval", kBool, "false", "evaluation computes in the formats of training"},
    {"media_dir", kText, "null", "only text is trained"},
    {"image_max_pixels", kInt, "589824", kMedia},
    {"image_min_pixels", kInt, "1024", kMedia},
    {"image_do_pan_and_scan", kBool, "false", kMedia},
    {"crop_to_patches", kBool, "false", kMedia},
    {"video_max_pixels", kInt, "65536", kMedia},
    {"video_min_pixels", kInt, "256", kMedia},
    {"video_fps", kNumber, "2", kMedia},
    {"video_maxlen", kInt, "128", kMedia},
    {"use_audio_in_video", kBool, "false", kMedia},
    {"audio_sampling_rate", kInt, "16000", kMedia},
    {"data_shared_file_system", kBool, "false", "every rank tokenises its share and sends it to the others"},
    {"ignore_pad_token_for_loss", kBool, "true", "sequences are joined without padding, so none is trained"},
    {"dataloader_num_workers", kInt, "0", "a thread of each rank prepares the next batches"},
    {"dataloader_pin_memory", kBool, "true", "batches are in pinned memory if there is a GPU"},
    {"dataloader_persistent_workers", kBool, "false",
     "the thread that prepares batches lives as long as the run"},
    {"dataloader_prefetch_factor", kInt, "null", "the number of prepared batches is fixed"},
    {"remove_unused_columns", kBool, "true", "columns that are not recognised are never read"},
    {"loraplus_lr_embedding", kNumber, "1.0e-06",
     "it is the rate of adapters of embeddings, which are trained whole or not at all"},
    {"export_dir", kText, "null", kExport},
    {"export_hub_model_id", kText, "null", kUpload},
    {"export_quantization_dataset", kText, "null", "exports are not quantised"},
    {"export_quantization_nsamples", kInt, "128", "exports are not quantised"},
    {"export_quantization_maxlen", kInt, "1024", "exports are not quantised"},
    {"export_device", kText, "cpu", kExport},
    {"export_legacy_format", kBool, "false", kExport},
    {"do_eval", kBool, "false", "eval_strategy sets when the model is evaluated"},
    {"logging_nan_inf_filter", kBool, "true",
     "losses are logged as they are; a step with a gradient that is not finite is skipped, and five in a row "
     "end the run"},
    {"log_level", kText, "passive", "the log does not depend on a level"},
    {"disable_tqdm", kBool, "false", "the bar is drawn on a terminal only"},
    {"include_num_input_tokens_seen", kBool, "false", kTokensCounted},
    {"include_tokens_per_second", kBool, "false", kTokensCounted},
    {"include_effective_tokens_per_second", kBool, "false", kTokensCounted},
    {"prediction_loss_only", kBool, "false",
     "evaluation computes the loss, and with compute_accuracy the accuracy"},
    {"enable_jit_checkpoint", kBool, "false", "a signal always saves before the run ends"},
    {"torch_compile", kBool, "false", kCompiled},
    {"ddp_find_unused_parameters", kBool, "null", "the gradients of all parameters are always reduced"},
    {"ddp_bucket_cap_mb", kInt, "null", "messages are cut by layer, not by bucket"},
    {"save_safetensors", kBool, "true", "checkpoints are HDF5; trainer export writes safetensors"},
    {"gradient_checkpointing_kwargs", Kind::arguments, "null",
     "these are arguments of PyTorch's checkpointing; recompute sets the recomputed values"},
    {"local_rank", kInt, "-1", "the launcher sets the rank"},
    {"ddp_backend", kText, "null", "gpu_transport sets the carrier between GPUs; CPUs use MPI"},
    {"torch_compile_backend", kText, "null", kCompiled},
    {"torch_compile_mode", kText, "null", kCompiled},
    {"torch_empty_cache_steps", kInt, "null", "memory is planned and taken once"},
    {"eval_accumulation_steps", kInt, "null", "evaluation keeps only sums"},
    {"skip_memory_metrics", kBool, "true", "memory is always reported"},
    {"hub_model_id", kText, "null", kUpload},
    {"hub_token", kText, "null", kUpload},
    {"push_to_hub", kBool, "false", kUpload},
};

struct RefusedKey {
  const char* name;
  Kind kind;
  const char* harmless;  // harmless: separated by blanks; the first is the default
  const char* reason;
};

constexpr const char* kAdapters = "adapters of this kind are not built; finetuning_type: lora trains others";
constexpr const char* kOptimizer = "the optimizer is AdamW";
constexpr const char* kTokens = "the tokenizer is taken as it is; extend it beforehand";
constexpr const char* kFsdp = "sharding is zero_stage here, and HYBRID_SHARD is zero_group_size: node";
constexpr const char* kSplit =
    "training does not split layers over ranks, only generation does: trainer generate, with the option of "
    "that name; zero_stage shards parameters";
constexpr const char* kLoss = "this loss is not built; use_dft_loss and use_eaft_loss are";
constexpr const char* kTextPart =
    "only the language model of a vision-language model is trained, and its other parts are copied unchanged";

const RefusedKey kRefused[] = {
    {"pissa_init", kBool, "false", kAdapters},
    {"freeze_vision_tower", kBool, "true", kTextPart},
    {"freeze_multi_modal_projector", kBool, "true", kTextPart},
    {"freeze_language_model", kBool, "false", kTextPart},
    {"train_mm_proj_only", kBool, "false", kTextPart},
    {"quantization_method", kText, "bnb bitsandbytes",
     "weights are quantised as bitsandbytes does it, to NF4; remove the key"},
    {"export_quantization_bit", kInt, "", "exports are not quantised"},
    {"fp16", kBool, "false", "fp16 needs loss scaling, which is not built; use bf16: true"},
    {"fp16_full_eval", kBool, "false", "evaluation computes in the formats of training; use bf16: true"},
    {"accelerator_config", kText, "",
     "use these keys instead: per_device_train_batch_size, gradient_accumulation_steps, "
     "dataloader_drop_last, seed"},
    {"fp8_enable_fsdp_float8_all_gather", kBool, "false",
     "FP8 weights are always sent as FP8, and others with gather_dtype: fp8"},
    {"rope_scaling", kText, "none", "positions follow the model's config.json; change rope_scaling there"},
    {"resize_vocab", kBool, "false", kTokens},
    {"add_tokens", kList, "", kTokens},
    {"add_special_tokens", kList, "", kTokens},
    {"eval_on_each_dataset", kBool, "false", "one loss over all of eval_dataset is computed"},
    {"eval_num_beams", kInt, "", "evaluation computes the loss; answers come from trainer generate"},
    {"predict_with_generate", kBool, "false",
     "evaluation computes the loss; answers come from trainer generate"},
    {"do_predict", kBool, "false", "answers come from trainer generate"},
    {"group_by_length", kBool, "false",
     "batches of equal length would change the order of samples; use packing"},
    {"use_galore", kBool, "false", kOptimizer},
    {"use_apollo", kBool, "false", kOptimizer},
    {"use_badam", kBool, "false", kOptimizer},
    {"use_adam_mini", kBool, "false", kOptimizer},
    {"use_muon", kBool, "false", kOptimizer},
    {"use_asft_loss", kBool, "false", kLoss},
    {"average_tokens_across_devices", kBool, "true",
     "the loss is always normalised by the trained tokens of the whole step; set it to true"},
    {"tensor_parallel_size", kInt, "1", kSplit},
    {"pipeline_parallel_size", kInt, "1", kSplit},
    {"save_only_model", kBool, "false", "a checkpoint always resumes; trainer export writes the model alone"},
    {"ignore_data_skip", kBool, "false", "a resumed run finds its place in the data by arithmetic, at once"},
    {"logging_strategy", kText, "steps", "logging goes by steps"},
    {"fsdp", kText, "false", kFsdp},
    {"fsdp_config", kText, "", kFsdp},
    {"restore_callback_states_from_checkpoint", kBool, "false", "there are no callbacks"},
};

}  // namespace

void add_foreign_fields(Table& table) {
  table.group("Accepted, without effect");
  for (const NotedKey& key : kNoted) table.noted(key.name, key.kind, key.fallback, key.note);
  table.group("Known, and refused when they ask for more");
  for (const RefusedKey& key : kRefused) {
    Strings harmless;
    std::string word;
    for (const char* c = key.harmless;; ++c) {
      if (*c == ' ' || *c == '\0') {
        if (!word.empty()) harmless.push_back(word);
        word.clear();
        if (*c == '\0') break;
      } else {
        word += *c;
      }
    }
    table.refused(key.name, key.kind, std::move(harmless), key.reason);
  }
}

}  // namespace octet::config
