// Converts the table of keys to a JSON Schema for editors.
#include <algorithm>
#include <cmath>

#include "dialects/dialects.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/config/key_table.h"
#include "value.h"

namespace octet::config {
namespace {

Json reference(const std::string& definition) {
  return {{"$ref", "#/definitions/" + definition}};
}

/// Returns patterns of values that the program accepts and that YAML 1.2 reads as text.
Json definitions() {
  const auto spelled = [](const char* pattern) { return Json{{"type", "string"}, {"pattern", pattern}}; };
  return {
      {"interpolation", spelled("\\$\\{[^}]*\\}")},
      {"boolean word", spelled("^([Tt]rue|TRUE|[Ff]alse|FALSE|[Yy]es|YES|[Nn]o|NO|[Oo]n|ON|[Oo]ff|OFF)$")},
      {"number word", spelled("^([-+]?[0-9][0-9_]*(\\.[0-9_]*)?([eE][-+]?[0-9]+)?|[Nn]one)$")},
      {"scalar", {{"type", {"string", "number", "boolean"}}}}};
}

/// Returns the number as JSON, as an integer if it is whole: 1 instead of 1.0.
Json number(double value) {
  if (std::floor(value) == value && std::abs(value) < 1e15) return static_cast<std::int64_t>(value);
  return value;
}

Json numeric(const Field& field) {
  Json schema{{"type", field.kind == Kind::integer ? "integer" : "number"}};
  if (std::isfinite(field.low)) schema[field.low_open ? "exclusiveMinimum" : "minimum"] = number(field.low);
  if (std::isfinite(field.high))
    schema[field.high_open ? "exclusiveMaximum" : "maximum"] = number(field.high);
  return schema;
}

/// Returns a scalar as YAML 1.2 reads it.
Json scalar(Kind kind, const std::string& text) {
  if (text == "null") return nullptr;
  if (kind == Kind::boolean) {
    if (const auto flag = read_bool(text)) return *flag;
  }
  if (kind == Kind::integer || kind == Kind::number) {
    if (const auto value = read_number(text)) return number(*value);
  }
  return text;
}

Json choices_of(const Field& field) {
  Json all = Json::array();
  for (const std::string& choice : field.choices) {
    bool supported = true;
    for (const auto& [refused, reason] : field.refused_values) supported = supported && refused != choice;
    if (!supported) continue;
    all.push_back(scalar(field.kind, choice));
    // "false" is a word for this key, but YAML reads it as a boolean.
    if (field.kind == Kind::text && read_bool(choice)) all.push_back(*read_bool(choice));
  }
  return {{"enum", all}};
}

/// Returns the values that a refused key may have.
Json harmless_values(const Field& field) {
  Json all = Json::array();
  for (const std::string& value : field.harmless) {
    all.push_back(scalar(field.kind, value));
    if (field.kind == Kind::text && read_bool(value)) all.push_back(*read_bool(value));
  }
  if (field.kind == Kind::text || field.kind == Kind::list) all.push_back("");
  if (field.kind == Kind::list) all.push_back(Json::array());
  if (field.kind == Kind::arguments) all.push_back(Json::object());
  return {{"enum", all}};
}

/// Returns the accepted forms of a value; the preferred completion is first.
std::vector<Json> forms(const Field& field) {
  if (field.status == Status::refused) return {harmless_values(field)};
  const Json item = field.choices.empty() ? reference("scalar") : choices_of(field);
  switch (field.kind) {
    case Kind::boolean:
      // If `true` is refused, only `false` is accepted.
      if (!field.refused_values.empty()) return {Json{{"enum", {false}}}};
      return {Json{{"type", "boolean"}}, reference("boolean word")};
    case Kind::integer:
    case Kind::number: {
      if (!field.choices.empty()) return {choices_of(field)};
      std::vector<Json> all{numeric(field)};
      if (field.automatic) all.push_back({{"enum", {"auto"}}});
      all.push_back(reference("number word"));
      return all;
    }
    case Kind::list:
      return {Json{{"type", "array"}, {"items", item}}, Json{{"type", "string"}}};
    case Kind::arguments:
      return {Json{{"type", "object"}}};
    case Kind::text:
      break;
  }
  // The DeepSpeed configuration may be inline instead of a path.
  if (field.name == "deepspeed") return {item, Json{{"type", "object"}}};
  return {item};
}

/// Returns the default as YAML 1.2 reads it.
Json default_value(const Field& field) {
  const std::string text = default_text(field);
  if (text.empty() || text == "null") return nullptr;
  if (field.kind == Kind::arguments) return Json::object();
  if (field.kind != Kind::list && field.kind != Kind::text) return scalar(field.kind, text);
  const Node list = parse_argument(text.starts_with('[') ? text : "[" + text + "]", field.name);
  Json items = Json::array();
  for (const Node& item : list.items) items.push_back(item.text);
  return field.kind == Kind::list ? items : items.front();
}

Json property(const Field& field) {
  std::vector<Json> any = forms(field);
  any.push_back({{"type", "null"}});
  any.push_back(reference("interpolation"));
  return {{"description", meaning_text(field)}, {"default", default_value(field)}, {"anyOf", any}};
}

std::string meaning_of(const ForeignKey& key) {
  std::string text = "A key of " + key.trainer + ". ";
  if (key.becomes.empty()) return text + "No key of Octet: " + key.reason + ".";
  std::string ours;
  for (const std::string& name : split(key.becomes, ' ')) ours += (ours.empty() ? "`" : ", `") + name + "`";
  return text + "It sets " + ours + ".";
}

/// Whether the trainer's key accepts values that ours does not: "bf16: auto".
bool has_other_values(const ForeignKey& key) {
  const auto trainer = std::ranges::find(kDialects, key.trainer, &Dialect::name);
  const Action action = (*trainer)->find(key.path)->action;
  return action != Action::map && action != Action::weak && action != Action::minus_off;
}

/// Adds the key of another trainer at its dotted path. A key of Octet with the same name keeps its meaning.
void add_foreign(Json& properties, const ForeignKey& key) {
  Json* at = &properties;
  const std::vector<std::string> steps = split(key.path, '.');
  for (std::size_t i = 0; i + 1 < steps.size(); ++i) {
    Json& section = (*at)[steps[i]];
    if (section.is_null()) {
      section["description"] = "A section of " + key.trainer + ".";
    } else if (section.contains("anyOf") && !section.contains("properties")) {
      section["anyOf"].push_back({{"type", "object"}});
    }
    at = &section["properties"];
  }
  Json& leaf = (*at)[steps.back()];
  const Field* ours = find_field(key.path);
  const Json text_or_tree{{"type", {"string", "array", "object"}}};
  if (ours != nullptr) {
    if (has_other_values(key)) properties[ours->name]["anyOf"].push_back(text_or_tree);
  } else {
    const std::string before =
        leaf.contains("description") ? leaf["description"].get<std::string>() + " " : "";
    leaf["description"] = before + meaning_of(key);
  }
}

}  // namespace

std::string json_schema() {
  Json properties = Json::object();
  for (const Field& field : schema()) {
    properties[field.name] = property(field);
    for (const std::string& alias : field.aliases) {
      properties[alias] = {{"description", "Another name of `" + field.name + "`. " + meaning_text(field)},
                           {"allOf", Json::array({Json{{"$ref", "#/properties/" + field.name}}})}};
    }
  }
  properties["include"] = {
      {"description",
       "A configuration, or a list of configurations, to read first. Keys of this file override them."},
      {"anyOf", {reference("scalar"), {{"type", "array"}, {"items", reference("scalar")}}}}};
  for (const ForeignKey& key : dialect_keys()) add_foreign(properties, key);
  const Json all{
      {"$schema", "http://json-schema.org/draft-07/schema#"},
      {"title", "Octet configuration"},
      {"description", "Keys of a configuration of Octet's trainer. `trainer schema` prints this file."},
      {"type", "object"},
      {"definitions", definitions()},
      {"properties", properties},
      {"additionalProperties", false}};
  return all.dump(1) + "\n";
}

}  // namespace octet::config
