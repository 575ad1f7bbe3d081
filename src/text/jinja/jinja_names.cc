// Finds the variables that a template reads and does not set.
#include "jinja/jinja_tree.h"

namespace octet::text::jinja {
namespace {

using Names = std::set<std::string>;

class Reader {
 public:
  // Reads statements in order. A name that is read before it is set is recorded in `asked`.
  void read(const Block& block, Names& set) {
    for (const auto& statement : block.statements) read(*statement, set);
  }
  Names asked;

 private:
  void read(const Statement& s, Names& set) {
    using Kind = Statement::Kind;
    if (s.kind == Kind::macro) {
      set.insert(s.names[0]);
      Names inside = set;
      for (const Parameter& p : s.parameters) {
        if (p.fallback) read(*p.fallback, inside);
        inside.insert(p.name);
      }
      return read(s.blocks[0], inside);
    }
    if (s.kind == Kind::loop) {
      read(*s.expressions[0], set);
      Names inside = set;
      inside.insert(s.names.begin(), s.names.end());
      inside.insert("loop");
      if (s.expressions[1]) read(*s.expressions[1], inside);
      for (const Block& block : s.blocks) read(block, inside);
      return;
    }
    for (const ExpressionPointer& e : s.expressions) read(*e, set);
    if (s.kind == Kind::scope || s.kind == Kind::set || s.kind == Kind::filter_block) {
      Names inside = set;
      for (const Block& block : s.blocks) read(block, inside);
    } else {
      for (const Block& block : s.blocks) read(block, set);
    }
    if (s.kind == Kind::set && s.member.empty()) set.insert(s.names.begin(), s.names.end());
  }

  void read(const Expression& e, const Names& set) {
    if (e.kind == Expression::Kind::name && !set.contains(e.word)) {
      Budget budget;
      if (global(e.word, budget).undefined()) asked.insert(e.word);
    }
    for (const ExpressionPointer& item : e.items) {
      if (item) read(*item, set);
    }
    for (const ExpressionPointer& place : e.arguments.places) read(*place, set);
    for (const auto& [name, value] : e.arguments.names) read(*value, set);
  }
};

}  // namespace

Names asked_names(const Block& body) {
  Reader reader;
  Names set;
  reader.read(body, set);
  return reader.asked;
}

}  // namespace octet::text::jinja
