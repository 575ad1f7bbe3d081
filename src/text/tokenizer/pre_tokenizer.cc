#include "tokenizer/pre_tokenizer.h"

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "tokenizer/component.h"
#include "tokenizer/splits.h"
#include "unicode/reference_sets.h"
#include "unicode/unicode.h"

namespace octet::text {
namespace {

constexpr const char* kKnown =
    "Sequence, Split, ByteLevel, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit, "
    "BertPreTokenizer, CharDelimiterSplit, UnicodeScripts, FixedLength";

constexpr std::string_view kGpt2Words =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

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
    out.steps.push_back(make_split(Pattern(Json{{"String", mark}}, where), SplitBehavior::merged_with_next));
  }
}

/// Adds a component that splits at characters of some kind. Returns false if `type` is no such component.
bool add_split(const Json& json, const std::string& type, const std::string& where, PreTokenizer& out) {
  const auto at = [&](Ranges characters, SplitBehavior behavior) {
    out.steps.push_back(make_split(Pattern::characters(std::move(characters)), behavior));
  };
  if (type == "Digits") {
    const bool single = json_bool(json, "individual_digits", false, where);
    at(category_ranges(category_mask("N")), single ? SplitBehavior::isolated : SplitBehavior::contiguous);
  } else if (type == "Punctuation") {
    at(punctuation(), json.contains("behavior") ? read_split_behavior(json, where) : SplitBehavior::isolated);
  } else if (type == "WhitespaceSplit") {
    at(white_space(), SplitBehavior::removed);
  } else if (type == "BertPreTokenizer") {
    at(white_space(), SplitBehavior::removed);
    at(punctuation(), SplitBehavior::isolated);
  } else if (type == "CharDelimiterSplit") {
    const std::string mark = component_string(json, "delimiter", where);
    if (mark.empty() || utf8_length(static_cast<unsigned char>(mark[0])) != mark.size())
      broken_tokenizer("'delimiter' of CharDelimiterSplit is not one character", "'" + mark + "'", where);
    out.steps.push_back(make_split(Pattern(Json{{"String", mark}}, where), SplitBehavior::removed));
  } else if (type == "Whitespace") {
    out.steps.push_back(make_word_split());
  } else if (type == "FixedLength") {
    out.steps.push_back(
        make_length_split(static_cast<std::size_t>(json_int(json, "length", 5, 1, 1 << 20, where))));
  } else if (type == "UnicodeScripts") {
    out.steps.push_back(make_script_split());
  } else {
    return false;
  }
  return true;
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
    out.steps.push_back(make_split(Pattern(component_field(json, "pattern", where), where),
                                   read_split_behavior(json, where),
                                   json_bool(json, "invert", false, where)));
  } else if (type == "ByteLevel") {
    if (json_bool(json, "add_prefix_space", true, where))
      out.steps.push_back(std::make_unique<PrefixSpace>());
    if (json_bool(json, "use_regex", true, where)) {
      out.steps.push_back(make_split(Pattern::regex(kGpt2Words), SplitBehavior::isolated));
    }
    out.byte_level = true;
  } else if (type == "Metaspace") {
    add_metaspace(json, where, out);
  } else if (!add_split(json, type, where, out)) {
    unknown_component(type, kKnown, where);
  }
}

}  // namespace

PreTokenizer make_pre_tokenizer(const Json& json, const std::string& where) {
  PreTokenizer out;
  add_steps(json, where, out);
  return out;
}

}  // namespace octet::text
