// Base class of rules across keys. Rules of data and paths are in rules_data.cc, of losses in rules_loss.cc,
// of adapters, schedules and checks in rules_training.cc, of the environment in rules_environment.cc, and all
// others in rules.cc.
#pragma once

#include <string>

#include "settings.h"

namespace octet::config {

/// Advice for two keys that exclude each other.
inline constexpr const char* kOneOfTwo = "remove one of the two";

class RulesOf {
 public:
  RulesOf(Resolved& resolved, const LoadOptions& options)
      : r_(resolved), c_(resolved.config), options_(options) {}

 protected:
  /// Returns the place of the value of `key`. If another key implies the value, the place names that key.
  std::string at(const std::string& key) const {
    const auto found = r_.origins.find(key);
    if (found == r_.origins.end()) return "default";
    const auto& [source, where, word] = found->second;
    if (word.empty()) return where;
    if (said(key) != word) return where + ": " + word;
    // Places of derived keys and of DeepSpeed's keys end with the word, which messages already contain.
    for (const std::string& behind : {" (" + word + ")", ": " + word}) {
      if (where.ends_with(behind)) return where.substr(0, where.size() - behind.size());
    }
    return where;
  }
  std::string both(const std::string& a, const std::string& b) const {
    return said(a) + " (" + at(a) + "), " + said(b) + " (" + at(b) + ")";
  }
  /// Returns the key as the user wrote it, a word in the file. Keys that follow from the choice of the model
  /// keep their own name.
  std::string said(const std::string& key) const {
    const auto found = r_.origins.find(key);
    if (found == r_.origins.end() || found->second.key.empty()) return key;
    const auto model = r_.origins.find("model_name_or_path");
    const bool implied =
        key != "model_name_or_path" && model != r_.origins.end() && model->second.key == found->second.key;
    return implied ? key : found->second.key;
  }
  /// Returns "'eval_strategy: steps'", or with another trainer's key "'trainer.test_freq' (eval_strategy:
  /// steps)".
  std::string named(const std::string& key, const std::string& value) const {
    const std::string word = said(key);
    return word == key ? "'" + key + ": " + value + "'" : "'" + word + "' (" + key + ": " + value + ")";
  }
  /// Returns the advice to set `key` to `value`. It replaces another trainer's key, or the value would be
  /// given twice.
  std::string set_to(const std::string& key, const std::string& value) const {
    const std::string word = said(key);
    return "set " + key + ": " + value + (word == key ? "" : " in place of " + word);
  }
  /// Returns the text "A or B, not both".
  static std::string one_of(const std::string& a, const std::string& b) {
    return a + " or " + b + ", not both";
  }
  // Whether the key is set to another value than its default, which is worth a note.
  bool changed(const std::string& key) const {
    const Field* field = find_field(key);
    return r_.is_set(key) && value_text(*field, c_) != default_text(*field);
  }
  void note(const std::string& sentence) { r_.notes.push_back(sentence); }
  void warn(const std::string& sentence) { r_.warnings.push_back(sentence); }
  // Records that `from`, the key that the user wrote, decides `key`.
  void derive(const std::string& key, const std::string& from) {
    r_.origins[key] = {
        .source = r_.origins.at(from).source, .where = at(from) + " (" + said(from) + ")", .key = said(from)};
  }

  Resolved& r_;
  Config& c_;
  const LoadOptions& options_;
};

/// Returns "A, B, C".
std::string listed(const Strings& words);

/// Adapters, freezing and a quantised base.
void apply_adapter_rules(Resolved& resolved, const LoadOptions& options);
/// Expands ~ in folders, and finds models in Hugging Face's cache.
void apply_path_rules(Resolved& resolved, const LoadOptions& options);
/// Data and packing.
void apply_data_rules(Resolved& resolved, const LoadOptions& options);
/// Evaluation, the best model, and runs that end early.
void apply_evaluation_rules(Resolved& resolved, const LoadOptions& options);
/// The loss of tokens, and preferences.
void apply_loss_rules(Resolved& resolved, const LoadOptions& options);
/// Checks for silent errors.
void apply_check_rules(Resolved& resolved, const LoadOptions& options);
/// Environment variables that guides of other trainers set: explains each for this configuration.
void apply_environment_rules(Resolved& resolved, const LoadOptions& options);

}  // namespace octet::config
