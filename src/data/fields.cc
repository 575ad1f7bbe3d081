#include "fields.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/data/dataset.h"
#include "values.h"

namespace octet::data {
namespace {

enum class Rule {
  read,       ///< the converter reads it
  describes,  ///< describes the row and changes nothing
  noted,      ///< not read, but counted
  trains,     ///< true trains the message, false masks it
  masks,      ///< true masks the message, false trains it
  refused,    ///< usable only if null, false, 0 or empty
  must_hold,  ///< usable only if null, true or 1
  tokens,     ///< refused if it is a list of numbers (token ids); other values are not read
  share,      ///< a weight of the row: 0 is refused, values other than 1 are not read
  whole,      ///< selects the row: refused if false, or if a list of numbers
  unwanted,   ///< excludes the row: refused if true, or if a list of numbers
  preferred,  ///< refused if false: the answer must not be learnt
  asker,      ///< NeMo's mask: usable if it names the user's role
  values,     ///< NeMo's type: usable if it does not put labels into the text
};

struct Field {
  std::string_view name;
  Rule rule;
};

// Columns that a format does not name.
constexpr Field kRowFields[] = {
    // Read with every format.
    {"enable_thinking", Rule::read},
    {"chat_template_kwargs", Rule::read},
    {"functions", Rule::read},
    {"reasoning_content", Rule::read},
    {"system_prompt", Rule::read},
    {"system_message", Rule::read},
    // Rows of token ids: TRL, axolotl, verl, Megatron.
    {"input_ids", Rule::tokens},
    {"labels", Rule::tokens},
    {"attention_mask", Rule::tokens},
    {"position_ids", Rule::tokens},
    {"completion_mask", Rule::tokens},
    {"assistant_mask", Rule::tokens},
    {"assistant_masks", Rule::tokens},
    {"assistant_tokens_mask", Rule::tokens},
    {"loss_mask", Rule::tokens},
    {"prompt_mask", Rule::tokens},
    {"response_mask", Rule::tokens},
    {"label_mask", Rule::tokens},
    {"target_mask", Rule::tokens},
    {"loss_scale", Rule::tokens},
    {"token_weights", Rule::tokens},
    // Weights of rows.
    {"weight", Rule::share},
    {"loss_weight", Rule::share},
    {"sample_weight", Rule::share},
    {"weights", Rule::tokens},
    {"loss_weights", Rule::tokens},
    // Whether a row is trained: fields of messages that are also used as columns.
    {"train", Rule::whole},
    {"training", Rule::whole},
    {"trainable", Rule::whole},
    {"trained", Rule::whole},
    {"train_on_turn", Rule::whole},
    {"loss", Rule::whole},
    {"masked", Rule::unwanted},
    {"ignore", Rule::unwanted},
    // Answers that must not be learnt: TRL, LLaMA-Factory, ms-swift.
    {"label", Rule::preferred},
    {"kto_tag", Rule::preferred},
    {"chosen", Rule::noted},
    {"rejected", Rule::noted},
    {"rejected_response", Rule::noted},
    {"rejected_messages", Rule::noted},
    {"preferred_output", Rule::noted},
    {"non_preferred_output", Rule::noted},
    // NeMo.
    {"mask", Rule::asker},
    {"type", Rule::values},
    // Other parts of a prompt or of an answer.
    {"tools", Rule::noted},
    {"system", Rule::noted},
    {"documents", Rule::noted},
    {"reasoning", Rule::noted},
    {"thinking", Rule::noted},
    {"thought", Rule::noted},
    {"objects", Rule::noted},
    {"channel", Rule::noted},
    {"tool_choice", Rule::noted},
    {"response_format", Rule::noted},
    {"add_generation_prompt", Rule::noted},
    {"continue_final_message", Rule::noted},
};

// Fields of a message other than its role and its content.
constexpr Field kMessageFields[] = {
    {"tool_calls", Rule::read},
    {"function_call", Rule::read},
    {"reasoning_content", Rule::read},
    {"reasoning", Rule::read},
    {"thinking", Rule::read},
    {"thought", Rule::read},
    // Whether an answer is trained: OpenAI and mistral-finetune, LLaMA-Factory, ms-swift, axolotl, others.
    {"weight", Rule::trains},
    {"loss_weight", Rule::trains},
    {"loss_scale", Rule::trains},
    {"loss", Rule::trains},
    {"loss_mask", Rule::trains},
    {"train", Rule::trains},
    {"training", Rule::trains},
    {"trainable", Rule::trains},
    {"trained", Rule::trains},
    {"train_on_turn", Rule::trains},
    {"masked", Rule::masks},
    {"ignore", Rule::masks},
    // Fields that select the trained parts of a message, or replace its content.
    {"mask", Rule::refused},
    {"train_detail", Rule::refused},
    {"training_detail", Rule::refused},
    {"refusal", Rule::refused},
    {"prefix", Rule::refused},
    {"partial", Rule::refused},
    {"end_turn", Rule::must_hold},
    {"canonical_form", Rule::refused},
    {"channel", Rule::refused},
    {"recipient", Rule::refused},
    {"tool_call", Rule::refused},
    {"function_calls", Rule::refused},
    {"functions", Rule::refused},
    {"tools", Rule::refused},
    {"parts", Rule::refused},
    {"audio", Rule::refused},
    {"audios", Rule::refused},
    {"image", Rule::refused},
    {"images", Rule::refused},
    {"image_url", Rule::refused},
    {"video", Rule::refused},
    {"videos", Rule::refused},
    // Names and numbers.
    {"id", Rule::describes},
    {"index", Rule::describes},
    {"tool_call_id", Rule::describes},
    {"type", Rule::describes},
    {"model", Rule::describes},
    {"timestamp", Rule::describes},
    {"created_at", Rule::describes},
    {"create_time", Rule::describes},
    {"language", Rule::describes},
    {"metadata", Rule::describes},
    {"annotations", Rule::describes},
    {"status", Rule::describes},
    {"finish_reason", Rule::describes},
    {"stop_reason", Rule::describes},
    {"logprobs", Rule::describes},
    {"usage", Rule::describes},
    {"cache_control", Rule::describes},
    {"length", Rule::describes},
    {"token_count", Rule::describes},
    {"num_tokens", Rule::describes},
};

const Field* find(std::span<const Field> table, const std::string& name) {
  const auto found = std::ranges::find(table, std::string_view(name), &Field::name);
  return found == table.end() ? nullptr : &*found;
}

[[noreturn]] void refuse(const std::string& name, const Json& value, const std::string& why) {
  throw Unusable{"'" + name + "' is " + short_text(value) + ": " + why};
}

constexpr const char* kNotTrained =
    "the row is not trained; remove the row, or the column if it means something else";
constexpr const char* kNotRead = "it sets what is trained, but is not supported; remove the field or the row";

std::string trimmed(const Json& text) {
  return std::string(trim(text.get<std::string>()));
}

// Returns the number of a value. Cells of CSV files hold numbers as texts.
std::optional<double> number_of(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? 1 : 0;
  if (value.is_number()) return value.get<double>();
  if (!value.is_string()) return std::nullopt;
  const std::string text = trimmed(value);
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(number) : std::nullopt;
}

// Cells of CSV files hold lists as texts: "[0, 1]", "0,1,1", "0 1 1". Two numbers may be one number with a
// decimal comma.
bool is_number_list(const Json& value) {
  if (value.is_string()) {
    const std::string text = trimmed(value);
    constexpr const char* between = ", \t\r\n[]()";
    std::size_t numbers = 0, begin = text.find_first_not_of(between);
    while (begin != std::string::npos) {
      const std::size_t end = std::min(text.find_first_of(between, begin), text.size());
      if (!number_of(text.substr(begin, end - begin))) return false;
      ++numbers;
      begin = text.find_first_not_of(between, end);
    }
    return numbers >= 3 || (numbers > 0 && text.front() == '[');
  }
  return value.is_array() && !value.empty() &&
         std::ranges::all_of(value, [](const Json& item) { return item.is_number() || item.is_boolean(); });
}

// Returns whether the value is false, or true, in one of the spellings of Python and CSV files.
bool is_word(const Json& value, bool truth) {
  if (value.is_boolean()) return value.get<bool>() == truth;
  return value.is_string() && lower_case(trimmed(value)) == (truth ? "true" : "false");
}

void check_column(const std::string& name, Rule rule, const Json& value, Noted& noted) {
  switch (rule) {
    case Rule::tokens:
      if (is_number_list(value))
        refuse(name, value, "rows of token ids and masks are not supported; give texts");
      break;
    case Rule::share:
      if (is_number_list(value)) refuse(name, value, kNotRead);
      if (const auto number = number_of(value); is_word(value, false) || number == 0)
        refuse(name, value, kNotTrained);
      else if (number && *number != 1)
        noted.insert("a column '" + name + "' with values other than 1");
      break;
    case Rule::whole:
    case Rule::unwanted:
      if (is_number_list(value)) refuse(name, value, kNotRead);
      if (is_word(value, rule == Rule::unwanted) || number_of(value) == (rule == Rule::unwanted ? 1 : 0))
        refuse(name, value, kNotTrained);
      if (!is_nothing(value) && number_of(value) != (rule == Rule::unwanted ? 0 : 1) &&
          !is_word(value, rule == Rule::whole))
        noted.insert("a column '" + name + "'");
      break;
    case Rule::preferred:
      if (is_word(value, false))
        refuse(name, value, "the answer must not be learnt; remove the column if it means something else");
      if (number_of(value) == 0) noted.insert("a column '" + name + "'");
      break;
    case Rule::asker: {
      const std::string asker = value.is_string() ? lower_case(value.get<std::string>()) : "";
      if (asker != "user" && asker != "human" && !is_nothing(value)) refuse(name, value, kNotRead);
      break;
    }
    case Rule::values:
      if (value == "VALUE_TO_TEXT" || value == "TEXT_TO_VALUE") refuse(name, value, kNotRead);
      break;
    case Rule::noted:
      if (!is_nothing(value)) noted.insert("a column '" + name + "'");
      break;
    default:
      break;
  }
}

}  // namespace

std::set<std::string> named_columns(const RowFormat& f) {
  std::set<std::string> names;
  const bool messages = f.kind == RowFormat::Kind::sharegpt || f.kind == RowFormat::Kind::openai;
  if (f.kind == RowFormat::Kind::text) {
    names = {f.prompt};
  } else if (messages) {
    names = {f.messages, f.system, f.tools};
  } else {
    names = {f.prompt, f.query, f.response, f.history, f.system, f.tools};
  }
  if (f.has_pairs()) names.insert({f.chosen, f.rejected});
  names.insert(f.judgement);
  names.erase("");
  return names;
}

bool is_read_column(const std::string& name) {
  const Field* field = find(kRowFields, name);
  return field && field->rule == Rule::read;
}

bool is_read_message_field(const std::string& name, const RowFormat& format) {
  if (name == format.role_tag || name == format.content_tag) return true;
  const Field* field = find(kMessageFields, name);
  return field && (field->rule == Rule::read || field->rule == Rule::trains || field->rule == Rule::masks);
}

void check_row_fields(const Json& row, const RowFormat& format, Noted& noted) {
  const std::set<std::string> named = named_columns(format);
  for (const auto& [name, value] : row.items()) {
    if (value.is_null() || named.contains(name)) continue;
    if (const Field* field = find(kRowFields, name)) check_column(name, field->rule, value, noted);
  }
}

bool check_message_fields(const Json& message, const RowFormat& format, std::string_view turn, Noted& noted) {
  const bool answer = turn == "assistant" || turn == "function";
  bool trained = true;
  for (const auto& [name, value] : message.items()) {
    if (value.is_null() || name == format.role_tag || name == format.content_tag) continue;
    if (name == "name" && turn == "observation") continue;  // the tool's name
    const Field* field = find(kMessageFields, name);
    const Rule rule = field ? field->rule : Rule::noted;
    if (rule == Rule::trains || rule == Rule::masks) {
      const bool flag = flag_of(value, name) == (rule == Rule::trains);
      if (!answer && flag && rule == Rule::trains)
        refuse(name, value, "only answers can be trained; remove the field from other messages");
      trained = trained && flag;
    } else if (rule == Rule::refused) {
      const bool last_channel = name == "channel" && value == "final";
      if (!is_nothing(value) && !last_channel) refuse(name, value, kNotRead);
    } else if (rule == Rule::must_hold) {
      if (!flag_of(value, name)) refuse(name, value, kNotRead);
    } else if (rule == Rule::noted && (!is_nothing(value) || value == false || value == 0)) {
      noted.insert("a message field '" + name + "'");  // false and 0 may mask
    }
  }
  return trained;
}

void check_part_fields(const Json& part, const std::string& content) {
  if (!part.is_object()) return;
  for (const auto& [name, value] : part.items()) {
    const Field* field =
        value.is_null() || name == "type" || name == "text" ? nullptr : find(kMessageFields, name);
    if (!field) continue;
    const bool flag = field->rule == Rule::trains || field->rule == Rule::masks;
    const bool thought = field->rule == Rule::read && !is_nothing(value);
    const bool replaces = field->rule == Rule::refused && !is_nothing(value);
    if (thought || replaces || (flag && flag_of(value, name) != (field->rule == Rule::trains)))
      refuse(name, value,
             "fields of a part of '" + content +
                 "' that choose the trained text are not supported; "
                 "remove the field or the row");
  }
}

// Which columns of a data set are read.

namespace {

constexpr std::int64_t kMostRows = 100;

bool holds_text(const Json& value) {
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return value.is_structured() &&
         std::ranges::any_of(value, [](const Json& item) { return holds_text(item); });
}

void add_message_fields(const Json& row, const RowFormat& format, std::set<std::string>& fields) {
  if (format.kind != RowFormat::Kind::sharegpt && format.kind != RowFormat::Kind::openai) return;
  const Json* list = value_at(row, format.messages);
  if (!list || !list->is_array()) return;
  for (const Json& message : *list) {
    if (!message.is_object()) continue;
    for (const auto& [name, value] : message.items()) {
      if (!value.is_null() && is_read_message_field(name, format)) fields.insert(name);
    }
  }
}

}  // namespace

ColumnUse column_use(const DataSource& source) {
  const RowFormat& format = source.format;
  const std::set<std::string> named = named_columns(format);
  std::map<std::string, bool> texts;  // by column: whether one of its rows holds text
  std::set<std::string> fields;
  for (const auto& file : source.files) {
    for (std::int64_t i = 0; i < std::min(file->size(), kMostRows); ++i) {
      Json row;
      try {
        row = file->row(i);
      } catch (const Error&) {
        continue;  // counted and reported when the rows are encoded
      }
      if (!row.is_object()) continue;
      for (const auto& [name, value] : row.items()) texts[name] |= holds_text(value);
      add_message_fields(row, format, fields);
    }
  }
  ColumnUse use;
  use.message_fields = {fields.begin(), fields.end()};
  use.decides = std::ranges::any_of(fields, [&](const std::string& field) {
    return field != format.role_tag && field != format.content_tag;
  });
  for (const auto& [name, text] : texts) {
    const bool everywhere = format.kind != RowFormat::Kind::text && is_read_column(name);
    if (named.contains(name) || everywhere) {
      use.read.push_back(name);
      use.decides |= !named.contains(name);
    } else if (text && std::ranges::find(format.media, name) == format.media.end()) {
      use.unread_texts.push_back(name);
    }
  }
  return use;
}

}  // namespace octet::data
