#include "settings.h"

#include <algorithm>

namespace octet::config {

void Settings::add(const std::string& key, const Node& node, const Location& at, bool replace) {
  const Field* field = find_field(key);
  if (field == nullptr) throw Error("a dialect names a key that is not in the table");
  Setting setting{.field = field, .value = check_value(*field, node, at), .at = at};
  const auto found = by_key_.find(field->name);
  if (found == by_key_.end()) {
    by_key_.emplace(field->name, std::move(setting));
    return;
  }
  const auto& first = found->second.value;
  const bool same = first.given == setting.value.given &&
                    (!first.given || canonical(*field, first) == canonical(*field, setting.value));
  if (same && !replace) return;
  if (!replace && at.included != found->second.at.included) {
    if (!at.included) found->second = std::move(setting);
    return;
  }
  if (!replace) {
    complain({.what = "'" + field->name + "' is given twice",
              .found = "as '" + found->second.at.key + "' (" + found->second.at.where + ") and as '" +
                       at.key + "' (" + at.where + ")",
              .where = at.where,
              .fix = "keep one of the two"});
  }
  found->second = std::move(setting);
}

void Settings::refuse(const std::string& key, const Node& node, const Location& at, Problem why) {
  const Field* field = find_field(key);
  if (field == nullptr) throw Error("a dialect names a key that is not in the table");
  why.code = ExitCode::usage;
  Value value;
  value.given = true;
  // The value as if it were supported: true for a switch, the text for a word.
  value.boolean = true;
  value.text = shown(node);
  value.refusal = std::move(why);
  by_key_[field->name] = {.field = field, .value = std::move(value), .at = at};
}

const Setting* Settings::find(const std::string& key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : &found->second;
}

void Sources::note(const std::string& sentence) {
  if (std::find(notes.begin(), notes.end(), sentence) == notes.end()) notes.push_back(sentence);
}

}  // namespace octet::config
