// Resolves verl keys that depend on each other, and applies verl's defaults.
#include "dialects/dialect_facts.h"

namespace octet::config {
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
