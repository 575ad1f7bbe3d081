#include "tokenizer/pre_tokenizer.h"

#include <algorithm>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "tokenizer/component.h"
#include "unicode/unicode.h"

namespace octet::text {
namespace {

// Limits on the length of a normalised text. Without them, a damaged or hostile file could multiply the
// length with every replacement.
constexpr std::size_t kMostTimes = 16;
constexpr std::size_t kMostAlways = 1 << 16;

void require_bounded(std::size_t size, std::size_t before) {
  if (size <= kMostAlways + kMostTimes * before) return;
  throw Error({.what = "the tokenizer's normalizer makes a text that is too long",
               .expected = "at most " + std::to_string(kMostTimes) + " times its length",
               .found = std::to_string(size) + " bytes and more, of " + std::to_string(before),
               .fix = "check the entries of 'normalizer' in tokenizer.json",
               .code = ExitCode::usage});
}

class Nfc : public Normalizer {
 public:
  bool keeps(std::string_view text) const override { return surely_nfc(text); }
  AlignedText apply(const TextView& view) const override { return nfc(view); }
};

class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  bool keeps(std::string_view text) const override {
    bool none = true;
    pattern_.each_match(text, [&](std::size_t, std::size_t) { none = false; });
    return none;
  }
  // The source of a replacement is the last character of its match.
  AlignedText apply(const TextView& view) const override {
    AlignedText out;
    std::size_t done = 0;
    pattern_.each_match(view.text, [&](std::size_t begin, std::size_t end) {
      if (begin > done) out.append(view.slice(done, begin));
      require_bounded(out.text.size() + content_.size(), view.text.size());
      out.append(content_, end > 0 ? view.range(end - 1, end) : Span{0, 0});
      done = end;
    });
    if (done < view.text.size()) out.append(view.slice(done, view.text.size()));
    return out;
  }

 private:
  Pattern pattern_;
  std::string content_;
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string content) : content_(std::move(content)) {}
  bool keeps(std::string_view text) const override { return text.empty(); }
  AlignedText apply(const TextView& view) const override { return with_prefix(view, content_); }

 private:
  std::string content_;
};

class Chain : public Normalizer {
 public:
  explicit Chain(std::vector<std::unique_ptr<const Normalizer>> parts) : parts_(std::move(parts)) {}
  bool keeps(std::string_view text) const override {
    for (const auto& part : parts_) {
      if (!part->keeps(text)) return false;
    }
    return true;
  }
  AlignedText apply(const TextView& view) const override {
    AlignedText out(view);
    for (const auto& part : parts_) {
      if (!part->keeps(out.text)) out = part->apply(out.view());
      require_bounded(out.text.size(), view.text.size());
    }
    return out;
  }

 private:
  std::vector<std::unique_ptr<const Normalizer>> parts_;
};

}  // namespace

AlignedText with_prefix(const TextView& view, std::string_view prefix) {
  AlignedText out;
  if (view.text.empty()) return out;
  out.append(prefix, view.range(0, 1));
  out.append(view);
  return out;
}

std::unique_ptr<const Normalizer> make_normalizer(const Json& json, const std::string& where) {
  if (json.is_null()) return nullptr;
  const std::string type = component_type(json, where);
  if (type == "NFC") return std::make_unique<Nfc>();
  if (type == "Replace") {
    return std::make_unique<ReplaceNormalizer>(Pattern(component_field(json, "pattern", where), where),
                                               component_string(json, "content", where));
  }
  if (type == "Prepend") return std::make_unique<Prepend>(component_string(json, "prepend", where));
  if (type == "Sequence") {
    std::vector<std::unique_ptr<const Normalizer>> parts;
    for (const auto& part : component_list(json, "normalizers", where)) {
      if (auto made = make_normalizer(part, where + ".normalizers")) parts.push_back(std::move(made));
    }
    if (parts.empty()) return nullptr;
    if (parts.size() == 1) return std::move(parts[0]);
    return std::make_unique<Chain>(std::move(parts));
  }
  unknown_component(type, "NFC, Replace, Prepend, Sequence", where);
}

namespace {

constexpr std::string_view kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

Behavior read_behavior(const Json& json, const std::string& where) {
  const std::string name = component_string(json, "behavior", where);
  if (name == "Removed") return Behavior::removed;
  if (name == "Isolated") return Behavior::isolated;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  unknown_component(name, "Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous",
                    where + ".behavior");
}

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
void join_parts(Behavior behavior, std::vector<Part>& parts) {
  std::vector<Part> out;
  switch (behavior) {
    case Behavior::isolated:
      return;
    case Behavior::removed:
      for (Part& part : parts) {
        if (part.is_match) part.end = part.begin;
      }
      return;
    case Behavior::contiguous:
      for (const Part& part : parts) {
        if (!out.empty() && out.back().is_match == part.is_match) {
          out.back().end = part.end;
        } else {
          out.push_back(part);
        }
      }
      break;
    case Behavior::merged_with_previous: {
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
    case Behavior::merged_with_next: {
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
  Split(Pattern pattern, Behavior behavior, bool invert)
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
  Behavior behavior_;
  bool invert_;
};

/// ByteLevel's add_prefix_space: adds a blank before each piece that does not start with one.
class PrefixSpace : public PreTokenizerStep {
 public:
  void apply(std::vector<TextView>& pieces, std::deque<AlignedText>& made) const override {
    for (TextView& piece : pieces) {
      if (piece.text.empty() || piece.text[0] == ' ') continue;
      made.push_back(with_prefix(piece, " "));
      piece = made.back().view();
    }
  }
};

class MetaspaceSplit : public PreTokenizerStep {
 public:
  enum class Scheme { always, first, never };
  MetaspaceSplit(std::string replacement, Scheme scheme) : mark_(std::move(replacement)), scheme_(scheme) {}

  void apply(std::vector<TextView>& pieces, std::deque<AlignedText>& made) const override {
    for (TextView& piece : pieces) {
      if (piece.text.empty()) continue;
      AlignedText text;
      const bool marked = piece.text[0] == ' ' || piece.text.starts_with(mark_);
      const bool prefix =
          scheme_ == Scheme::always || (scheme_ == Scheme::first && piece.range(0, 1).begin == 0);
      if (!marked && prefix) text.append(mark_, piece.range(0, 1));
      for (std::size_t i = 0; i < piece.text.size();) {
        std::size_t end = piece.text.find(' ', i);
        if (end == std::string_view::npos) end = piece.text.size();
        if (end > i) text.append(piece.slice(i, end));
        if (end < piece.text.size()) text.append(mark_, piece.range(end, end + 1));
        i = end + 1;
      }
      made.push_back(std::move(text));
      piece = made.back().view();
    }
  }

 private:
  std::string mark_;
  Scheme scheme_;
};

void add_metaspace(const Json& json, const std::string& where, PreTokenizer& out) {
  const std::string mark = json_string(json, "replacement", "\xE2\x96\x81", where);
  // Older files have a bool instead of prepend_scheme.
  const std::string old = json_bool(json, "add_prefix_space", true, where) ? "always" : "never";
  const std::string scheme = json_string(json, "prepend_scheme", old, where);
  MetaspaceSplit::Scheme kind = MetaspaceSplit::Scheme::never;
  if (scheme == "always") {
    kind = MetaspaceSplit::Scheme::always;
  } else if (scheme == "first") {
    kind = MetaspaceSplit::Scheme::first;
  } else if (scheme != "never") {
    unknown_component(scheme, "always, first, never", where + ".prepend_scheme");
  }
  out.steps.push_back(std::make_unique<MetaspaceSplit>(mark, kind));
  if (json_bool(json, "split", true, where)) {
    out.steps.push_back(
        std::make_unique<Split>(Pattern(Json{{"String", mark}}, where), Behavior::merged_with_next, false));
  }
}

void add_steps(const Json& json, const std::string& where, PreTokenizer& out) {
  if (json.is_null()) return;
  const std::string type = component_type(json, where);
  if (type == "Sequence") {
    for (const auto& part : component_list(json, "pretokenizers", where)) {
      add_steps(part, where + ".pretokenizers", out);
    }
    return;
  }
  if (out.byte_level) {
    throw Error({.what = "the tokenizer component '" + type + "' comes after ByteLevel",
                 .expected = "ByteLevel as the last pre-tokenizer",
                 .where = where,
                 .fix = kBrokenTokenizer,
                 .code = ExitCode::usage});
  }
  if (type == "Split") {
    out.steps.push_back(std::make_unique<Split>(Pattern(component_field(json, "pattern", where), where),
                                                read_behavior(json, where),
                                                json_bool(json, "invert", false, where)));
  } else if (type == "ByteLevel") {
    if (json_bool(json, "add_prefix_space", true, where))
      out.steps.push_back(std::make_unique<PrefixSpace>());
    if (json_bool(json, "use_regex", true, where)) {
      out.steps.push_back(std::make_unique<Split>(Pattern::regex(kGpt2Words), Behavior::isolated, false));
    }
    out.byte_level = true;
  } else if (type == "Metaspace") {
    add_metaspace(json, where, out);
  } else if (type == "Digits") {
    const bool single = json_bool(json, "individual_digits", false, where);
    out.steps.push_back(std::make_unique<Split>(Pattern::regex("\\p{N}"),
                                                single ? Behavior::isolated : Behavior::contiguous, false));
  } else {
    unknown_component(type, "Sequence, Split, ByteLevel, Metaspace, Digits", where);
  }
}

}  // namespace

PreTokenizer make_pre_tokenizer(const Json& json, const std::string& where) {
  PreTokenizer out;
  add_steps(json, where, out);
  return out;
}

}  // namespace octet::text
