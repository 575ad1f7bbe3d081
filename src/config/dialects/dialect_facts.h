// Shared code for resolving facts: SFT-Play's (dialect_sft_play_facts.cc), verl's (dialect_verl_facts.cc) and
// axolotl's (dialect_axolotl.cc).
#pragma once

#include <initializer_list>

#include "dialects/dialects.h"

namespace octet::config {

class FactsOf {
 public:
  explicit FactsOf(Sources& sources) : sources_(sources) {}

 protected:
  /// Returns the fact, or null if it is missing or null.
  const Fact* find(const std::string& path) const;
  /// Returns the strongest of several keys with the same meaning. The order is: the command line, the
  /// configuration, its included files, the position in `paths`. The others are noted.
  const Fact* strongest(std::initializer_list<const char*> paths);
  /// Whether `a` is stronger than `b` by source.
  static bool before(const Fact& a, const Fact& b);
  static std::string word(const Fact* fact);

  /// Whether any of our keys has a value from any source that the command line does not set to null.
  bool given(std::initializer_list<const char*> keys) const;
  /// Returns the value of one of our keys from the strongest source as text; "" without one.
  std::string value_of(const char* key) const;
  /// Whether the command line sets our key and the fact is not from the command line.
  bool overridden(const char* key, const Fact& fact) const;

  /// Returns our key's setting from the strongest source; nullptr if there is none.
  const Setting* setting(const char* key) const;

  /// Sets our key in the source of the fact. Returns false without effect if that source has the key itself.
  bool set(const char* key, const Node& node, const Location& at, bool override);
  bool set(const char* key, const Node& node, const Fact& fact);
  bool set(const char* key, const std::string& text, const Fact& fact);
  void give_way(const Fact& fact, const Fact& to);
  [[noreturn]] static void wrong(const Fact& fact, const std::string& expected,
                                 const std::string& fix = "give such a value, or remove the key");

  Sources& sources_;
};

/// Resolve the facts of SFT-Play and of verl.
void settle_sft_play(Sources& sources);
void settle_verl(Sources& sources);

}  // namespace octet::config
