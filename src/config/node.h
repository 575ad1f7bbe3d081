// A parsed value from outside: YAML, JSON or a command line, before anybody knows its type.
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
  bool quoted = false;  ///< the scalar stood in quotes: it is text, never null
  int line = 0;         ///< 1-based; 0 when unknown
  std::string file;     ///< of an included one; empty: the configuration itself
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

/// Limits of what is read: deeper or larger input is refused, before or while it is expanded.
inline constexpr int kMaxDepth = 24;
inline constexpr std::size_t kMaxNodes = 200000;
inline constexpr std::size_t kMaxBytes = 8u << 20;

/// Parses one YAML document whose top is a map (an empty document gives an empty map). Duplicate keys,
/// several documents, merge keys, tags, aliases that expand to more than kMaxNodes are Errors that name the
/// line.
Node parse_yaml(std::string_view text, const std::string& name);

/// A value typed on the command line: flow YAML when it starts with [ or {, else one scalar as it stands.
Node parse_argument(const std::string& text, const std::string& where);

/// Parses JSON (with // and /* */ comments) into the same tree.
Node parse_json_node(std::string_view text, const std::string& name);

/// Reads a .yaml, .yml or .json file.
Node read_tree(const std::string& path);

/// Short rendering of a node for messages.
std::string shown(const Node& node);

/// Throws a usage error.
[[noreturn]] void complain(Problem problem);

/// "name:line" or "name" when the line is unknown.
std::string place(const std::string& name, int line);

}  // namespace octet::config
