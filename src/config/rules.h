// What rules across keys are written with. Those of data and paths are in rules_data.cc, those of adapters
// in rules_adapters.cc, of checks in rules_checks.cc, of the environment in rules_environment.cc, all others
// in rules.cc.
#pragma once

#include <string>

#include "settings.h"

namespace octet::config {

/// What to do about two keys of which only one may be there.
inline constexpr const char* kOneOfTwo = "remove one of the two";

class RulesOf {
 public:
  RulesOf(Resolved& resolved, const LoadOptions& options)
      : r_(resolved), c_(resolved.config), options_(options) {}

 protected:
  /// Where the value of `key` was said. The line of another key that implies it names that key.
  std::string at(const std::string& key) const {
    const auto found = r_.origins.find(key);
    if (found == r_.origins.end()) return "default";
    const auto& [source, where, word] = found->second;
    if (word.empty()) return where;
    if (said(key) != word) return where + ": " + word;
    // Places of derived keys and of DeepSpeed's name the word, which stands before them already.
    for (const std::string& behind : {" (" + word + ")", ": " + word}) {
      if (where.ends_with(behind)) return where.substr(0, where.size() - behind.size());
    }
    return where;
  }
  std::string both(const std::string& a, const std::string& b) const {
    return said(a) + " (" + at(a) + "), " + said(b) + " (" + at(b) + ")";
  }
  /// The key as the user wrote it: a word that stands in the file. Keys that follow from which model is
  /// trained have their own name.
  std::string said(const std::string& key) const {
    const auto found = r_.origins.find(key);
    if (found == r_.origins.end() || found->second.key.empty()) return key;
    const auto model = r_.origins.find("model_name_or_path");
    const bool implied =
        key != "model_name_or_path" && model != r_.origins.end() && model->second.key == found->second.key;
    return implied ? key : found->second.key;
  }
  /// "'eval_strategy: steps'", or with another trainer's word "'trainer.test_freq' (eval_strategy: steps)".
  std::string named(const std::string& key, const std::string& value) const {
    const std::string word = said(key);
    return word == key ? "'" + key + ": " + value + "'" : "'" + word + "' (" + key + ": " + value + ")";
  }
  /// What to write so that `key` becomes `value`: beside another trainer's word for it, it would be given
  /// twice.
  std::string set_to(const std::string& key, const std::string& value) const {
    const std::string word = said(key);
    return "set " + key + ": " + value + (word == key ? "" : " in place of " + word);
  }
  // Set, and to something else than the default: what a note is worth for.
  bool changed(const std::string& key) const {
    const Field* field = find_field(key);
    return r_.is_set(key) && value_text(*field, c_) != default_text(*field);
  }
  void note(const std::string& sentence) { r_.notes.push_back(sentence); }
  void warn(const std::string& sentence) { r_.warnings.push_back(sentence); }
  // `from` decides `key`: it is the word that the user wrote.
  void derive(const std::string& key, const std::string& from) {
    r_.origins[key] = {
        .source = r_.origins.at(from).source, .where = at(from) + " (" + said(from) + ")", .key = said(from)};
  }

  Resolved& r_;
  Config& c_;
  const LoadOptions& options_;
};

/// Adapters, freezing and a quantised base.
void apply_adapter_rules(Resolved& resolved, const LoadOptions& options);
/// Folders below ~, and a model that Hugging Face's cache holds.
void apply_path_rules(Resolved& resolved, const LoadOptions& options);
/// Data, packing, evaluation and the best model.
void apply_data_rules(Resolved& resolved, const LoadOptions& options);
/// Checks for bits and steps that go wrong without an error.
void apply_check_rules(Resolved& resolved, const LoadOptions& options);
/// Variables of the environment that other trainers' guides set: what each means beside the configuration.
void apply_environment_rules(Resolved& resolved, const LoadOptions& options);

}  // namespace octet::config
