#include "settings.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>

#include "dialects/dialects.h"
#include "octet/base/files.h"
#include "octet/base/strings.h"

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

// Reads environment variables: OCTET_<KEY> sets a key with lower priority than every file. Variables of other
// trainers are explained by rules_environment.cc.

extern char** environ;

namespace octet::config {
namespace {

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

Environment variables() {
  Environment environment;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string text = *variable;
    const std::size_t sign = text.find('=');
    if (sign != std::string::npos) environment[text.substr(0, sign)] = text.substr(sign + 1);
  }
  return environment;
}

}  // namespace

// Captured at the first call, because the program itself sets some variables for libraries later.
Environment process_environment() {
  static const Environment first = variables();
  return first;
}

void translate_environment(const Environment& environment, Sources& sources) {
  const std::string prefix = "OCTET_";
  Strings names;
  for (const auto& name : field_names()) names.push_back(prefix + upper(name));
  for (const auto& [variable, text] : environment) {
    if (!variable.starts_with(prefix)) continue;
    const auto found = std::find(names.begin(), names.end(), variable);
    if (found == names.end()) {
      const std::string near = nearest_name(variable, names);
      if (!near.empty()) {
        sources.note("the environment variable " + variable + " is not a key; did you mean " + near + "?");
      }
      continue;
    }
    const std::string& key = field_names()[static_cast<std::size_t>(found - names.begin())];
    const bool whole = is_inline_deepspeed(key, text);
    sources.environment.add(key, whole ? scalar_node(text) : parse_argument(text, "environment " + variable),
                            {"environment " + variable, key});
  }
}

}  // namespace octet::config

namespace octet::config {

// Expands a configuration that is read: `include` of other files, and references to other keys.

// Expands `include`: a configuration that is based on other files.

namespace {

constexpr std::size_t kMostIncluded = 16;

void name_file(Node& node, const std::string& file) {
  if (node.file.empty()) node.file = file;
  for (Node& item : node.items) name_file(item, file);
  for (auto& [key, value] : node.members) name_file(value, file);
}

/// Adds the keys of `base` that `over` does not have. Maps on both sides are merged.
void merge_below(Node& over, const Node& base) {
  for (const auto& [key, value] : base.members) {
    Node* own = nullptr;
    for (auto& [name, node] : over.members) {
      if (name == key) own = &node;
    }
    if (own == nullptr) {
      over.members.emplace_back(key, value);
    } else if (own->kind == Node::Kind::map && value.kind == Node::Kind::map) {
      merge_below(*own, value);
    }
  }
}

std::string found_beside(const std::string& path, const std::string& including) {
  const std::filesystem::path beside = std::filesystem::path(including).parent_path() / path;
  return path_exists(beside.string()) ? beside.string() : path;
}

void expand(Node& tree, const std::string& name, Strings& open) {
  const Node* found = tree.find("include");
  if (found == nullptr) return;
  const Node include = *found;
  std::erase_if(tree.members, [](const auto& member) { return member.first == "include"; });
  std::vector<Node> files = include.kind == Node::Kind::list ? include.items : std::vector{include};
  const std::string where = place(name, include.line);
  // The last of several files wins.
  for (auto file = files.rbegin(); file != files.rend(); ++file) {
    if (file->is_null()) continue;
    if (file->kind != Node::Kind::scalar) {
      complain({.what = "value of 'include' cannot be used",
                .expected = "a file, or a list of files",
                .found = shown(*file),
                .where = where,
                .fix = "write include: other.yaml, or include: [one.yaml, other.yaml]"});
    }
    const std::string path = found_beside(file->text, name);
    if (!path_exists(path)) {
      complain({.what = "the included configuration does not exist",
                .expected = "a file, relative to this one or to the working folder",
                .found = file->text,
                .where = where,
                .fix = "check the path, or remove the line"});
    }
    const std::string real = std::filesystem::weakly_canonical(path).string();
    if (std::find(open.begin(), open.end(), real) != open.end() || open.size() > kMostIncluded) {
      complain({.what = "configurations include each other in a cycle",
                .found = path,
                .where = where,
                .fix = "remove one of these lines 'include'"});
    }
    open.push_back(real);
    Node base = read_tree(path);
    expand(base, path, open);
    open.pop_back();
    name_file(base, path);
    merge_below(tree, base);
  }
}

}  // namespace

void expand_includes(Node& tree, const std::string& name) {
  Strings open;
  if (!name.empty() && path_exists(name)) open.push_back(std::filesystem::weakly_canonical(name).string());
  expand(tree, name, open);
}

// Expands ${key} and ${oc.env:NAME,default} in values, like OmegaConf.

namespace {

constexpr std::size_t kMaxExpanded = 65536;

class Expander {
 public:
  Expander(const Node& tree, const std::map<std::string, std::string>& overrides,
           const Environment& environment, const std::string& name)
      : tree_(tree), overrides_(overrides), environment_(environment), name_(name) {}

  std::string expand(const std::string& text, int line) {
    std::string result;
    std::size_t at = 0;
    for (;;) {
      const std::size_t begin = text.find("${", at);
      if (begin == std::string::npos) return result + text.substr(at);
      const std::size_t end = text.find('}', begin);
      if (end == std::string::npos || text.find("${", begin + 2) < end) {
        complain({.what = "an interpolation is not closed or nested",
                  .expected = "${key} or ${oc.env:NAME,default}",
                  .found = text.size() > 80 ? text.substr(0, 77) + "..." : text,
                  .where = place(name_, line),
                  .fix = "close it, and replace an inner interpolation by its value"});
      }
      result += text.substr(at, begin - at) + value_of(text.substr(begin + 2, end - begin - 2), line);
      if (result.size() > kMaxExpanded) {
        complain({.what = "an interpolation expands to a text that is too long",
                  .expected = "at most " + std::to_string(kMaxExpanded) + " characters",
                  .found = std::to_string(result.size()),
                  .where = place(name_, line),
                  .fix = "write the text itself"});
      }
      at = end + 1;
    }
  }

  /// Returns the list, unexpanded, if the whole text is one reference to a list; otherwise null.
  const Node* list_of(const std::string& text) const {
    if (!text.starts_with("${") || text.find('}') != text.size() - 1) return nullptr;
    const Node* node = find(text.substr(2, text.size() - 3));
    return node != nullptr && node->kind == Node::Kind::list ? node : nullptr;
  }

 private:
  const Node* find(const std::string& reference) const {
    const Node* node = &tree_;
    for (const auto& step : split(reference, '.')) node = node == nullptr ? nullptr : node->find(step);
    return node;
  }

  std::string value_of(const std::string& reference, int line) {
    if (reference.starts_with("oc.env:")) return variable(reference.substr(7), line);
    if (!open_.insert(reference).second) {
      complain({.what = "interpolations refer to each other in a cycle",
                .found = "${" + reference + "}",
                .where = place(name_, line),
                .fix = "replace one of these interpolations by its value"});
    }
    std::string value;
    if (const auto found = overrides_.find(reference); found != overrides_.end()) {
      value = expand(found->second, 0);
    } else {
      const Node* node = find(reference);
      if (node == nullptr || node->kind != Node::Kind::scalar) {
        complain({.what = "an interpolation refers to a key without a plain value",
                  .found = "${" + reference + "}",
                  .where = place(name_, line),
                  .fix = "give the key in the file or on the command line"});
      }
      value = expand(node->text, node->line);
    }
    open_.erase(reference);
    return value;
  }

  std::string variable(const std::string& text, int line) const {
    const std::size_t comma = text.find(',');
    const auto found = environment_.find(std::string(trim(text.substr(0, comma))));
    if (found != environment_.end()) return found->second;
    if (comma == std::string::npos) {
      complain({.what = "the environment variable " + text + " is not set",
                .expected = "a value in the environment",
                .found = "none, and no default after a comma",
                .where = place(name_, line),
                .fix = "set it, or write ${oc.env:" + text + ",default}"});
    }
    return std::string(trim(text.substr(comma + 1)));
  }

  const Node& tree_;
  const std::map<std::string, std::string>& overrides_;
  const Environment& environment_;
  const std::string& name_;
  std::set<std::string> open_;
};

void expand_all(Node& node, Expander& expander) {
  if (node.kind == Node::Kind::scalar && node.text.find("${") != std::string::npos) {
    if (const Node* list = expander.list_of(node.text)) {
      node.kind = Node::Kind::list;
      node.items = list->items;
      node.text.clear();
      // References in items must be texts. So lists are not nested by reference, and cycles are impossible.
      for (Node& item : node.items) {
        if (item.kind == Node::Kind::scalar) item.text = expander.expand(item.text, item.line);
      }
      return;
    }
    node.text = expander.expand(node.text, node.line);
  }
  for (Node& item : node.items) expand_all(item, expander);
  for (auto& [key, value] : node.members) expand_all(value, expander);
}

}  // namespace

void interpolate(Node& tree, const std::map<std::string, std::string>& overrides,
                 const Environment& environment, const std::string& name) {
  const Node original = tree;
  Expander expander(original, overrides, environment, name);
  expand_all(tree, expander);
}

}  // namespace octet::config
