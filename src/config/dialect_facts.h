// What the deciders of facts share: SFT-Play's (dialect_sft_play_facts.cc) and verl's
// (dialect_verl_facts.cc).
#pragma once

#include <initializer_list>

#include "dialects.h"

namespace octet::config {

class FactsOf {
 public:
  explicit FactsOf(Sources& sources) : sources_(sources) {}

 protected:
  /// The fact, unless nothing or null was given.
  const Fact* find(const std::string& path) const;
  /// Of several keys that say the same the one that counts: the command line's, then that of the
  /// configuration before those of a file that it includes, then the first. The others are noted.
  const Fact* strongest(std::initializer_list<const char*> paths);
  /// Whether `a` stands before `b` by where they are said.
  static bool before(const Fact& a, const Fact& b);
  static std::string word(const Fact* fact);

  /// Whether one of our keys has a value from anywhere, which the command line has not taken back.
  bool given(std::initializer_list<const char*> keys) const;
  /// The value of one of our keys from anywhere, as text; empty without one.
  std::string value_of(const char* key) const;
  /// Whether the command line names a key of ours, and this fact is none of the command line's.
  bool overridden(const char* key, const Fact& fact) const;

  /// What the strongest source says of a key of ours; nullptr where none names it.
  const Setting* setting(const char* key) const;

  /// Sets a key of ours in the source of the fact; whether it does. One that names the key itself counts.
  bool set(const char* key, const Node& node, const Location& at, bool override);
  bool set(const char* key, const Node& node, const Fact& fact);
  bool set(const char* key, const std::string& text, const Fact& fact);
  void give_way(const Fact& fact, const Fact& to);
  [[noreturn]] static void wrong(const Fact& fact, const std::string& expected,
                                 const std::string& fix = "give such a value, or remove the key");

  Sources& sources_;
};

/// What facts of SFT-Play and of verl mean.
void settle_sft_play(Sources& sources);
void settle_verl(Sources& sources);

}  // namespace octet::config
