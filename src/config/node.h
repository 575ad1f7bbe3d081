// A parsed input value from YAML, JSON or the command line, before its type is known.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "octet/base/error.h"

namespace octet::config {

struct Node {
  enum class Kind : std::uint8_t { null, scalar, list, map };
  Kind kind = Kind::null;
  std::string text;     ///< of a scalar, as written
  bool quoted = false;  ///< the scalar is quoted: it is text, never null
  int line = 0;         ///< 1-based; 0 when unknown
  std::string file;     ///< name of the included file; "": the configuration itself
  std::vector<Node> items;
  struct Member;
  std::vector<Member> members;

  bool is_null() const;
  const Node* find(std::string_view key) const;
};

struct Node::Member {
  Member(std::string name, Node value) : first(std::move(name)), second(std::move(value)) {}
  std::string first;
  Node second;
};

/// Limits of input: deeper or larger input is refused, before or during expansion.
inline constexpr int kMaxDepth = 24;
inline constexpr std::size_t kMaxNodes = 200000;
inline constexpr std::size_t kMaxBytes = 8u << 20;

/// Parses one YAML document that is a map; an empty document gives an empty map. Throws Error with the line
/// for duplicate keys, several documents, merge keys, tags, and aliases that expand to more than kMaxNodes.
Node parse_yaml(std::string_view text, const std::string& name);

/// Parses a value of the command line: flow YAML if it starts with [ or {, else one unparsed scalar.
Node parse_argument(const std::string& text, const std::string& where);

/// Parses JSON (with // and /* */ comments) into the same tree.
Node parse_json_node(std::string_view text, const std::string& name);

/// Reads a .yaml, .yml or .json file.
Node read_tree(const std::string& path);

/// Returns a short text of a node for messages.
std::string shown(const Node& node);

/// Throws a usage error.
[[noreturn]] void complain(Problem problem);

/// Returns "name:line", or "name" if the line is unknown.
std::string place(const std::string& name, int line);

}  // namespace octet::config
