#include "tokenizer/normalizer.h"

#include <algorithm>
#include <map>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "tokenizer/component.h"
#include "unicode/normal_forms.h"
#include "unicode/reference_sets.h"
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

class NormalFormOf : public Normalizer {
 public:
  explicit NormalFormOf(NormalForm form) : form_(form) {}
  bool keeps(std::string_view text) const override { return surely_normal(form_, text); }
  AlignedText apply(const TextView& view) const override { return normal(form_, view); }

 private:
  NormalForm form_;
};

/// Lower case of each character alone: a final sigma becomes the usual sigma.
class Lowercase : public Normalizer {
 public:
  bool keeps(std::string_view text) const override {
    return std::ranges::all_of(text, [](unsigned char c) { return c < 0x80 && !(c >= 'A' && c <= 'Z'); });
  }
  AlignedText apply(const TextView& view) const override {
    AlignedText out;
    each_character(view.text, [&](std::uint32_t, std::size_t begin, std::size_t end) {
      out.append(lower_character(view.text.substr(begin, end - begin)), view.range(begin, end));
    });
    return out;
  }
};

/// Removes white space at the ends.
class StripBlanks : public Normalizer {
 public:
  StripBlanks(bool left, bool right) : left_(left), right_(right) {}
  bool keeps(std::string_view text) const override { return kept(text).size() == text.size(); }
  AlignedText apply(const TextView& view) const override {
    const std::string_view text = kept(view.text);
    if (text.empty()) return {};
    const auto begin = static_cast<std::size_t>(text.data() - view.text.data());
    return AlignedText(view.slice(begin, begin + text.size()));
  }

 private:
  std::string_view kept(std::string_view text) const {
    while (left_ && !text.empty() && white_.contains(utf8_at(text.data())))
      text.remove_prefix(utf8_length(static_cast<unsigned char>(text[0])));
    while (right_ && !text.empty()) {
      const char* last = utf8_before(text.data(), text.data() + text.size());
      if (!white_.contains(utf8_at(last))) break;
      text = text.substr(0, static_cast<std::size_t>(last - text.data()));
    }
    return text;
  }

  bool left_, right_;
  CharSet white_{white_space()};
};

/// Removes combining marks.
class StripAccents : public Normalizer {
 public:
  bool keeps(std::string_view text) const override {
    bool none = true;
    each_character(text,
                   [&](std::uint32_t code, std::size_t, std::size_t) { none &= !marks_.contains(code); });
    return none;
  }
  AlignedText apply(const TextView& view) const override {
    AlignedText out;
    each_character(view.text, [&](std::uint32_t code, std::size_t begin, std::size_t end) {
      if (!marks_.contains(code)) out.append(view.slice(begin, end));
    });
    return out;
  }

 private:
  CharSet marks_{combining_marks()};
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
  static const std::map<std::string, NormalForm> forms{{"NFC", NormalForm::nfc},
                                                       {"NFD", NormalForm::nfd},
                                                       {"NFKC", NormalForm::nfkc},
                                                       {"NFKD", NormalForm::nfkd}};
  if (const auto form = forms.find(type); form != forms.end())
    return std::make_unique<NormalFormOf>(form->second);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "Strip") {
    return std::make_unique<StripBlanks>(json_bool(json, "strip_left", true, where),
                                         json_bool(json, "strip_right", true, where));
  }
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
  unknown_component(type, "NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Replace, Prepend, Sequence",
                    where);
}

}  // namespace octet::text
