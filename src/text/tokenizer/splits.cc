#include "tokenizer/splits.h"

#include <algorithm>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "unicode/scripts.h"
#include "unicode/unicode.h"

namespace octet::text {
namespace {

struct Part {
  std::size_t begin, end;
  bool is_match;
};

/// Splits all of `text` into matches and the parts between them. `invert` swaps the two kinds.
void find_parts(const Pattern& pattern, std::string_view text, bool invert, std::vector<Part>& out) {
  out.clear();
  std::size_t done = 0;
  pattern.each_match(text, [&](std::size_t begin, std::size_t end) {
    if (begin > done) out.push_back({done, begin, invert});
    out.push_back({begin, end, !invert});
    done = end;
  });
  if (done < text.size()) out.push_back({done, text.size(), invert});
}

// Joins parts as `behavior` requires. Removed parts become empty.
void join_parts(SplitBehavior behavior, std::vector<Part>& parts) {
  std::vector<Part> out;
  switch (behavior) {
    case SplitBehavior::isolated:
      return;
    case SplitBehavior::removed:
      for (Part& part : parts) {
        if (part.is_match) part.end = part.begin;
      }
      return;
    case SplitBehavior::contiguous:
      for (const Part& part : parts) {
        if (!out.empty() && out.back().is_match == part.is_match) {
          out.back().end = part.end;
        } else {
          out.push_back(part);
        }
      }
      break;
    case SplitBehavior::merged_with_previous: {
      bool previous = false;
      for (const Part& part : parts) {
        if (part.is_match && !previous && !out.empty()) {
          out.back().end = part.end;
        } else {
          out.push_back(part);
        }
        previous = part.is_match;
      }
      break;
    }
    case SplitBehavior::merged_with_next: {
      bool next = false;
      for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
        if (part->is_match && !next && !out.empty()) {
          out.back().begin = part->begin;
        } else {
          out.push_back(*part);
        }
        next = part->is_match;
      }
      std::reverse(out.begin(), out.end());
      break;
    }
  }
  parts = std::move(out);
}

class Split : public PreTokenizerStep {
 public:
  Split(Pattern pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void apply(std::vector<TextView>& pieces, std::deque<AlignedText>&) const override {
    std::vector<TextView> out;
    out.reserve(pieces.size() * 8);
    std::vector<Part> parts;
    for (const TextView& piece : pieces) {
      find_parts(pattern_, piece.text, invert_, parts);
      join_parts(behavior_, parts);
      for (const Part& part : parts) {
        if (part.end > part.begin) out.push_back(piece.slice(part.begin, part.end));
      }
    }
    pieces = std::move(out);
  }

 private:
  Pattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

/// Cuts a piece at the places that `cuts` finds in its text.
template <class Cuts>
class CutStep : public PreTokenizerStep {
 public:
  explicit CutStep(Cuts cuts) : cuts_(std::move(cuts)) {}

  void apply(std::vector<TextView>& pieces, std::deque<AlignedText>&) const override {
    std::vector<TextView> out;
    out.reserve(pieces.size() * 8);
    for (const TextView& piece : pieces) {
      cuts_(piece.text, [&](std::size_t begin, std::size_t end) {
        if (end > begin) out.push_back(piece.slice(begin, end));
      });
    }
    pieces = std::move(out);
  }

 private:
  Cuts cuts_;
};

struct WordCuts {
  CharSet words{words_and_joiners()}, white{white_space()};

  template <class Found>
  void operator()(std::string_view text, Found&& found) const {
    enum class Mark { blank, word, other };
    Mark kind = Mark::blank;
    std::size_t begin = 0;
    each_character(text, [&](std::uint32_t code, std::size_t at, std::size_t) {
      const Mark now = words.contains(code) ? Mark::word : white.contains(code) ? Mark::blank : Mark::other;
      if (now == kind) return;
      if (kind != Mark::blank) found(begin, at);
      kind = now;
      begin = at;
    });
    if (kind != Mark::blank) found(begin, text.size());
  }
};

struct LengthCuts {
  std::size_t length;

  template <class Found>
  void operator()(std::string_view text, Found&& found) const {
    std::size_t begin = 0, count = 0;
    each_character(text, [&](std::uint32_t, std::size_t, std::size_t end) {
      if (++count < length) return;
      found(begin, end);
      begin = end;
      count = 0;
    });
    found(begin, text.size());
  }
};

struct ScriptCuts {
  template <class Found>
  void operator()(std::string_view text, Found&& found) const {
    constexpr std::size_t kNone = std::string_view::npos;
    std::size_t begin = kNone;
    std::uint8_t last = 0;
    each_character(text, [&](std::uint32_t code, std::size_t at, std::size_t) {
      const std::uint8_t script = split_script(code);
      if (script == 0 || script == last) return;
      if (begin != kNone) found(begin, at);
      begin = at;
      last = script;
    });
    if (begin != kNone) found(begin, text.size());
  }
};

}  // namespace

SplitBehavior read_split_behavior(const Json& json, const std::string& where) {
  const std::string name = component_string(json, "behavior", where);
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  unknown_component(name, "Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous",
                    where + ".behavior");
}

std::unique_ptr<const PreTokenizerStep> make_split(Pattern pattern, SplitBehavior behavior, bool invert) {
  return std::make_unique<Split>(std::move(pattern), behavior, invert);
}

std::unique_ptr<const PreTokenizerStep> make_word_split() {
  return std::make_unique<CutStep<WordCuts>>(WordCuts{});
}

std::unique_ptr<const PreTokenizerStep> make_length_split(std::size_t length) {
  return std::make_unique<CutStep<LengthCuts>>(LengthCuts{length});
}

std::unique_ptr<const PreTokenizerStep> make_script_split() {
  return std::make_unique<CutStep<ScriptCuts>>(ScriptCuts{});
}

}  // namespace octet::text
