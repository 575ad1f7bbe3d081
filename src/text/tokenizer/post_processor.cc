#include "tokenizer/post_processor.h"

#include <algorithm>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "tokenizer/component.h"
#include "unicode/unicode.h"

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

}  // namespace octet::text
