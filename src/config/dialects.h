// Other trainers' YAML: tables from their dotted keys to ours (dialect_sft_play.cc, dialect_verl.cc,
// dialect_axolotl_keys.cc), the walk through a tree that reads them (dialects.cc), and what several of their
// keys mean together (dialect_facts.cc). SFT-Play's and verl's keys have one namespace, with ours before
// them; axolotl's configurations have another, before ours.
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

std::span<const Entry> sft_play_keys();
std::span<const Entry> verl_keys();
std::span<const Entry> axolotl_keys();

/// What axolotl's facts mean, and its defaults where no source says anything.
void settle_axolotl(Sources& sources);

/// A scalar, as if it had been written.
Node scalar_node(const std::string& text);

}  // namespace octet::config
