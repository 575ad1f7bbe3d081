#include <algorithm>

#include "octet/base/error.h"
#include "regex/regex.h"
#include "tokenizer/component.h"
#include "unicode/utf8.h"

namespace octet::text {
namespace {

constexpr std::size_t kMaxInstructions = 1 << 14;
constexpr std::size_t kMaxSets = 1024;
constexpr int kMaxFirstDepth = 4096;

/// Returns the length in characters if all matches have equal length, otherwise -1.
int fixed_length(const RegexNode& node) {
  using Kind = RegexNode::Kind;
  switch (node.kind) {
    case Kind::empty:
    case Kind::look:
    case Kind::assertion:
      return 0;
    case Kind::set:
      return 1;
    case Kind::repeat: {
      const int inner = fixed_length(node.parts[0]);
      return node.min == node.max && inner >= 0 ? inner * node.min : -1;
    }
    case Kind::atomic:
    case Kind::concat: {
      int sum = 0;
      for (const auto& part : node.parts) {
        const int inner = fixed_length(part);
        if (inner < 0 || sum > (1 << 16)) return -1;
        sum += inner;
      }
      return sum;
    }
    case Kind::alternate: {
      const int inner = fixed_length(node.parts[0]);
      for (const auto& part : node.parts) {
        if (fixed_length(part) != inner) return -1;
      }
      return inner;
    }
  }
  return -1;
}

/// Returns the node of a single set, possibly inside groups, or null.
const RegexNode* single_set(const RegexNode& node) {
  if (node.kind == RegexNode::Kind::set) return &node;
  if (node.kind == RegexNode::Kind::concat && node.parts.size() == 1) return single_set(node.parts[0]);
  return nullptr;
}

[[noreturn]] void refuse(const std::string& what) {
  throw Error({.what = "the tokenizer's regular expression cannot be used: " + what,
               .fix = kBrokenPattern,
               .code = ExitCode::usage});
}

}  // namespace

Regex::Regex(std::string_view pattern) : word_(regex_word_characters()) {
  const RegexNode root = parse_regex(pattern);
  index_alternatives(root);
}

std::uint32_t Regex::emit(Instruction instruction) {
  if (code_.size() >= kMaxInstructions) refuse("it is too large");
  code_.push_back(instruction);
  return static_cast<std::uint32_t>(code_.size() - 1);
}

std::uint16_t Regex::add_set(const Ranges& ranges) {
  const auto known = std::find(set_keys_.begin(), set_keys_.end(), ranges);
  if (known == set_keys_.end()) {
    if (sets_.size() >= kMaxSets) refuse("it has too many classes");
    set_keys_.push_back(ranges);
    sets_.emplace_back(ranges);
    return static_cast<std::uint16_t>(sets_.size() - 1);
  }
  return static_cast<std::uint16_t>(known - set_keys_.begin());
}

// Programs are built from the end: compile(node, next) returns the entry of code that matches `node` and
// continues at `next`.
std::uint32_t Regex::compile(const RegexNode& node, std::uint32_t next) {
  using Kind = RegexNode::Kind;
  switch (node.kind) {
    case Kind::empty:
      return next;
    case Kind::set:
      return emit({.op = Op::set, .set = add_set(node.set), .next = next});
    case Kind::assertion:
      return emit({.op = Op::assertion, .assertion = node.assertion, .next = next});
    case Kind::look:
      return compile_look(node, next);
    case Kind::repeat:
      return compile_repeat(node, next);
    case Kind::concat:
      for (auto part = node.parts.rbegin(); part != node.parts.rend(); ++part) next = compile(*part, next);
      return next;
    case Kind::alternate: {
      std::uint32_t entry = compile(node.parts.back(), next);
      for (auto part = node.parts.rbegin() + 1; part != node.parts.rend(); ++part) {
        const std::uint32_t first = compile(*part, next);
        entry = emit({.op = Op::split, .next = first, .other = entry});
      }
      return entry;
    }
    case Kind::atomic: {
      const std::uint32_t inner = compile(node.parts[0], emit({.op = Op::accept}));
      return emit({.op = Op::atomic, .next = next, .other = inner});
    }
  }
  return next;
}

std::uint32_t Regex::compile_repeat(const RegexNode& node, std::uint32_t next) {
  const RegexNode& inner = node.parts[0];
  if (const RegexNode* set = single_set(inner)) {
    return emit({.op = Op::run,
                 .greed = node.greed,
                 .settled = node.greed != RegexGreed::lazy && cannot_fail(next),
                 .set = add_set(set->set),
                 .min = node.min,
                 .max = node.max,
                 .next = next});
  }
  if (node.greed == RegexGreed::possessive) {
    RegexNode greedy = node;
    greedy.greed = RegexGreed::greedy;
    RegexNode atomic{.kind = RegexNode::Kind::atomic};
    atomic.parts.push_back(std::move(greedy));
    return compile(atomic, next);
  }
  const bool lazy = node.greed == RegexGreed::lazy;
  const auto choice = [&](std::uint32_t body, std::uint32_t exit) {
    return Instruction{.op = Op::split, .next = lazy ? exit : body, .other = lazy ? body : exit};
  };
  std::uint32_t entry = next;
  if (node.max < 0) {
    // The loop's entry must exist before its body. A body with an empty match returns to a recorded state and
    // ends there.
    const std::uint32_t loop = emit({.op = Op::split});
    const std::uint32_t body = compile(inner, loop);
    code_[loop] = choice(body, next);
    has_loops_ = true;
    entry = loop;
  } else {
    for (int i = node.min; i < node.max; ++i) {
      const std::uint32_t body = compile(inner, entry);
      entry = emit(choice(body, next));
    }
  }
  for (int i = 0; i < node.min; ++i) entry = compile(inner, entry);
  return entry;
}

std::uint32_t Regex::compile_look(const RegexNode& node, std::uint32_t next) {
  const RegexNode& inner = node.parts[0];
  if (!node.behind) {
    const std::uint32_t program = compile(inner, emit({.op = Op::accept}));
    return emit({.op = Op::look, .negated = node.negated, .next = next, .other = program});
  }
  // Alternatives may have different lengths: (?<=a|bc) is (?:(?<=a)|(?<=bc)). A negation is a sequence.
  std::vector<const RegexNode*> parts;
  if (inner.kind == RegexNode::Kind::alternate) {
    for (const auto& part : inner.parts) parts.push_back(&part);
  } else {
    parts.push_back(&inner);
  }
  std::uint32_t entry = next;
  for (std::size_t i = parts.size(); i-- > 0;) {
    const int length = fixed_length(*parts[i]);
    if (length < 0) refuse("a look-behind without a fixed length");
    const std::uint32_t program = compile(*parts[i], emit({.op = Op::accept}));
    const std::uint32_t after = node.negated ? entry : next;
    const std::uint32_t one =
        emit({.op = Op::look, .negated = node.negated, .next = after, .other = program, .behind = length});
    if (node.negated || i + 1 == parts.size()) {
      entry = one;
    } else {
      entry = emit({.op = Op::split, .next = one, .other = entry});
    }
  }
  return entry;
}

bool Regex::cannot_fail(std::uint32_t pc) const {
  while (code_[pc].op == Op::run && code_[pc].min == 0) pc = code_[pc].next;
  return code_[pc].op == Op::accept;
}

// Marks the bytes that can start a match from `pc`. Returns true if the match can also be empty. Visits every
// instruction once: a second visit finds no other bytes.
bool Regex::first_bytes(std::uint32_t pc, FirstBytes& found, int depth) const {
  if (depth > kMaxFirstDepth) {
    found.bytes.fill(true);
    return true;
  }
  if (found.seen[pc]) return false;
  found.seen[pc] = true;
  const Instruction& in = code_[pc];
  switch (in.op) {
    case Op::accept:
      return true;
    case Op::set:
    case Op::run: {
      const auto lead = [](std::uint32_t code) {
        std::string text;
        utf8_append(text, code);
        return static_cast<unsigned char>(text[0]);
      };
      for (const auto& [first, last] : sets_[in.set].ranges()) {
        for (int b = lead(first); b <= lead(last); ++b) found.bytes[static_cast<std::size_t>(b)] = true;
      }
      return in.op == Op::run && in.min == 0 && first_bytes(in.next, found, depth + 1);
    }
    case Op::split: {
      const bool a = first_bytes(in.next, found, depth + 1);
      const bool b = first_bytes(in.other, found, depth + 1);
      return a || b;
    }
    case Op::look:
    case Op::assertion:
      return first_bytes(in.next, found, depth + 1);
    case Op::atomic:
      if (!first_bytes(in.other, found, depth + 1)) return false;
      return first_bytes(in.next, found, depth + 1);
  }
  return true;
}

void Regex::index_alternatives(const RegexNode& root) {
  const std::uint32_t accept = emit({.op = Op::accept});
  std::vector<const RegexNode*> parts;
  if (root.kind == RegexNode::Kind::alternate) {
    for (const auto& part : root.parts) parts.push_back(&part);
  } else {
    parts.push_back(&root);
  }
  for (const RegexNode* part : parts) {
    const std::uint32_t entry = compile(*part, accept);
    FirstBytes found{.seen = std::vector<bool>(code_.size())};
    const bool empty = first_bytes(entry, found, 0);
    for (std::size_t b = 0; b < 256; ++b) {
      if (found.bytes[b] || empty) starts_[b].push_back(entry);
    }
    if (empty) starts_at_end_.push_back(entry);
  }
}

}  // namespace octet::text
