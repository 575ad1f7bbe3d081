#include "jinja/python_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>

#include "octet/base/json.h"

namespace octet::text {
namespace {

constexpr std::size_t kMostPythonLevels = 500;

class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(PythonJson& root) : root_(root) {}
  bool null() override { return put({}); }
  bool boolean(bool v) override { return put({PythonJson::Kind::boolean, v ? "true" : "false", {}, {}}); }
  bool number_integer(number_integer_t v) override { return number(std::to_string(v)); }
  bool number_unsigned(number_unsigned_t v) override { return number(std::to_string(v)); }
  bool number_float(number_float_t v, const string_t& written) override {
    // Whole numbers beyond 64 bits arrive here, too. Python's integers have any length.
    const bool whole = written.find_first_of(".eE") == std::string::npos;
    return number(whole ? written : python_float(v));
  }
  bool string(string_t& v) override { return put(PythonJson::string(std::move(v))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(PythonJson::Kind::object); }
  bool start_array(std::size_t) override { return open(PythonJson::Kind::list); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& v) override {
    levels_.back().key = std::move(v);
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    return false;
  }

 private:
  bool number(std::string text) { return put({PythonJson::Kind::number, std::move(text), {}, {}}); }
  bool put(PythonJson value) {
    place(std::move(value));
    return true;
  }
  PythonJson* place(PythonJson value) {
    if (levels_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Level& level = levels_.back();
    if (level.value->kind == PythonJson::Kind::list) {
      level.value->items.push_back(std::move(value));
      return &level.value->items.back();
    }
    // A repeated key keeps its first position and takes its last value, like in Python.
    auto& members = level.value->members;
    const auto [it, fresh] = level.places.try_emplace(level.key, members.size());
    if (fresh) {
      members.emplace_back(level.key, std::move(value));
    } else {
      members[it->second].second = std::move(value);
    }
    return &members[it->second].second;
  }
  bool open(PythonJson::Kind kind) {
    if (levels_.size() >= kMostPythonLevels) return false;
    PythonJson* at = place({kind, "", {}, {}});
    levels_.push_back({at, "", {}});
    return true;
  }
  bool close() {
    levels_.pop_back();
    return true;
  }

  struct Level {
    PythonJson* value;
    std::string key;
    std::unordered_map<std::string, std::size_t> places;
  };
  PythonJson& root_;
  std::vector<Level> levels_;
};

void dump_string(const std::string& text, std::string& out) {
  constexpr char kDigits[] = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += "\\u00";
          out += kDigits[c >> 4];
          out += kDigits[c & 15];
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

void dump(const PythonJson& value, int indent, int level, std::string& out) {
  using Kind = PythonJson::Kind;
  const auto line = [&](int depth) {
    if (indent > 0) out += "\n" + std::string(static_cast<std::size_t>(indent * depth), ' ');
  };
  const char* comma = indent > 0 ? "," : ", ";
  switch (value.kind) {
    case Kind::null:
      out += "null";
      return;
    case Kind::boolean:
    case Kind::number:
      out += value.text;
      return;
    case Kind::string:
      dump_string(value.text, out);
      return;
    case Kind::list:
      out += '[';
      for (std::size_t i = 0; i < value.items.size(); ++i) {
        if (i > 0) out += comma;
        line(level + 1);
        dump(value.items[i], indent, level + 1, out);
      }
      if (!value.items.empty()) line(level);
      out += ']';
      return;
    case Kind::object:
      out += '{';
      for (std::size_t i = 0; i < value.members.size(); ++i) {
        if (i > 0) out += comma;
        line(level + 1);
        dump_string(value.members[i].first, out);
        out += ": ";
        dump(value.members[i].second, indent, level + 1, out);
      }
      if (!value.members.empty()) line(level);
      out += '}';
  }
}

}  // namespace

const PythonJson* PythonJson::find(std::string_view key) const {
  const auto it = std::find_if(members.begin(), members.end(), [&](const auto& m) { return m.first == key; });
  return it == members.end() ? nullptr : &it->second;
}

std::optional<PythonJson> parse_python_json(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) return std::nullopt;
  PythonJson root;
  Builder builder(root);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) return std::nullopt;
  return root;
}

std::string dump_python_json(const PythonJson& value, int indent) {
  std::string out;
  dump(value, indent, 0, out);
  return out;
}

std::string python_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value, std::chars_format::scientific).ptr;
  std::string_view shortest(buffer, static_cast<std::size_t>(end - buffer));
  std::string out;
  if (shortest[0] == '-') {
    out = "-";
    shortest.remove_prefix(1);
  }
  const std::size_t e = shortest.find('e');
  const int exponent = std::atoi(std::string(shortest.substr(e + 1)).c_str());
  std::string digits(shortest.substr(0, 1));
  if (e > 2) digits += shortest.substr(2, e - 2);
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (count > 1) out += "." + digits.substr(1);
    const std::string size = std::to_string(std::abs(exponent));
    return out + (exponent < 0 ? "e-" : "e+") + (size.size() < 2 ? "0" : "") + size;
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const std::size_t whole = static_cast<std::size_t>(exponent) + 1;  // digits before the point
  if (digits.size() <= whole) return out + digits + std::string(whole - digits.size(), '0') + ".0";
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

}  // namespace octet::text
