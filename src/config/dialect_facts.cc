// What several keys of a dialect mean together, whichever source each of them comes from: what deciders
// share, and verl's.
#include "dialect_facts.h"

#include <algorithm>

namespace octet::config {

const Fact* FactsOf::find(const std::string& path) const {
  const auto found = sources_.facts.find(path);
  return found == sources_.facts.end() || found->second.node.is_null() ? nullptr : &found->second;
}

bool FactsOf::before(const Fact& a, const Fact& b) {
  if (a.override != b.override) return a.override;
  return !a.at.included && b.at.included;
}

const Fact* FactsOf::strongest(std::initializer_list<const char*> paths) {
  const Fact* best = nullptr;
  for (const char* path : paths) {
    const Fact* fact = find(path);
    if (fact != nullptr && (best == nullptr || before(*fact, *best))) best = fact;
  }
  for (const char* path : paths) {
    const Fact* fact = find(path);
    if (fact != nullptr && fact != best) give_way(*fact, *best);
  }
  return best;
}

std::string FactsOf::word(const Fact* fact) {
  return fact != nullptr && fact->node.kind == Node::Kind::scalar ? fact->node.text : "";
}

bool FactsOf::given(std::initializer_list<const char*> keys) const {
  return std::ranges::any_of(keys, [this](const char* key) {
    const Setting* found = setting(key);
    return found != nullptr && found->value.given;
  });
}

std::string FactsOf::value_of(const char* key) const {
  const Setting* found = setting(key);
  return found != nullptr && found->value.given ? canonical(*found->field, found->value) : "";
}

const Setting* FactsOf::setting(const char* key) const {
  for (const Settings* settings :
       {&sources_.overrides, &sources_.yaml, &sources_.deepspeed, &sources_.environment}) {
    if (const Setting* found = settings->find(key)) return found;
  }
  return nullptr;
}

bool FactsOf::overridden(const char* key, const Fact& fact) const {
  return !fact.override && sources_.overrides.has(key);
}

bool FactsOf::set(const char* key, const Node& node, const Location& at, bool override) {
  Settings& settings = override ? sources_.overrides : sources_.yaml;
  const Setting* own = settings.find(key);
  if (own != nullptr && !(own->at.included && !at.included)) {
    if (own->at.key != at.key) sources_.note("'" + at.key + "' gives way to '" + own->at.key + "'");
    return false;
  }
  settings.add(key, node, at);
  return true;
}

bool FactsOf::set(const char* key, const Node& node, const Fact& fact) {
  return set(key, node, fact.at, fact.override);
}

bool FactsOf::set(const char* key, const std::string& text, const Fact& fact) {
  return set(key, scalar_node(text), fact);
}

void FactsOf::give_way(const Fact& fact, const Fact& to) {
  sources_.note("'" + fact.at.key + "' gives way to '" + to.at.key + "'");
}

void FactsOf::wrong(const Fact& fact, const std::string& expected, const std::string& fix) {
  complain({.what = "value of '" + fact.at.key + "' cannot be used",
            .expected = expected,
            .found = shown(fact.node),
            .where = fact.at.where,
            .fix = fix});
}

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
  // verl shards everything by FSDP and computes in bf16, also where nobody says so.
  void sharding() {
    const Fact* strategy = find("model.strategy");
    if (strategy != nullptr) {
      const bool told = given({"zero_stage", "deepspeed"});
      if (!told && word(strategy) != "fsdp" && word(strategy) != "fsdp2") wrong(*strategy, "fsdp or fsdp2");
      if (told) {
        sources_.note("'" + strategy->at.key + "' gives way to what says how the ranks share out");
      } else {
        set("zero_stage", "3", *strategy);
      }
    }
    // It stays verl's configuration where the command line names another model.
    for (const bool override : {true, false}) {
      const Setting* model = (override ? sources_.overrides : sources_.yaml).find("model_name_or_path");
      if (model != nullptr && model->at.key == "model.partial_pretrain")
        return defaults(model->at, override, strategy == nullptr);
    }
  }

  void defaults(const Location& at, bool override, bool shares) {
    if (shares && !given({"zero_stage", "deepspeed"})) {
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
    const Fact* path = strongest({"trainer.resume_from_path", "trainer.resume_path"});
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
};

}  // namespace

void settle_facts(Sources& sources) {
  if (sources.axolotl) return settle_axolotl(sources);
  settle_sft_play(sources);
  VerlFacts(sources).settle();
}

}  // namespace octet::config
