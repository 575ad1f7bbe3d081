// Resolves axolotl keys that depend on each other, and applies axolotl's defaults.
#include <algorithm>
#include <array>

#include "dialects/axolotl.h"
#include "octet/base/strings.h"

namespace octet::config {
namespace {

using namespace axolotl;

class Settled {
 public:
  explicit Settled(Sources& sources) : sources_(sources) {}

  void settle() {
    const Setting* model = strongest("model_name_or_path");
    if (const Fact* tokens = find("special_tokens"))
      require_own_tokens(*tokens, model == nullptr ? "" : model->value.text);
    if (model == nullptr) return;
    base_ = model->at;
    adapters();
    sharding();
    defaults();
    warm_up();
    logging();
    intervals();
    schedule();
    flags();
    if (!said_.empty())
      sources_.note("'" + base_.key +
                    "' is a key of axolotl, so axolotl's defaults apply to keys that are not set: " + said_);
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
  // Sets axolotl's default of a key. A key without a value counts as not given. Null on the command line
  // selects our default instead.
  void fall_back(const char* key, const std::string& text) {
    if (strongest(key) != nullptr || sources_.overrides.has(key)) return;
    sources_.yaml.add(key, scalar_node(text), base_, true);
    said_ += (said_.empty() ? "" : ", ") + std::string(key) + " " + text;
  }

  void adapters() {
    const Fact* adapter = find("adapter");
    const std::string kind = adapter == nullptr ? "" : word_of(adapter->node);
    if (adapter != nullptr && kind != "lora" && kind != "qlora") {
      complain({.what = "value of '" + adapter->at.key + "' cannot be used",
                .expected = "lora or qlora; without it all parameters are trained",
                .found = shown(adapter->node),
                .where = adapter->at.where,
                .fix = "write adapter: lora, or remove it to train all parameters"});
    }
    const Fact* four = find("load_in_4bit");
    const bool quantised = four != nullptr && is_on(*four);
    if (quantised && adapter == nullptr) {
      complain({.what = "'" + four->at.key + ": true' needs adapters",
                .expected = "adapter: qlora",
                .where = four->at.where,
                .fix = "add adapter: qlora, or remove " + four->at.key});
    }
    if (adapter == nullptr) return without_adapters();
    set("finetuning_type", kind, *adapter);
    if (quantised) set("quantization_bit", "4", *four);
    targets();
    for (const auto& [theirs, ours] : kAdapterKeys) {
      if (const Fact* fact = find(theirs)) set(ours, fact->node, fact->at, fact->override);
    }
  }

  // lora_target_linear selects all linear layers. Modules that are named in addition are either among them or
  // outside of the blocks.
  void targets() {
    const Fact* linear = find("lora_target_linear");
    const Fact* named = find("lora_target_modules");
    if (linear != nullptr && is_on(*linear)) {
      set("lora_target", "all", *linear);
      if (named == nullptr) return;
      for (const Node& item : list_of(named->node).items) {
        if (word_of(item) == "lm_head" || word_of(item) == "embed_tokens")
          wrong(item, named->at,
                "only linear layers of the blocks, together with '" + linear->at.key + ": true'",
                "name lm_head and embed_tokens in lora_modules_to_save, which trains them as a whole");
      }
      sources_.note("'" + named->at.key + "' changes nothing here: '" + linear->at.key +
                    "' names all linear layers");
    } else if (named != nullptr && word_of(named->node) == "all-linear") {
      set("lora_target", "all", *named);
    } else if (named != nullptr) {
      set("lora_target", named->node, named->at, named->override);
    }
  }

  // Notes adapter keys in a configuration that trains all parameters.
  void without_adapters() {
    Strings keys{"lora_target_modules"};
    for (const auto& [theirs, ours] : kAdapterKeys) keys.emplace_back(theirs);
    for (const auto& key : keys) {
      if (const Fact* fact = find(key))
        sources_.note("'" + fact->at.key + "' changes nothing here: there is no adapter");
    }
  }

  // Returns a key of fsdp_config. Older versions have the prefix fsdp_ in its name.
  static const Node* member(const Fact* config, const std::string& name) {
    if (config == nullptr) return nullptr;
    const Node* found = config->node.find(name);
    return found != nullptr ? found : config->node.find("fsdp_" + name);
  }

  // Returns FSDP's sharding strategy in lower case, without the underscore of experimental ones. PyTorch also
  // numbers the strategies from 1.
  static std::string sharding_of(const Node& node, const Location& at) {
    const Strings known{"full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2"};
    std::string way = lower_case(word_of(node));
    if (way.starts_with('_')) way.erase(0, 1);
    const auto number = read_number(way);
    if (number && *number >= 1 && *number <= 5) way = known[static_cast<std::size_t>(*number) - 1];
    if (std::ranges::find(known, way) == known.end())
      wrong(node, {at.where, at.key + ".fsdp_sharding_strategy"},
            "full_shard, shard_grad_op, no_shard, hybrid_shard or hybrid_shard_zero2");
    return way;
  }

  // Translates both versions of FSDP. The first lists words in fsdp; the second only needs fsdp_config.
  void sharding() {
    const Fact* words = find("fsdp");
    const Fact* config = find("fsdp_config");
    const Node list = words == nullptr ? Node() : list_of(words->node);
    const auto has = [&list](const std::string& word) {
      return std::ranges::any_of(
          list.items, [&](const Node& item) { return word_of(item).find(word) != std::string::npos; });
    };
    if (words != nullptr && has("offload"))
      wrong(words->node, words->at, "full_shard or shard_grad_op", kOnDevice);
    if (config != nullptr && config->node.kind != Node::Kind::map) wrong(config->node, config->at, "a map");
    for (const char* name : {"offload_params", "fsdp_offload_params", "cpu_offload", "fsdp_cpu_offload"}) {
      const Node* offloads = config == nullptr ? nullptr : config->node.find(name);
      if (offloads != nullptr && is_on(*offloads))
        wrong(*offloads, {config->at.where, config->at.key + "." + name}, "false", kOnDevice);
    }
    const bool listed =
        !list.items.empty() && !(list.items.size() == 1 && read_bool(word_of(list.items[0])) == false);
    const bool configured = config != nullptr && !config->node.members.empty();
    const Fact* shards = find("dp_shard_size");
    if (!listed && !configured) {
      if (shards != nullptr)
        sources_.note("'" + shards->at.key + "' changes nothing here: there is no fsdp_config");
      return;
    }
    const Node* reshard = member(config, "reshard_after_forward");
    const Node* strategy = configured ? member(config, "sharding_strategy") : nullptr;
    const std::string way = strategy == nullptr ? "" : sharding_of(*strategy, config->at);
    const bool keeps = has("shard_grad_op") || has("hybrid_shard_zero2") || way.ends_with("shard_grad_op") ||
                       way.ends_with("zero2") ||
                       (reshard != nullptr && read_bool(word_of(*reshard)) == false);
    const Fact& from = listed ? *words : *config;
    set("zero_stage", way == "no_shard" ? "0" : keeps ? "2" : "3", from);
    if (shards != nullptr) {
      set("zero_group_size", shards->node, shards->at, shards->override);
    } else if (has("hybrid_shard") || way.starts_with("hybrid")) {
      set("zero_group_size", "node", from);
    }
    if (!configured) return;
    const Node* recomputes = member(config, "activation_checkpointing");
    if (recomputes != nullptr && is_on(*recomputes)) {
      Settings& settings = config->override ? sources_.overrides : sources_.yaml;
      settings.add("gradient_checkpointing", scalar_node("true"), config->at, true);
    }
    sources_.note("of '" + config->at.key +
                  "' only offload_params, reshard_after_forward, sharding_strategy and "
                  "activation_checkpointing are read");
  }

  void defaults() {
    fall_back("output_dir", "./model-out");
    if (strongest("auto_find_batch_size") == nullptr) fall_back("per_device_train_batch_size", "1");
    if (strongest("max_steps") == nullptr) fall_back("num_train_epochs", "1");
    fall_back("cutoff_len", "512");
    if (find("cosine_min_lr_ratio") == nullptr) fall_back("lr_scheduler_type", "cosine");
    if (strongest("pure_bf16") == nullptr) fall_back("bf16", "true");
    fall_back("save_total_limit", "4");
    const Setting* stage = strongest("stage");
    if (stage != nullptr && stage->value.text == "pt") fall_back("packing", "false");
    if (strongest("truncation") == nullptr) {
      sources_.note(
          "rows that are longer than sequence_len are cut, but axolotl leaves them out; "
          "excess_length_strategy: raise ends the run instead");
    }
  }

  /// Returns the steps of the whole run if max_steps is set, else 0.
  std::int64_t known_steps() const {
    const Setting* steps = strongest("max_steps");
    return steps == nullptr ? 0 : std::max<std::int64_t>(steps->value.integer, 0);
  }

  // axolotl's warm-up: 3 % of the steps, rounded down, at most 100, and 2 instead of 1.
  void warm_up() {
    if (strongest("warmup_steps") != nullptr || strongest("warmup_ratio") != nullptr) return;
    if (const std::int64_t steps = known_steps()) {
      const std::int64_t warm = std::min<std::int64_t>(steps * 3 / 100, 100);
      if (warm > 0) fall_back("warmup_steps", std::to_string(warm == 1 ? 2 : warm));
      return;
    }
    fall_back("warmup_ratio", "0.03");
    sources_.note(
        "axolotl's own warm-up ends after 100 steps: in a run of more than 3,333 steps write warmup_steps: "
        "100");
  }

  // axolotl logs 200 times per run, and at least every ten steps.
  void logging() {
    const std::int64_t steps = known_steps();
    if (steps == 0) return fall_back("logging_steps", "0.005");
    fall_back("logging_steps", std::to_string(std::clamp<std::int64_t>(steps / 200, 1, 10)));
  }

  /// Returns how often per epoch; 0 if the key is missing or 0, which axolotl treats alike.
  double times_an_epoch(const Fact* fact) const {
    if (fact == nullptr) return 0;
    const auto times = read_number(word_of(fact->node));
    if (!times || *times < 0) {
      complain({.what = "value of '" + fact->at.key + "' cannot be used",
                .expected = "a number of at least 0",
                .found = shown(fact->node),
                .where = fact->at.where,
                .fix = "correct the value, or remove it"});
    }
    return *times;
  }

  // Converts N times per epoch to a share of all steps.
  void interval(const char* fact_name, const char* strategy, const char* steps) {
    const Fact* fact = find(fact_name);
    const double times = times_an_epoch(fact);
    if (times == 0) {
      // A number of steps selects the strategy `steps`, whatever the default strategy is.
      if (strongest(steps) != nullptr && strongest(strategy) == nullptr)
        sources_.yaml.add(strategy, scalar_node("steps"), base_, true);
      return;
    }
    const Setting* given = strongest(steps);
    const Setting* epochs = strongest("num_train_epochs");
    const double share = times * (epochs == nullptr ? 1.0 : epochs->value.number);
    if (times == 1 || share <= 1) return set(strategy, "epoch", *fact);
    set(strategy, "steps", *fact);
    set(steps, number_text(1 / share), *fact);
    if (given == nullptr || strongest(steps) != given) return;  // an override of the fact decides
    sources_.warnings.push_back(fact->at.where + ": " + fact->at.key + " is not read: " + given->at.key +
                                " (" + given->at.where + ") decides; to do: remove one of the two");
  }

  void intervals() {
    interval("saves_per_epoch", "save_strategy", "save_steps");
    fall_back("save_strategy", "epoch");
    const Setting* held_out = strongest("val_size");
    const bool holds_out = held_out != nullptr && held_out->value.number > 0;
    if (strongest("eval_dataset") == nullptr && !holds_out) return;
    interval("evals_per_epoch", "eval_strategy", "eval_steps");
    const Setting* strategy = strongest("eval_strategy");
    if (strategy == nullptr) {
      sources_.note(
          "there are rows to evaluate on, but no key says when: axolotl evaluates only with evals_per_epoch, "
          "eval_steps or eval_strategy");
    } else if (strategy->value.text != "no") {
      sources_.note(
          "axolotl evaluates before the first step, too; here the first evaluation follows eval_steps");
    }
  }

  void schedule() {
    const Fact* floor = find("cosine_min_lr_ratio");
    if (floor == nullptr) return;
    const Setting* type = strongest("lr_scheduler_type");
    if (type != nullptr && type->value.text != "cosine") {
      complain({.what = "'" + floor->at.key + "' is for lr_scheduler: cosine",
                .found = type->value.text,
                .where = floor->at.where,
                .fix = "write lr_scheduler: cosine, or remove " + floor->at.key});
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
    if (resume != nullptr && is_on(*resume)) set("resume_from_checkpoint", "auto", *resume);
    const Fact* board = find("use_tensorboard");
    if (board != nullptr && is_on(*board)) set("report_to", "tensorboard", *board);
  }

  static constexpr const char* kOnDevice =
      "parameters stay on the device; optim_state_cpu_offload: true moves the optimizer's state and the "
      "masters";
  static constexpr std::array<std::pair<const char*, const char*>, 6> kAdapterKeys{
      {{"lora_r", "lora_rank"},
       {"lora_alpha", "lora_alpha"},
       {"lora_dropout", "lora_dropout"},
       {"lora_modules_to_save", "additional_target"},
       {"peft_use_rslora", "use_rslora"},
       {"peft_use_dora", "use_dora"}}};

  Sources& sources_;
  Location base_;
  std::string said_;  ///< defaults that were applied
};

}  // namespace

void settle_axolotl(Sources& sources) {
  Settled(sources).settle();
}

}  // namespace octet::config
