// What several keys of a dialect mean together, whichever source each of them comes from.
#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "dialects.h"

namespace octet::config {
namespace {

/// Samples of a step where SFT-Play is to choose: what its guide comes to (4 a GPU, 4 times, 2 GPUs).
constexpr double kEffectiveBatch = 32;

class Facts {
 public:
  explicit Facts(Sources& sources) : sources_(sources) {}

  void settle() {
    batch();
    sharding();
    resuming();
    columns();
    adapters();
    held_out();
  }

 private:
  /// The fact, unless nothing or null was given.
  const Fact* find(const std::string& path) const {
    const auto found = sources_.facts.find(path);
    return found == sources_.facts.end() || found->second.node.is_null() ? nullptr : &found->second;
  }
  const Fact* first(std::initializer_list<const char*> paths) const {
    for (const char* path : paths) {
      if (const Fact* fact = find(path)) return fact;
    }
    return nullptr;
  }
  static std::string word(const Fact* fact) {
    return fact != nullptr && fact->node.kind == Node::Kind::scalar ? fact->node.text : "";
  }
  /// Whether one of our keys has a value from anywhere, which the command line has not taken back.
  bool given(std::initializer_list<const char*> keys) const {
    return std::ranges::any_of(keys, [&](const char* key) { return holds(key); });
  }
  bool holds(const char* key) const {
    for (const Settings* settings :
         {&sources_.overrides, &sources_.yaml, &sources_.deepspeed, &sources_.environment}) {
      if (const Setting* found = settings->find(key)) return found->value.given;
    }
    return false;
  }
  /// Sets a key of ours in the source of the fact. One that names the key itself counts.
  void set(const char* key, const Node& node, const Location& at, bool override) {
    Settings& settings = override ? sources_.overrides : sources_.yaml;
    if (const Setting* own = settings.find(key)) {
      if (own->at.key != at.key) sources_.note("'" + at.key + "' gives way to '" + own->at.key + "'");
      return;
    }
    settings.add(key, node, at);
  }
  void set(const char* key, const Node& node, const Fact& fact) { set(key, node, fact.at, fact.override); }
  void set(const char* key, const std::string& text, const Fact& fact) { set(key, scalar_node(text), fact); }
  [[noreturn]] static void wrong(const Fact& fact, const std::string& expected) {
    complain({.what = "value of '" + fact.at.key + "' cannot be used",
              .expected = expected,
              .found = shown(fact.node),
              .where = fact.at.where});
  }

  // SFT-Play: batch_size: auto and grad_accum: auto.
  void batch() {
    const Fact* batch = find("train.batch_size");
    const Fact* accumulation = find("train.grad_accum");
    const Setting* own = sources_.overrides.find("per_device_train_batch_size");
    const bool told = own != nullptr && own->value.given;
    if (batch != nullptr && (batch->override || !told)) {
      set("auto_find_batch_size", "true", *batch);
    } else {
      batch = nullptr;
    }
    const Fact* asks = accumulation != nullptr ? accumulation : batch;
    if (asks == nullptr || given({"global_batch_size", "gradient_accumulation_steps"})) return;
    double samples = kEffectiveBatch;
    const Setting* micro = sources_.overrides.find("per_device_train_batch_size");
    if (micro == nullptr) micro = sources_.yaml.find("per_device_train_batch_size");
    if (batch == nullptr) {
      const double of_one = micro != nullptr && micro->value.given
                                ? static_cast<double>(micro->value.integer)
                                : static_cast<double>(Config().per_device_train_batch_size);
      samples = of_one * std::max(1.0, std::round(kEffectiveBatch / of_one));
    }
    const std::string count = std::to_string(static_cast<std::int64_t>(samples));
    set("global_batch_size", count, *asks);
    sources_.note("'" + asks->at.key + ": auto' makes steps of " + count +
                  " samples over all ranks; global_batch_size sets another number");
  }

  // verl shards everything by FSDP and computes in bf16, also where nobody says so.
  void sharding() {
    const Fact* strategy = find("model.strategy");
    if (strategy != nullptr) {
      if (word(strategy) != "fsdp" && word(strategy) != "fsdp2") wrong(*strategy, "fsdp or fsdp2");
      if (given({"zero_stage", "deepspeed"})) {
        sources_.note("'" + strategy->at.key + "' gives way to what says how the ranks share out");
      } else {
        set("zero_stage", "3", *strategy);
      }
    }
    const bool override = sources_.overrides.has("model_name_or_path");
    const Setting* model = (override ? sources_.overrides : sources_.yaml).find("model_name_or_path");
    if (model == nullptr || model->at.key != "model.partial_pretrain") return;
    const Location at = model->at;
    if (strategy == nullptr && !given({"zero_stage", "deepspeed"})) {
      set("zero_stage", scalar_node("3"), at, override);
      sources_.note("'" + at.key + "' is verl's, whose ranks share out everything: zero_stage 3");
    }
    if (!given({"bf16", "pure_bf16", "param_dtype"})) {
      set("bf16", scalar_node("true"), at, override);
      sources_.note("'" + at.key + "' is verl's, which computes in bf16: bf16 true");
    }
  }

  // verl: auto takes resume_from_path, or else the newest checkpoint; resume_path needs the path.
  void resuming() {
    const Fact* mode = find("trainer.resume_mode");
    const Fact* path = first({"trainer.resume_from_path", "trainer.resume_path"});
    const std::string how = word(mode);
    const bool path_is_stronger = path != nullptr && path->override && (mode == nullptr || !mode->override);
    if (mode == nullptr || path_is_stronger) {
      if (path != nullptr) set("resume_from_checkpoint", path->node, *path);
    } else if (how == "disable" || (how == "auto" && path == nullptr)) {
      set("resume_from_checkpoint", how == "auto" ? "auto" : "false", *mode);
      if (path != nullptr)
        sources_.note("'" + path->at.key + "' gives way to '" + mode->at.key + ": disable'");
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

  // verl: with multiturn.enable the messages of a column, without it a question and an answer.
  void columns() {
    const Fact* multiturn = find("data.multiturn.enable");
    const Fact* messages = first({"data.multiturn.messages_key", "data.messages_key"});
    const Fact* prompt = find("data.prompt_key");
    const Fact* response = find("data.response_key");
    const auto on = multiturn == nullptr ? std::nullopt : read_bool(word(multiturn));
    if (multiturn != nullptr && !on) wrong(*multiturn, "true or false");
    const bool by_messages = on ? *on : messages != nullptr && prompt == nullptr && response == nullptr;
    if (by_messages) {
      if (messages != nullptr) return set("messages_column", messages->node, *messages);
      return set("messages_column", "messages", *multiturn);
    }
    if (prompt != nullptr) set("prompt_column", prompt->node, *prompt);
    if (response != nullptr) set("response_column", response->node, *response);
  }

  // verl: adapters where the rank is not 0.
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

  // SFT-Play divides one file; here what is not trained is held out.
  void held_out() {
    const Fact* trained = first({"data.split.train_ratio", "data.split.train"});
    if (trained == nullptr) return;
    const auto share = read_number(word(trained));
    if (!share || *share <= 0 || *share > 1) wrong(*trained, "a share above 0 and at most 1");
    if (given({"eval_dataset", "val_size"})) {
      sources_.note("'" + trained->at.key + "' is not read: other keys say what is evaluated");
    } else if (*share < 1) {
      set("val_size", number_text(std::round((1 - *share) * 1e9) / 1e9), *trained);
    }
  }

  Sources& sources_;
};

}  // namespace

void settle_facts(Sources& sources) {
  if (sources.axolotl) return settle_axolotl(sources);
  Facts(sources).settle();
}

}  // namespace octet::config
