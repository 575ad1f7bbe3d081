// The format of rows: detected from column names, or described by dataset_info.json.
#include <algorithm>
#include <array>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/data/dataset.h"
#include "values.h"

namespace octet::data {
namespace {

// Returns the defaults for rows that dataset_info.json does not describe.
RowFormat recognised() {
  RowFormat f;
  f.media = {"images", "videos", "audios", "image", "video", "audio"};
  f.system = "system", f.tools = "tools";
  f.any_role = true;
  return f;
}

// Sets the format to messages in `column`: ShareGPT if the first message of `row` has its tag, otherwise
// OpenAI.
void read_messages(RowFormat& f, const Json& row, const std::string& column) {
  f.messages = column;
  Json list;
  if (const Json* value = value_at(row, column)) {
    try {
      list = structure_of(*value, column);
    } catch (const Unusable&) {
      // Reported when the row is converted.
    }
  }
  const bool listed = list.is_array() && !list.empty() && list.front().is_object();
  const bool sharegpt = listed ? list.front().contains(f.role_tag) && !list.front().contains("role")
                               : column == "conversations";
  f.kind = sharegpt ? RowFormat::Kind::sharegpt : RowFormat::Kind::openai;
  if (sharegpt) return;
  f.role_tag = "role", f.content_tag = "content", f.user_tag = "user", f.assistant_tag = "assistant";
  f.observation_tag = "tool";
}

// Returns whether the column "history" has earlier turns, and not a text. CSV files have an empty text for
// none.
bool is_history(const Json& row) {
  const Json* value = value_at(row, "history");
  if (!value || *value == "") return row.contains("history");
  try {
    return structure_of(*value, "history").is_array();
  } catch (const Unusable&) {
    return false;
  }
}

}  // namespace

RowFormat detect_format(const Json& row, const std::string& where) {
  const auto has = [&row](const char* key) { return row.contains(key); };
  RowFormat f = recognised();
  if (row.is_object()) {
    for (const char* column : {"messages", "conversations"}) {
      if (!has(column)) continue;
      read_messages(f, row, column);
      return f;
    }
    if (has("instruction")) {
      f.history = "history";
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
      f.prompt = question, f.response = answer, f.query = "";
      if (is_history(row)) f.history = "history";
      return f;
    }
    if (has("text")) {
      f.kind = RowFormat::Kind::text;
      f.prompt = "text", f.system = "", f.tools = "";
      return f;
    }
  }
  std::string found = row.is_object() ? "the keys" : row.type_name();
  if (row.is_object()) {
    for (const auto& [key, value] : row.items()) found += " '" + key + "'";
  }
  throw Error(
      {.what = "the format of a data set is not recognised",
       .expected = "rows with messages, conversations, instruction and output, prompt and completion, input "
                   "and target, or text",
       .found = found,
       .where = where,
       .fix = row.is_object() && row.contains("chosen") && row.contains("rejected")
                  ? "set stage: dpo or rm for pairs of answers, or describe the columns in dataset_info.json"
                  : "describe its columns in dataset_info.json",
       .code = ExitCode::usage});
}

RowFormat detect_pairs(const Json& row, const std::string& where) {
  RowFormat f = recognised();
  f.kind = RowFormat::Kind::pair;
  f.prompt = f.query = f.response = "";
  f.chosen = "chosen", f.rejected = "rejected";
  const auto has = [&row](const std::string& key) { return row.is_object() && row.contains(key); };
  if (has(f.chosen) && has(f.rejected)) {
    for (const char* column : {"messages", "conversations"}) {
      if (!has(column)) continue;
      read_messages(f, row, column);
      return f;
    }
    for (const char* column : {"instruction", "prompt", "question", "input", "user"}) {
      if (!has(column)) continue;
      f.prompt = column;
      if (f.prompt == "instruction") f.kind = RowFormat::Kind::alpaca, f.query = "input";
      if (is_history(row)) f.history = "history";
      return f;
    }
    if (is_message_list(row[f.chosen]) && is_message_list(row[f.rejected])) return f;
  }
  std::string found = row.is_object() ? "the keys" : row.type_name();
  if (row.is_object()) {
    for (const auto& [key, value] : row.items()) found += " '" + key + "'";
  }
  throw Error(
      {.what = "the rows of a data set are not pairs of answers, which stage: dpo and rm need",
       .expected = "the columns chosen and rejected, and a question in messages, conversations, "
                   "instruction, prompt, question or input",
       .found = found,
       .where = where,
       .fix =
           std::string("describe the columns in dataset_info.json with \"ranking\": true, or set stage: ") +
           (has("kto_tag") || has("label") ? "kto" : "sft"),
       .code = ExitCode::usage});
}

RowFormat detect_judged(const Json& row, const std::string& where) {
  const auto has = [&row](const std::string& key) { return row.is_object() && row.contains(key); };
  RowFormat f;
  for (const char* column : {"label", "kto_tag"}) {
    if (has(column)) f.judgement = column;
  }
  if (f.judgement.empty()) {
    std::string found = row.is_object() ? "the keys" : row.type_name();
    if (row.is_object()) {
      for (const auto& [key, value] : row.items()) found += " '" + key + "'";
    }
    throw Error(
        {.what = "the rows of a data set have no judged answers, which stage: kto needs",
         .expected = "a column kto_tag or label: true for a desirable answer, false for another",
         .found = found,
         .where = where,
         .fix = std::string(
                    "name the column as \"kto_tag\" in \"columns\" of dataset_info.json, or set stage: ") +
                (has("chosen") && has("rejected") ? "dpo or rm" : "sft"),
         .code = ExitCode::usage});
  }
  const std::string tag = f.judgement;
  f = recognised();
  const bool messages = has("messages") || has("conversations");
  for (const char* question : {"instruction", "prompt", "question", "input"}) {
    if (messages || !f.judgement.empty() || !has(question) || !has("completion")) continue;
    f.kind = RowFormat::Kind::pair;
    f.prompt = question, f.response = "completion", f.query = "";
    if (f.prompt == "instruction") f.kind = RowFormat::Kind::alpaca, f.query = "input";
    f.judgement = tag;
  }
  if (f.judgement.empty()) f = detect_format(row, where);
  f.judgement = tag;
  return f;
}

RowFormat format_of_columns(const Columns& columns, const Json& row, Answers answers) {
  RowFormat f = recognised();
  const bool pairs = answers == Answers::pairs;
  if (answers == Answers::judged)
    f.judgement = row.is_object() && row.contains("label") && !row.contains("kto_tag") ? "label" : "kto_tag";
  if (pairs) {
    f.rejected = "rejected";
    f.chosen = columns.response.empty() ? "chosen" : columns.response;
  }
  if (columns.messages.empty()) {
    f.kind = RowFormat::Kind::pair;
    f.prompt = columns.prompt, f.response = pairs ? "" : columns.response, f.query = "";
  } else {
    read_messages(f, row, columns.messages);
  }
  return f;
}

namespace {

using Names = std::vector<std::string>;

// Keys of an entry of dataset_info.json that are read or change nothing.
const Names kEntryKeys{"file_name",       "file_sha1",  "hf_hub_url",  "ms_hub_url", "om_hub_url",
                       "cloud_file_name", "script_url", "formatting",  "ranking",    "subset",
                       "split",           "folder",     "num_samples", "columns",    "tags",
                       "description",     "comment",    "license"};
const Names kColumnKeys{"prompt", "query", "response", "history", "messages",
                        "system", "tools", "images",   "videos",  "audios"};
const Names kPairKeys{"chosen", "rejected"};
const Names kJudgedKeys{"kto_tag"};
const Names kPreferenceKeys{"chosen", "rejected", "kto_tag"};
const Names kTagKeys{"role_tag",        "content_tag",  "user_tag",  "assistant_tag",
                     "observation_tag", "function_tag", "system_tag"};

bool has(const Names& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

[[noreturn]] void refuse_preferences(const std::string& found, const std::string& place, Answers answers) {
  const bool judged = found.starts_with("'kto_tag");
  throw Error({.what = answers == Answers::single
                           ? "a data set of preferences cannot be used for supervised fine-tuning"
                           : "a data set has preferences of another kind than its stage needs",
               .expected = answers == Answers::single  ? "rows with one answer each"
                           : answers == Answers::pairs ? "rows with a chosen and a rejected answer"
                                                       : "rows with one judged answer (\"kto_tag\")",
               .found = found,
               .where = place,
               .fix = "choose a data set without " + found + ", or set stage: " + (judged ? "kto" : "dpo"),
               .code = ExitCode::usage});
}

// Throws Error for an entry without judged answers.
void require_judged(const Json* columns, const std::string& place) {
  if (columns != nullptr && columns->contains("kto_tag")) return;
  throw Error({.what = "a data set has no judged answers, which stage: kto needs",
               .expected = "\"kto_tag\" in \"columns\"",
               .found = "no 'kto_tag' in \"columns\"",
               .where = place,
               .fix = "name the column that is true for desirable answers, or set stage: sft",
               .code = ExitCode::usage});
}

// Throws Error for an entry without pairs of answers.
void require_pairs(bool ranking, const Json* columns, const std::string& place) {
  const auto refuse = [&place](const std::string& found, const std::string& fix) {
    throw Error({.what = "a data set has no pairs of answers, which stage: dpo and rm need",
                 .expected = "\"ranking\": true, and \"chosen\" and \"rejected\" in \"columns\"",
                 .found = found,
                 .where = place,
                 .fix = fix,
                 .code = ExitCode::usage});
  };
  if (!ranking) refuse("no \"ranking\": true", "choose a data set of pairs, or set stage: sft");
  for (const std::string& column : kPairKeys) {
    if (columns == nullptr || !columns->contains(column))
      refuse("no '" + column + "' in \"columns\"", "name the column of the answers");
  }
}

// Throws Error for a key of "columns" or "tags" that is not in `known`: a misspelt column is not read.
void check_keys(const Json& object, const Names& known, const std::string& part, const std::string& place,
                Answers answers) {
  const Names& more = answers == Answers::pairs ? kPairKeys : kJudgedKeys;
  for (const auto& [key, value] : object.items()) {
    if (value.is_null() || has(known, key)) continue;
    if (part == "columns" && answers != Answers::single && has(more, key)) continue;
    if (part == "columns" && has(kPreferenceKeys, key))
      refuse_preferences("'" + key + "' in \"columns\"", place, answers);
    const std::string near = nearest_name(key, known);
    std::string all;
    for (const std::string& name : known) all += (all.empty() ? "" : ", ") + name;
    throw Error({.what = "unknown key '" + key + "' in \"" + part + "\" of a data set",
                 .expected = all,
                 .where = place,
                 .fix = near.empty() ? "remove the key" : "did you mean '" + near + "'?",
                 .code = ExitCode::usage});
  }
}

void warn_of_keys(const Json& entry, const std::string& place) {
  for (const auto& [key, value] : entry.items()) {
    if (has(kEntryKeys, key) || key.starts_with("_")) continue;
    const std::string near = nearest_name(key, kEntryKeys);
    log::warn(
        place + ": key '" + key + "' is not read" + (near.empty() ? "" : "; did you mean '" + near + "'?"),
        log::Importance::training);
  }
}

}  // namespace

RowFormat format_of_entry(const Json& entry, const std::string& name, const std::string& where,
                          Answers answers) {
  const bool pairs = answers == Answers::pairs;
  const std::string place = where + ": " + name;
  const auto text = [&place](const Json& object, const char* key, const std::string& fallback) {
    return json_string(object, key, fallback, place);
  };
  const auto object_of = [&](const char* key) {
    const Json* value = value_at(entry, key);
    if (value && !value->is_object()) {
      throw Error({.what = std::string("'") + key + "' of a data set cannot be used",
                   .expected = "an object: {\"prompt\": \"question\"}",
                   .found = kind_of(*value),
                   .where = place,
                   .fix = "write an object in dataset_info.json, or remove the key",
                   .code = ExitCode::usage});
    }
    return value;
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
  const bool ranking = json_bool(entry, "ranking", false, place);
  if (ranking && !pairs) refuse_preferences("\"ranking\": true", place, answers);
  if (pairs) require_pairs(ranking, object_of("columns"), place);
  if (answers == Answers::judged) require_judged(object_of("columns"), place);
  warn_of_keys(entry, place);
  if (const Json* columns = object_of("columns")) {
    check_keys(*columns, kColumnKeys, "columns", place, answers);
    f.prompt = text(*columns, "prompt", ""), f.query = text(*columns, "query", "");
    f.response = text(*columns, "response", ""), f.history = text(*columns, "history", "");
    f.messages = text(*columns, "messages", ""), f.system = text(*columns, "system", "");
    f.tools = text(*columns, "tools", "");
    for (const char* key : {"images", "videos", "audios"}) {
      if (const std::string column = text(*columns, key, ""); !column.empty()) f.media.push_back(column);
    }
    if (pairs) f.chosen = text(*columns, "chosen", ""), f.rejected = text(*columns, "rejected", "");
    if (answers == Answers::judged) f.judgement = text(*columns, "kto_tag", "");
    // A prompt without an answer is plain text: {"columns": {"prompt": "text"}}.
    const bool single = answers == Answers::single;
    if (f.kind == RowFormat::Kind::alpaca && f.response.empty() && single) f.kind = RowFormat::Kind::text;
  }
  if (const Json* tags = object_of("tags")) {
    check_keys(*tags, kTagKeys, "tags", place, answers);
    // As in LLaMA-Factory: if "tags" is given, roles that it does not list do not exist.
    f.role_tag = text(*tags, "role_tag", f.role_tag),
    f.content_tag = text(*tags, "content_tag", f.content_tag);
    f.user_tag = text(*tags, "user_tag", ""), f.assistant_tag = text(*tags, "assistant_tag", "");
    f.observation_tag = text(*tags, "observation_tag", ""), f.function_tag = text(*tags, "function_tag", "");
    f.system_tag = text(*tags, "system_tag", "");
  }
  return f;
}

}  // namespace octet::data
