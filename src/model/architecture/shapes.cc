// Shapes of well-known models, as their config.json has them. shape_data.h has the data.
#include "octet/model/shapes.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "shape_data.h"

namespace octet::model {
namespace {

const Json& data() {
  static const Json parsed = Json::parse(kShapeData);
  return parsed;
}

/// Returns the row of a shape; nullptr: no shape has the name.
const Json* shape_named(const std::string& name) {
  for (const Json& shape : data().at("shapes")) {
    if (shape.at("name") == name) return &shape;
  }
  return nullptr;
}

Json config_of(const Json& shape) {
  constexpr auto keys =
      std::to_array<const char*>({"hidden_size", "intermediate_size", "num_hidden_layers",
                                  "num_attention_heads", "num_key_value_heads", "vocab_size"});
  Json config = data().at("families").at(shape.at("family").get<std::string>());
  for (std::size_t i = 0; i < keys.size(); ++i) config[keys[i]] = shape.at("sizes").at(i);
  config["tie_word_embeddings"] = shape.value("tied", false);
  if (shape.contains("more")) config.update(shape.at("more"));
  return config;
}

/// A model of the Hugging Face hub.
struct HubName {
  const Json* shape = nullptr;  ///< its row; nullptr: unknown model
  Json stored;                  ///< quantization_config of the published weights; null: not quantised
};

/// Returns whether a text has the form of a name on the hub, with or without an owner: "Qwen/Qwen3-8B".
/// Returns false for paths like "./model", "~/model" and "a/b/c".
bool is_name_on_hub(const std::string& text) {
  if (text.empty() || text.front() == '.' || text.front() == '/' || text.front() == '~') return false;
  return std::ranges::count(text, '/') <= 1 && text.back() != '/';
}

/// Finds a model by its name without the owner: "Llama-3.2-1B-Instruct".
HubName name_on_hub(const std::string& name) {
  HubName found;
  std::string word = name;
  for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const Json& row : data().at("beginnings")) {
    const auto from = row.at(0).get<std::string>();
    if (word.starts_with(from)) word = row.at(1).get<std::string>() + word.substr(from.size());
  }
  for (const Json& row : data().at("quantised")) {
    const auto ending = row.at(0).get<std::string>();
    if (!found.stored.is_null() || !word.ends_with(ending) || !word.starts_with(row.at(1).get<std::string>()))
      continue;
    word.resize(word.size() - ending.size());
    found.stored = row.at(2);
  }
  while ((found.shape = shape_named(word)) == nullptr) {
    const Json& endings = data().at("endings");
    const auto ending = std::ranges::find_if(
        endings, [&](const Json& each) { return word.ends_with(each.get<std::string>()); });
    if (ending == endings.end()) return {};
    word.resize(word.size() - ending->get<std::string>().size());
  }
  if (word == "tiny") found.shape = nullptr;  // no published model
  return found;
}

std::string last_part(std::string path) {
  while (path.ends_with('/')) path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

std::string name_of(const Json* shape) {
  return shape == nullptr ? "" : shape->at("name").get<std::string>();
}

[[noreturn]] void refuse_model(const std::string& wanted) {
  std::string names;
  for (const std::string& name : shape_names()) names += (names.empty() ? "" : ", ") + name;
  const std::string known = name_of(name_on_hub(last_part(wanted)).shape);
  const std::string near = nearest_name(last_part(wanted), shape_names());
  throw Error(
      {.what = "'" + wanted + "' is neither the folder of a model nor a shape with a name",
       .expected = "a folder with config.json, a config.json, a model's name on the hub, or one of " + names,
       .fix = !known.empty() ? "name the folder where the model is, or its built-in shape: " + known
              : near.empty() ? "name one of these, or a folder with config.json"
                             : "did you mean '" + near + "'?",
       .code = ExitCode::usage});
}

}  // namespace

std::vector<std::string> shape_names() {
  std::vector<std::string> names;
  for (const Json& shape : data().at("shapes")) names.push_back(name_of(&shape));
  return names;
}

std::string shape_of_model(const std::string& name) {
  return is_name_on_hub(name) ? name_of(name_on_hub(last_part(name)).shape) : "";
}

Architecture find_shape(const std::string& wanted) {
  std::error_code ignored;
  if (std::filesystem::is_directory(wanted, ignored)) return read_architecture(wanted);
  if (wanted.ends_with(".json")) return read_architecture(read_json(wanted), wanted);
  const std::string where = "the shape '" + wanted + "'";
  if (const Json* shape = shape_named(wanted)) return read_architecture(config_of(*shape), where);
  const HubName model = is_name_on_hub(wanted) ? name_on_hub(last_part(wanted)) : HubName{};
  if (model.shape == nullptr) refuse_model(wanted);
  Json config = config_of(*model.shape);
  if (!model.stored.is_null()) config["quantization_config"] = model.stored;
  return read_architecture(config, where);
}

}  // namespace octet::model
