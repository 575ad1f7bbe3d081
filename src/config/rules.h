// What rules across keys are written with. Those of data and paths are in rules_data.cc, those of checks in
// rules_checks.cc, all others in rules.cc.
#pragma once

#include <string>

#include "settings.h"

namespace octet::config {

class RulesOf {
 public:
  RulesOf(Resolved& resolved, const LoadOptions& options)
      : r_(resolved), c_(resolved.config), options_(options) {}

 protected:
  std::string at(const std::string& key) const {
    const auto found = r_.origins.find(key);
    return found == r_.origins.end() ? "default" : found->second.where;
  }
  std::string both(const std::string& a, const std::string& b) const {
    return a + " (" + at(a) + "), " + b + " (" + at(b) + ")";
  }
  // As the user wrote it.
  std::string said(const std::string& key) const {
    const auto found = r_.origins.find(key);
    return found == r_.origins.end() || found->second.key.empty() ? key : found->second.key;
  }
  // Set, and to something else than the default: what a note is worth for.
  bool changed(const std::string& key) const {
    const Field* field = find_field(key);
    return r_.is_set(key) && value_text(*field, c_) != default_text(*field);
  }
  void note(const std::string& sentence) { r_.notes.push_back(sentence); }
  void derive(const std::string& key, const std::string& from) {
    r_.origins[key] = {.source = r_.origins.at(from).source, .where = at(from) + " (" + from + ")"};
  }

  Resolved& r_;
  Config& c_;
  const LoadOptions& options_;
};

/// Folders below ~, and a model that Hugging Face's cache holds.
void apply_path_rules(Resolved& resolved, const LoadOptions& options);
/// Data, packing, evaluation and the best model.
void apply_data_rules(Resolved& resolved, const LoadOptions& options);
/// Checks for bits and steps that go wrong without an error.
void apply_check_rules(Resolved& resolved, const LoadOptions& options);

}  // namespace octet::config
