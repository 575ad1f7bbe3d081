#include "octet/data/line_encoder.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

#include "octet/base/error.h"
#include "octet/data/dataset.h"
#include "octet/data/template_encoder.h"
#include "octet/text/chat_template.h"
#include "octet/text/template_match.h"
#include "octet/text/tokenizer.h"

namespace octet::data {
namespace {

// CRC-32 (IEEE 802.3), one bit at a time. Speed does not matter: it only checks decoded data.
std::uint32_t crc32_of(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1u)));
  }
  return ~crc;
}

}  // namespace

class LineEncoder::Impl {
 public:
  Impl(const std::string& folder, const std::string& template_name, const std::string& date)
      : tokenizer_(text::Tokenizer::from_folder(folder)) {
    defaults_.date = date;
    if (!template_name.empty()) {
      template_ = text::template_named(template_name, tokenizer_);
      template_->prepare(tokenizer_);
    }
    folder_ = folder;
  }

  Json encode(const Json& line, const std::string& where) {
    if (line.contains("messages") || line.contains("conversations")) return encode_row(line, where);
    if (line.contains("text")) return encode_text(json_string(line, "text", "", where));
    if (line.contains("repeat")) return encode_repeated(line["repeat"], where);
    if (line.contains("ids")) return decode(line["ids"], where);
    return encode_row(line, where);
  }

 private:
  Json encode_text(const std::string& text) const {
    const text::Encoding plain = tokenizer_.encode(text, {.offsets = true});
    const auto ids = tokenizer_.encode(text, {.add_special = true}).ids;
    Json offsets = Json::array();
    for (const text::Span& span : plain.offsets) offsets.push_back({span.begin, span.end});
    return Json{{"ids", ids},
                {"ids_plain", plain.ids},
                {"ids_split", tokenizer_.encode(text, {.split_special = true}).ids},
                {"offsets", offsets},
                {"decoded", tokenizer_.decode(plain.ids)},
                {"decoded_skip", tokenizer_.decode(ids, true)}};
  }

  Json encode_repeated(const Json& repeat, const std::string& where) const {
    if (!repeat.is_array() || repeat.size() != 2 || !repeat[0].is_string() ||
        !repeat[1].is_number_unsigned()) {
      throw Error({.what = "\"repeat\" is not a text and a count",
                   .expected = "a list of a text and a count",
                   .found = repeat.dump().substr(0, 80),
                   .where = where,
                   .fix = "write {\"repeat\": [\"a text\", 3]}",
                   .code = ExitCode::usage});
    }
    const auto unit = repeat[0].get<std::string>();
    const auto count = repeat[1].get<std::uint64_t>();
    if (unit.size() * count > (std::uint64_t{1} << 30) || count > (std::uint64_t{1} << 30)) {
      throw Error({.what = "\"repeat\" asks for more than 1 GiB",
                   .expected = "at most " + std::to_string(std::uint64_t{1} << 30) + " bytes",
                   .found = std::to_string(count) + " times " + std::to_string(unit.size()) + " bytes",
                   .where = where,
                   .fix = "repeat it less often",
                   .code = ExitCode::usage});
    }
    std::string text;
    for (std::uint64_t i = 0; i < count; ++i) text += unit;
    const auto ids = tokenizer_.encode(text).ids;
    const std::string decoded = tokenizer_.decode(ids);
    Json out{{"ids_plain", ids}, {"decoded_same", decoded == text}};
    if (decoded != text) {
      out["decoded_length"] = decoded.size();
      out["decoded_crc32"] = crc32_of(decoded);
    }
    return out;
  }

  Json decode(const Json& list, const std::string& where) const {
    if (!list.is_array())
      throw Error({.what = "\"ids\" is not a list",
                   .expected = "a list of numbers",
                   .found = list.dump().substr(0, 80),
                   .where = where,
                   .fix = "write {\"ids\": [1, 2]}",
                   .code = ExitCode::usage});
    std::vector<text::TokenId> ids;
    for (const Json& id : list) {
      const Json one{{"id", id}};
      // Decoding skips unknown ids, so ids above 31 bits are clamped.
      ids.push_back(
          static_cast<text::TokenId>(json_int(one, "id", 0, INT64_MIN / 2, INT64_MAX / 2, where) > INT32_MAX
                                         ? INT32_MAX
                                         : json_int(one, "id", 0, INT32_MIN, INT32_MAX, where)));
    }
    return Json{{"decoded", tokenizer_.decode(ids)}, {"decoded_skip", tokenizer_.decode(ids, true)}};
  }

  text::TemplateOptions options_of(const Json& line, const std::string& where) const {
    text::TemplateOptions o = defaults_;
    const auto it = line.find("options");
    if (it == line.end() || it->is_null()) return o;
    const Json& given = *it;
    if (!given.is_object())
      throw Error({.what = "\"options\" is not an object",
                   .expected = "an object of names and values",
                   .found = given.dump().substr(0, 80),
                   .where = where,
                   .fix = "write \"options\": {\"cutoff_len\": 64}",
                   .code = ExitCode::usage});
    o.cutoff_len = json_int(given, "cutoff_len", o.cutoff_len, 1, INT64_C(1) << 40, where);
    o.mask_history = json_bool(given, "mask_history", o.mask_history, where);
    o.train_on_prompt = json_bool(given, "train_on_prompt", o.train_on_prompt, where);
    o.preserve_thinking = json_bool(given, "preserve_thinking", o.preserve_thinking, where);
    o.split_special_tokens = json_bool(given, "split_special_tokens", o.split_special_tokens, where);
    if (given.contains("enable_thinking")) {
      // null: thoughts are neither added to the training text nor removed from it.
      o.enable_thinking = given["enable_thinking"].is_null()
                              ? std::nullopt
                              : std::optional<bool>(json_bool(given, "enable_thinking", true, where));
    }
    if (given.contains("default_system") && !given["default_system"].is_null()) {
      o.default_system = json_string(given, "default_system", "", where);
    }
    if (given.contains("tool_format") && !given["tool_format"].is_null()) {
      o.tool_format = json_string(given, "tool_format", "", where);
    }
    return o;
  }

  static Json outcome(text::Example::Outcome outcome, const std::string& reason) {
    return Json{{outcome == text::Example::Outcome::dropped ? "dropped" : "refused", true},
                {"reason", reason}};
  }

  // Finds the template of the table that renders like the chat template of the model. Runs at the first
  // messages if no template is named.
  void match(const std::string& where) {
    text::TemplateMatch match = text::match_template(folder_, tokenizer_);
    if (!match.found) {
      throw Error({.what = "messages need a chat template",
                   .found = match.reason,
                   .where = where,
                   .fix = "trainer encode MODEL --template NAME",
                   .code = ExitCode::usage});
    }
    template_ = std::move(match.found);
    template_->prepare(tokenizer_);
  }

  static RowFormat format_of(const Json& line, const std::string& where) {
    try {
      return detect_format(line, where);
    } catch (const Error&) {
      throw Error({.what = "a line has no text, ids or row",
                   .expected = "\"text\", \"ids\", \"repeat\", or a row of a data set (\"messages\", "
                               "\"conversations\", \"instruction\", \"prompt\" and \"completion\")",
                   .where = where,
                   .fix = "give one of them: {\"text\": \"...\"} or {\"messages\": [{\"role\": \"user\", "
                          "\"content\": \"...\"}]}",
                   .code = ExitCode::usage});
    }
  }

  // In templates the role "function" holds calls. In OpenAI's format it holds a result and has a name.
  static bool calls_by_role(const Json& line) {
    const auto list = line.find("messages");
    if (list == line.end() || !list->is_array()) return false;
    return std::ranges::any_of(*list, [](const Json& message) {
      return message.is_object() && message.contains("role") && message["role"] == "function" &&
             !message.contains("name");
    });
  }

  // Encodes a row with the converter of training. Any order of messages is accepted; the template checks it.
  Json encode_row(const Json& line, const std::string& where) {
    RowFormat format = format_of(line, where);
    format.any_order = true;
    if (calls_by_role(line)) format.function_tag = "function";
    if (!template_) match(where);
    const text::TemplateOptions options = options_of(line, where);
    try {
      template_->check(options);
    } catch (const Error& e) {
      return outcome(text::Example::Outcome::refused, e.what());
    }
    std::string why;
    RowNotes notes;
    const std::optional<Sample> sample = convert_row(line, format, &why, &notes);
    if (!sample) return outcome(text::Example::Outcome::refused, why);
    Json out = encode_sample(conversation_of(*sample), options, json_bool(line, "generate", false, where));
    for (const auto& [note, count] : notes) out["not_read"].push_back(note);
    return out;
  }

  Json encode_sample(const text::Conversation& conversation, const text::TemplateOptions& options,
                     bool generate) const {
    if (generate) {
      const text::Prompt prompt = template_->encode_prompt(tokenizer_, conversation, options);
      if (prompt.outcome != text::Example::Outcome::kept) return outcome(prompt.outcome, prompt.reason);
      return Json{{"prompt_ids", prompt.prompt_ids}, {"response_ids", prompt.response_ids}};
    }
    const text::Example example = template_->encode_example(tokenizer_, conversation, options);
    if (example.outcome != text::Example::Outcome::kept) return outcome(example.outcome, example.reason);
    return Json{{"input_ids", example.input_ids}, {"labels", example.labels}};
  }

  text::Tokenizer tokenizer_;
  std::optional<text::ChatTemplate> template_;
  std::string folder_;
  text::TemplateOptions defaults_;
};

LineEncoder::LineEncoder(const std::string& folder, const std::string& template_name, const std::string& date)
    : impl_(std::make_unique<Impl>(folder, template_name, date)) {}

LineEncoder::~LineEncoder() = default;

Json LineEncoder::encode(const Json& line, const std::string& where) {
  return impl_->encode(line, where);
}

}  // namespace octet::data
