// Other trainers' YAML. A configuration is in our own names or in one dialect, which is decided once
// (dialect_choice.cc): a table from the trainer's dotted keys to ours, and what several of them mean
// together. The walk through a tree (dialects.cc) reads keys of that table and our own, and no others. A
// dialect is one Dialect, in a source of its own, and its name in kDialects.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "settings.h"

namespace octet::config {

enum class Action : std::uint8_t {
  map,        ///< the value of `key`
  weak,       ///< the same, unless the source names `key` otherwise too
  minus_off,  ///< map; a negative number means "no" (never)
  note,       ///< accepted without effect; `key` says why
  refuse,     ///< refused unless null, false, empty or one of `words`; `key` says why
  checked,    ///< `handle` refuses what would change something; the rest does not, and `key` says why
  fact,       ///< decided with others once all sources are read (settle_facts); `key` is ours, for the tables
  handled     ///< `handle` does it; `key` is ours, for the tables
};

/// Where the translation of one source goes.
struct Target {
  Settings& settings;
  Sources& sources;
  bool replace;  ///< the command line: the last of several wins
};

struct Entry {
  std::string_view path;
  Action action;
  const char* key;
  /// "from=to,from=to": words that are spelt differently here. refuse: words that ask for nothing.
  const char* words = "";
  void (*handle)(const Node& node, const Location& at, const Target& target) = nullptr;
};

/// Another trainer's configurations.
struct Dialect {
  const char* name;  ///< the trainer's, as in "verl's"
  std::span<const Entry> keys;
  /// The key that alone says whose configuration it is, unless `not_beside` stands in the file, too; nullptr:
  /// any key of the table does that no other dialect has.
  const char* mark = nullptr;
  const char* not_beside = nullptr;
  /// Whether a key of the table that has the name of one of ours is the dialect's.
  bool before_ours = false;
  /// Whether a key may be written without its section, as the trainer's guide does ("batch_size: 1").
  bool bare_keys = false;
  /// What its facts mean, and its defaults where no source says anything.
  void (*settle)(Sources& sources) = nullptr;

  /// The row of the key; nullptr: the trainer has none.
  const Entry* find(const std::string& path) const;
  /// The same, or that of a section above it which is noted or refused as a whole.
  const Entry* find_or_above(const std::string& path) const;
  bool is_section(const std::string& path) const;
  /// The one key of the table that is called so in its section: "train.batch_size" for "batch_size"; empty
  /// for a key of ours, a word with dots, and a word that no key or several keys have.
  std::string in_section(const std::string& word) const;
  /// The trainer's key for what `ours` says ("cutoff_len"); nullptr: it has none.
  const Entry* find_for(const std::string& ours) const;
};

extern const Dialect kSftPlay, kVerl, kAxolotl;
inline constexpr const Dialect* kDialects[] = {&kSftPlay, &kVerl, &kAxolotl};

/// Gives keys without a section their full names, in the file and on the command line, and notes it. Throws
/// the Error for a key that the file then has twice.
void complete_bare_keys(Node& tree, const std::string& name, Sources& sources);
std::string complete_bare_key(const std::string& path, Sources& sources);

/// Whether the entry becomes a key of ours.
bool becomes_ours(const Entry& entry);

/// Throws the Error for a key that is neither the configuration's dialect's nor ours: it says where another
/// trainer has it.
[[noreturn]] void unknown_in(const Dialect* dialect, const std::string& path, const std::string& where);

/// A scalar, as if it had been written.
Node scalar_node(const std::string& text);

}  // namespace octet::config
