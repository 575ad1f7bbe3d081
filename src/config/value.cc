#include "value.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

#include "octet/base/strings.h"

namespace octet::config {
namespace {

[[noreturn]] void wrong(const Field& field, const std::string& found, const Location& at,
                        const std::string& fix = "") {
  complain({.what = "value of '" + at.key + "' cannot be used",
            .expected = expected_text(field),
            .found = found,
            .where = at.where,
            .fix = !fix.empty()                        ? fix
                   : find_field(field.name) != nullptr ? such_a_value(field.name)
                                                       : "give such a value"});
}

// "1_000" -> "1000"; nullopt if an underscore is not between two digits.
std::optional<std::string> without_underscores(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      plain += text[i];
      continue;
    }
    const auto digit = [&](std::size_t at) {
      return at < text.size() && std::isdigit(static_cast<unsigned char>(text[at]));
    };
    if (i == 0 || !digit(i - 1) || !digit(i + 1)) return std::nullopt;
  }
  return plain;
}

double checked_number(const Field& field, const Node& node, const Location& at) {
  if (node.kind != Node::Kind::scalar) wrong(field, shown(node), at);
  const std::string text(trim(node.text));
  const auto number = read_number(text);
  if (!number) {
    const bool octal = text.size() > 1 && text[0] == '0' && std::isdigit(static_cast<unsigned char>(text[1]));
    wrong(field, shown(node), at,
          octal ? "leave out the leading zero: YAML reads such numbers as octal" : "");
  }
  const bool low_ok = field.low_open ? *number > field.low : *number >= field.low;
  const bool high_ok = field.high_open ? *number < field.high : *number <= field.high;
  if (!low_ok || !high_ok) wrong(field, shown(node), at);
  return *number;
}

std::string scalar_text(const Field& field, const Node& node, const Location& at) {
  if (node.kind != Node::Kind::scalar) wrong(field, shown(node), at);
  if (node.text.find('\0') != std::string::npos) wrong(field, "a text with a NUL", at);
  return node.text;
}

void read_list(const Field& field, const Node& node, const Location& at, Value& value) {
  const auto take = [&](const std::string& text) {
    const std::string item(trim(text));
    if (item.empty()) wrong(field, "an empty name in " + shown(node), at, "remove the empty entry");
    value.list.push_back(item);
  };
  if (node.kind == Node::Kind::scalar) {
    for (const auto& piece : split(node.text, ',')) take(piece);
  } else if (node.kind == Node::Kind::list) {
    for (const Node& item : node.items) {
      if (item.kind != Node::Kind::scalar) wrong(field, "an entry that is " + shown(item), at);
      take(item.text);
    }
  } else {
    wrong(field, shown(node), at);
  }
}

void read_arguments(const Field& field, const Node& node, const Location& at, Value& value) {
  if (node.kind != Node::Kind::map) wrong(field, shown(node), at, "write it as {min_lr: 1.0e-6}");
  for (const auto& [name, item] : node.members) {
    // YAML reads "patience:3" as a name without a value.
    if (item.is_null() && name.find(':') != std::string::npos) {
      wrong(field, "'" + name + "' without a value", at, "write a blank after the colon: {min_lr: 1.0e-6}");
    }
    if (item.is_null()) continue;
    if (item.kind != Node::Kind::scalar) wrong(field, "'" + name + "' is " + shown(item), at);
    const auto number = read_number(std::string(trim(item.text)));
    if (number) {
      value.arguments[name] = *number;
    } else {
      value.arguments[name] = item.text;
    }
  }
}

/// Returns the word that the user wrote, if it differs from `text`.
std::string written(const Location& at, const std::string& text) {
  return at.written.empty() ? text : at.written;
}

// Checks choices and refusals of the canonical text.
void check_choice(const Field& field, const std::string& text, const Location& at, Value& value) {
  for (const auto& [refused, reason] : field.refused_values) {
    if (text != refused) continue;
    value.refusal = {.what = "'" + at.key + ": " + written(at, text) + "' is not supported",
                     .expected = expected_text(field),
                     .where = at.where,
                     .fix = reason,
                     .code = ExitCode::usage};
    return;
  }
  if (!field.choices.empty() &&
      std::find(field.choices.begin(), field.choices.end(), text) == field.choices.end()) {
    const std::string near = nearest_name(text, field.choices);
    wrong(field, "'" + written(at, text) + "'", at, near.empty() ? "" : "did you mean '" + near + "'?");
  }
}

bool is_harmless(const Field& field, const Value& value) {
  const std::string text = canonical(field, value);
  if (text.empty() || text == "[]") return true;
  return std::any_of(field.harmless.begin(), field.harmless.end(), [&](const std::string& harmless) {
    if (field.kind == Kind::integer || field.kind == Kind::number) {
      return read_number(harmless) == read_number(text);
    }
    return text == harmless || lower_case(text) == harmless;
  });
}

}  // namespace

std::string removal(const std::string& reason) {
  static constexpr std::array kDoes{"change ", "cut ", "keep ", "remove ", "set ", "use ", "write "};
  const bool says = std::ranges::any_of(kDoes, [&](const char* does) { return reason.starts_with(does); }) ||
                    reason.find("remove it") != std::string::npos;
  return says ? reason : "remove it: " + reason;
}

std::string such_a_value(const std::string& key) {
  return "give such a value; 'trainer --help " + key + "' says more";
}

std::optional<bool> read_bool(const std::string& text) {
  const std::string word = lower_case(text);
  if (word == "true" || word == "yes" || word == "on") return true;
  if (word == "false" || word == "no" || word == "off") return false;
  return std::nullopt;
}

std::optional<double> read_number(const std::string& text) {
  const auto plain = without_underscores(text);
  if (!plain || plain->empty() || plain->size() > 64) return std::nullopt;
  std::string_view digits = *plain;
  if (digits.front() == '+') digits.remove_prefix(1);
  std::string_view magnitude = digits;
  if (!magnitude.empty() && magnitude.front() == '-' && digits.size() == plain->size())
    magnitude.remove_prefix(1);
  // from_chars accepts "inf", "nan" and a second sign, which are invalid here.
  if (magnitude.empty() || (!std::isdigit(static_cast<unsigned char>(magnitude[0])) && magnitude[0] != '.')) {
    return std::nullopt;
  }
  if (magnitude.size() > 1 && magnitude[0] == '0' && std::isdigit(static_cast<unsigned char>(magnitude[1]))) {
    return std::nullopt;
  }
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || !std::isfinite(value))
    return std::nullopt;
  return value;
}

std::string number_text(double value) {
  char text[64];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  std::string result(text, end);
  // PyYAML reads "1e-05" as a string; with a dot it is a number everywhere.
  const std::size_t exponent = result.find('e');
  if (exponent != std::string::npos && result.find('.') == std::string::npos) result.insert(exponent, ".0");
  return result;
}

std::string yaml_text(const std::string& text) {
  static const std::string kSpecial = ":{}[],&*#?|-<>=!%@\\\"'`\n\r\t";
  const bool plain =
      !text.empty() && text.find_first_of(kSpecial) == std::string::npos && text.front() != ' ' &&
      text.back() != ' ' && !read_bool(text) && !read_number(text) && text != "~" &&
      lower_case(text) != "null" && lower_case(text) != "none" &&
      !std::isdigit(static_cast<unsigned char>(text[0])) && text[0] != '.' && text[0] != '+' &&
      std::all_of(text.begin(), text.end(), [](unsigned char c) { return c >= 0x20 && c != 0x7F; });
  if (plain) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (c == '\t') {
      quoted += "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      char hex[8];
      std::snprintf(hex, sizeof hex, "\\x%02X", byte);
      quoted += hex;
    } else {
      quoted += c;
    }
  }
  return quoted + '"';
}

Value check_value(const Field& field, const Node& node, const Location& at) {
  Value value;
  const bool none = field.optional && node.kind == Node::Kind::scalar && !node.quoted &&
                    field.kind != Kind::text && field.kind != Kind::list && lower_case(node.text) == "none";
  if (node.is_null() || none) return value;
  value.given = true;
  switch (field.kind) {
    case Kind::boolean: {
      const auto flag = node.kind == Node::Kind::scalar ? read_bool(node.text) : std::nullopt;
      if (!flag) wrong(field, shown(node), at);
      value.boolean = *flag;
      break;
    }
    case Kind::integer: {
      if (field.automatic && node.kind == Node::Kind::scalar &&
          lower_case(std::string(trim(node.text))) == "auto") {
        value.integer = kAutomatic;
        break;
      }
      const double number = checked_number(field, node, at);
      if (number != std::floor(number) || std::abs(number) > 9007199254740992.0)
        wrong(field, shown(node), at);
      value.integer = static_cast<std::int64_t>(number);
      break;
    }
    case Kind::number:
      value.number = checked_number(field, node, at);
      break;
    case Kind::text: {
      if (field.status == Status::refused && node.kind != Node::Kind::scalar) {
        value.text = shown(node);
        break;
      }
      value.text = scalar_text(field, node, at);
      if (!field.choices.empty()) {
        value.text = lower_case(value.text);
        // YAML 1.1 has many words for false; `no` is a choice of this key.
        const auto flag = read_bool(value.text);
        const auto has = [&](const char* word) {
          return std::find(field.choices.begin(), field.choices.end(), word) != field.choices.end();
        };
        if (flag && !*flag && has("no")) {
          value.text = "no";
        } else if (flag && has(*flag ? "true" : "false")) {
          value.text = *flag ? "true" : "false";
        }
      }
      break;
    }
    case Kind::list:
      read_list(field, node, at, value);
      break;
    case Kind::arguments:
      read_arguments(field, node, at, value);
      break;
  }
  if (field.kind == Kind::list && !field.choices.empty()) {
    for (auto& item : value.list) check_choice(field, item = lower_case(item), at, value);
  } else if (!field.choices.empty() || !field.refused_values.empty()) {
    check_choice(field, canonical(field, value), at, value);
  }
  if (field.status == Status::refused && !is_harmless(field, value)) {
    value.refusal = {
        .what = "'" + at.key + ": " + written(at, canonical(field, value)) + "' is not supported",
        .where = at.where,
        .fix = removal(field.reason),
        .code = ExitCode::usage};
  }
  return value;
}

std::string canonical(const Field& field, const Value& value) {
  switch (field.kind) {
    case Kind::boolean:
      return value.boolean ? "true" : "false";
    case Kind::integer:
      return field.automatic && value.integer == kAutomatic ? "auto" : std::to_string(value.integer);
    case Kind::number:
      return number_text(value.number);
    case Kind::text:
      return value.text;
    case Kind::list: {
      std::string text = "[";
      for (const auto& item : value.list) text += (text.size() > 1 ? ", " : "") + yaml_text(item);
      return text + "]";
    }
    default: {
      std::string text = "{";
      for (const auto& [name, argument] : value.arguments) {
        const auto* number = std::get_if<double>(&argument);
        text += (text.size() > 1 ? ", " : "") + yaml_text(name) + ": " +
                (number ? number_text(*number) : yaml_text(std::get<std::string>(argument)));
      }
      return text + "}";
    }
  }
}

void store(const Field& field, const Value& value, Config& config) {
  static const Config kDefaults;
  std::visit(
      [&](auto member) {
        using M = decltype(member);
        if constexpr (!std::is_same_v<M, std::monostate>) {
          auto& target = config.*member;
          if (!value.given) {
            target = kDefaults.*member;
          } else if constexpr (std::is_same_v<M, bool Config::*> ||
                               std::is_same_v<M, std::optional<bool> Config::*>) {
            target = value.boolean;
          } else if constexpr (std::is_same_v<M, std::int64_t Config::*> ||
                               std::is_same_v<M, std::optional<std::int64_t> Config::*>) {
            target = value.integer;
          } else if constexpr (std::is_same_v<M, double Config::*> ||
                               std::is_same_v<M, std::optional<double> Config::*>) {
            target = value.number;
          } else if constexpr (std::is_same_v<M, Strings Config::*>) {
            target = value.list;
          } else if constexpr (std::is_same_v<M, Arguments Config::*>) {
            target = value.arguments;
          } else {
            target = value.text;
          }
        }
      },
      field.member);
}

}  // namespace octet::config
