#include "octet/config/key_table.h"

#include <map>

#include "octet/base/error.h"
#include "table.h"
#include "value.h"

namespace octet::config {
namespace {

std::vector<Field> build() {
  Table table;
  add_model_and_data_fields(table);
  add_training_fields(table);
  add_loss_fields(table);
  add_machine_fields(table);
  add_check_fields(table);
  add_foreign_fields(table);
  std::vector<Field> fields = table.take();
  const Config defaults;
  for (Field& field : fields) {
    if (field.status == Status::used) field.fallback = value_text(field, defaults);
  }
  return fields;
}

struct Index {
  std::map<std::string, const Field*> by_name;
  Strings names;
  Index() {
    for (const Field& field : schema()) {
      Strings all = field.aliases;
      all.insert(all.begin(), field.name);
      for (const auto& name : all) {
        check(by_name.emplace(name, &field).second, "each key occurs once in the table");
        names.push_back(name);
      }
    }
  }
};

const Index& index() {
  static const Index built;
  return built;
}

// Converts a value of a Config to a Value, so that only canonical() formats it.
struct Reader {
  const Config& config;
  Value value{};
  void operator()(std::monostate) {}
  template <class T>
  void operator()(T Config::*member) {
    take(config.*member);
  }
  void take(bool v) { value.boolean = v, value.given = true; }
  void take(std::int64_t v) { value.integer = v, value.given = true; }
  void take(double v) { value.number = v, value.given = true; }
  void take(const std::string& v) { value.text = v, value.given = true; }
  void take(const Strings& v) { value.list = v, value.given = true; }
  void take(const Arguments& v) { value.arguments = v, value.given = true; }
  template <class T>
  void take(const std::optional<T>& v) {
    if (v) take(*v);
  }
};

}  // namespace

const std::vector<Field>& schema() {
  static const std::vector<Field> fields = build();
  return fields;
}

const Field* find_field(const std::string& name) {
  const auto found = index().by_name.find(name);
  return found == index().by_name.end() ? nullptr : found->second;
}

const Strings& field_names() {
  return index().names;
}

std::string value_text(const Field& field, const Config& config) {
  Reader reader{.config = config};
  std::visit(reader, field.member);
  if (!reader.value.given) return "null";
  std::string text = canonical(field, reader.value);
  if (field.kind != Kind::text) return text;
  return (!field.choices.empty() && text != "") ? text : yaml_text(text);
}

std::string default_text(const Field& field) {
  return field.fallback;
}

std::string expected_text(const Field& field) {
  if (!field.choices.empty()) {
    std::string text;
    for (const auto& choice : field.choices) {
      bool supported = true;
      for (const auto& [refused, reason] : field.refused_values) supported = supported && refused != choice;
      if (supported) text += (text.empty() ? "" : ", ") + choice;
    }
    return text;
  }
  const bool low = field.low > -std::numeric_limits<double>::infinity();
  const bool high = field.high < std::numeric_limits<double>::infinity();
  const auto bound = [](double x) {
    return x == static_cast<double>(static_cast<std::int64_t>(x))
               ? std::to_string(static_cast<std::int64_t>(x))
               : number_text(x);
  };
  std::string text;
  switch (field.kind) {
    case Kind::boolean:
      return field.refused_values.empty() ? "true or false" : "false";
    case Kind::text:
      return "text";
    case Kind::list:
      return "a name, names separated by commas, or a list";
    case Kind::arguments:
      return "a map of names to numbers or words";
    case Kind::integer:
      text = "a whole number";
      break;
    case Kind::number:
      text = "a number";
      break;
  }
  if (low) text += (field.low_open ? " above " : " of at least ") + bound(field.low);
  if (high)
    text += std::string(low ? " and " : " ") + (field.high_open ? "below " : "at most ") + bound(field.high);
  if (field.automatic) text += ", or auto";
  return text;
}

}  // namespace octet::config
