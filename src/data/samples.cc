// Converts rows to samples. Rows of messages have their own part.
#include <algorithm>
#include <cctype>
#include <utility>

#include "conversion.h"
#include "fields.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/data/dataset.h"
#include "values.h"

namespace octet::data {

namespace {

// Longer conversations fit no context, and truncating them would take too long.
constexpr std::size_t kMostMessages = 20000;

struct Role {
  std::string_view tag, turn;
};

// The roles of all known formats, in lower case.
constexpr Role kRoles[] = {
    {"user", "user"},
    {"human", "user"},
    {"prompter", "user"},
    {"assistant", "assistant"},
    {"gpt", "assistant"},
    {"chatgpt", "assistant"},
    {"model", "assistant"},
    {"bot", "assistant"},
    {"chatbot", "assistant"},
    {"ai", "assistant"},
    {"observation", "observation"},
    {"tool", "observation"},
    {"tool_response", "observation"},
    {"tool_result", "observation"},
    {"function", "observation"},
    {"function_response", "observation"},
    {"function-response", "observation"},
    {"ipython", "observation"},
    {"function_call", "function"},
    {"function-call", "function"},
    {"tool_call", "function"},
    {"system", "system"},
    {"developer", "system"},
};

[[noreturn]] void unknown_role(const RowFormat& f, const std::string& tag) {
  const std::string known = "'" + f.user_tag + "', '" + f.assistant_tag + "' or another of its \"tags\"";
  throw Unusable{"unknown role '" + tag.substr(0, 40) + "'" +
                 (f.any_role ? "; name the roles by \"tags\" in dataset_info.json"
                             : "; dataset_info.json says " + known)};
}

// Returns one call as an object with "name" and "arguments".
Json call_of(const Json& call, const std::string& field) {
  const Json* inner = value_at(call, "function");
  const Json& function = inner ? *inner : call;
  const Json* name = value_at(function, "name");
  if (!name || !function.contains("arguments"))
    throw Unusable{"a call in '" + field + "' has no name or no arguments"};
  if (!name->is_string()) throw Unusable{"the name of a call in '" + field + "' is " + kind_of(*name)};
  Json arguments = function["arguments"];
  if (arguments.is_string()) {  // as OpenAI writes them: JSON inside of a text
    try {
      arguments = parse_json_digits(arguments.get<std::string>(), field);
    } catch (const Error&) {
      throw Unusable{"the arguments of a call in '" + field + "' are not JSON"};
    }
  }
  return Json{{"name", *name}, {"arguments", std::move(arguments)}};
}

// Returns the calls of a message as the content of a function turn: a JSON list of names with arguments.
// Returns nullopt if there are none.
std::optional<std::string> calls_of(const Json& message) {
  Json list = Json::array();
  const Json* several = value_at(message, "tool_calls");
  const Json* one = value_at(message, "function_call");
  if (several && !is_nothing(*several)) {
    const Json calls = structure_of(*several, "tool_calls");
    for (const Json& call : calls.is_array() ? calls : Json::array({calls}))
      list.push_back(call_of(call, "tool_calls"));
  }
  if (one && !is_nothing(*one)) {
    if (!list.empty()) throw Unusable{"a message has both 'tool_calls' and 'function_call'"};
    list.push_back(call_of(structure_of(*one, "function_call"), "function_call"));
  }
  return list.empty() ? std::nullopt : std::optional(dump_json_digits(list));
}

class Conversation {
 public:
  Conversation(const RowFormat& format, Sample& sample, Noted& noted)
      : format_(format), sample_(sample), noted_(noted) {}

  // `trains` is false for messages that are context only.
  void add(const Json& message, bool trains) {
    if (!message.is_object()) throw Unusable{"a message is " + kind_of(message) + ", not an object"};
    const auto tag = text_at(message, format_.role_tag);
    if (!tag) throw Unusable{"a message has no '" + format_.role_tag + "'" + other_shape(message)};
    std::string turn = turn_of_role(format_, *tag);
    if (turn.empty()) unknown_role(format_, *tag);
    const bool first = std::exchange(first_, false);
    const std::optional<std::string> calls = calls_of(message);
    if (calls && turn != "assistant" && turn != "function")
      throw Unusable{"a message of the role '" + *tag + "' calls a tool"};
    const bool trained = check_message_fields(message, format_, turn, noted_) && trains;
    Turn out{turn, content_of(message, turn, calls.has_value())};
    read_thought(message, out);
    if (turn == "system") {
      add_system(*tag, first, std::move(out.content));
      return;
    }
    if (calls) {
      out.role = "function";
      out.text = std::exchange(out.content, *calls);
    }
    out.trained = trained || turn == "user" || turn == "observation";
    add_turn(*tag, std::move(out));
  }

  void end() const {
    if (sample_.turns.empty()) throw Unusable{"no messages"};
    if (sample_.turns.size() % 2 != 0 && !format_.any_order)
      throw Unusable{"the last question has no answer"};
  }

 private:
  // The rows of a file may differ in shape from its first row.
  std::string other_shape(const Json& message) const {
    const char* other = format_.role_tag == "from" ? "role" : "from";
    return message.contains(other) ? std::string(", but '") + other + "', unlike the first row" : "";
  }

  std::string content_of(const Json& message, const std::string& turn, bool calls) const {
    const Json* content = value_at(message, format_.content_tag);
    if (content && turn == "function" && content->is_structured()) return dump_json_digits(*content);
    if (content && content->is_array() && turn == "assistant") {
      for (const Json& part : *content) check_part_fields(part, format_.content_tag);
    }
    if (content) return text_of(*content, format_.content_tag, true);
    if (calls || turn == "system") return "";
    throw Unusable{"a message has no text in '" + format_.content_tag + "', which " +
                   absence_of(message, format_.content_tag)};
  }

  void read_thought(const Json& message, Turn& turn) {
    for (const char* field : kThoughtFields) {
      const Json* value = value_at(message, field);
      if (!value || is_nothing(*value)) continue;
      const std::string thought = text_of(*value, field, true);
      if (turn.role != "assistant" && turn.role != "function") {
        noted_.insert("a message field '" + std::string(field) + "' outside of answers");
      } else if (!turn.thought.empty() && turn.thought != thought) {
        throw Unusable{"'" + turn.thought_field + "' and '" + field + "' of a message differ"};
      } else if (turn.content.find("<think>") != std::string::npos) {
        throw Unusable{"a message has thoughts in '" + std::string(field) + "' and in its text"};
      } else if (turn.thought.empty()) {
        turn.thought = thought;
        turn.thought_field = field;
      }
    }
  }

  void add_system(const std::string& tag, bool first, std::string text) {
    if (!first) throw Unusable{"a message of the role '" + tag + "' is not the first message"};
    if (!sample_.system.empty() && sample_.system != text) noted_.insert(kOtherSystem);
    sample_.system = std::move(text);
  }

  void add_turn(const std::string& tag, Turn turn) {
    const bool asks = sample_.turns.size() % 2 == 0;
    const bool is_question = turn.role == "user" || turn.role == "observation";
    // The answers of several tools to one message become one turn.
    const bool joins = format_.kind == RowFormat::Kind::openai || format_.any_role;
    if (joins && turn.role == "observation" && !asks && sample_.turns.back().role == turn.role) {
      sample_.turns.back().content += "\n</tool_response>\n<tool_response>\n" + turn.content;
      return;
    }
    if (is_question != asks && !format_.any_order)
      throw Unusable{"roles do not alternate: '" + tag + "' out of order"};
    sample_.turns.push_back(std::move(turn));
  }

  const RowFormat& format_;
  Sample& sample_;
  Noted& noted_;
  bool first_ = true;
};

}  // namespace

std::string turn_of_role(const RowFormat& f, const std::string& tag) {
  if (tag.empty()) return "";
  if (tag == f.user_tag) return "user";
  if (tag == f.assistant_tag) return "assistant";
  if (tag == f.observation_tag) return "observation";
  if (tag == f.function_tag) return "function";
  if (tag == f.system_tag) return "system";
  if (!f.any_role) return "";
  std::string lower = tag;
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto found = std::ranges::find(kRoles, std::string_view(lower), &Role::tag);
  return found == std::end(kRoles) ? "" : std::string(found->turn);
}

void read_columns_beside(const Json& row, const RowFormat& format, Sample& sample, Noted& noted) {
  if (auto text = text_at(row, format.system, true)) sample.system = std::move(*text);
  for (const std::string column : kSystemColumns) {
    if (column == format.system) continue;
    auto text = text_at(row, column, true);
    if (!text || text->empty() || *text == sample.system) continue;
    if (sample.system.empty() && format.system == "system") {
      sample.system = std::move(*text);
    } else {
      noted.insert("a column '" + column + "'");
    }
  }
  // Tools are a JSON text or a list. OpenAI's older rows call them functions.
  const std::string older = "functions";
  for (const std::string& column : {format.tools, older}) {
    const Json* tools = value_at(row, column);
    if (!tools || is_nothing(*tools) || (column == older && format.tools == older)) continue;
    if (!tools->is_string() && !tools->is_structured())
      throw Unusable{"'" + column + "' is " + kind_of(*tools) + ", not a list of tools"};
    if (!sample.tools.empty() || (column == older && format.tools != "tools")) {
      noted.insert("a column '" + column + "'");
    } else {
      sample.tools = tools->is_string() ? tools->get<std::string>() : dump_json_digits(*tools);
    }
  }
}

Sample convert_messages(const Json& row, const RowFormat& f, Noted& noted) {
  const Json* column = value_at(row, f.messages);
  if (!column)
    throw Unusable{"no list of messages: column '" + f.messages + "' " + absence_of(row, f.messages)};
  Json parsed;
  // CSV files hold lists as JSON texts.
  if (column->is_string()) parsed = structure_of(*column, f.messages);
  const Json& list = column->is_string() ? parsed : *column;
  if (!list.is_array())
    throw Unusable{"no list of messages in column '" + f.messages + "', which is " + kind_of(list)};
  if (list.size() > kMostMessages) {
    throw Unusable{std::to_string(list.size()) + " messages, more than " + std::to_string(kMostMessages)};
  }
  Sample sample;
  read_columns_beside(row, f, sample, noted);
  Conversation conversation(f, sample, noted);
  for (const Json& message : list) conversation.add(message, true);
  conversation.end();
  return sample;
}

Sample convert_message_pair(const Json& question, const Json& answer, const RowFormat& format, Noted& noted) {
  RowFormat f = format;
  f.kind = RowFormat::Kind::openai;
  f.any_role = true;
  f.user_tag = "user", f.assistant_tag = "assistant";
  Sample sample;
  Conversation conversation(f, sample, noted);
  const auto add = [&](const Json& part, const std::string& column, const char* role, bool trains) {
    if (!part.is_array()) {
      f.role_tag = "role", f.content_tag = "content";
      conversation.add(Json{{"role", role}, {"content", text_of(part, column)}}, trains);
      return;
    }
    if (!is_message_list(part)) throw Unusable{"'" + column + "' is a list, but not one of messages"};
    const bool sharegpt = part.front().contains("from");
    f.role_tag = sharegpt ? "from" : "role", f.content_tag = sharegpt ? "value" : "content";
    for (const Json& message : part) conversation.add(message, trains);
  };
  add(question, format.prompt, "user", false);
  add(answer, format.response, "assistant", true);
  conversation.end();
  return sample;
}

// Conversion of a row to a sample, as in LLaMA-Factory's converters.

namespace {

void add_history(const Json& row, const RowFormat& f, Sample& sample) {
  const Json* history = value_at(row, f.history);
  if (!history || *history == "") return;
  const Json pairs = structure_of(*history, f.history);
  for (const Json& pair : pairs) {
    if (!pairs.is_array() || !pair.is_array() || pair.size() != 2 || pair[0].is_null() || pair[1].is_null())
      throw Unusable{"'" + f.history + "' is not a list of [question, answer] pairs"};
    sample.turns.push_back({"user", text_of(pair[0], f.history)});
    sample.turns.push_back({"assistant", text_of(pair[1], f.history)});
  }
}

}  // namespace

Sample convert_pair(const Json& row, const RowFormat& f, Noted& noted) {
  const Json* question = value_at(row, f.prompt);
  const Json* query = value_at(row, f.query);
  const Json* response = value_at(row, f.response);
  if (!response) throw Unusable{"no answer: column '" + f.response + "' " + absence_of(row, f.response)};
  if (!question && !query)
    throw Unusable{"no question: column '" + f.prompt + "' " + absence_of(row, f.prompt)};
  Sample sample;
  if (f.kind == RowFormat::Kind::pair && ((question && question->is_array()) || response->is_array())) {
    if (const Json* history = value_at(row, f.history); history && !is_nothing(*history))
      throw Unusable{"'" + f.history + "' cannot be combined with messages in '" + f.prompt + "' or '" +
                     f.response + "': put the earlier turns into the messages"};
    sample = convert_message_pair(question ? *question : *query, *response, f, noted);
    Sample beside;
    read_columns_beside(row, f, beside, noted);
    if (sample.system.empty()) sample.system = beside.system;
    if (!beside.system.empty() && sample.system != beside.system) noted.insert(kOtherSystem);
    sample.tools = beside.tools;
    return sample;
  }
  add_history(row, f, sample);
  std::string text = question ? text_of(*question, f.prompt) : "";
  const std::string more = query ? text_of(*query, f.query) : "";
  if (!text.empty() && !more.empty()) text += "\n";
  text += more;
  sample.turns.push_back({"user", text});
  sample.turns.push_back({"assistant", text_of(*response, f.response)});
  read_columns_beside(row, f, sample, noted);
  return sample;
}

namespace {

Sample convert_text(const Json& row, const RowFormat& f) {
  const auto text = text_at(row, f.prompt);
  if (!text) throw Unusable{"no text: column '" + f.prompt + "' " + absence_of(row, f.prompt)};
  Sample sample;
  sample.plain = true;
  sample.text = *text;
  return sample;
}

// A column of thoughts belongs to the only answer.
void add_thought(const Json& row, const RowFormat& f, Sample& sample) {
  const std::string column = kThoughtFields[0];
  const Json* value = value_at(row, column);
  if (!value || is_nothing(*value) || named_columns(f).contains(column)) return;
  Turn& answer = sample.turns.back();
  if (sample.turns.size() != 2 || !answer.thought.empty())
    throw Unusable{"'" + column +
                   "' is a column, but the row has several answers; put the thoughts into the messages"};
  answer.thought = text_of(*value, column, true);
  answer.thought_field = column;
}

// Returns the row's thinking flag, from the fields that verl and TRL use.
std::optional<bool> thinking_of(const Json& row, const RowFormat& f) {
  const std::string column = "enable_thinking", kwargs = "chat_template_kwargs";
  if (named_columns(f).contains(column)) return std::nullopt;
  std::optional<bool> thinks;
  if (const Json* value = value_at(row, column); value && *value != "") thinks = flag_of(*value, column);
  const Json* given = value_at(row, kwargs);
  if (!given || is_nothing(*given)) return thinks;
  const Json arguments = structure_of(*given, kwargs);
  if (!arguments.is_object()) throw Unusable{"'" + kwargs + "' is a list, not an object"};
  for (const auto& [name, value] : arguments.items()) {
    if (value.is_null()) continue;
    if (name != column)
      throw Unusable{"'" + name + "' in '" + kwargs + "' is not read; remove it or the row"};
    const bool flag = flag_of(value, kwargs + "." + column);
    if (thinks && *thinks != flag) throw Unusable{"'" + column + "' and '" + kwargs + "' differ"};
    thinks = flag;
  }
  return thinks;
}

// Reads the judgement of the last answer.
bool judgement_of(const Json& row, const RowFormat& f, const Sample& sample) {
  const Json* value = value_at(row, f.judgement);
  if (!value || *value == "")
    throw Unusable{"no judgement: column '" + f.judgement + "' " +
                   (value ? "is empty" : absence_of(row, f.judgement))};
  const Turn& answer = sample.turns.back();
  if (answer.thought.empty() && trim(answer.content).empty()) throw Unusable{"the judged answer is empty"};
  return flag_of(*value, f.judgement);
}

Sample convert(const Json& row, const RowFormat& format, Noted& noted) {
  if (!row.is_object()) throw Unusable{"a row is not a JSON object"};
  for (const std::string& column : format.media) {
    const auto found = row.find(column);
    if (found == row.end() || found->is_null() || found->empty() || *found == "") continue;
    throw Unusable{"'" + column + "' holds images, audio or video, which are not trained"};
  }
  check_row_fields(row, format, noted);
  if (format.kind == RowFormat::Kind::text) return convert_text(row, format);
  if (format.has_pairs()) {
    Sample sample = convert_preference(row, format, noted);
    sample.enable_thinking = thinking_of(row, format);
    return sample;
  }
  const bool pair = format.kind == RowFormat::Kind::alpaca || format.kind == RowFormat::Kind::pair;
  Sample sample = pair ? convert_pair(row, format, noted) : convert_messages(row, format, noted);
  add_thought(row, format, sample);
  if (format.is_judged()) sample.desirable = judgement_of(row, format, sample);
  sample.enable_thinking = thinking_of(row, format);
  return sample;
}

}  // namespace

std::optional<Sample> convert_row(const Json& row, const RowFormat& format, std::string* why,
                                  RowNotes* notes) {
  Noted noted;
  try {
    Sample sample = convert(row, format, noted);
    for (const std::string& note : noted) {
      if (notes) ++(*notes)[note];
    }
    return sample;
  } catch (const Unusable& unusable) {
    if (why) *why = unusable.why;
    return std::nullopt;
  }
}

}  // namespace octet::data
