// Formats the configuration: as YAML, as documentation, and as a hash.
#include <algorithm>
#include <cctype>
#include <map>
#include <utility>

#include "octet/base/files.h"
#include "octet/base/strings.h"
#include "octet/config/derive.h"
#include "octet/config/key_table.h"
#include "settings.h"
#include "value.h"

namespace octet::config {
namespace {

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

// Returns the values that decide the numbers of a run, one per line.
std::string identity(const Config& config) {
  std::string text;
  for (const Field& field : schema()) {
    if (decides(field, config)) text += field.name + "=" + value_text(field, config) + "\n";
  }
  return text;
}

}  // namespace

std::string MemoryKeys::recompute() const {
  if (recompute_requested) return *recompute_requested;
  return gradient_checkpointing.value_or(false) && !disable_gradient_checkpointing ? "full" : "none";
}

bool LogKeys::tensorboard() const {
  return std::any_of(report_to.begin(), report_to.end(),
                     [](const std::string& target) { return target == "tensorboard" || target == "all"; });
}

std::uint64_t SeedKeys::order_seed() const {
  return static_cast<std::uint64_t>(data_seed.value_or(seed));
}

std::string Resolved::to_yaml() const {
  std::string text = "# Resolved configuration: every key with its value.\n";
  std::string group;
  for (const Field& field : schema()) {
    if (field.status != Status::used) continue;
    if (field.group != group) text += "\n# " + (group = field.group) + "\n";
    // The keys already have the values of the DeepSpeed JSON; naming the file would read it again.
    const bool comment = field.name == "deepspeed";
    if (comment && config.deepspeed.empty()) continue;
    text += (comment ? "# " : "") + field.name + ": " + value_text(field, config) + "\n";
  }
  return text;
}

namespace {

/// Returns the meaning of a key without details, for a cell of a table.
std::string summary_text(const Field& field) {
  if (field.status == Status::noted) return "Changes nothing: " + field.reason + ".";
  if (field.status == Status::refused) return "Anything else is refused: " + field.reason + ".";
  std::string text = field.doc;
  for (const auto& alias : field.aliases) text += " Also " + in_code(alias) + ".";
  return text;
}

/// Returns the details of a key and its refused values; empty if there are none.
std::string details_text(const Field& field) {
  std::string text = field.more;
  std::vector<std::pair<std::string, Strings>> refused;  // values by reason, in the order of the table
  for (const auto& [value, reason] : field.refused_values) {
    if (refused.empty() || refused.back().first != reason) refused.push_back({reason, {}});
    refused.back().second.push_back(in_code(value));
  }
  for (const auto& [reason, values] : refused) {
    std::string list;
    for (const auto& value : values) list += (list.empty() ? "" : ", ") + value;
    text +=
        (text.empty() ? "" : " ") + list + (values.size() > 1 ? " are" : " is") + " refused: " + reason + ".";
  }
  return text;
}

constexpr const char* kOtherKeysPage = "llamafactory_keys.md";

/// Whether a key is on the page of keys that change nothing or are refused.
bool on_other_page(const Field& field) {
  return field.status != Status::used;
}

/// Returns the link from config.md to the table of a key, with GitHub's anchors.
std::string address(const Field& field) {
  std::string text = on_other_page(field) ? kOtherKeysPage : "";
  text += '#';
  for (const char c : field.group) {
    if (c == ' ') text += '-';
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  return text;
}

/// Returns a line per first letter: names and aliases of keys, with links to their tables.
std::string index_of_keys() {
  std::map<std::string, std::string> addresses;  // by name
  for (const Field& field : schema()) {
    addresses[field.name] = address(field);
    for (const auto& alias : field.aliases) addresses[alias] = address(field);
  }
  std::string text;
  char letter = 0;
  for (const auto& [name, where] : addresses) {
    text += name.front() == letter ? ", " : (letter == 0 ? "- " : "\n- ");
    letter = name.front();
    text += "[" + in_code(name) + "](" + where + ")";
  }
  return text + "\n";
}

/// Returns the tables of the groups of a page, each with the details of its keys.
std::string tables_of_keys(bool other_page) {
  std::string text, group, below;
  for (const Field& field : schema()) {
    if (on_other_page(field) != other_page) continue;
    if (field.group != group) {
      text += std::exchange(below, "");
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
    text += table_cell(summary_text(field)) + " |\n";
    const std::string details = details_text(field);
    if (!details.empty())
      below += (below.empty() ? "\n- " : "- ") + in_code(field.name) + ": " + details + "\n";
  }
  return text + below;
}

}  // namespace

std::string meaning_text(const Field& field) {
  const std::string details = details_text(field);
  return summary_text(field) + (details.empty() ? "" : " " + details);
}

std::string reference_markdown() {
  return "# Configuration reference\n\n"
         "    build/bin/trainer config.yaml learning_rate=1e-5      # train; a key overrides the file\n"
         "    build/bin/trainer --help learning_rate                # explain a key\n"
         "    build/bin/trainer lint config.yaml                    # check a configuration\n\n"
         "A configuration is a YAML or JSON file of these keys. On the command line, write `key=value`, "
         "`--key value` or\n"
         "`--key=value`, in any order. If several sources set a key, the first of this list wins:\n\n"
         "1. the command line;\n2. the YAML file;\n3. a DeepSpeed JSON (`deepspeed`);\n"
         "4. the [environment](environment.md) (`OCTET_<KEY>`);\n5. the default.\n\n"
         "An unknown key is an error, and the message offers the nearest name. Words of up to four letters "
         "may differ by "
         "one\nedit, longer words by two, and long words by a quarter of their letters. An edit changes, "
         "adds or removes "
         "a letter,\nor swaps two neighbours.\n\n"
         "Find a key by name in the [index](#index). Other keys are on separate pages:\n"
         "[LLaMA-Factory and Hugging Face](llamafactory_keys.md), [axolotl](from_axolotl.md), [SFT-Play and\n"
         "verl](from_sft_play_and_verl.md), [DeepSpeed](deepspeed.md). This page is generated from the "
         "tables "
         "in `src/config`.\n\n"
         "[config.schema.json](config.schema.json) is a JSON Schema of the same tables; `trainer schema` "
         "prints it. An editor with\nyaml-language-server completes and checks keys if the first line of "
         "your file "
         "names the schema:\n\n"
         "    # yaml-language-server: $schema=/path/to/octet/docs/config.schema.json\n\n"
         "The schema expects words such as `cosine` in small letters. The program also accepts capitals.\n" +
         tables_of_keys(false) + "\n## Index\n\n" + index_of_keys();
}

std::string other_keys_markdown() {
  return "# Keys of LLaMA-Factory and Hugging Face\n\n"
         "Check a file of LLaMA-Factory, and see which of its keys have no effect:\n\n"
         "    build/bin/trainer lint sft.yaml\n\n"
         "Keys that Octet uses are in the [configuration reference](config.md), with the names of "
         "LLaMA-Factory. "
         "This page lists\nthe other keys. A key of the first table changes nothing. A key of the second "
         "table is "
         "accepted with the listed\nvalue, and any other value is an error.\n\n"
         "[From LLaMA-Factory](from_llamafactory.md) goes from a file to a trained model. This page is "
         "generated "
         "from the tables\nin `src/config`.\n" +
         tables_of_keys(true);
}

std::string resume_hash(const Config& config) {
  return hash128_hex(identity(config));
}

Strings resume_differences(const Config& was, const Config& wanted) {
  // Storage keys that are auto take the values of the saved run.
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
