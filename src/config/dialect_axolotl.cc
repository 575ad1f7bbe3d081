// axolotl's keys. Its configurations are told by `base_model`; names that are ours too and mean something
// else there (bf16, datasets, fsdp) are read as it reads them.
#include <algorithm>
#include <array>

#include "dialects.h"

namespace octet::config {
namespace {

constexpr const char* kFused = "kernels are always fused";
constexpr const char* kElsewhere = "logs lie in output_dir";
constexpr const char* kRead = "the architecture and the tokenizer are read from the model's folder";
constexpr const char* kNoUpload = "nothing is uploaded";

[[noreturn]] void wrong(const Node& node, const Location& at, const std::string& expected,
                        const std::string& fix = "") {
  complain({.what = "value of '" + at.key + "' cannot be used",
            .expected = expected,
            .found = shown(node),
            .where = at.where,
            .fix = fix});
}

std::string word_of(const Node& node) {
  return node.kind == Node::Kind::scalar ? node.text : "";
}

bool is_on(const Node& node) {
  return read_bool(word_of(node)).value_or(false);
}

Node list_of(const Node& node) {
  if (node.kind == Node::Kind::list) return node;
  Node list;
  list.kind = Node::Kind::list;
  list.items.push_back(node);
  return list;
}

// auto is true where the processor has bf16, which is everywhere here; full keeps weights in it too.
void take_bf16(const Node& node, const Location& at, const Target& target) {
  const std::string word = word_of(node);
  if (word == "full") return target.settings.add("pure_bf16", scalar_node("true"), at, target.replace);
  target.settings.add("bf16", word == "auto" ? scalar_node("true") : node, at, target.replace);
}

void take_fp16(const Node& node, const Location& at, const Target& target) {
  if (word_of(node) != "auto") target.settings.add("fp16", node, at, target.replace);
}

void take_tf32(const Node& node, const Location& at, const Target& target) {
  if (word_of(node) != "auto") target.settings.add("tf32", node, at, target.replace);
}

// Whatever keeps less of the activations; where they would be offloaded they are computed again.
void take_checkpointing(const Node& node, const Location& at, const Target& target) {
  const std::string word = word_of(node);
  const bool offloads = word == "unsloth" || word == "offload" || word == "offload_disk";
  target.settings.add("gradient_checkpointing", offloads ? scalar_node("true") : node, at, target.replace);
  if (offloads) target.sources.note("'" + at.key + ": " + word + "' computes activations again here");
}

// The templates that are named otherwise here.
void take_template(const Node& node, const Location& at, const Target& target) {
  static constexpr std::array<std::pair<const char*, const char*>, 4> kNames{
      {{"qwen_25", "qwen"}, {"phi_3", "phi"}, {"phi_35", "phi"}, {"mistral_v1", "mistral"}}};
  const std::string word = word_of(node);
  // The model's own is what nothing means here.
  if (word.starts_with("tokenizer_default") || word == "jinja") return;
  const auto* found = std::ranges::find(kNames, word, [](const auto& pair) { return pair.first; });
  target.settings.add("template", found == kNames.end() ? node : scalar_node(found->second), at,
                      target.replace);
}

void take_long_rows(const Node& node, const Location& at, const Target& target) {
  const std::string word = word_of(node);
  if (word != "drop" && word != "truncate" && word != "raise") wrong(node, at, "drop, truncate or raise");
  target.settings.add("truncation", scalar_node(word == "raise" ? "error" : "cut"), at, target.replace);
  if (word == "drop") {
    target.sources.note("'" + at.key +
                        ": drop' cuts long rows, where axolotl leaves them out; raise ends the run instead");
  }
}

void take_special_tokens(const Node& node, const Location& at, const Target&) {
  if (node.kind != Node::Kind::map) wrong(node, at, "a map of names to tokens");
  for (const auto& [name, token] : node.members) {
    if (name == "pad_token" || token.is_null()) continue;
    wrong(node, at, "pad_token alone, for nothing is padded with it here",
          "the tokenizer is taken as it is; write " + name + " into its tokenizer_config.json");
  }
}

// Liger and cut cross entropy are faster kernels of what is computed anyway.
void take_plugins(const Node& node, const Location& at, const Target& target) {
  for (const Node& plugin : list_of(node).items) {
    const std::string name = word_of(plugin);
    if (name.find("liger") == std::string::npos && name.find("cut_cross_entropy") == std::string::npos)
      wrong(plugin, at, "liger or cut_cross_entropy", "no code of others is run; remove it");
    target.sources.note("'" + at.key + ": " + name + "' changes nothing here: " + kFused);
  }
}

void refuse_offload(const Node& node, const Location& at) {
  for (const char* key : {"offload_params", "fsdp_offload_params", "cpu_offload"}) {
    const Node* found = node.find(key);
    if (found != nullptr && is_on(*found))
      wrong(*found, {at.where, at.key + "." + key}, "false", "parameters stay on the device");
  }
}

void take_fsdp(const Node& node, const Location& at, const Target& target) {
  const Node list = list_of(node);
  const auto has = [&list](const std::string& word) {
    return std::ranges::any_of(
        list.items, [&](const Node& item) { return word_of(item).find(word) != std::string::npos; });
  };
  if (list.items.empty() || (list.items.size() == 1 && read_bool(word_of(list.items[0])) == false)) return;
  if (has("offload")) wrong(node, at, "full_shard or shard_grad_op", "parameters stay on the device");
  target.settings.add("zero_stage", scalar_node(has("shard_grad_op") ? "2" : "3"), at, target.replace);
}

// The second version of FSDP has no other key.
void take_fsdp_config(const Node& node, const Location& at, const Target& target) {
  if (node.kind != Node::Kind::map) wrong(node, at, "a map");
  if (node.members.empty()) return;
  refuse_offload(node, at);
  const Node* reshard = node.find("reshard_after_forward");
  const bool keeps = reshard != nullptr && read_bool(word_of(*reshard)) == false;
  const Location own{at.where, at.key};
  if (!target.settings.has("zero_stage"))
    target.settings.add("zero_stage", scalar_node(keeps ? "2" : "3"), own, target.replace);
  target.sources.note("of '" + at.key + "' only offload_params and reshard_after_forward are read");
}

/// The list of sets, whose items are maps.
class Sets {
 public:
  Sets(const Location& at, const Target& target, bool trains) : at_(at), target_(target), trains_(trains) {
    paths_.kind = Node::Kind::list;
  }

  void take(const Node& node) {
    for (const Node& item : list_of(node).items) take_item(item);
    target_.settings.add(trains_ ? "dataset" : "eval_dataset", paths_, at_, target_.replace);
    if (!trains_ || texts_ == 0) return;
    const bool only_texts = texts_ == paths_.items.size();
    target_.settings.add("stage", scalar_node(only_texts ? "pt" : "sft"), at_, target_.replace);
  }

 private:
  static constexpr std::array kItem{"path",
                                    "type",
                                    "ds_type",
                                    "data_files",
                                    "split",
                                    "name",
                                    "field",
                                    "field_messages",
                                    "field_system",
                                    "field_tools",
                                    "message_property_mappings",
                                    "message_field_role",
                                    "message_field_content",
                                    "roles",
                                    "roles_to_train",
                                    "train_on_eos",
                                    "chat_template",
                                    "conversation"};

  [[noreturn]] void refuse(const Node& node, const std::string& key, const std::string& expected,
                           const std::string& fix) const {
    wrong(node, {at_.where, at_.key + "." + key}, expected, fix);
  }
  // Null, or one of these words.
  void only(const Node& item, const std::string& key, std::initializer_list<const char*> words,
            const std::string& fix) const {
    const Node* found = item.find(key);
    if (found == nullptr || found->is_null()) return;
    std::string expected;
    for (const char* word : words) {
      if (word_of(*found) == word) return;
      expected += (expected.empty() ? "" : ", ") + std::string(word);
    }
    refuse(*found, key, expected, fix);
  }

  void take_item(const Node& item) {
    if (item.kind != Node::Kind::map) refuse(item, "path", "a list of {path: FILE, type: chat_template}", "");
    const Strings known(kItem.begin(), kItem.end());
    for (const auto& [key, value] : item.members) {
      if (std::ranges::find(known, key) == known.end()) unknown_key(key, at_.where + ": " + at_.key, known);
    }
    const std::string by_columns = "name the columns in dataset_info.json, and the set in dataset";
    only(item, "split", {"train"}, by_columns);
    only(item, "name", {}, by_columns);
    only(item, "field", {"text"}, by_columns);
    only(item, "field_system", {"system"}, by_columns);
    only(item, "field_tools", {"tools"}, by_columns);
    only(item, "message_field_role", {"role", "from"}, by_columns);
    only(item, "message_field_content", {"content", "value"}, by_columns);
    only(item, "train_on_eos", {"turn"}, "the end of each answer is trained");
    take_mappings(item, by_columns);
    take_roles(item);
    take_type(item);
    take_path(item);
    const Node* messages = item.find("field_messages");
    if (messages != nullptr && !messages->is_null())
      target_.settings.add("messages_column", *messages, {at_.where, at_.key + ".field_messages"},
                           target_.replace);
    const Node* chat = item.find("chat_template");
    if (chat != nullptr && !chat->is_null())
      take_template(*chat, {at_.where, at_.key + ".chat_template"}, target_);
  }

  void take_mappings(const Node& item, const std::string& fix) const {
    const Node* maps = item.find("message_property_mappings");
    if (maps == nullptr || maps->is_null()) return;
    if (maps->kind != Node::Kind::map) refuse(*maps, "message_property_mappings", "a map", fix);
    only(*maps, "role", {"role", "from"}, fix);
    only(*maps, "content", {"content", "value"}, fix);
  }

  void take_roles(const Node& item) const {
    if (item.find("roles") != nullptr)
      target_.sources.note("'" + at_.key +
                           ".roles' changes nothing here: the usual names of roles are known");
    const Node* trained = item.find("roles_to_train");
    if (trained == nullptr || trained->is_null()) return;
    for (const Node& role : list_of(*trained).items) {
      if (word_of(role) != "assistant" && word_of(role) != "gpt" && word_of(role) != "model")
        refuse(*trained, "roles_to_train", "assistant", "answers are trained; train_on_inputs adds the rest");
    }
  }

  void take_type(const Node& item) {
    const Node* type = item.find("type");
    if (type == nullptr || type->is_null()) return;
    if (type->kind == Node::Kind::map)
      refuse(*type, "type", "a name such as chat_template, alpaca or completion",
             "rows are recognised by their fields, and written by chat_template");
    const std::string word = word_of(*type);
    if (word.starts_with("completion") || word.starts_with("pretrain")) {
      ++texts_;
    } else if (!word.starts_with("chat_template") && !word.starts_with("sharegpt")) {
      target_.sources.note("'" + at_.key + ".type: " + word +
                           "' asks for a prompt of axolotl's; here rows become conversations that "
                           "chat_template writes");
    }
  }

  // A path may be the name of a format, whose files stand beside it.
  void take_path(const Node& item) {
    const Node* path = item.find("path");
    const Node* files = item.find("data_files");
    if (path == nullptr || path->kind != Node::Kind::scalar)
      refuse(item, "path", "the path or the name of a data set", "");
    const std::string word = path->text;
    const bool format = word == "json" || word == "csv" || word == "parquet" || word == "text";
    if (files == nullptr || files->is_null()) return paths_.items.push_back(*path);
    for (Node file : list_of(*files).items) {
      if (!format) file.text = word + "/" + file.text;
      paths_.items.push_back(file);
    }
  }

  const Location& at_;
  const Target& target_;
  bool trains_;
  Node paths_;
  std::size_t texts_ = 0;
};

void take_datasets(const Node& node, const Location& at, const Target& target) {
  Sets(at, target, true).take(node);
}

void take_test_datasets(const Node& node, const Location& at, const Target& target) {
  Sets(at, target, false).take(node);
}

constexpr Entry kKeys[] = {
    {"base_model", Action::map, "model_name_or_path"},
    {"base_model_config", Action::refuse, kRead},
    {"tokenizer_config", Action::refuse, kRead},
    {"model_type", Action::note, kRead},
    {"tokenizer_type", Action::note, kRead},
    {"tokenizer_use_fast", Action::note, kRead},
    {"tokenizer_legacy", Action::note, kRead},
    {"tokenizer_use_mistral_common", Action::refuse, kRead},
    {"is_falcon_derived_model", Action::note, kRead},
    {"is_llama_derived_model", Action::note, kRead},
    {"is_mistral_derived_model", Action::note, kRead},
    {"is_qwen_derived_model", Action::note, kRead},
    {"overrides_of_model_config", Action::refuse, "change the model's config.json"},
    {"overrides_of_model_kwargs", Action::refuse, "change the model's config.json"},
    {"revision_of_model", Action::map, "model_revision"},
    {"special_tokens", Action::checked, "nothing is padded", "", take_special_tokens},
    {"tokens", Action::refuse, "the tokenizer is taken as it is; extend it beforehand"},
    {"resize_token_embeddings_to_32x", Action::refuse, "embeddings have the rows that the model has"},
    {"datasets", Action::handled, "dataset stage messages_column template", "", take_datasets},
    {"test_datasets", Action::handled, "eval_dataset", "", take_test_datasets},
    {"pretraining_dataset", Action::refuse, "write it as a data set of type: completion"},
    {"shuffle_merged_datasets", Action::note, "disable_shuffling says whether samples are shuffled"},
    {"dataset_prepared_path", Action::map, "tokenized_path"},
    {"dataset_processes", Action::map, "preprocessing_num_workers"},
    {"dataset_num_proc", Action::map, "preprocessing_num_workers"},
    {"dataset_keep_in_memory", Action::note, "tokens are mapped from files where they are large"},
    {"val_set_size", Action::map, "val_size"},
    {"train_on_inputs", Action::map, "train_on_prompt"},
    {"chat_template", Action::handled, "template", "", take_template},
    {"chat_template_jinja", Action::map, "template"},
    {"default_system_message", Action::map, "default_system"},
    {"sequence_len", Action::map, "cutoff_len"},
    {"excess_length_strategy", Action::handled, "truncation", "", take_long_rows},
    {"eval_sequence_len", Action::refuse, "evaluation has the length of training"},
    {"sample_packing", Action::map, "packing"},
    {"eval_sample_packing", Action::note, "samples never see each other, packed or not"},
    {"pad_to_sequence_len", Action::note, "sequences are joined without padding"},
    {"multipack_real_batches", Action::note, "sequences are joined without padding"},
    {"sample_packing_group_size", Action::note, "packing looks at the whole set"},
    {"sample_packing_bin_size", Action::note, "packing looks at the whole set"},
    {"adapter", Action::fact, "finetuning_type"},
    {"load_in_8bit", Action::refuse, "weights are quantised to 4 bits: load_in_4bit: true"},
    {"load_in_4bit", Action::fact, "quantization_bit"},
    {"lora_model_dir", Action::map, "adapter_name_or_path"},
    {"lora_r", Action::fact, "lora_rank"},
    {"lora_alpha", Action::fact, "lora_alpha"},
    {"lora_dropout", Action::fact, "lora_dropout"},
    {"lora_target_modules", Action::fact, "lora_target"},
    {"lora_target_linear", Action::fact, "lora_target"},
    {"lora_modules_to_save", Action::fact, "additional_target"},
    {"lora_fan_in_fan_out", Action::refuse, "weights are as the model's folder has them"},
    {"lora_mlp_kernel", Action::note, kFused},
    {"lora_qkv_kernel", Action::note, kFused},
    {"lora_o_kernel", Action::note, kFused},
    {"peft_use_rslora", Action::fact, "use_rslora"},
    {"peft_use_dora", Action::fact, "use_dora"},
    {"relora", Action::refuse, "adapters of this kind are not built; adapter: lora trains others"},
    {"unfrozen_parameters", Action::refuse, "freeze_trainable_layers says what is trained"},
    {"micro_batch_size", Action::map, "per_device_train_batch_size"},
    {"batch_size", Action::refuse, "global_batch_size is the number of samples of a step over all ranks"},
    {"eval_batch_size", Action::map, "per_device_eval_batch_size"},
    {"num_epochs", Action::map, "num_train_epochs"},
    {"optimizer", Action::map, "optim"},
    {"optim_args", Action::refuse, "AdamW's arguments have keys: adam_beta1, adam_beta2, adam_epsilon"},
    {"lr_scheduler", Action::map, "lr_scheduler_type"},
    {"cosine_min_lr_ratio", Action::fact, "lr_scheduler_type lr_scheduler_kwargs"},
    {"cosine_constant_lr_ratio", Action::refuse,
     "lr_scheduler: warmup_stable_decay keeps a rate for a while"},
    {"loss_watchdog_threshold", Action::refuse, "loss_spike_factor says what is done about spikes"},
    {"noisy_embedding_alpha", Action::refuse, "noise on embeddings is not built"},
    {"bf16", Action::handled, "bf16 pure_bf16", "", take_bf16},
    {"bfloat16", Action::map, "pure_bf16"},
    {"fp16", Action::handled, "fp16", "", take_fp16},
    {"float16", Action::map, "fp16"},
    {"tf32", Action::handled, "tf32", "", take_tf32},
    {"gradient_checkpointing", Action::handled, "gradient_checkpointing", "", take_checkpointing},
    {"activation_offloading", Action::refuse, "activations are computed again: gradient_checkpointing: true"},
    {"flash_attention", Action::note, "attention is always fused"},
    {"xformers_attention", Action::note, "attention is always fused"},
    {"sdp_attention", Action::note, "attention is always fused"},
    {"flex_attention", Action::note, "attention is always fused"},
    {"eager_attention", Action::note, "attention is always fused"},
    {"attn_implementation", Action::note, "attention is always fused"},
    {"flash_attn_cross_entropy", Action::note, kFused},
    {"flash_attn_rms_norm", Action::note, kFused},
    {"flash_attn_fuse_mlp", Action::note, kFused},
    {"s2_attention", Action::refuse, "attention sees the whole sequence"},
    {"plugins", Action::checked, kFused, "", take_plugins},
    {"liger_rope", Action::note, kFused},
    {"liger_rms_norm", Action::note, kFused},
    {"liger_glu_activation", Action::note, kFused},
    {"liger_layer_norm", Action::note, kFused},
    {"liger_fused_linear_cross_entropy", Action::note, kFused},
    {"cut_cross_entropy", Action::note, kFused},
    {"unsloth_cross_entropy_loss", Action::note, kFused},
    {"fsdp", Action::handled, "zero_stage", "", take_fsdp},
    {"fsdp_config", Action::handled, "zero_stage", "", take_fsdp_config},
    {"fsdp_version", Action::note, "ranks share out parameters by zero_stage"},
    {"fsdp_final_state_dict_type", Action::note, "the final model is always whole"},
    {"context_parallel_size", Action::refuse, "sequences are not split over ranks", "1"},
    {"sequence_parallel_degree", Action::refuse, "sequences are not split over ranks", "1"},
    {"tensor_parallel_size", Action::refuse, "layers are not split over ranks", "1"},
    {"evals_per_epoch", Action::fact, "eval_strategy eval_steps"},
    {"saves_per_epoch", Action::fact, "save_strategy save_steps"},
    {"eval_table_size", Action::refuse, "answers come from trainer generate"},
    {"eval_causal_lm_metrics", Action::refuse, "evaluation computes the loss"},
    {"do_bench_eval", Action::refuse, "evaluation computes the loss"},
    {"early_stopping_patience", Action::refuse, "early stopping is not built; use max_steps"},
    {"auto_resume_from_checkpoints", Action::fact, "resume_from_checkpoint"},
    {"rl", Action::refuse, "only supervised training is built"},
    {"reward_model", Action::refuse, "only supervised training is built"},
    {"process_reward_model", Action::refuse, "only supervised training is built"},
    {"use_tensorboard", Action::fact, "report_to"},
    {"use_wandb", Action::note, kElsewhere},
    {"wandb_mode", Action::note, kElsewhere},
    {"wandb_project", Action::note, kElsewhere},
    {"wandb_entity", Action::note, kElsewhere},
    {"wandb_watch", Action::note, kElsewhere},
    {"wandb_name", Action::weak, "run_name"},
    {"wandb_run_id", Action::note, kElsewhere},
    {"wandb_log_model", Action::note, kElsewhere},
    {"mlflow_tracking_uri", Action::note, kElsewhere},
    {"mlflow_experiment_name", Action::note, kElsewhere},
    {"use_mlflow", Action::note, kElsewhere},
    {"use_comet", Action::note, kElsewhere},
    {"hub_strategy", Action::note, kNoUpload},
    {"hf_use_auth_token", Action::note, kNoUpload},
    {"push_dataset_to_hub", Action::note, kNoUpload},
    {"strict", Action::note, "a key that nobody knows is always an error"},
    {"debug", Action::note, "trainer encode shows what a row becomes"},
    {"device_map", Action::note, "each rank has a device of its own"},
    {"gpu_memory_limit", Action::refuse, "trainer plan memory=80GB tells what fits"},
    {"low_cpu_mem_usage", Action::note, "weights are mapped from their files"},
};

/// What several keys mean together, and what axolotl does where nothing is said.
class Settled {
 public:
  explicit Settled(Sources& sources) : sources_(sources) {}

  void settle() {
    const Setting* model = strongest("model_name_or_path");
    if (model == nullptr) return;
    base_ = model->at;
    adapters();
    defaults();
    intervals();
    schedule();
    flags();
    if (!said_.empty())
      sources_.note("'" + base_.key + "' is axolotl's, whose defaults hold where nothing is said: " + said_);
  }

 private:
  const Fact* find(const std::string& path) const {
    const auto found = sources_.facts.find(path);
    return found == sources_.facts.end() || found->second.node.is_null() ? nullptr : &found->second;
  }
  const Setting* strongest(const std::string& key) const {
    for (const Settings* settings :
         {&sources_.overrides, &sources_.yaml, &sources_.deepspeed, &sources_.environment}) {
      const Setting* found = settings->find(key);
      if (found != nullptr) return found->value.given ? found : nullptr;
    }
    return nullptr;
  }
  void set(const char* key, const Node& node, const Location& at, bool override) {
    Settings& settings = override ? sources_.overrides : sources_.yaml;
    if (settings.has(key) || (!override && strongest(key) != nullptr)) return;
    settings.add(key, node, at);
  }
  void set(const char* key, const std::string& text, const Fact& fact) {
    set(key, scalar_node(text), fact.at, fact.override);
  }
  void fall_back(const char* key, const char* text) {
    if (strongest(key) != nullptr) return;
    sources_.yaml.add(key, scalar_node(text), base_);
    said_ += (said_.empty() ? "" : ", ") + std::string(key) + " " + text;
  }

  void adapters() {
    const Fact* adapter = find("adapter");
    const std::string kind = adapter == nullptr ? "" : word_of(adapter->node);
    if (adapter != nullptr && kind != "lora" && kind != "qlora") {
      complain({.what = "value of '" + adapter->at.key + "' cannot be used",
                .expected = "lora or qlora; without it all parameters are trained",
                .found = shown(adapter->node),
                .where = adapter->at.where});
    }
    const Fact* four = find("load_in_4bit");
    const bool quantised = four != nullptr && is_on(four->node);
    if (quantised && adapter == nullptr) {
      complain({.what = "'" + four->at.key + ": true' needs adapters",
                .expected = "adapter: qlora",
                .where = four->at.where,
                .fix = "add adapter: qlora, or remove " + four->at.key});
    }
    if (adapter == nullptr) return without_adapters();
    set("finetuning_type", kind, *adapter);
    if (quantised) set("quantization_bit", "4", *four);
    for (const auto& [theirs, ours] : kAdapterKeys) {
      if (const Fact* fact = find(theirs)) set(ours, fact->node, fact->at, fact->override);
    }
    const Fact* linear = find("lora_target_linear");
    if (linear != nullptr && is_on(linear->node)) set("lora_target", "all", *linear);
  }

  // Files keep the keys of adapters beside training of all parameters.
  void without_adapters() {
    for (const auto& [theirs, ours] : kAdapterKeys) {
      if (const Fact* fact = find(theirs))
        sources_.note("'" + fact->at.key + "' changes nothing here: there is no adapter");
    }
  }

  void defaults() {
    if (strongest("auto_find_batch_size") == nullptr) fall_back("per_device_train_batch_size", "1");
    if (strongest("max_steps") == nullptr) fall_back("num_train_epochs", "1");
    fall_back("cutoff_len", "512");
    if (find("cosine_min_lr_ratio") == nullptr) fall_back("lr_scheduler_type", "cosine");
    if (strongest("pure_bf16") == nullptr) fall_back("bf16", "true");
    const Setting* stage = strongest("stage");
    if (stage != nullptr && stage->value.text == "pt") fall_back("packing", "false");
    if (strongest("truncation") == nullptr) {
      sources_.note(
          "rows that are longer than sequence_len are cut, where axolotl leaves them out; "
          "excess_length_strategy: raise ends the run instead");
    }
  }

  // N times an epoch, as a share of all steps; without a word at the end of each epoch.
  void interval(const char* fact_name, const char* strategy, const char* steps, bool wanted) {
    const Fact* fact = find(fact_name);
    if (fact == nullptr) {
      if (strongest(steps) != nullptr) {
        if (strongest(strategy) == nullptr) sources_.yaml.add(strategy, scalar_node("steps"), base_);
      } else if (wanted) {
        fall_back(strategy, "epoch");
      }
      return;
    }
    const auto times = read_number(word_of(fact->node));
    if (!times || *times < 0) {
      complain({.what = "value of '" + fact->at.key + "' cannot be used",
                .expected = "a number of at least 0",
                .found = shown(fact->node),
                .where = fact->at.where});
    }
    const Setting* epochs = strongest("num_train_epochs");
    const double share = *times * (epochs == nullptr ? 1.0 : epochs->value.number);
    if (*times == 0) {
      set(strategy, "no", *fact);
    } else if (*times == 1 || share <= 1) {
      set(strategy, "epoch", *fact);
    } else {
      set(strategy, "steps", *fact);
      set(steps, number_text(1 / share), *fact);
    }
  }

  void intervals() {
    interval("saves_per_epoch", "save_strategy", "save_steps", true);
    const Setting* held_out = strongest("val_size");
    const bool evaluates =
        strongest("eval_dataset") != nullptr || (held_out != nullptr && held_out->value.number > 0);
    if (evaluates) interval("evals_per_epoch", "eval_strategy", "eval_steps", true);
  }

  void schedule() {
    const Fact* floor = find("cosine_min_lr_ratio");
    if (floor == nullptr) return;
    const Setting* type = strongest("lr_scheduler_type");
    if (type != nullptr && type->value.text != "cosine") {
      complain({.what = "'" + floor->at.key + "' is for lr_scheduler: cosine",
                .found = type->value.text,
                .where = floor->at.where});
    }
    Settings& settings = floor->override ? sources_.overrides : sources_.yaml;
    Node arguments;
    arguments.kind = Node::Kind::map;
    arguments.members.emplace_back("min_lr_rate", floor->node);
    settings.add("lr_scheduler_type", scalar_node("cosine_with_min_lr"), floor->at, true);
    settings.add("lr_scheduler_kwargs", arguments, floor->at, true);
  }

  void flags() {
    const Fact* resume = find("auto_resume_from_checkpoints");
    if (resume != nullptr && is_on(resume->node)) set("resume_from_checkpoint", "auto", *resume);
    const Fact* board = find("use_tensorboard");
    if (board != nullptr && is_on(board->node)) set("report_to", "tensorboard", *board);
  }

  static constexpr std::array<std::pair<const char*, const char*>, 7> kAdapterKeys{
      {{"lora_r", "lora_rank"},
       {"lora_alpha", "lora_alpha"},
       {"lora_dropout", "lora_dropout"},
       {"lora_target_modules", "lora_target"},
       {"lora_modules_to_save", "additional_target"},
       {"peft_use_rslora", "use_rslora"},
       {"peft_use_dora", "use_dora"}}};

  Sources& sources_;
  Location base_;
  std::string said_;  ///< defaults that were taken
};

}  // namespace

std::span<const Entry> axolotl_keys() {
  return kKeys;
}

void settle_axolotl(Sources& sources) {
  Settled(sources).settle();
}

}  // namespace octet::config
