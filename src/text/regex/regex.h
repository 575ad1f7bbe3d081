// Regular expressions for UTF-8 text with Unicode 16 classes. They match leftmost-first like Oniguruma, in
// bounded time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "regex/regex_parser.h"
#include "unicode/unicode.h"

namespace octet::text {

/// A compiled expression. It is immutable, so any number of RegexFinders may use it concurrently.
class Regex {
 public:
  /// Throws Error if the expression is broken, unsupported or too large.
  explicit Regex(std::string_view pattern);

 private:
  friend class RegexFinder;
  enum class Op : std::uint8_t { set, run, split, look, atomic, assertion, accept };
  struct Instruction {
    Op op = Op::accept;
    RegexGreed greed = RegexGreed::greedy;
    bool negated = false;
    bool settled = false;  ///< run: the rest cannot fail, so no backtracking choice is kept
    RegexAssertion assertion = RegexAssertion::text_start;
    std::uint16_t set = 0;
    int min = 0, max = -1;    ///< run: characters
    std::uint32_t next = 0;   ///< next instruction
    std::uint32_t other = 0;  ///< split: second choice; look, atomic: first instruction of the inner program
    int behind = -1;          ///< look: characters to step back, -1 for look-ahead
  };

  std::uint32_t emit(Instruction instruction);
  std::uint16_t add_set(const Ranges& ranges);
  std::uint32_t compile(const RegexNode& node, std::uint32_t next);
  std::uint32_t compile_repeat(const RegexNode& node, std::uint32_t next);
  std::uint32_t compile_look(const RegexNode& node, std::uint32_t next);
  bool cannot_fail(std::uint32_t pc) const;
  struct FirstBytes {
    std::array<bool, 256> bytes{};
    std::vector<bool> seen;  ///< by instruction
  };
  bool first_bytes(std::uint32_t pc, FirstBytes& found, int depth) const;
  void index_alternatives(const RegexNode& root);

  std::vector<Instruction> code_;
  std::vector<CharSet> sets_;
  std::vector<Ranges> set_keys_;
  CharSet word_;
  bool has_loops_ = false;  ///< has a loop over more than one set, which may repeat without progress
  std::array<std::vector<std::uint32_t>, 256> starts_;  ///< alternatives that may match, by first byte
  std::vector<std::uint32_t> starts_at_end_;            ///< alternatives that may match at the text's end
};

/// Finds the matches in one text, from left to right, without overlap. Not thread-safe.
/// The work is bounded: after many steps, failed states are recorded and not tried again. Look-arounds may
/// still need too many steps. Throws Error above about 4,000 steps per byte, or 100 in a long text.
class RegexFinder {
 public:
  /// `text` must be well-formed UTF-8 and outlive the finder.
  RegexFinder(const Regex& regex, std::string_view text);
  /// Sets [begin, end) to the next match. Returns false if there is none. Reports an empty match once per
  /// place, and never directly after the previous match.
  bool next(std::size_t& begin, std::size_t& end);

 private:
  struct Choice {
    std::uint32_t pc;      ///< next instruction; the run itself if it is lazy
    const char* position;  ///< next position to try
    const char* least;     ///< run: the shortest end to try; otherwise equal to position
    int lazy_count = -1;   ///< lazy run: number of characters up to position
  };
  struct Run {
    const char* begin = nullptr;
    const char* end = nullptr;
  };

  /// Returns the end of a match of the program at `pc` from `at`, or null. `depth`: nesting depth of
  /// look-arounds and atomic groups.
  const char* match(std::uint32_t pc, const char* at, int depth = 0);
  bool run(const Regex::Instruction& in, std::uint32_t pc, const char*& at, bool outer);
  bool retreat(std::size_t base, std::uint32_t& pc, const char*& at);
  bool holds(RegexAssertion assertion, const char* at) const;
  bool look(const Regex::Instruction& in, const char* at, int depth);
  void start_remembering();
  bool seen(std::uint32_t pc, const char* at);
  void forget(const char* through);
  void charge(std::size_t steps);
  std::string with_steps(std::size_t steps) const;

  const Regex& regex_;
  const char* begin_;
  const char* end_;
  const char* at_;
  const char* last_end_ = nullptr;
  std::vector<Choice> stack_;
  std::vector<std::uint64_t> memory_;  ///< one bit per (position, instruction): tried
  std::vector<Run> tried_runs_;        ///< by instruction: the latest unbounded run
  const char* memory_begin_ = nullptr;
  std::size_t memory_places_ = 0, words_ = 0;
  std::size_t steps_ = 0, search_steps_ = 0;
  bool remembering_ = false;
};

}  // namespace octet::text
