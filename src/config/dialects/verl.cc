// The table of keys of verl's supervised fine-tuning.
#include "dialects/dialect_facts.h"

namespace octet::config {
namespace {

constexpr const char* kRanksOfLauncher = "the launcher says how many ranks there are";
constexpr const char* kShm = "weights are mapped from their files, which all ranks of a host share";

void take_betas(const Node& node, const Location& at, const Target& target) {
  if (node.kind != Node::Kind::list || node.items.size() != 2) {
    complain({.what = "value of '" + at.key + "' cannot be used",
              .expected = "a list of two numbers",
              .found = shown(node),
              .where = at.where,
              .fix = "write [0.9, 0.95], or remove it"});
  }
  target.settings.add("adam_beta1", node.items[0], at, target.replace);
  target.settings.add("adam_beta2", node.items[1], at, target.replace);
}

// The dtype in which verl keeps the model between steps; it computes in bf16 either way (FSDP's
// MixedPrecision).
void take_model_dtype(const Node& node, const Location& at, const Target& target) {
  const std::string word = node.kind == Node::Kind::scalar ? node.text : "";
  const bool wide = word == "fp32" || word == "float32";
  if (!wide && word != "bf16" && word != "bfloat16") {
    return target.settings.refuse("bf16", node, at,
                                  {.what = "value of '" + at.key + "' cannot be used",
                                   .expected = "fp32 or bf16",
                                   .found = shown(node),
                                   .where = at.where,
                                   .fix = "give one of these, or remove it"});
  }
  target.settings.add("bf16", scalar_node("true"), at, target.replace);
  target.settings.add("pure_bf16", scalar_node(wide ? "false" : "true"), at, target.replace);
}

// verl truncates a long row at one end. Here questions and answers are shortened in proportion.
void take_truncation(const Node& node, const Location& at, const Target& target) {
  const std::string word = node.kind == Node::Kind::scalar ? node.text : "";
  if (word != "error" && word != "left" && word != "right") {
    return target.settings.refuse("truncation", node, at,
                                  {.what = "value of '" + at.key + "' cannot be used",
                                   .expected = "error, left or right",
                                   .found = shown(node),
                                   .where = at.where,
                                   .fix = "give one of these, or set 'truncation' to cut or error"});
  }
  const bool ends = word == "error";
  target.settings.add("truncation", scalar_node(ends ? "error" : "cut"), at, target.replace);
  if (!ends) {
    target.sources.note("'" + at.key + ": " + word +
                        "' cuts long rows, their questions and answers in proportion, not at one end");
  }
}

// An evaluation interval has no effect without the strategy, so both are set.
void take_test_interval(const Node& node, const Location& at, const Target& target) {
  target.settings.add("eval_strategy", scalar_node("steps"), at, target.replace);
  Location known = at;
  if (node.kind == Node::Kind::scalar) known.written = node.text;
  target.settings.add("eval_steps", node, known, target.replace);
}

// verl: -1 shards over all ranks.
void take_group_size(const Node& node, const Location& at, const Target& target) {
  const auto number = node.kind == Node::Kind::scalar ? read_number(node.text) : std::nullopt;
  if (number && *number == -1) return;
  Location known = at;
  if (node.kind == Node::Kind::scalar) known.written = node.text;
  target.settings.add("zero_group_size", node, known, target.replace);
}

constexpr Entry kVerlKeys[] = {
    {"data.train_files", Action::map, "dataset"},
    {"data.val_files", Action::map, "eval_dataset"},
    {"data.train_batch_size", Action::map, "global_batch_size"},
    {"data.micro_batch_size_per_gpu", Action::map, "per_device_train_batch_size"},
    {"data.micro_batch_size", Action::weak, "per_device_train_batch_size"},
    {"data.max_length", Action::map, "cutoff_len"},
    {"data.truncation", Action::handled, "truncation", "", take_truncation},
    {"data.prompt_key", Action::fact, "prompt_column"},
    {"data.response_key", Action::fact, "response_column"},
    {"data.prompt_dict_keys", Action::refuse, "a row's columns are texts or lists of messages"},
    {"data.response_dict_keys", Action::refuse, "a row's columns are texts or lists of messages"},
    {"data.multiturn.enable", Action::fact, "messages_column"},
    {"data.multiturn.messages_key", Action::fact, "messages_column"},
    {"data.messages_key", Action::fact, "messages_column"},
    {"data.multiturn.tools_key", Action::refuse, "tools are read from the column 'tools'", "tools"},
    {"data.tools_key", Action::refuse, "tools are read from the column 'tools'", "tools"},
    {"data.multiturn.enable_thinking_key", Action::note, "enable_thinking says it for all rows"},
    {"data.enable_thinking_key", Action::note, "enable_thinking says it for all rows"},
    {"data.balance_dp_token", Action::note, "the loss is normalised by all trained tokens of a step"},
    {"data.train_max_samples", Action::minus_off, "max_samples"},
    {"data.val_max_samples", Action::refuse, "max_samples holds for all data sets", "-1"},
    {"data.chat_template", Action::map, "template"},
    {"data.custom_cls", Action::refuse, "no foreign code is run; rows are recognised by their fields"},
    {"data.use_shm", Action::note, kShm},
    {"model.partial_pretrain", Action::map, "model_name_or_path"},
    {"model.use_shm", Action::note, kShm},
    {"model.trust_remote_code", Action::map, "trust_remote_code"},
    {"model.external_lib", Action::refuse, "no code of others is run"},
    {"model.fsdp_config.model_dtype", Action::handled, "bf16 pure_bf16", "", take_model_dtype},
    {"model.fsdp_config.cpu_offload", Action::map, "optim_state_cpu_offload"},
    {"model.fsdp_config.offload_params", Action::refuse,
     "parameters stay on the device; model.fsdp_config.cpu_offload moves the optimizer's state"},
    {"model.fsdp_config.fsdp_size", Action::handled, "zero_group_size", "", take_group_size},
    {"model.fsdp_config.wrap_policy", Action::note, "parameters are cut and gathered by layer"},
    {"model.enable_gradient_checkpointing", Action::map, "gradient_checkpointing"},
    {"model.lora_rank", Action::fact, "finetuning_type lora_rank"},
    {"model.lora_alpha", Action::fact, "lora_alpha"},
    {"model.target_modules", Action::fact, "lora_target"},
    {"model.lora_adapter_path", Action::map, "adapter_name_or_path"},
    {"model.strategy", Action::fact, "zero_stage"},
    {"model.use_liger", Action::note, "kernels are always fused"},
    {"optim.lr", Action::map, "learning_rate"},
    {"optim.betas", Action::handled, "adam_beta1 adam_beta2", "", take_betas},
    {"optim.weight_decay", Action::map, "weight_decay"},
    {"optim.lr_warmup_steps_ratio", Action::map, "warmup_ratio"},
    {"optim.warmup_steps_ratio", Action::weak, "warmup_ratio"},
    {"optim.clip_grad", Action::map, "max_grad_norm"},
    {"optim.lr_scheduler", Action::map, "lr_scheduler_type", "wsd=warmup_stable_decay"},
    {"trainer.default_local_dir", Action::map, "output_dir"},
    {"trainer.default_hdfs_dir", Action::refuse, "checkpoints are written to a file system"},
    {"trainer.project_name", Action::note, "logs are written to output_dir"},
    {"trainer.experiment_name", Action::map, "run_name"},
    {"trainer.total_epochs", Action::map, "num_train_epochs"},
    {"trainer.total_training_steps", Action::map, "max_steps"},
    {"trainer.logger", Action::map, "report_to", "console=none"},
    {"trainer.seed", Action::map, "seed"},
    {"trainer.save_freq", Action::minus_off, "save_steps"},
    {"trainer.test_freq", Action::minus_off, "eval_steps", "", take_test_interval},
    {"trainer.nnodes", Action::note, kRanksOfLauncher},
    {"trainer.n_gpus_per_node", Action::note, kRanksOfLauncher},
    {"trainer.max_ckpt_to_keep", Action::map, "save_total_limit"},
    {"trainer.resume_mode", Action::fact, "resume_from_checkpoint"},
    {"trainer.resume_from_path", Action::fact, "resume_from_checkpoint"},
    {"trainer.resume_path", Action::fact, "resume_from_checkpoint"},
    {"trainer.checkpoint", Action::note, "a checkpoint always holds model, optimizer and progress"},
    {"trainer.device", Action::note, "device says where the program computes"},
    {"ulysses_sequence_parallel_size", Action::refuse, "sequences are not split over ranks", "1"},
    {"use_remove_padding", Action::note, "sequences are joined without padding, packed or not"},
};

}  // namespace

constinit const Dialect kVerl{.name = "verl", .keys = kVerlKeys, .settle = settle_verl};

// Resolves verl keys that depend on each other, and applies verl's defaults.

namespace {

class VerlFacts : FactsOf {
 public:
  using FactsOf::FactsOf;

  void settle() {
    sharding();
    resuming();
    columns();
    adapters();
  }

 private:
  // By default verl shards all states with FSDP and computes in bf16.
  void sharding() {
    const Fact* strategy = find("model.strategy");
    if (strategy != nullptr) {
      const bool told = given({"zero_stage", "deepspeed"});
      if (!told && word(strategy) != "fsdp" && word(strategy) != "fsdp2") wrong(*strategy, "fsdp or fsdp2");
      if (told) {
        sources_.note("'" + strategy->at.key + "' is ignored: another key sets how states are sharded");
      } else {
        set("zero_stage", "3", *strategy);
      }
    }
    // verl's defaults also apply if the command line names another model.
    for (const bool override : {true, false}) {
      const Setting* model = (override ? sources_.overrides : sources_.yaml).find("model_name_or_path");
      if (model != nullptr && model->at.key == "model.partial_pretrain")
        return defaults(model->at, override, strategy == nullptr);
    }
  }

  void defaults(const Location& at, bool override, bool shares) {
    if (shares && !given({"zero_stage", "deepspeed"})) {
      set("zero_stage", scalar_node("3"), at, override);
      sources_.note("'" + at.key + "' is a key of verl, which shards all states: zero_stage is set to 3");
    }
    if (!given({"bf16", "pure_bf16", "param_dtype"})) {
      set("bf16", scalar_node("true"), at, override);
      sources_.note("'" + at.key + "' is a key of verl, which computes in bf16: bf16 is set to true");
    }
  }

  // verl: mode auto takes resume_from_path, or else the newest checkpoint. Mode resume_path requires the
  // path.
  void resuming() {
    const Fact* mode = find("trainer.resume_mode");
    const Fact* path = strongest({"trainer.resume_from_path", "trainer.resume_path"});
    const std::string how = word(mode);
    const bool path_is_stronger = path != nullptr && path->override && (mode == nullptr || !mode->override);
    if (mode == nullptr || path_is_stronger) {
      if (path != nullptr) set("resume_from_checkpoint", path->node, *path);
    } else if (how == "disable" || (how == "auto" && path == nullptr)) {
      set("resume_from_checkpoint", how == "auto" ? "auto" : "false", *mode);
      if (path != nullptr)
        sources_.note("'" + path->at.key + "' is overridden by '" + mode->at.key + ": disable'");
    } else if (how == "auto" || how == "resume_path") {
      if (path == nullptr) {
        complain({.what = "'" + mode->at.key + ": resume_path' names no checkpoint",
                  .expected = "trainer.resume_from_path: a folder checkpoint-N",
                  .where = mode->at.where,
                  .fix = "give the path, or " + mode->at.key + ": auto for the newest checkpoint"});
      }
      set("resume_from_checkpoint", path->node, *path);
    } else {
      wrong(*mode, "auto, disable or resume_path");
    }
  }

  // verl: reads the messages of one column with multiturn.enable, and a question and an answer without it.
  void columns() {
    const Fact* multiturn = find("data.multiturn.enable");
    const Fact* messages = strongest({"data.multiturn.messages_key", "data.messages_key"});
    const Fact* prompt = find("data.prompt_key");
    const Fact* response = find("data.response_key");
    const auto on = multiturn == nullptr ? std::nullopt : read_bool(word(multiturn));
    if (multiturn != nullptr && !on) wrong(*multiturn, "true or false");
    const bool by_messages = on ? *on : messages != nullptr && prompt == nullptr && response == nullptr;
    if (by_messages) {
      if (messages != nullptr) {
        set("messages_column", messages->node, *messages);
      } else {
        set("messages_column", "messages", *multiturn);
      }
      return;
    }
    if (prompt != nullptr) set("prompt_column", prompt->node, *prompt);
    if (response != nullptr) set("response_column", response->node, *response);
  }

  // verl: trains adapters if the rank is not 0.
  void adapters() {
    const Fact* rank = find("model.lora_rank");
    const Fact* alpha = find("model.lora_alpha");
    const Fact* targets = find("model.target_modules");
    const auto size = rank == nullptr ? std::nullopt : read_number(word(rank));
    if (rank != nullptr && !size) wrong(*rank, "a whole number of at least 0");
    if (!size || *size == 0) return;
    set("finetuning_type", "lora", *rank);
    set("lora_rank", rank->node, *rank);
    alpha != nullptr ? set("lora_alpha", alpha->node, *alpha) : set("lora_alpha", "16", *rank);
    if (targets == nullptr || word(targets) == "all-linear") return;
    set("lora_target", targets->node, *targets);
  }
};

}  // namespace

void settle_verl(Sources& sources) {
  VerlFacts(sources).settle();
}

}  // namespace octet::config
