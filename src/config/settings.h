// What each source asks for, before the sources are merged.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "value.h"

namespace octet::config {

/// One key as one source gives it.
struct Setting {
  const Field* field = nullptr;
  Value value;
  Location at;
};

/// The settings of one source, by native key.
class Settings {
 public:
  /// Checks and adds. A key that the source already gave is an Error, unless it says the same or `replace`;
  /// a configuration says it in place of a file that it includes.
  void add(const std::string& key, const Node& node, const Location& at, bool replace = false);
  /// A value that is known and not supported: an Error where no stronger source replaces it.
  void refuse(const std::string& key, const Node& node, const Location& at, Problem why);
  /// As if the source had never named the key.
  void drop(const std::string& key) { by_key_.erase(key); }
  bool has(const std::string& key) const { return by_key_.contains(key); }
  const Setting* find(const std::string& key) const;
  const std::map<std::string, Setting>& all() const { return by_key_; }

 private:
  std::map<std::string, Setting> by_key_;
};

/// A key of a dialect that is decided with others, when all sources are read.
struct Fact {
  Node node;
  Location at;
  bool override = false;  ///< from the command line
};

/// A key of a dialect that the command line sets to null.
struct TakenBack {
  std::string path;
  bool in_file = false;  ///< the file has that very key
};

struct Dialect;

/// Everything that the translators need from each other.
struct Sources {
  Settings environment, deepspeed, yaml, overrides;
  Strings notes, warnings;
  std::map<std::string, Fact> facts;  ///< by their dotted keys
  const Dialect* dialect = nullptr;   ///< whose keys they are, beside ours; nullptr: ours alone
  std::vector<TakenBack> taken_back;
  void note(const std::string& sentence);
};

/// Decides by the keys of the file and of the command line (`overrides`, dotted) whose they are, and notes
/// it. Throws a usage Error for keys of two dialects, and for the configuration of a trainer whose keys are
/// not translated.
void choose_dialect(const Node& tree, const std::string& name, const Strings& overrides, Sources& sources);

/// Translates a tree of our keys and of the dialect's into `settings`; `name` is the file.
void translate_tree(const Node& tree, const std::string& name, Settings& settings, Sources& sources);
/// The same for one dotted key of the command line, where the last of several wins. A key of a dialect stands
/// in place of the one in `file`, which loses it, so that nothing that followed from its value is left.
void translate_argument(const std::string& path, const Node& node, Sources& sources, Node& file);
/// Takes back what keys of dialects stand for that the command line sets to null. After all sources are read.
void take_back_keys(Sources& sources);

/// Decides what the facts of dialects mean, after the command line, the file, the environment and DeepSpeed's
/// JSON were read.
void settle_facts(Sources& sources);

/// Replaces `include: FILE` (or a list) at the top of `tree` by the keys of these files, looked for beside
/// `name` and then in the working folder; maps are merged, and what the including file says counts. Throws a
/// usage Error for a file that is not there or includes itself.
void expand_includes(Node& tree, const std::string& name);

/// DeepSpeed JSON: `tree` as parsed, `name` the file, or the YAML's place for an inline map.
void translate_deepspeed(const Node& tree, const std::string& name, Sources& sources);

/// Whether `text`, the value of `key`, is DeepSpeed's configuration itself and not the name of its file.
bool is_inline_deepspeed(const std::string& key, std::string_view text);

/// Its sections `optimizer` and `scheduler`, each an object found under that name in the file `name`. The
/// other settings of DeepSpeed's file and of stronger sources are in `sources` already.
void translate_deepspeed_optimizer(const Node& section, const std::string& name, Sources& sources);
void translate_deepspeed_scheduler(const Node& section, const std::string& name, Sources& sources);

/// Variables that name keys: OCTET_<KEY>, and those of other trainers that have a meaning here.
void translate_environment(const Environment& environment, Sources& sources);

/// Rules across keys; also resolves what follows from several keys (packing, dtypes).
void apply_rules(Resolved& resolved, const LoadOptions& options);

/// All schedules that lr_scheduler_type may name, in the order in which they are listed; the rate of kPlateau
/// follows evaluations.
Strings schedule_types();
inline constexpr const char* kPlateau = "reduce_lr_on_plateau";

/// Throws the Error for arguments of the schedule that it does not take, that cannot be used, or that are
/// missing. `type_at` and `arguments_at` say where lr_scheduler_type and lr_scheduler_kwargs were given.
void check_schedule_arguments(const Config& config, const std::string& type_at,
                              const std::string& arguments_at);

/// What to write in place of a word that other programs, or people who guess, use for a key: "write
/// learning_rate=NUMBER". Empty for other words.
std::string guessed_key(std::string_view word);

/// Throws the Error for a key that nobody knows. `known` are the candidates for the nearest name.
[[noreturn]] void unknown_key(const std::string& key, const std::string& where, const Strings& known);

/// Expands ${key} and ${oc.env:NAME,default} in the scalars of `tree`. `overrides` are looked up first.
void interpolate(Node& tree, const std::map<std::string, std::string>& overrides,
                 const Environment& environment, const std::string& name);

}  // namespace octet::config
