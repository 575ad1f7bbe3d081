// The settings of each source, before the sources are merged.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "value.h"

namespace octet::config {

/// One key in one source.
struct Setting {
  const Field* field = nullptr;
  Value value;
  Location at;
};

/// The settings of one source, by native key.
class Settings {
 public:
  /// Checks and adds a value. Throws Error for a key that the source already has with another value, unless
  /// `replace`. A value of the configuration replaces a value of an included file.
  void add(const std::string& key, const Node& node, const Location& at, bool replace = false);
  /// Adds a known but unsupported value. It is an Error unless a stronger source replaces it.
  void refuse(const std::string& key, const Node& node, const Location& at, Problem why);
  /// Removes a key from the source.
  void drop(const std::string& key) { by_key_.erase(key); }
  bool has(const std::string& key) const { return by_key_.contains(key); }
  const Setting* find(const std::string& key) const;
  const std::map<std::string, Setting>& all() const { return by_key_; }

 private:
  std::map<std::string, Setting> by_key_;
};

/// A dialect key that is resolved with others after all sources are read.
struct Fact {
  Node node;
  Location at;
  bool override = false;  ///< from the command line
};

/// A dialect key that the command line sets to null.
struct TakenBack {
  std::string path;
  bool in_file = false;  ///< the file has the same key
};

struct Dialect;

/// The state that the translators share.
struct Sources {
  Settings environment, deepspeed, yaml, overrides;
  Strings notes, warnings;
  std::map<std::string, Fact> facts;  ///< by dotted key
  const Dialect* dialect = nullptr;   ///< dialect of the foreign keys; nullptr: only our keys
  std::vector<TakenBack> taken_back;
  void note(const std::string& sentence);
};

/// Chooses the dialect by the keys of the file and of the command line (`overrides`, dotted), with a note.
/// Throws Error (usage) for keys of two dialects, and for a configuration of a trainer without a dialect.
void choose_dialect(const Node& tree, const std::string& name, const Strings& overrides, Sources& sources);

/// Translates a tree of our keys and the dialect's keys into `settings`. `name` is the file.
void translate_tree(const Node& tree, const std::string& name, Settings& settings, Sources& sources);
/// Like translate_tree() for one dotted key of the command line; the last of several wins. A dialect key is
/// removed from `file`, so that nothing that follows from its old value is left.
void translate_argument(const std::string& path, const Node& node, Sources& sources, Node& file);
/// Removes the settings of dialect keys that the command line sets to null. Call it after all sources are
/// read.
void take_back_keys(Sources& sources);

/// Resolves the facts of the dialect. Call it after the command line, the file, the environment and
/// DeepSpeed's JSON are read.
void settle_facts(Sources& sources);

/// Replaces `include: FILE` (or a list) at the top of `tree` by the keys of these files. They are searched in
/// the folder of `name` and then in the working folder. Maps are merged; the including file wins. Throws
/// Error (usage) for a missing file and for a file that includes itself.
void expand_includes(Node& tree, const std::string& name);

/// Translates DeepSpeed JSON. `tree` is the parsed JSON; `name` is its file, or the place of an inline map in
/// the YAML.
void translate_deepspeed(const Node& tree, const std::string& name, Sources& sources);

/// Whether `text`, the value of `key`, is a DeepSpeed configuration itself, not the name of a file.
bool is_inline_deepspeed(const std::string& key, std::string_view text);

/// Translate the sections `optimizer` and `scheduler` of the DeepSpeed file `name`. `sources` already has the
/// other settings of that file and of stronger sources.
void translate_deepspeed_optimizer(const Node& section, const std::string& name, Sources& sources);
void translate_deepspeed_scheduler(const Node& section, const std::string& name, Sources& sources);

/// Translates variables that name keys: OCTET_<KEY>, and variables of other trainers with an equivalent here.
void translate_environment(const Environment& environment, Sources& sources);

/// Applies the rules across keys. Also resolves values that follow from several keys (packing, dtypes).
void apply_rules(Resolved& resolved, const LoadOptions& options);

/// Returns all values of lr_scheduler_type in documentation order. The learning rate of kPlateau follows
/// evaluations.
Strings schedule_types();
inline constexpr const char* kPlateau = "reduce_lr_on_plateau";

/// Throws Error for arguments that the schedule does not take, for invalid arguments, and for missing ones.
/// `type_at` and `arguments_at` are the places of lr_scheduler_type and lr_scheduler_kwargs.
void check_schedule_arguments(const Config& config, const std::string& type_at,
                              const std::string& arguments_at);

/// Returns the advice for a word that other programs or users use for a key: "write learning_rate=NUMBER".
/// Returns "" for other words.
std::string guessed_key(std::string_view word);
/// Writes advice of the command line as YAML: "lr=NUMBER" becomes "lr: NUMBER".
std::string with_colons(std::string advice);

/// Throws Error for an unknown key. `known` are the candidates for the nearest name.
[[noreturn]] void unknown_key(const std::string& key, const std::string& where, const Strings& known);

/// Expands ${key} and ${oc.env:NAME,default} in the scalars of `tree`. `overrides` are looked up first.
void interpolate(Node& tree, const std::map<std::string, std::string>& overrides,
                 const Environment& environment, const std::string& name);

}  // namespace octet::config
