// Syntax tree of a Jinja template.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "jinja/jinja_value.h"

namespace octet::text::jinja {

struct Expression;
using ExpressionPointer = std::unique_ptr<const Expression>;

/// Arguments of a call, filter or test.
struct Arguments {
  std::vector<ExpressionPointer> places;
  std::vector<std::pair<std::string, ExpressionPointer>> names;
};

struct Expression {
  enum class Kind {
    literal,    ///< value
    name,       ///< word
    list,       ///< items
    tuple,      ///< items
    dict,       ///< items: key, value, key, value
    member,     ///< items[0].word
    index,      ///< items[0][items[1]]
    slice,      ///< items[0][items[1]:items[2]:items[3]]; null for absent parts
    call,       ///< items[0](arguments)
    filter,     ///< items[0] | word(arguments)
    test,       ///< items[0] is word(arguments)
    negation,   ///< not items[0]
    unary,      ///< word items[0]
    binary,     ///< items[0] word items[1]; and, or and comparisons too
    condition,  ///< items[0] if items[1] else items[2], which may be null
  };
  Kind kind = Kind::literal;
  int line = 0;
  Value value;
  std::string word;
  std::vector<ExpressionPointer> items;
  Arguments arguments;
};

struct Statement;
struct Block {
  std::vector<std::unique_ptr<const Statement>> statements;
};

/// The target of an assignment: a name, or targets for the items of the value.
struct Target {
  std::string name;  ///< "": parts
  std::vector<Target> parts;
};

/// A parameter of a macro.
struct Parameter {
  std::string name;
  ExpressionPointer fallback;
};

struct Statement {
  enum class Kind {
    text,         ///< text
    print,        ///< expressions[0]
    choice,       ///< if, elif: expressions[i] -> blocks[i]; one more block for else
    loop,         ///< for target in expressions[0] if expressions[1] (may be null): blocks[0], else blocks[1]
    set,          ///< target = expressions[0]; names[0].member for namespaces; blocks[0] without expression
    macro,        ///< names[0](parameters): blocks[0]
    break_,       ///< ends the loop
    continue_,    ///< continues with the loop's next iteration
    scope,        ///< blocks[0]
    filter_block  ///< blocks[0] | text
  };
  Kind kind = Kind::text;
  int line = 0;
  std::string text, member;
  std::vector<std::string> names;  ///< all names that the target sets
  Target target;
  std::vector<ExpressionPointer> expressions;
  std::vector<Block> blocks;
  std::vector<Parameter> parameters;
};

/// Parses a template. Throws Error with the line.
Block parse(std::string_view source);

/// Returns the names that a template reads and does not set itself, without the global functions.
std::set<std::string> asked_names(const Block& body);

/// Throws Error with the line of a template.
[[noreturn]] void fail(int line, const std::string& what);

}  // namespace octet::text::jinja
