// The configuration, written out: with sources, as YAML, as documentation, as a hash.
#include <algorithm>

#include "octet/base/files.h"
#include "octet/base/strings.h"
#include "octet/config/derive.h"
#include "octet/config/schema.h"
#include "settings.h"
#include "value.h"

namespace octet::config {
namespace {

std::string padded(std::string text, std::size_t width) {
  if (text.size() < width) text.append(width - text.size(), ' ');
  return text;
}

std::string in_code(const std::string& text) {
  return "`" + text + "`";
}

std::string table_cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) text.insert(at, "\\");
  return text;
}

std::string harmless_text(const Field& field) {
  std::string text;
  for (const auto& value : field.harmless) text += (text.empty() ? "" : ", ") + value;
  return text.empty() ? "null" : text;
}

// Whether a key decides the numbers of a run.
bool decides(const Field& field, const Config& config) {
  const bool evaluates =
      field.name == "eval_strategy" || field.name == "eval_steps" || field.name == "eval_dataset";
  return field.resume || (evaluates && config.lr_scheduler_type == kPlateau);
}

// The values that decide the numbers of a run, a line each.
std::string identity(const Config& config) {
  std::string text;
  for (const Field& field : schema()) {
    if (decides(field, config)) text += field.name + "=" + value_text(field, config) + "\n";
  }
  return text;
}

}  // namespace

const char* name_of(Source source) {
  switch (source) {
    case Source::environment:
      return "environment";
    case Source::deepspeed:
      return "DeepSpeed JSON";
    case Source::yaml:
      return "YAML";
    case Source::override_:
      return "override";
    default:
      return "default";
  }
}

std::string Config::recompute() const {
  if (recompute_requested) return *recompute_requested;
  return gradient_checkpointing.value_or(false) && !disable_gradient_checkpointing ? "full" : "none";
}

bool Config::tensorboard() const {
  return std::any_of(report_to.begin(), report_to.end(),
                     [](const std::string& target) { return target == "tensorboard" || target == "all"; });
}

std::uint64_t Config::order_seed() const {
  return static_cast<std::uint64_t>(data_seed.value_or(seed));
}

std::string Resolved::explain(bool all) const {
  std::string text;
  for (const Field& field : schema()) {
    const auto found = origins.find(field.name);
    if (found == origins.end() && (!all || field.status != Status::used)) continue;
    const std::string value = field.status == Status::used ? value_text(field, config) : extra.at(field.name);
    text += padded(field.name, 32) + " " + padded(value, 24) + " ";
    if (found == origins.end()) {
      text += "default";
    } else {
      text += name_of(found->second.source);
      if (!found->second.where.empty()) text += " (" + found->second.where + ")";
    }
    text += "\n";
  }
  return text;
}

std::string Resolved::to_yaml() const {
  std::string text = "# Resolved configuration: every key with its value.\n";
  std::string group;
  for (const Field& field : schema()) {
    if (field.status != Status::used) continue;
    if (field.group != group) text += "\n# " + (group = field.group) + "\n";
    // What a DeepSpeed JSON said stands in the keys; naming it again would read it again.
    const bool comment = field.name == "deepspeed";
    if (comment && config.deepspeed.empty()) continue;
    text += (comment ? "# " : "") + field.name + ": " + value_text(field, config) + "\n";
  }
  return text;
}

std::string meaning_text(const Field& field) {
  if (field.status == Status::noted) return "Changes nothing: " + field.reason + ".";
  if (field.status == Status::refused) return "Anything else is refused: " + field.reason + ".";
  std::string text = field.doc;
  std::vector<std::pair<std::string, Strings>> refused;  // values by reason, in the order of the table
  for (const auto& [value, reason] : field.refused_values) {
    if (refused.empty() || refused.back().first != reason) refused.push_back({reason, {}});
    refused.back().second.push_back(in_code(value));
  }
  for (const auto& [reason, values] : refused) {
    std::string list;
    for (const auto& value : values) list += (list.empty() ? " " : ", ") + value;
    text += list + (values.size() > 1 ? " are" : " is") + " refused: " + reason + ".";
  }
  for (const auto& alias : field.aliases) text += " Also " + in_code(alias) + ".";
  return text;
}

std::string reference_markdown() {
  std::string text =
      "# Configuration reference\n\n"
      "This page is generated from the table of keys. A configuration is a YAML (or JSON) file of these "
      "keys; on "
      "the command line they are written `key=value`, `--key value` or `--key=value`, in any order. Values "
      "are "
      "taken from, strongest first: command line, YAML, DeepSpeed JSON, environment (`OCTET_<KEY>`), "
      "default. "
      "Unknown keys are errors, which offer the nearest name where one is near: by one edit in words of up "
      "to "
      "four letters, two in longer ones, a quarter of their letters in long ones. An edit changes, adds or "
      "leaves out a letter, or exchanges two neighbours.\n";
  std::string group;
  for (const Field& field : schema()) {
    if (field.group != group) {
      group = field.group;
      text += "\n## " + group + "\n\n";
      text += field.status == Status::refused ? "| key | accepted | meaning |\n|---|---|---|\n"
                                              : "| key | default | values | meaning |\n|---|---|---|---|\n";
    }
    text += "| " + in_code(field.name) + " | ";
    if (field.status == Status::refused) {
      text += in_code(harmless_text(field)) + " | ";
    } else {
      text += in_code(default_text(field)) + " | " + table_cell(expected_text(field)) + " | ";
    }
    text += table_cell(meaning_text(field)) + " |\n";
  }
  return text;
}

std::string resume_hash(const Config& config) {
  return hash128_hex(identity(config));
}

Strings resume_differences(const Config& was, const Config& wanted) {
  // Storage that is left open becomes what it was.
  const Config saved = with_storage_of(was, was), now = with_storage_of(was, wanted);
  Strings differences;
  for (const Field& field : schema()) {
    if (!decides(field, now)) continue;
    const std::string before = value_text(field, saved), after = value_text(field, now);
    if (before != after) differences.push_back(field.name + ": " + before + " -> " + after);
  }
  return differences;
}

}  // namespace octet::config
