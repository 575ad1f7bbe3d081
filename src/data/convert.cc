// From a row to a sample, as LLaMA-Factory's converters do it.
#include <algorithm>
#include <array>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/data/dataset.h"

namespace octet::data {
namespace {

// Value of a column as text; absent columns, null and other types give `fallback`.
std::string text_of(const Json& row, const std::string& column) {
  if (column.empty()) return "";
  const auto it = row.find(column);
  return it != row.end() && it->is_string() ? it->get<std::string>() : "";
}

// Tools come as a JSON text or as a list.
std::string tools_of(const Json& row, const std::string& column) {
  if (column.empty()) return "";
  const auto it = row.find(column);
  if (it == row.end() || it->is_null()) return "";
  return it->is_string() ? it->get<std::string>() : it->dump();
}

std::optional<Sample> refuse(std::string* why, std::string reason) {
  if (why) *why = std::move(reason);
  return std::nullopt;
}

std::optional<Sample> convert_alpaca(const Json& row, const RowFormat& f, std::string* why) {
  Sample sample;
  if (const auto history = f.history.empty() ? row.end() : row.find(f.history);
      history != row.end() && history->is_array()) {
    for (const Json& pair : *history) {
      if (!pair.is_array() || pair.size() != 2 || !pair[0].is_string() || !pair[1].is_string()) {
        return refuse(why, "'" + f.history + "' is not a list of [question, answer] pairs");
      }
      sample.turns.push_back({"user", pair[0].get<std::string>()});
      sample.turns.push_back({"assistant", pair[1].get<std::string>()});
    }
  }
  std::string question = text_of(row, f.prompt);
  const std::string query = text_of(row, f.query);
  if (!question.empty() && !query.empty()) question += "\n";
  question += query;
  sample.turns.push_back({"user", question});
  const auto response = f.response.empty() ? row.end() : row.find(f.response);
  if (response == row.end() || !response->is_string()) {
    return refuse(why, "no answer: column '" + f.response + "' is missing or not a text");
  }
  sample.turns.push_back({"assistant", response->get<std::string>()});
  sample.system = text_of(row, f.system);
  sample.tools = tools_of(row, f.tools);
  return sample;
}

// The calls of an OpenAI message, as the content of a function turn: a list of names with arguments. nullopt
// when it has none; `why` is set when they cannot be read.
std::optional<std::string> calls_of(const Json& message, std::string& why) {
  const auto calls = message.find("tool_calls");
  if (calls == message.end() || !calls->is_array() || calls->empty()) return std::nullopt;
  Json list = Json::array();
  for (const Json& call : *calls) {
    const Json* function = call.is_object() && call.contains("function") ? &call["function"] : &call;
    if (!function->is_object() || !function->contains("name") || !function->contains("arguments")) {
      why = "a call in 'tool_calls' has no name or no arguments";
      return std::nullopt;
    }
    Json entry{{"name", (*function)["name"]}, {"arguments", (*function)["arguments"]}};
    if (entry["arguments"].is_string()) {  // as OpenAI writes them: JSON inside of a text
      try {
        entry["arguments"] = parse_json(entry["arguments"].get<std::string>(), "tool_calls");
      } catch (const Error&) {
        why = "the arguments of a call in 'tool_calls' are not JSON";
        return std::nullopt;
      }
    }
    list.push_back(std::move(entry));
  }
  return list.dump();
}

// Of a conversation: longer ones fit no context, and cutting them to one would take for ever.
constexpr std::size_t kMostMessages = 20000;

std::optional<Sample> convert_messages(const Json& row, const RowFormat& f, std::string* why) {
  const auto list = row.find(f.messages);
  if (list == row.end() || !list->is_array())
    return refuse(why, "no list of messages in column '" + f.messages + "'");
  if (list->size() > kMostMessages)
    return refuse(why,
                  std::to_string(list->size()) + " messages, more than " + std::to_string(kMostMessages));
  Sample sample;
  sample.system = text_of(row, f.system);
  sample.tools = tools_of(row, f.tools);
  const std::array<std::pair<std::string, std::string>, 4> roles{{{f.user_tag, "user"},
                                                                  {f.observation_tag, "observation"},
                                                                  {f.assistant_tag, "assistant"},
                                                                  {f.function_tag, "function"}}};
  const bool openai = f.kind == RowFormat::Kind::openai;
  bool first = true;
  for (const Json& message : *list) {
    if (!message.is_object()) return refuse(why, "a message is not an object");
    const auto role = message.find(f.role_tag);
    if (role == message.end() || !role->is_string())
      return refuse(why, "a message has no '" + f.role_tag + "'");
    std::string tag = role->get<std::string>();
    std::string problem;
    const std::optional<std::string> calls = openai ? calls_of(message, problem) : std::nullopt;
    if (!problem.empty()) return refuse(why, problem);
    const auto content = message.find(f.content_tag);
    if (!calls && (content == message.end() || !content->is_string())) {
      return refuse(why, "a message has no text in '" + f.content_tag + "'");
    }
    std::string text = calls ? *calls : content->get<std::string>();
    if (std::exchange(first, false) && !f.system_tag.empty() && tag == f.system_tag) {
      sample.system = std::move(text);
      continue;
    }
    const auto known = std::ranges::find(roles, tag, &std::pair<std::string, std::string>::first);
    const bool asks = sample.turns.size() % 2 == 0;
    if (known == roles.end() || tag.empty()) return refuse(why, "unknown role '" + tag + "'");
    const bool is_question = known - roles.begin() < 2;
    const std::string& turn = calls && !is_question ? roles[3].second : known->second;
    // Answers of several tools to one message.
    if (openai && turn == "observation" && !asks && sample.turns.back().role == turn) {
      sample.turns.back().content += "\n</tool_response>\n<tool_response>\n" + text;
      continue;
    }
    if (is_question != asks) return refuse(why, "roles do not take turns: '" + tag + "' out of order");
    sample.turns.push_back({turn, std::move(text)});
  }
  if (sample.turns.empty()) return refuse(why, "no messages");
  if (sample.turns.size() % 2 != 0) return refuse(why, "the last question has no answer");
  return sample;
}

}  // namespace

std::optional<Sample> convert_row(const Json& row, const RowFormat& format, std::string* why) {
  if (!row.is_object()) return refuse(why, "a row is not a JSON object");
  for (const std::string& column : format.media) {
    const auto found = row.find(column);
    if (found == row.end() || found->is_null() || found->empty() || *found == "") continue;
    return refuse(why, "'" + column + "' holds something that a language model cannot read");
  }
  switch (format.kind) {
    case RowFormat::Kind::alpaca:
    case RowFormat::Kind::pair:
      return convert_alpaca(row, format, why);
    case RowFormat::Kind::sharegpt:
    case RowFormat::Kind::openai:
      return convert_messages(row, format, why);
    case RowFormat::Kind::text:
      break;
  }
  const auto text = row.find(format.prompt);
  if (text == row.end() || !text->is_string())
    return refuse(why, "no text in column '" + format.prompt + "'");
  Sample sample;
  sample.plain = true;
  sample.text = text->get<std::string>();
  return sample;
}

RowFormat detect_format(const Json& row, const std::string& where) {
  const auto has = [&row](const char* key) { return row.contains(key); };
  RowFormat f;
  f.media = {"images", "videos", "audios"};
  if (row.is_object()) {
    if (has("messages")) {
      f.kind = RowFormat::Kind::openai;
      f.messages = "messages";
      f.role_tag = "role", f.content_tag = "content", f.user_tag = "user", f.assistant_tag = "assistant";
      f.observation_tag = "tool", f.function_tag = "function_call";
      f.tools = "tools";
      return f;
    }
    if (has("conversations")) {
      f.kind = RowFormat::Kind::sharegpt;
      f.system = "system", f.tools = "tools";
      return f;
    }
    if (has("instruction")) {
      f.system = "system", f.history = "history";
      return f;
    }
    const std::array<std::array<const char*, 2>, 5> pairs{{{"prompt", "completion"},
                                                           {"prompt", "response"},
                                                           {"input", "target"},
                                                           {"user", "assistant"},
                                                           {"question", "answer"}}};
    for (const auto& [question, answer] : pairs) {
      if (!has(question) || !has(answer)) continue;
      f.kind = RowFormat::Kind::pair;
      f.prompt = question, f.response = answer, f.query = "", f.system = "system";
      return f;
    }
    if (has("text")) {
      f.kind = RowFormat::Kind::text;
      f.prompt = "text";
      return f;
    }
  }
  std::string found = row.is_object() ? "the keys" : row.type_name();
  if (row.is_object()) {
    for (const auto& [key, value] : row.items()) found += " '" + key + "'";
  }
  throw Error({.what = "the format of a data set is not recognised",
               .expected =
                   "rows with messages, conversations, instruction and output, prompt and completion, input "
                   "and target, or text",
               .found = found,
               .where = where,
               .fix = "describe its columns in dataset_info.json",
               .code = ExitCode::usage});
}

RowFormat format_of_columns(const Columns& columns, const Json& row) {
  RowFormat f;
  f.media = {"images", "videos", "audios"};
  f.system = "system";
  if (columns.messages.empty()) {
    f.kind = RowFormat::Kind::pair;
    f.prompt = columns.prompt, f.response = columns.response, f.query = "";
    return f;
  }
  // Messages are OpenAI's, or ShareGPT's where they say so.
  const auto list = row.is_object() ? row.find(columns.messages) : row.end();
  const bool listed = row.is_object() && list != row.end() && list->is_array() && !list->empty();
  const bool sharegpt = listed && list->front().is_object() && list->front().contains(f.role_tag) &&
                        !list->front().contains("role");
  f.kind = sharegpt ? RowFormat::Kind::sharegpt : RowFormat::Kind::openai;
  f.messages = columns.messages;
  f.tools = "tools";
  if (sharegpt) return f;
  f.system = "";
  f.role_tag = "role", f.content_tag = "content", f.user_tag = "user", f.assistant_tag = "assistant";
  f.observation_tag = "tool";
  return f;
}

RowFormat format_of_entry(const Json& entry, const std::string& name, const std::string& where) {
  const std::string place = where + ": " + name;
  const auto text = [&place](const Json& object, const char* key, const std::string& fallback) {
    return json_string(object, key, fallback, place);
  };
  RowFormat f;
  const std::string formatting = text(entry, "formatting", "alpaca");
  if (formatting == "sharegpt") {
    f.kind = RowFormat::Kind::sharegpt;
  } else if (formatting == "openai") {
    f.kind = RowFormat::Kind::openai;
  } else if (formatting != "alpaca") {
    throw Error({.what = "unknown formatting '" + formatting + "'",
                 .expected = "alpaca, sharegpt or openai",
                 .where = place,
                 .fix = "write one of these in dataset_info.json",
                 .code = ExitCode::usage});
  }
  if (json_bool(entry, "ranking", false, place)) {
    throw Error({.what = "a data set of preferences cannot be used for fine-tuning",
                 .where = place,
                 .fix = "choose a data set without \"ranking\": true",
                 .code = ExitCode::usage});
  }
  if (const auto columns = entry.find("columns"); columns != entry.end() && columns->is_object()) {
    f.prompt = text(*columns, "prompt", ""), f.query = text(*columns, "query", "");
    f.response = text(*columns, "response", ""), f.history = text(*columns, "history", "");
    f.messages = text(*columns, "messages", ""), f.system = text(*columns, "system", "");
    f.tools = text(*columns, "tools", "");
    for (const char* key : {"images", "videos", "audios"}) {
      if (const std::string column = text(*columns, key, ""); !column.empty()) f.media.push_back(column);
    }
    // A prompt without an answer is plain text: {"columns": {"prompt": "text"}}.
    if (f.kind == RowFormat::Kind::alpaca && f.response.empty()) f.kind = RowFormat::Kind::text;
  }
  if (const auto tags = entry.find("tags"); tags != entry.end() && tags->is_object()) {
    // As in LLaMA-Factory, roles that are not listed do not exist once tags are given.
    f.role_tag = text(*tags, "role_tag", f.role_tag),
    f.content_tag = text(*tags, "content_tag", f.content_tag);
    f.user_tag = text(*tags, "user_tag", ""), f.assistant_tag = text(*tags, "assistant_tag", "");
    f.observation_tag = text(*tags, "observation_tag", ""), f.function_tag = text(*tags, "function_tag", "");
    f.system_tag = text(*tags, "system_tag", "");
  }
  return f;
}

}  // namespace octet::data
