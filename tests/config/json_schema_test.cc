// Tests that docs/config.schema.json equals the table and accepts all input that the program accepts.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <ranges>
#include <regex>

#include "config/support.h"
#include "node.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"

namespace octet::config::test::json_schema_test {
namespace {

const std::string kSource = OCTET_SOURCE_DIR;

/// Returns the tree as an editor reads it: scalars have YAML 1.2 types.
Json as_json(const Node& node) {
  static const std::regex kNumber(R"([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?)");
  static const std::regex kTrue("true|True|TRUE"), kFalse("false|False|FALSE");
  Json value;
  switch (node.kind) {
    case Node::Kind::null:
      return nullptr;
    case Node::Kind::list:
      value = Json::array();
      for (const Node& item : node.items) value.push_back(as_json(item));
      return value;
    case Node::Kind::map:
      value = Json::object();
      for (const auto& [name, item] : node.members) value[name] = as_json(item);
      return value;
    case Node::Kind::scalar:
      break;
  }
  if (node.quoted) return node.text;
  if (node.is_null()) return nullptr;
  if (std::regex_match(node.text, kTrue)) return true;
  if (std::regex_match(node.text, kFalse)) return false;
  if (std::regex_match(node.text, kNumber)) return std::stod(node.text);
  return node.text;
}

bool has_type(const Json& value, const std::string& type) {
  if (type == "integer") return value.is_number() && std::floor(value.get<double>()) == value.get<double>();
  if (type == "number") return value.is_number();
  if (type == "null") return value.is_null();
  if (type == "object") return value.is_object();
  return type == "array" ? value.is_array() : type == "boolean" ? value.is_boolean() : value.is_string();
}

/// A validator for the keywords of the schema. fault() returns where a value violates it, or "".
struct Validator {
  const Json& root;

  std::string fault(const Json& value, const Json& schema, const std::string& at) const {
    for (const auto& [word, wanted] : schema.items()) {
      if (!holds(word, wanted, value, schema)) return at + ": " + word + " " + wanted.dump();
    }
    if (!value.is_object() || !schema.contains("properties")) return "";
    for (const auto& [name, member] : value.items()) {
      const std::string below = at + "/" + name;
      if (schema["properties"].contains(name)) {
        const std::string found = fault(member, schema["properties"][name], below);
        if (!found.empty()) return found;
      } else if (schema.contains("additionalProperties")) {
        return below + ": unknown key";
      }
    }
    return "";
  }

  bool fits(const Json& value, const Json& schema) const { return fault(value, schema, "").empty(); }

  bool holds(const std::string& word, const Json& wanted, const Json& value, const Json& schema) const {
    const auto fits_one = [&](const Json& one) { return fits(value, one); };
    const auto typed = [&](const Json& type) { return has_type(value, type.get<std::string>()); };
    const auto item_fits = [&](const Json& item) { return fits(item, wanted); };
    const double x = value.is_number() ? value.get<double>() : NAN;
    if (word == "type") return wanted.is_array() ? std::ranges::any_of(wanted, typed) : typed(wanted);
    if (word == "enum") return std::ranges::find(wanted, value) != wanted.end();
    if (word == "anyOf") return std::ranges::any_of(wanted, fits_one);
    if (word == "allOf") return std::ranges::all_of(wanted, fits_one);
    if (word == "$ref") return fits(value, root.at(Json::json_pointer(wanted.get<std::string>().substr(1))));
    if (word == "minimum") return !(x < wanted.get<double>());
    if (word == "maximum") return !(x > wanted.get<double>());
    if (word == "exclusiveMinimum") return !(x <= wanted.get<double>());
    if (word == "exclusiveMaximum") return !(x >= wanted.get<double>());
    if (word == "items") return !value.is_array() || std::ranges::all_of(value, item_fits);
    if (word == "pattern") {
      const std::regex pattern(wanted.get<std::string>());
      return !value.is_string() || std::regex_search(value.get<std::string>(), pattern);
    }
    for (const char* other : {"$schema", "title", "description", "default", "definitions", "properties",
                              "additionalProperties"}) {
      if (word == other) return true;
    }
    ADD_FAILURE() << "a keyword that this test does not check: " << word << " in " << schema.dump();
    return false;
  }
};

std::string fault(const Json& configuration) {
  static const Json schema = parse_json(json_schema(), "json_schema()");
  return Validator{.root = schema}.fault(configuration, schema, "");
}

std::string fault(const std::string& yaml) {
  return fault(as_json(parse_yaml(yaml, "t.yaml")));
}

// OCTETRUN_WRITE_DOCS=1 writes the file instead of comparing it.
TEST(JsonSchema, TheFileInDocsIsTheTable) {
  const std::string path = kSource + "/docs/config.schema.json";
  if (std::getenv("OCTETRUN_WRITE_DOCS") != nullptr) write_file_atomically(path, json_schema());
  ASSERT_TRUE(path_exists(path));
  EXPECT_EQ(read_file(path), json_schema()) << "docs/config.schema.json is old: run OCTETRUN_WRITE_DOCS=1 "
                                               "config_tests --gtest_filter='JsonSchema.*'";
}

TEST(JsonSchema, HasEveryKeyAliasAndKeyOfAnotherTrainer) {
  const Json properties = parse_json(json_schema(), "json_schema()")["properties"];
  for (const std::string& name : field_names()) {
    ASSERT_TRUE(properties.contains(name)) << name;
    EXPECT_GT(properties[name]["description"].get<std::string>().size(), 10u) << name;
  }
  for (const ForeignKey& key : dialect_keys()) {
    const Json* at = &properties;
    const std::vector<std::string> steps = split(key.path, '.');
    for (const std::string& step : steps) {
      if (&step != &steps.front()) at = &(*at)["properties"];
      ASSERT_TRUE(at->contains(step)) << key.path;
      at = &(*at)[step];
    }
    if (find_field(key.path) != nullptr) continue;
    EXPECT_SAYS((*at)["description"].get<std::string>(), "A key of " + key.trainer);
  }
}

TEST(JsonSchema, AcceptsEveryDefaultAndEveryChoice) {
  const Json properties = parse_json(json_schema(), "json_schema()")["properties"];
  for (const Field& field : schema()) {
    EXPECT_EQ(fault(Json{{field.name, properties[field.name]["default"]}}), "") << field.name;
    for (const std::string& alias : field.aliases) {
      EXPECT_EQ(fault(Json{{alias, properties[field.name]["default"]}}), "") << alias;
    }
    for (const std::string& choice : field.choices) {
      const bool refused =
          std::ranges::any_of(field.refused_values, [&](const auto& value) { return value.first == choice; });
      const bool number = field.kind == Kind::integer;
      const Json value = number ? Json(std::stoll(choice)) : Json(choice);
      EXPECT_EQ(fault(Json{{field.name, value}}).empty(), !refused) << field.name << ": " << choice;
    }
  }
}

TEST(JsonSchema, AcceptsEveryShippedConfiguration) {
  int files = 0;
  for (const auto& file : std::filesystem::directory_iterator(kSource + "/configs")) {
    if (file.path().extension() != ".yaml") continue;
    ++files;
    EXPECT_EQ(fault(as_json(read_tree(file.path().string()))), "") << file.path();
  }
  EXPECT_GE(files, 12);
}

TEST(JsonSchema, AcceptsFilesOfOtherTrainers) {
  for (const char* name :
       {"axolotl_fft.yaml", "verl_sft_trainer.yaml", "sft_play_base.yaml", "llama3_fp8_deepspeed_sft.yaml"}) {
    EXPECT_EQ(fault(as_json(read_tree(kSource + "/tests/guides/" + name))), "") << name;
  }
}

TEST(JsonSchema, AgreesWithTheProgramOnValues) {
  const struct {
    const char* yaml;
    bool accepted;
  } kCases[] = {
      {"learning_rate: 2e-4", true},
      {"learning_rate: -1", false},
      {"learning_rate: fast", false},
      {"learning_rate: '1.0e-3'", true},
      {"max_steps: 1_000", true},
      {"warmup_ratio: ${oc.env:WARMUP,0.1}", true},
      {"per_device_train_batch_size: auto", true},
      {"per_device_train_batch_size: 0", false},
      {"per_device_train_batch_size: 1.5", false},
      {"gradient_accumulation_steps: null", true},
      {"bf16: yes", true},
      {"bf16: 2", false},
      {"optim: adamw_torch", true},
      {"optim: sgd", false},
      {"zero_stage: 4", false},
      {"lora_target: q_proj,v_proj", true},
      {"lora_target: [q_proj, v_proj]", true},
      {"lora_target: {q_proj: true}", false},
      {"lr_scheduler_kwargs: {min_lr: 1.0e-6}", true},
      {"lr_scheduler_kwargs: 3", false},
      {"save_strategy: no", true},
      {"fp16: false", true},
      {"fp16: true", false},
      {"lerning_rate: 1", false},
      {"deepspeed: {zero_optimization: {stage: 2}}", true},
      {"deepspeed: ds.json", true},
      {"evaluation_strategy: steps", true},
      {"evaluation_strategy: often", false},
  };
  for (const auto& one : kCases) {
    const std::string found = fault(std::string(one.yaml));
    EXPECT_EQ(found.empty(), one.accepted) << one.yaml << "\n" << found;
  }
}

}  // namespace
}  // namespace octet::config::test::json_schema_test
