// YAML of other trainers. A configuration has our keys and keys of at most one dialect, which is chosen once
// (dialect_choice.cc). A dialect has a table from the trainer's dotted keys to ours, and code for keys that
// depend on each other. Only keys of that table and our own are read (dialects.cc). Each dialect is a Dialect
// in its own source file, listed in kDialects.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "settings.h"

namespace octet::config {

enum class Action : std::uint8_t {
  map,        ///< sets `key` to the value
  weak,       ///< like map, unless the source also sets `key` itself
  minus_off,  ///< like map; a negative number means "no" (never)
  note,       ///< accepted without effect; `key` says why
  refuse,     ///< refused unless null, false, empty or one of `words`; `key` says why
  checked,    ///< `handle` refuses values with an effect; other values have none, and `key` says why
  fact,       ///< resolved with other keys after all sources are read (settle_facts); `key` is ours, for the
              ///< tables
  handled     ///< `handle` translates it; `key` is ours, for the tables
};

/// The destination of the translation of one source.
struct Target {
  Settings& settings;
  Sources& sources;
  bool replace;  ///< true for the command line: the last value wins
};

struct Entry {
  std::string_view path;
  Action action;
  const char* key;
  /// "from=to,from=to": words that are spelt differently here. For refuse: words without effect.
  const char* words = "";
  void (*handle)(const Node& node, const Location& at, const Target& target) = nullptr;
};

/// The configuration format of another trainer.
struct Dialect {
  const char* name;  ///< name of the trainer
  std::span<const Entry> keys;
  /// The key that alone identifies the trainer, unless the file also has `not_beside`. nullptr: any key of
  /// the table that no other dialect has.
  const char* mark = nullptr;
  const char* not_beside = nullptr;
  /// Whether the dialect's keys win over our keys with the same name.
  bool before_ours = false;
  /// Whether a key may be written without its section, like in the trainer's guide ("batch_size: 1").
  bool bare_keys = false;
  /// Resolves its facts, and applies its defaults.
  void (*settle)(Sources& sources) = nullptr;

  /// Returns the entry of a key; nullptr if the trainer does not have it.
  const Entry* find(const std::string& path) const;
  /// Like find(), or the entry of a section above that is noted or refused as a whole.
  const Entry* find_or_above(const std::string& path) const;
  bool is_section(const std::string& path) const;
  /// Returns the only key of the table with this name in its section: "train.batch_size" for "batch_size".
  /// Returns "" for our keys, a word with dots, and a word that no key or several keys have.
  std::string in_section(const std::string& word) const;
  /// Returns the trainer's key for our key `ours` ("cutoff_len"); nullptr if there is none.
  const Entry* find_for(const std::string& ours) const;
};

extern const Dialect kSftPlay, kVerl, kAxolotl;
inline constexpr const Dialect* kDialects[] = {&kSftPlay, &kVerl, &kAxolotl};

/// Expand keys without a section to their full names, in the file and on the command line, with a note. Throw
/// Error for a key that the file then has twice.
void complete_bare_keys(Node& tree, const std::string& name, Sources& sources);
std::string complete_bare_key(const std::string& path, Sources& sources);

/// Whether the entry is translated to a key of ours.
bool becomes_ours(const Entry& entry);

/// Throws Error for a key that is neither ours nor of the configuration's dialect. If another trainer has the
/// key, the message names this trainer.
[[noreturn]] void unknown_in(const Dialect* dialect, const std::string& path, const std::string& where);

/// Returns a scalar node with this text.
Node scalar_node(const std::string& text);

}  // namespace octet::config
