#include "node.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <filesystem>
#include <istream>
#include <map>
#include <streambuf>

#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"

namespace octet::config {
namespace {

// Builds the tree from the parser's events, because yaml-cpp's own tree accepts duplicate keys.
class Builder : public YAML::EventHandler {
 public:
  explicit Builder(std::string name) : name_(std::move(name)) {}

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Node node;
    node.line = mark.line + 1;
    leaf(std::move(node), anchor);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    // yaml-cpp's tag is "?" for plain scalars and "!" for quoted ones.
    if (tag != "?" && tag != "!" && !tag.empty()) refuse_tag(tag, mark);
    Node node;
    node.kind = Node::Kind::scalar;
    node.text = value;
    node.quoted = tag == "!";
    node.line = mark.line + 1;
    leaf(std::move(node), anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) {
      complain({.what = "a YAML alias refers to itself",
                .expected = "an alias of a value that ends before it",
                .found = "an alias inside of its own anchor",
                .where = place(name_, mark.line + 1),
                .fix = "replace the alias by its value"});
    }
    count(found->second.second, mark.line + 1);
    place_value(found->second.first);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(Node::Kind::list, mark, tag, anchor);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(Node::Kind::map, mark, tag, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

  Node take() { return std::move(root_); }

 private:
  struct Level {
    Node node;
    YAML::anchor_t anchor;
    bool has_key = false;
    std::string key;
    std::size_t nodes_before;
  };

  void refuse_tag(const std::string& tag, const YAML::Mark& mark) const {
    complain({.what = "YAML tags are not supported",
              .found = tag,
              .where = place(name_, mark.line + 1),
              .fix = "write the plain value"});
  }
  void count(std::size_t more, int line) {
    nodes_ += more;
    if (nodes_ > kMaxNodes) {
      complain({.what = "the configuration expands to too many values",
                .expected = "at most " + std::to_string(kMaxNodes),
                .where = place(name_, line),
                .fix = "remove repeated YAML aliases"});
    }
  }
  void leaf(Node node, YAML::anchor_t anchor) {
    count(1, node.line);
    if (anchor != 0) anchors_[anchor] = {node, 1};
    place_value(std::move(node));
  }
  void open(Node::Kind kind, const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor) {
    if (tag != "?" && tag != "!" && !tag.empty()) refuse_tag(tag, mark);
    count(1, mark.line + 1);
    if (levels_.size() >= static_cast<std::size_t>(kMaxDepth)) {
      complain({.what = "the configuration is nested too deeply",
                .expected = "at most " + std::to_string(kMaxDepth) + " levels",
                .where = place(name_, mark.line + 1),
                .fix = "check that this is the right file; no key has so many levels"});
    }
    Level level{.node = {}, .anchor = anchor, .has_key = false, .key = {}, .nodes_before = nodes_};
    level.node.kind = kind;
    level.node.line = mark.line + 1;
    levels_.push_back(std::move(level));
  }
  void close() {
    Level level = std::move(levels_.back());
    levels_.pop_back();
    if (level.anchor != 0) anchors_[level.anchor] = {level.node, nodes_ - level.nodes_before + 1};
    place_value(std::move(level.node));
  }
  void place_value(Node node) {
    if (levels_.empty()) {
      root_ = std::move(node);
      return;
    }
    Level& top = levels_.back();
    if (top.node.kind == Node::Kind::list) {
      top.node.items.push_back(std::move(node));
    } else if (!top.has_key) {
      take_key(top, node);
    } else {
      top.has_key = false;
      top.node.members.emplace_back(std::move(top.key), std::move(node));
    }
  }
  void take_key(Level& top, const Node& node) {
    if (node.kind != Node::Kind::scalar) {
      complain({.what = "a key must be a plain word",
                .found = shown(node),
                .where = place(name_, node.line),
                .fix = "write the key as a plain word: learning_rate: 1.0e-5"});
    }
    if (node.text == "<<" && !node.quoted) {
      complain({.what = "YAML merge keys (<<) are not supported",
                .expected = "a name of a key",
                .found = "<<",
                .where = place(name_, node.line),
                .fix = "write the keys out"});
    }
    if (const Node* earlier = top.node.find(node.text)) {
      complain({.what = "key '" + node.text + "' occurs twice",
                .found = "first in line " + std::to_string(earlier->line) + ", again in line " +
                         std::to_string(node.line),
                .where = place(name_, node.line),
                .fix = "keep one of the two"});
    }
    top.has_key = true;
    top.key = node.text;
  }

  std::string name_;
  std::vector<Level> levels_;
  std::map<YAML::anchor_t, std::pair<Node, std::size_t>> anchors_;
  std::size_t nodes_ = 0;
  Node root_;
};

class ViewBuffer : public std::streambuf {
 public:
  explicit ViewBuffer(std::string_view text) {
    char* begin = const_cast<char*>(text.data());
    setg(begin, begin, begin + text.size());
  }
};

Node from_json(const Json& json) {
  Node node;
  if (json.is_object()) {
    node.kind = Node::Kind::map;
    for (const auto& [key, value] : json.items()) node.members.emplace_back(key, from_json(value));
  } else if (json.is_array()) {
    node.kind = Node::Kind::list;
    for (const auto& value : json) node.items.push_back(from_json(value));
  } else if (!json.is_null()) {
    node.kind = Node::Kind::scalar;
    node.quoted = json.is_string();
    node.text = json.is_string() ? json.get<std::string>() : json.dump();
  }
  return node;
}

void check_size(std::uintmax_t bytes, const std::string& name) {
  if (bytes <= kMaxBytes) return;
  complain({.what = "this is too large to be a configuration",
            .expected = "at most " + human_bytes(static_cast<double>(kMaxBytes)),
            .found = human_bytes(static_cast<double>(bytes)),
            .where = name,
            .fix = "name the configuration, and name the data in its key dataset"});
}

void check_bytes(std::string_view text, const std::string& name) {
  check_size(text.size(), name);
  if (!is_utf8(text) || text.find('\0') != std::string_view::npos) {
    complain({.what = "this is not a text file in UTF-8",
              .expected = "YAML or JSON in UTF-8",
              .found = "a binary file, or another encoding",
              .where = name,
              .fix = "save the file as UTF-8 text"});
  }
}

}  // namespace

bool Node::is_null() const {
  if (kind == Kind::null) return true;
  return kind == Kind::scalar && !quoted &&
         (text.empty() || text == "~" || text == "null" || text == "Null" || text == "NULL" ||
          text == "None");
}

const Node* Node::find(std::string_view key) const {
  for (const auto& [name, value] : members) {
    if (name == key) return &value;
  }
  return nullptr;
}

void complain(Problem problem) {
  problem.code = ExitCode::usage;
  throw Error(std::move(problem));
}

std::string place(const std::string& name, int line) {
  return line > 0 ? name + ":" + std::to_string(line) : name;
}

std::string shown(const Node& node) {
  switch (node.kind) {
    case Node::Kind::null:
      return "null";
    case Node::Kind::list:
      return "a list of " + std::to_string(node.items.size());
    case Node::Kind::map:
      return "a map of " + std::to_string(node.members.size()) + " keys";
    default:
      return "'" + short_text(node.text) + "'";
  }
}

Node parse_yaml(std::string_view text, const std::string& name) {
  check_bytes(text, name);
  ViewBuffer buffer(text);
  std::istream stream(&buffer);
  Builder builder(name);
  Node root;
  try {
    YAML::Parser parser(stream);
    if (parser.HandleNextDocument(builder)) {
      root = builder.take();
      Builder rest(name);
      if (parser.HandleNextDocument(rest)) {
        complain({.what = "the file holds several YAML documents",
                  .expected = "one",
                  .where = name,
                  .fix = "remove '---' between them"});
      }
    }
  } catch (const YAML::Exception& e) {
    complain({.what = "not valid YAML",
              .found = e.msg,
              .where = place(name, e.mark.is_null() ? 0 : e.mark.line + 1),
              .fix = "correct the line: indent keys below other keys, write 'key: value' with a blank after "
                     "the colon, close quotes and brackets"});
  }
  if (root.kind == Node::Kind::null) root.kind = Node::Kind::map;
  if (root.kind != Node::Kind::map) {
    complain({.what = "a configuration is a map of keys to values",
              .expected = "lines such as 'learning_rate: 1.0e-5'",
              .found = shown(root),
              .where = name,
              .fix = "write one 'key: value' per line"});
  }
  return root;
}

Node parse_argument(const std::string& text, const std::string& where) {
  const std::string_view trimmed = trim(text);
  if (!trimmed.empty() && (trimmed.front() == '[' || trimmed.front() == '{')) {
    Node wrapped = parse_yaml("value: " + std::string(trimmed), where);
    if (wrapped.members.size() == 1) return std::move(wrapped.members.front().second);
  }
  Node node;
  node.kind = Node::Kind::scalar;
  node.text = text;
  return node;
}

namespace {

/// Finds the line of each value in a text that is valid JSON with comments. The JSON parser does not report
/// lines.
class JsonLines {
 public:
  explicit JsonLines(std::string_view text) : text_(text) {}

  void mark(Node& node) {
    skip();
    node.line = line_;
    if (peek() == '{') {
      members(node);
    } else if (peek() == '[') {
      items(node);
    } else if (peek() == '"') {
      string();
    } else {
      while (at_ < text_.size() && text_.find_first_of(",]}/ \t\r\n", at_) != at_) ++at_;
    }
  }

 private:
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void step() { line_ += text_[at_++] == '\n' ? 1 : 0; }
  void skip() {
    while (at_ < text_.size()) {
      const std::string_view rest = text_.substr(at_);
      std::size_t end = rest.find_first_not_of(" \t\r\n");
      if (rest.starts_with("//")) end = rest.find('\n');
      if (rest.starts_with("/*")) end = rest.find("*/", 2) + 2;
      if (end == 0) return;
      for (std::size_t n = std::min(end, rest.size()); n > 0; --n) step();
    }
  }
  std::string_view string() {
    const std::size_t begin = ++at_;
    while (at_ < text_.size() && text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
    return text_.substr(begin, at_++ - begin);
  }
  /// Called after a bracket or a comma: returns whether another entry follows. Skips a closing bracket.
  bool more() {
    skip();
    const char c = peek();
    if (c == ',' || c == '}' || c == ']') ++at_;
    skip();
    return c == ',' || (c != '}' && c != ']' && c != '\0');
  }
  void members(Node& node) {
    ++at_;
    while (more()) {
      const std::string_view key = string();
      skip();
      ++at_;  // the colon
      const auto found =
          std::ranges::find_if(node.members, [&](const auto& member) { return member.first == key; });
      Node escaped;  // for a name that is written with escapes
      mark(found == node.members.end() ? escaped : found->second);
    }
  }
  void items(Node& node) {
    ++at_;
    Node none;
    for (std::size_t i = 0; more(); ++i) mark(i < node.items.size() ? node.items[i] : none);
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
};

}  // namespace

Node parse_json_node(std::string_view text, const std::string& name) {
  check_bytes(text, name);
  const Json json = parse_json(text, name, true, kMaxDepth);
  if (!json.is_object()) {
    complain({.what = "a JSON configuration is one object",
              .found = json.type_name(),
              .where = name,
              .fix = "write {...}: keys and their values in braces"});
  }
  Node node = from_json(json);
  JsonLines(text).mark(node);
  return node;
}

Node read_tree(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    complain({.what = "the configuration is a folder",
              .expected = "a file",
              .where = path,
              .fix = "name the file in it"});
  }
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (!error) check_size(size, path);
  const std::string text = read_file(path);
  return path.ends_with(".json") ? parse_json_node(text, path) : parse_yaml(text, path);
}

}  // namespace octet::config
