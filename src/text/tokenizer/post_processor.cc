#include "tokenizer/post_processor.h"

#include <algorithm>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "tokenizer/component.h"
#include "unicode/unicode.h"
#include "unicode/utf8.h"

namespace octet::text {
namespace {

void read_template(const Json& json, const std::string& where, PostProcessor& out) {
  const Json& specials = component_field(json, "special_tokens", where);
  bool seen_text = false;
  for (const auto& item : component_list(json, "single", where)) {
    if (!item.is_object() || item.size() != 1) broken_tokenizer("a template item is not one object", where);
    if (item.contains("Sequence")) {
      if (seen_text) broken_tokenizer("a template repeats its text", where);
      seen_text = true;
      continue;
    }
    if (!item.contains("SpecialToken"))
      broken_tokenizer("a template item is neither text nor a special token", where);
    const std::string name = component_string(item["SpecialToken"], "id", where);
    const auto token = specials.is_object() ? specials.find(name) : specials.end();
    if (!specials.is_object() || token == specials.end())
      broken_tokenizer("the template's '" + name + "' is not described", where);
    for (const auto& id : component_list(*token, "ids", where)) {
      if (!id.is_number_unsigned() || id.get<std::uint64_t>() > INT32_MAX) {
        broken_tokenizer("an id of the template's '" + name + "' is not a token id", where);
      }
      (seen_text ? out.after : out.before).push_back(id.get<TokenId>());
    }
  }
  if (!seen_text) broken_tokenizer("a template leaves its text out", where);
}

void add(const Json& json, const std::string& where, PostProcessor& out) {
  if (json.is_null()) return;
  const std::string type = component_type(json, where);
  if (type == "Sequence") {
    for (const auto& part : component_list(json, "processors", where)) add(part, where + ".processors", out);
  } else if (type == "ByteLevel") {
    if (json_bool(json, "trim_offsets", true, where)) {
      out.trim = {true, json_bool(json, "add_prefix_space", true, where)};
    }
  } else if (type == "TemplateProcessing") {
    PostProcessor one;
    read_template(json, where, one);
    out.before.insert(out.before.begin(), one.before.begin(), one.before.end());
    out.after.insert(out.after.end(), one.after.begin(), one.after.end());
  } else {
    unknown_component(type, "Sequence, ByteLevel, TemplateProcessing", where);
  }
}

}  // namespace

PostProcessor make_post_processor(const Json& json, const std::string& where) {
  PostProcessor out;
  add(json, where, out);
  return out;
}

void trim_offsets(const PostProcessor::Trim& trim, std::string_view text,
                  const std::vector<std::string_view>& pieces, std::vector<Span>& offsets) {
  static const CharSet white(white_space());
  const std::uint32_t blank = byte_alphabet()[' '];
  const auto is_blank = [&](std::uint32_t code) { return code == blank || white.contains(code); };
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const std::string_view piece = pieces[i];
    std::size_t leading = 0, trailing = 0;
    for (std::size_t at = 0; at < piece.size() && is_blank(utf8_at(piece.data() + at)); ++leading) {
      at += utf8_length(static_cast<unsigned char>(piece[at]));
    }
    const char* end = piece.data() + piece.size();
    while (end != piece.data()) {
      end = utf8_before(piece.data(), end);
      if (!is_blank(utf8_at(end))) break;
      ++trailing;
    }
    Span& span = offsets[i];
    // One blank before the first piece may be the added prefix. More blanks are part of the text.
    if (leading == 1 && (i == 0 || span.begin == 0) && trim.add_prefix_space) leading = 0;
    for (; leading > 0 && span.begin < span.end; --leading) {
      span.begin += static_cast<std::uint32_t>(utf8_length(static_cast<unsigned char>(text[span.begin])));
    }
    for (; trailing > 0 && span.end > span.begin; --trailing) {
      span.end = static_cast<std::uint32_t>(utf8_before(text.data(), text.data() + span.end) - text.data());
    }
    span.begin = std::min(span.begin, span.end);
  }
}

namespace {

constexpr const char* kReplacement = "\xEF\xBF\xBD";

class ByteLevel : public DecoderStep {
 public:
  void apply(std::vector<std::string>& pieces) const override {
    std::string bytes;
    for (const auto& piece : pieces) bytes += bytes_of_piece(piece).value_or(piece);
    pieces = {utf8_lossy(bytes)};
  }
};

class ReplaceDecoder : public DecoderStep {
 public:
  ReplaceDecoder(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void apply(std::vector<std::string>& pieces) const override {
    for (auto& piece : pieces) {
      std::string out;
      std::size_t done = 0;
      pattern_.each_match(piece, [&](std::size_t begin, std::size_t end) {
        out.append(piece, done, begin - done);
        out += content_;
        done = end;
      });
      out.append(piece, done);
      piece = std::move(out);
    }
  }

 private:
  Pattern pattern_;
  std::string content_;
};

/// Decodes runs of <0xNN> to characters. If a run as a whole is not UTF-8, each of its bytes becomes U+FFFD.
class ByteFallback : public DecoderStep {
 public:
  void apply(std::vector<std::string>& pieces) const override {
    std::vector<std::string> out;
    std::string bytes;
    const auto flush = [&] {
      if (bytes.empty()) return;
      if (is_utf8(bytes)) {
        out.push_back(bytes);
      } else {
        out.insert(out.end(), bytes.size(), kReplacement);
      }
      bytes.clear();
    };
    for (auto& piece : pieces) {
      const int byte = byte_of(piece);
      if (byte >= 0) {
        bytes += static_cast<char>(byte);
        continue;
      }
      flush();
      out.push_back(std::move(piece));
    }
    flush();
    pieces = std::move(out);
  }

 private:
  static int byte_of(const std::string& piece) {
    if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return -1;
    const auto digit = [](char c) {
      return c >= '0' && c <= '9'   ? c - '0'
             : c >= 'A' && c <= 'F' ? c - 'A' + 10
             : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                    : -1;
    };
    const int low = digit(piece[4]);
    const int high = piece[3] == '+' ? 0 : digit(piece[3]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
  }
};

class Fuse : public DecoderStep {
 public:
  void apply(std::vector<std::string>& pieces) const override {
    std::string all;
    for (const auto& piece : pieces) all += piece;
    pieces = {std::move(all)};
  }
};

class Strip : public DecoderStep {
 public:
  Strip(std::string content, std::size_t start, std::size_t stop)
      : content_(std::move(content)), start_(start), stop_(stop) {}
  void apply(std::vector<std::string>& pieces) const override {
    for (auto& piece : pieces) {
      for (std::size_t i = 0; i < start_ && piece.starts_with(content_); ++i) piece.erase(0, content_.size());
      for (std::size_t i = 0; i < stop_ && piece.ends_with(content_); ++i) {
        piece.resize(piece.size() - content_.size());
      }
    }
  }

 private:
  std::string content_;
  std::size_t start_, stop_;
};

class MetaspaceDecoder : public DecoderStep {
 public:
  MetaspaceDecoder(std::string mark, bool prefixed) : mark_(std::move(mark)), prefixed_(prefixed) {}
  void apply(std::vector<std::string>& pieces) const override {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      std::string out;
      for (std::size_t at = 0; at < pieces[i].size();) {
        if (pieces[i].compare(at, mark_.size(), mark_) == 0) {
          if (i > 0 || !prefixed_) out += ' ';
          at += mark_.size();
        } else {
          out += pieces[i][at++];
        }
      }
      pieces[i] = std::move(out);
    }
  }

 private:
  std::string mark_;
  bool prefixed_;
};

void add(const Json& json, const std::string& where, PieceDecoder& out) {
  const std::string type = component_type(json, where);
  if (type == "Sequence") {
    for (const auto& part : component_list(json, "decoders", where)) add(part, where + ".decoders", out);
  } else if (type == "ByteLevel") {
    out.steps.push_back(std::make_unique<ByteLevel>());
    out.byte_level = out.steps.size() == 1;
    return;
  } else if (type == "Replace") {
    out.steps.push_back(std::make_unique<ReplaceDecoder>(
        Pattern(component_field(json, "pattern", where), where), component_string(json, "content", where)));
  } else if (type == "ByteFallback") {
    out.steps.push_back(std::make_unique<ByteFallback>());
  } else if (type == "Fuse") {
    out.steps.push_back(std::make_unique<Fuse>());
  } else if (type == "Strip") {
    const std::string content = component_string(json, "content", where);
    if (content.empty() || !is_utf8(content) ||
        utf8_length(static_cast<unsigned char>(content[0])) != content.size()) {
      throw Error({.what = "a Strip decoder's content is not one character",
                   .expected = "one character in UTF-8",
                   .found = "'" + content.substr(0, 40) + "'",
                   .where = where,
                   .fix = kBrokenTokenizer,
                   .code = ExitCode::usage});
    }
    const auto count = [&](const char* key) {
      return static_cast<std::size_t>(json_int(json, key, 0, 0, 1 << 20, where));
    };
    out.steps.push_back(std::make_unique<Strip>(content, count("start"), count("stop")));
  } else if (type == "Metaspace") {
    const std::string old = json_bool(json, "add_prefix_space", true, where) ? "always" : "never";
    const std::string mark = json_string(json, "replacement", "\xE2\x96\x81", where);
    if (mark.empty())
      throw Error({.what = "a Metaspace decoder has no replacement",
                   .expected = "a replacement",
                   .found = "an empty text",
                   .where = where,
                   .fix = kBrokenTokenizer,
                   .code = ExitCode::usage});
    out.steps.push_back(
        std::make_unique<MetaspaceDecoder>(mark, json_string(json, "prepend_scheme", old, where) != "never"));
  } else {
    unknown_component(type, "Sequence, ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace", where);
  }
  out.byte_level = out.byte_level && out.steps.size() == 1;
}

}  // namespace

PieceDecoder make_decoder(const Json& json, const std::string& where) {
  PieceDecoder out;
  if (json.is_null()) {
    out.none = true;
  } else {
    add(json, where, out);
  }
  return out;
}

}  // namespace octet::text
