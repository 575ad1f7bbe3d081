// Translates the sections `optimizer` and `scheduler` of DeepSpeed JSON, like deepspeed/runtime/engine.py and
// deepspeed/runtime/lr_schedules.py.
#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "dialects/dialects.h"
#include "octet/base/strings.h"
#include "settings.h"

namespace octet::config {
namespace {

// Whether the YAML decides a value: it is null or "auto".
bool is_open(const Node* node) {
  return node == nullptr || node->is_null() || (node->kind == Node::Kind::scalar && node->text == "auto");
}

/// One of the two sections: its type and its parameters. Unknown parameters are errors.
class Section {
 public:
  Section(const Node& node, std::string path, std::string name)
      : path_(std::move(path)), name_(std::move(name)) {
    require_map(node, path_);
    for (const auto& [key, value] : node.members) {
      if (key == "type") {
        if (!is_open(&value)) type_ = &value;
      } else if (key == "params") {
        if (is_open(&value)) continue;
        require_map(value, path_ + ".params");
        params_ = &value;
      } else {
        unknown(path_ + "." + key, {path_ + ".type", path_ + ".params"}, value);
      }
    }
  }

  const Node* type() const { return type_; }
  Location at(const std::string& param) const {
    const Node* node = params_ != nullptr ? params_->find(param) : nullptr;
    const std::string key = path_ + "." + (param == "type" ? "" : "params.") + param;
    return {place(name_, node != nullptr ? node->line : 0) + ": " + key, key};
  }
  /// Returns null if the YAML decides the value.
  const Node* find(const std::string& param) const {
    const Node* node = params_ != nullptr ? params_->find(param) : nullptr;
    return is_open(node) ? nullptr : node;
  }
  bool has(const std::string& param) const { return params_ != nullptr && params_->find(param) != nullptr; }
  /// Throws Error for a parameter that is not in `known`.
  void allow(std::span<const std::string_view> known) const {
    if (params_ == nullptr) return;
    Strings paths;
    for (const auto& param : known) paths.push_back(path_ + ".params." + std::string(param));
    for (const auto& [key, value] : params_->members) {
      if (std::ranges::find(known, key) == known.end()) unknown(path_ + ".params." + key, paths, value);
    }
  }
  // Refuses the type, unless a stronger source sets our key.
  void refuse_type(const char* key, const char* expected, const char* fix, Settings& settings) const {
    settings.refuse(key, *type_, at("type"),
                    {.what = "'" + path_ + ".type' is not supported",
                     .expected = expected,
                     .found = shown(*type_),
                     .where = at("type").where,
                     .fix = fix});
  }

 private:
  void require_map(const Node& node, const std::string& key) const {
    if (node.kind == Node::Kind::map) return;
    complain({.what = "'" + key + "' must be an object",
              .found = shown(node),
              .where = place(name_, node.line),
              .fix = "write {...} there, or remove it"});
  }
  [[noreturn]] void unknown(const std::string& key, const Strings& known, const Node& value) const {
    const std::string near = nearest_name(key, known);
    complain({.what = "unknown DeepSpeed key '" + key + "'",
              .where = place(name_, value.line) + ": " + key,
              .fix = near.empty() ? "remove it: DeepSpeed would refuse it" : "did you mean '" + near + "'?"});
  }

  std::string path_, name_;
  const Node* type_ = nullptr;
  const Node* params_ = nullptr;
};

bool flag_of(const Section& section, const std::string& param, bool fallback) {
  const Node* node = section.find(param);
  if (node == nullptr) return fallback;
  const auto flag = node->kind == Node::Kind::scalar ? read_bool(node->text) : std::nullopt;
  if (!flag) {
    complain({.what = "value of '" + section.at(param).key + "' cannot be used",
              .expected = "true or false",
              .found = shown(*node),
              .where = section.at(param).where,
              .fix = "correct the value, or remove it"});
  }
  return *flag;
}

// Returns the weight decay of the strongest source.
double weight_decay_of(const Sources& sources) {
  for (const Settings* settings :
       {&sources.overrides, &sources.yaml, &sources.deepspeed, &sources.environment}) {
    const Setting* found = settings->find("weight_decay");
    if (found != nullptr && found->value.given) return found->value.number;
  }
  return Config{}.weight_decay;
}

// Type Adam is AdamW unless adam_w_mode is false; type AdamW always is.
void check_decay(const Section& section, Sources& sources) {
  const bool decoupled = flag_of(section, "adam_w_mode", true);
  if (decoupled) return;
  const std::string type = section.type() != nullptr ? lower_case(section.type()->text) : "";
  if (type != "adam") {
    sources.note(
        "'optimizer.params.adam_w_mode: false' changes nothing here, nor in DeepSpeed: the type AdamW always "
        "decouples the decay");
    return;
  }
  const double decay = weight_decay_of(sources);
  if (decay == 0) return;  // without weight decay both are the same
  complain({.what = "'optimizer.params.adam_w_mode: false' with a weight decay is not supported",
            .expected = "decoupled weight decay (AdamW), or none",
            .found = "type Adam with weight_decay " + number_text(decay) + ", which is added to the gradient",
            .where = section.at("adam_w_mode").where,
            .fix = "set adam_w_mode: true or weight_decay: 0"});
}

void require_flag(const Section& section, const std::string& param, bool needed, const char* why) {
  if (flag_of(section, param, needed) == needed) return;
  complain({.what = "'" + section.at(param).key + ": " + (needed ? "false" : "true") + "' is not supported",
            .expected = param + ": " + (needed ? "true" : "false"),
            .found = needed ? "false" : "true",
            .where = section.at(param).where,
            .fix = std::string("remove it: ") + why});
}

void add_betas(const Section& section, Settings& settings) {
  const Node* betas = section.find("betas");
  if (betas == nullptr) return;
  const Location at = section.at("betas");
  if (betas->kind != Node::Kind::list || betas->items.size() != 2) {
    complain({.what = "'" + at.key + "' cannot be used",
              .expected = "a list of two numbers",
              .found = shown(*betas),
              .where = at.where,
              .fix = "write [0.9, 0.999], or \"auto\""});
  }
  settings.add("adam_beta1", betas->items[0], at);
  settings.add("adam_beta2", betas->items[1], at);
}

/// A scheduler of DeepSpeed.
struct Scheduler {
  std::string_view type;
  const char* ours;
  std::array<std::string_view, 5> params;
};

constexpr Scheduler kSchedulers[] = {
    {"WarmupLR",
     "deepspeed_warmup",
     {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type", ""}},
    {"WarmupDecayLR",
     "deepspeed_warmup_decay",
     {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type", "total_num_steps"}},
    {"WarmupCosineLR",
     "deepspeed_warmup_cosine",
     {"warmup_min_ratio", "cos_min_ratio", "warmup_num_steps", "warmup_type", "total_num_steps"}},
};

// Sets `key` from the parameter. A missing parameter gives DeepSpeed's default; "auto" leaves it to the YAML.
void add_or_default(const Section& section, const std::string& param, const char* key, const char* fallback,
                    Settings& settings) {
  Location at = section.at(param);
  if (const Node* node = section.find(param)) {
    settings.add(key, *node, at, true);
  } else if (!section.has(param)) {
    at.where += " (DeepSpeed's default)";
    settings.add(key, scalar_node(fallback), at, true);
  }
}

// Sets the peak of the schedule, which overrides the optimizer's learning rate.
void add_peak(const Section& section, std::string_view type, Sources& sources) {
  if (type == "WarmupCosineLR") return;  // its peak is the optimizer's learning rate
  Settings& settings = sources.deepspeed;
  const Setting* before = settings.find("learning_rate");
  const double rate = before != nullptr ? before->value.number : -1;
  add_or_default(section, "warmup_max_lr", "learning_rate", "0.001", settings);
  const Setting* after = settings.find("learning_rate");
  if (rate < 0 || after->value.number == rate) return;
  sources.note("'optimizer.params.lr: " + number_text(rate) +
               "' changes nothing here, nor in DeepSpeed: the "
               "schedule rises to " +
               number_text(after->value.number) + " (" + after->at.where + ")");
}

}  // namespace

void translate_deepspeed_optimizer(const Node& node, const std::string& name, Sources& sources) {
  if (is_open(&node)) return;
  const Section section(node, "optimizer", name);
  if (section.type() != nullptr) {
    const std::string type = lower_case(section.type()->text);
    if (type != "adam" && type != "adamw") {
      return section.refuse_type("optim", "AdamW, or Adam",
                                 "remove the section: the optimizer is AdamW; optim=adamw_torch on the "
                                 "command line leaves it unread",
                                 sources.deepspeed);
    }
  }
  static constexpr std::string_view kParams[] = {"lr",           "betas",           "eps",
                                                 "weight_decay", "torch_adam",      "adam_w_mode",
                                                 "amsgrad",      "bias_correction", "fp32_optimizer_states"};
  section.allow(kParams);
  Settings& settings = sources.deepspeed;
  for (const auto& [param, key] : {std::pair<const char*, const char*>{"lr", "learning_rate"},
                                   {"eps", "adam_epsilon"},
                                   {"weight_decay", "weight_decay"}}) {
    if (const Node* value = section.find(param)) settings.add(key, *value, section.at(param));
  }
  add_betas(section, settings);
  if (flag_of(section, "torch_adam", false)) {
    sources.note(
        "'optimizer.params.torch_adam' changes nothing here: updates are always equal to torch.optim.AdamW");
  }
  require_flag(section, "amsgrad", false, "the optimizer is AdamW without AMSGrad");
  require_flag(section, "bias_correction", true, "moments are always corrected");
  require_flag(section, "fp32_optimizer_states", true, "optim_dtype says how moments are stored");
  check_decay(section, sources);
}

void translate_deepspeed_scheduler(const Node& node, const std::string& name, Sources& sources) {
  if (is_open(&node)) return;
  const Section section(node, "scheduler", name);
  if (section.type() == nullptr) return;
  const auto* scheduler =
      std::ranges::find_if(kSchedulers, [&](const Scheduler& s) { return s.type == section.type()->text; });
  if (scheduler == std::end(kSchedulers)) {
    return section.refuse_type("lr_scheduler_type", "WarmupLR, WarmupDecayLR or WarmupCosineLR",
                               "remove the section and set lr_scheduler_type", sources.deepspeed);
  }
  section.allow(scheduler->params);
  Settings& settings = sources.deepspeed;
  settings.add("lr_scheduler_type", scalar_node(scheduler->ours), section.at("type"));
  add_peak(section, scheduler->type, sources);
  add_or_default(section, "warmup_num_steps", "warmup_steps", "1000", settings);
  Node arguments;
  arguments.kind = Node::Kind::map;
  Location at{place(name, node.line) + ": scheduler.params", "scheduler.params"};
  for (const char* param :
       {"warmup_type", "warmup_min_lr", "warmup_min_ratio", "cos_min_ratio", "total_num_steps"}) {
    if (const Node* value = section.find(param)) arguments.members.emplace_back(param, *value);
  }
  if (!arguments.members.empty()) settings.add("lr_scheduler_kwargs", arguments, at);
}

}  // namespace octet::config
